package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/plugins/chains"
)

// graphOf returns the graph of a chain in YAML.
func graphOf(t testing.TB, text string) *chains.Graph {
	t.Helper()
	file := must.Get(chains.ParseFile("test.yaml", []byte(text)))(t)
	plugin := must.Get(chains.New("chains", chains.DefaultOptions(), host.Env{Workspace: ".", Log: zerolog.Nop()}))(t)
	graph := must.Get(plugin.Graph(t.Context(), file.Request))(t)
	return graph
}

func reportGraph(t testing.TB) *chains.Graph {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("..", "..", "testdata", "chains", "report.yaml")))(t)
	return graphOf(t, string(text))
}

func TestGraphAsText(t *testing.T) {
	t.Parallel()
	want := `flowchart TD
  n0["files<br/>tool glob"]
  n1{"any<br/>branch"}
  n2["nothing<br/>tool echo"]
  n3{{"search<br/>map"}}
  n4["grep<br/>tool grep"]
  n5[/"count<br/>proc wc"/]
  n6["uncounted<br/>tool echo"]
  n7["write<br/>tool write_file"]
  n0 --> n1
  n1 -->|false| n2
  n1 -->|true| n3
  n0 -.-> n3
  n3 ==>|each item| n4
  n3 --> n5
  n5 -. on error .-> n6
  n2 --> n7
  n5 --> n7
  n6 --> n7
`
	assert.Equal(t, mermaidOf(reportGraph(t)), want)
	odd := graphOf(t, "nodes:\n- {node_id: \"a\\\"]#<script>&`\\\\ \\e[31m\\n\", kind: branch, condition: input.x, true_node: b, false_node: b}\n- {node_id: b, kind: skill, name: s}\n")
	if got, want := mermaidOf(odd), `  n0{"a#quot;]#35;#lt;script#gt;#amp;#96;#92; #92;x1b[31m<br/>branch"}`+"\n  n1([\"b<br/>skill s\"])\n  n0 -->|true, false| n1\n"; !strings.HasSuffix(got, want) {
		t.Errorf("odd names:\n%s\nshould end in\n%s", got, want)
	}
	want = "digraph chain {\n" + `  n0 [label="a\"]#<script>&` + "`" + `\\ \\x1b[31m\nbranch", shape=diamond];
  n1 [label="b\nskill s", shape=box, style=rounded];
  n0 -> n1 [label="true, false"];
}
`
	assert.Equal(t, dotOf(odd), want, "DOT")
}

// TestGraphOfLoops: a graph shows the way back of a loop, the time of a wait, and the node that handles a failure.
func TestGraphOfLoops(t *testing.T) {
	t.Parallel()
	graph := graphOf(t, `nodes:
- {node_id: poll, kind: while, condition: "!last.ready", max_iterations: 9, catch: late, nodes: [{node_id: ask, kind: tool, name: echo}, {node_id: pause, kind: wait, seconds: 2, deps: [ask]}]}
- {node_id: late, kind: wait, until: "2030-01-31T08:00:00Z"}
`)
	want := `flowchart TD
  n0[/"poll<br/>while !last.ready"\]
  n1>"late<br/>wait until 2030-01-31T08:00:00Z"]
  n2["poll/ask<br/>tool echo"]
  n3>"poll/pause<br/>wait seconds 2"]
  n0 -. on error .-> n1
  n2 -.-> n3
  n0 ==>|each iteration| n2
  n3 -. again .-> n0
`
	assert.Equal(t, mermaidOf(graph), strings.ReplaceAll(want, `\\`, `\`))
}

// told makes an event. more is JSON that replaces its usual members.
func told(t testing.TB, node, phase, more string) *chainEvent {
	t.Helper()
	e := new(chainEvent)
	e.NodeID, e.Phase, e.Data.DurationMS = node, phase, 1234.5
	must.OK(t, json.Unmarshal([]byte(cmp.Or(more, "{}")), e))
	return e
}

// screen returns what a terminal shows after it has got a text.
func screen(text string) string {
	var lines []string
	row := 0
	for _, part := range regexp.MustCompile(`\x1b\[\d+A|\r\x1b\[2K[^\n]*\n`).FindAllString(text, -1) {
		var up int
		if n, _ := fmt.Sscanf(part, "\x1b[%dA", &up); n == 1 && !strings.Contains(part, "\n") {
			row -= up
			continue
		}
		line := regexp.MustCompile(`\x1b\[\d+[mK]|[\r\n]`).ReplaceAllString(part, "")
		for len(lines) <= row {
			lines = append(lines, "")
		}
		lines[row] = strings.TrimRight(line, " ")
		row++
	}
	return strings.Join(lines, "\n")
}

func TestLiveChain(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	b := newBoard(&out, func() time.Time { now = now.Add(50 * time.Millisecond); return now }, 60)
	l := newLiveChain(b, reportGraph(t), 2)
	for _, e := range []*chainEvent{
		told(t, "files", "start", ""), told(t, "count", "start", ""), told(t, "files", "done", ""),
		told(t, "count", "error", ""), told(t, "any", "done", ""),
		told(t, "nothing", "skip", ""), told(t, "search", "start", ""), told(t, "grep", "done",
			`{"data":{"map":"search","index":0}}`),
		told(t, "grep", "error", `{"data":{"map":"search","index":1},"error":"no"}`), told(t, "write", "start", ""),
		told(t, "write", "retry", `{"data":{"attempt":1,"max_attempts":3,"pause_ms":1500},"error":"no \u001b[2Jsuch file in a folder with a very long name"}`),
		told(t, "unknown", "done", ""), told(t, "unknown/inner", "done", ""), told(t, "uncounted", "start", ""),
	} {
		b.change(func() { l.event(e) })
	}
	b.close()
	got := regexp.MustCompile(`\b\d+(\.\d+)?m?s\b`).ReplaceAllString(screen(out.String()), "1s")
	want := `▶ search  1s  map  2 items
▶ write  1s  tool write_file  attempt 1 of 3 failed, aga…
2 of 7 nodes done, 3 running, 1 skipped, 1 failed, 1s`
	assert.Equal(t, got, want)
}

func TestPlainChain(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	for _, m := range []*chainEvent{
		told(t, "a", "start", ""), told(t, "a", "done", ""), told(t, "b", "skip", ""),
		told(t, "i", "done", `{"data":{"map":"m","index":3}}`), told(t, "i", "error",
			`{"data":{"map":"m","index":4,"duration_ms":2},"error":"no\u001b[2J"}`),
		told(t, "r", "retry", `{"data":{"attempt":1,"max_attempts":3,"pause_ms":1500},"error":"busy"}`),
		told(t, "l", "iteration", `{"data":{"iteration":2}}`), told(t, "k", "cached", ""),
	} {
		out.WriteString(m.line())
	}
	want := "done   a  1.23s\nskip   b\nerror  i 4  2ms  no\\x1b[2J\nretry  r  attempt 1 of 3 failed, again in " +
		"1.5s: busy\nloop   l  iteration 2\ncached k  cached\n"
	assert.Equal(t, out.String(), want)
}
