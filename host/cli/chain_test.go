package cli

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"a2e/plugins/chains"
)

// graphOf gives the graph of a chain in YAML.
func graphOf(t testing.TB, text string) *chains.Graph {
	t.Helper()
	file, err := chains.ParseFile("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	plugin, err := chains.New("chains", chains.DefaultOptions(), chains.Env{Workspace: ".", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	graph, err := plugin.Graph(t.Context(), file.Request)
	if err != nil {
		t.Fatal(err)
	}
	return graph
}

func reportGraph(t testing.TB) *chains.Graph {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "chains", "report.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return graphOf(t, string(text))
}

func TestMermaid(t *testing.T) {
	var b strings.Builder
	if err := writeMermaid(&b, reportGraph(t)); err != nil {
		t.Fatal(err)
	}
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
	if b.String() != want {
		t.Errorf("it writes\n%s\nshould be\n%s", b.String(), want)
	}
	b.Reset()
	odd := "nodes:\n- {node_id: \"a\\\"]#<script>&`\\\\ \\e[31m\\n\", kind: branch, condition: input.x, true_node: b, false_node: b}\n- {node_id: b, kind: skill, name: s}\n"
	if err := writeMermaid(&b, graphOf(t, odd)); err != nil {
		t.Fatal(err)
	}
	if want := `  n0{"a#quot;]#35;#lt;script#gt;#amp;#96;#92; #92;x1b[31m<br/>branch"}` + "\n  n1([\"b<br/>skill s\"])\n  n0 -->|true, false| n1\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("odd names:\n%s\nshould end in\n%s", b.String(), want)
	}
}

// parsedSVG checks that a picture is XML without numbers that are none.
func parsedSVG(t testing.TB, text string) {
	t.Helper()
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Errorf("numbers that are none in %.2000s", text)
	}
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in %.2000s", err, text)
		}
	}
}

func TestChainSVG(t *testing.T) {
	var b strings.Builder
	if err := writeChainSVG(&b, "Chain <report>", reportGraph(t)); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	parsedSVG(t, text)
	for _, want := range []string{"Chain &lt;report&gt;", ">files<", ">tool glob<", ">true<", ">false<", ">each item<", ">on error<"} {
		if !strings.Contains(text, want) {
			t.Errorf("the picture lacks %s", want)
		}
	}
	if boxes := strings.Count(text, "<g><title>"); boxes != 8 {
		t.Errorf("%d boxes, should be 8", boxes)
	}
	if arrows := strings.Count(text, "marker-end"); arrows != 10 {
		t.Errorf("%d arrows, should be 10", arrows)
	}
}

// Whatever the graph, each node stands below those that it waits for, and nothing in a
// layer overlaps.
func TestLayout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "nodes")
		g := &chains.Graph{}
		for i := range n {
			g.Nodes = append(g.Nodes, chains.GraphNode{ID: fmt.Sprint("n", i), Kind: chains.KindTool})
		}
		for range rapid.IntRange(0, 2*n).Draw(t, "edges") {
			if n < 2 {
				break
			}
			from := rapid.IntRange(0, n-2).Draw(t, "from")
			g.Edges = append(g.Edges, chains.GraphEdge{From: from, To: rapid.IntRange(from+1, n-1).Draw(t, "to"), Kind: chains.EdgeNext})
		}
		l := arrange(g, func(i int) float64 { return boxLeast + float64(i%7)*20 })
		for _, e := range g.Edges {
			if l.nodes[e.From].layer >= l.nodes[e.To].layer {
				t.Fatalf("node %d in layer %d does not stand below %d in layer %d", e.To, l.nodes[e.To].layer, e.From, l.nodes[e.From].layer)
			}
		}
		for _, layer := range l.layers {
			for i, p := range layer {
				if math.IsNaN(p.x) || p.x-p.width/2 < -0.01 || p.x+p.width/2 > l.width+0.01 {
					t.Fatalf("a place at %g is outside of 0 to %g", p.x, l.width)
				}
				if i > 0 && layer[i-1].x+layer[i-1].width/2 > p.x-p.width/2-nodeGap+0.01 {
					t.Fatalf("places at %g and %g overlap", layer[i-1].x, p.x)
				}
			}
		}
	})
}

func TestLayoutOfLargeChains(t *testing.T) {
	for _, span := range []int{1, 7, 997} {
		g := &chains.Graph{}
		for i := range maxDrawn {
			g.Nodes = append(g.Nodes, chains.GraphNode{ID: fmt.Sprint("n", i), Kind: chains.KindTool, Name: "echo"})
			if i > 0 {
				g.Edges = append(g.Edges, chains.GraphEdge{From: i - 1, To: i, Kind: chains.EdgeNext}, chains.GraphEdge{From: max(0, i-1-span), To: i, Kind: chains.EdgeData})
			}
		}
		var b strings.Builder
		if err := writeChainSVG(&b, "large", g); err != nil {
			t.Fatal(err)
		}
		if b.Len() > 16<<20 {
			t.Errorf("a picture of %d bytes", b.Len())
		}
	}
}

// told makes an event; what of it differs from the usual one is in more.
func told(t testing.TB, node, phase, more string) *chainEvent {
	t.Helper()
	e := new(chainEvent)
	e.NodeID, e.Phase, e.Data.DurationMS = node, phase, 1234.5
	if err := json.Unmarshal([]byte(cmp.Or(more, "{}")), e); err != nil {
		t.Fatal(err)
	}
	return e
}

// screen plays what was written to a terminal, and gives what it shows.
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
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	l := drawnChain(&out, reportGraph(t), func() time.Time { now = now.Add(50 * time.Millisecond); return now }, 60, 20)
	l.event(told(t, "files", "start", ""))
	l.event(told(t, "files", "done", ""))
	l.event(told(t, "any", "done", ""))
	l.event(told(t, "nothing", "skip", ""))
	l.event(told(t, "search", "start", ""))
	l.event(told(t, "grep", "done", `{"data":{"map":"search","index":0}}`))
	l.event(told(t, "grep", "error", `{"data":{"map":"search","index":1},"error":"no \u001b[2Jsuch file in a folder with a very long name"}`))
	l.event(told(t, "unknown", "done", ""))
	l.event(told(t, "unknown/inner", "done", ""))
	l.close()
	want := `✓ files      1.23s     tool glob
✓ any        1.23s     branch
– nothing    skipped   tool echo
▶ search     500ms     map  2 items, 1 failed  item 1: no …
· count                proc wc
· uncounted            tool echo
· write                tool write_file
2 of 7 nodes done, 1 running, 1 skipped, 1s`
	got := regexp.MustCompile(`(▶ search {5})\S+ +`).ReplaceAllString(screen(out.String()), "${1}500ms     ")
	got = regexp.MustCompile(`skipped, \S+$`).ReplaceAllString(got, "skipped, 1s")
	if got != want {
		t.Errorf("it shows\n%s\nshould be\n%s", got, want)
	}
}

// Where not all nodes fit, those that matter are shown, in the order of the chain.
func TestLiveChainThatIsLong(t *testing.T) {
	text := "nodes:\n"
	for i := range 100 {
		text += fmt.Sprintf("- {node_id: n%02d, kind: tool, name: echo}\n", i)
	}
	var out bytes.Buffer
	l := drawnChain(&out, graphOf(t, text), time.Now, 80, 5)
	for i := range 50 {
		l.event(told(t, fmt.Sprintf("n%02d", i), "done", ""))
	}
	l.event(told(t, "n03", "error", ""))
	l.event(told(t, "n70", "start", ""))
	l.event(told(t, "n99", "start", ""))
	l.close()
	ids := regexp.MustCompile(`n\d\d`).FindAllString(screen(out.String()), -1)
	if want := []string{"n03", "n50", "n51", "n70", "n99"}; !slices.Equal(ids, want) {
		t.Errorf("it shows %v, should show %v", ids, want)
	}
}

func TestPlainChain(t *testing.T) {
	var out bytes.Buffer
	p := &plainChain{w: &out}
	for _, m := range []*chainEvent{
		told(t, "a", "start", ""), told(t, "a", "done", ""), told(t, "b", "skip", ""),
		told(t, "i", "done", `{"data":{"map":"m","index":3}}`), told(t, "i", "error", `{"data":{"map":"m","index":4,"duration_ms":2},"error":"no\u001b[2J"}`),
	} {
		p.event(m)
	}
	if want := "done   a  1.23s\nskip   b\nerror  i 4  2ms  no\\x1b[2J\n"; out.String() != want {
		t.Errorf("it writes\n%s\nshould be\n%s", out.String(), want)
	}
}
