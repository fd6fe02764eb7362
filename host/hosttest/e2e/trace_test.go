package e2e_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// collector receives traces.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string // guarded by mu
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if r.URL.Path != "/v1/traces" || r.Header.Get("X-Key") != "canary-of-the-collector" ||
			r.Header.Get("Content-Type") != "application/x-protobuf" || err != nil {
			t.Errorf("%s %v: %v", r.URL, r.Header, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.bodies = append(c.bodies, base64.StdEncoding.EncodeToString(body))
	}))
	t.Cleanup(c.Close)
	return c
}

// environ returns the environment of a host that sends its traces to the collector.
func (c *collector) environ() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_EXPORTER_OTLP_HEADERS=X-Key=canary-of-the-collector",
		"OTEL_SERVICE_NAME=tested", "OTEL_BSP_SCHEDULE_DELAY=20",
	}
}

// spanJudge is a Python program: it parses traces with OpenTelemetry's own definitions, and prints the spans.
const spanJudge = `
import base64, json, sys
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
for line in sys.stdin:
    for r in ExportTraceServiceRequest.FromString(base64.b64decode(line)).resource_spans:
        service = next(a.value.string_value for a in r.resource.attributes if a.key == "service.name")
        for s in r.scope_spans[0].spans:
            assert 0 < s.start_time_unix_nano <= s.end_time_unix_nano and len(s.trace_id) == 16 and len(s.span_id) == 8, s
            print(json.dumps({"Service": service, "Name": s.name, "Kind": s.kind, "Trace": s.trace_id.hex(), "ID": s.span_id.hex(), "Parent": s.parent_span_id.hex(),
                "Failed": s.status.code == 2, "Attrs": {a.key: a.value.string_value or str(a.value.int_value) for a in s.attributes}}))`

type span struct {
	Service, Name, Trace, ID, Parent string
	Kind                             int
	Failed                           bool
	Attrs                            map[string]string
}

// spans returns the spans that the collector has received.
func (c *collector) spans(t *testing.T) (all []span) {
	t.Helper()
	c.mu.Lock()
	text := strings.Join(c.bodies, "\n")
	c.mu.Unlock()
	judge := exec.CommandContext(t.Context(), filepath.Join(root, "testdata/peers/venv/bin/python"), "-c", spanJudge)
	judge.Stdin, judge.Stderr = strings.NewReader(text), os.Stderr
	for line := range strings.Lines(string(must.Get(judge.Output())(t))) {
		var s span
		must.OK(t, json.Unmarshal([]byte(line), &s))
		all = append(all, s)
	}
	return all
}

// named returns the only span of a service and a name, and of a trace unless that is "".
func named(t *testing.T, all []span, service, name, trace string) (found span) {
	t.Helper()
	n := 0
	for _, s := range all {
		if s.Service == service && s.Name == name && (trace == "" || s.Trace == trace) {
			n++
			found = s
		}
	}
	must.That(t, n == 1, "%d spans %q of %s in trace %q among %+v", n, name, service, trace, all)
	return found
}

const (
	someTrace  = "0123456789abcdef0123456789abcdef"
	otherTrace = "1123456789abcdef0123456789abcdef"
	someParent = "00-" + someTrace + "-0123456789abcdef-01"
)

// TestTraces: requests, and the calls that they make, are spans of the trace that the client names, also in the
// processes and MCP servers behind the host.
func TestTraces(t *testing.T) {
	c, dir := newCollector(t), workDir(t)
	env := ""
	for _, entry := range c.environ() {
		env += "\n      " + strings.Replace(entry, "=", ": ", 1)
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"),
		[]byte("mcpServers:\n  inner:\n    command: "+filepath.Join(dir,
			"a2e")+"\n    args: [mcp, serve]\n    env:"+env+"\n"), 0o600))
	cmd := command(t, dir, "./a2e", "--config", "c.yaml")
	cmd.Env = append(cmd.Env, append(c.environ(), "OTEL_SERVICE_NAME=outer")...)
	l := startCommand(t, cmd)
	correlated := func(id, tool, args, parent string) string {
		return strings.Replace(call(id, tool, args), "{", `{"correlation_id":"`+parent+`",`, 1)
	}
	l.send(`{"type":"handshake/req","id":"h","agent_id":"test","agent_caps":[]}`,
		correlated("1", "run_command", `{"command":["sh","-c","echo $TRACEPARENT"]}`, someParent),
		call("2", "none", `{}`),
		`{"type":"chain/req","id":"3","streaming":false,"nodes":[{"node_id":"a","kind":"tool","name":"echo","input_map":{"text":"input.t"}}],"initial_input":{"t":"canary-of-the-collector"}}`,
		correlated("4", "echo", `{"text":"not sampled"}`, "00-"+otherTrace+"-0123456789abcdef-00"),
		correlated("5", "inner__echo", `{"text":"far"}`, "00-2"+someTrace[1:]+"-0123456789abcdef-01"))
	answers := map[string]string{}
	for _, id := range []string{"h", "1", "2", "3", "4", "5"} {
		answers[id] = fmt.Sprint(l.answer(id))
	}
	hosttest.Eventually(t, "the spans", func() bool { // at its end the host sends waiting spans for half a second
		sent := fmt.Sprint(c.spans(t))
		return !slices.ContainsFunc([]string{
			"outer tool/call/req run_command", "outer tool/call/req none",
			"outer chain/req", "outer tool/call/req echo",
			"outer tool/call/req inner__echo", "outer tools/call echo", "tested tools/call echo",
		},
			func(name string) bool { return !strings.Contains(sent, "{"+name+" ") })
	})
	must.OK(t, l.stdin.Close())
	assert.Equal(t, l.exit(), 0, "the exit status; stderr: %s", l.stderr.String())
	all := c.spans(t)
	asked := named(t, all, "outer", "tool/call/req run_command", someTrace)
	assert.That(t, asked.Parent == "0123456789abcdef" && asked.Kind == 2 && !asked.Failed, "the request: %+v", asked)
	assert.Contains(t, answers["1"], "00-"+someTrace+"-"+asked.ID+"-01")
	refused := named(t, all, "outer", "tool/call/req none", "")
	assert.That(t, refused.Failed && refused.Attrs["error.type"] == "unknown_tool" && refused.Parent == "",
		"what was refused: %+v", refused)
	chain := named(t, all, "outer", "chain/req", "")
	node := named(t, all, "outer", "tool/call/req echo", chain.Trace)
	assert.That(t, node.Parent == chain.ID && node.Kind == 1, "the call of a chain: %+v in %+v", node, chain)
	far := named(t, all, "outer", "tool/call/req inner__echo", "2"+someTrace[1:])
	out := named(t, all, "outer", "tools/call echo", far.Trace)
	in := named(t, all, "tested", "tools/call echo", far.Trace)
	assert.That(t, out.Parent == far.ID && out.Kind == 3 && in.Parent == out.ID && in.Kind == 2,
		"the call of a server: %+v, %+v", out, in)
	for _, s := range all {
		assert.That(t, s.Trace != otherTrace, "a span of a trace that is not sampled: %+v", s)
		assert.That(t, !strings.Contains(fmt.Sprint(s), "canary"), "a secret, or an argument, in %+v", s)
	}
}

// TestTracesGoNowhere: a collector that is missing or hangs causes one warning, and delays neither requests nor the
// end.
func TestTracesGoNowhere(t *testing.T) {
	hang := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer slow.Close()
	defer close(hang)
	for endpoint, says := range map[string]string{
		"http://127.0.0.1:1": "cannot be sent", slow.URL: "cannot be sent",
		"nonsense": "must be an address", "": "",
	} {
		cmd := command(t, workDir(t), "./a2e")
		cmd.Env = append(cmd.Env, "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_BSP_SCHEDULE_DELAY=1")
		var lines strings.Builder
		lines.WriteString(`{"type":"handshake/req","id":"h","agent_id":"test","agent_caps":["tools"]}` + "\n")
		const n = 5000
		for i := range n {
			lines.WriteString(call(fmt.Sprint(i), "echo", `{"text":"x"}`) + "\n")
		}
		cmd.Stdin = strings.NewReader(lines.String())
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out := must.Get(cmd.Output())(t)
		assert.Equal(t, strings.Count(string(out), "tool/call/resp"), n, "answers with %q", endpoint)
		warnings := strings.Count(stderr.String(), "\n") - strings.Count(stderr.String(),
			"did not close cleanly") // the last calls on a loaded machine
		assert.That(t, warnings == min(len(says), 1) && strings.Contains(stderr.String(), says), "with %q it says %q",
			endpoint, stderr.String())
	}
}

// TestTracesOverHTTP: the requests of a session over HTTP are spans, too.
func TestTracesOverHTTP(t *testing.T) {
	c := newCollector(t)
	for _, entry := range c.environ() {
		name, value, _ := strings.Cut(entry, "=")
		t.Setenv(name, value)
	}
	w := serveWeb(t, "")
	w.session()
	w.send(`{"jsonrpc":"2.0","id":1,"method":"system.ping","params":{"_meta":{"traceparent":"` + someParent + `"}}}`)
	hosttest.Eventually(t, "a span", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.bodies) > 0
	})
	s := named(t, c.spans(t), "tested", "system.ping", someTrace)
	assert.That(t, s.Parent == "0123456789abcdef", "the span: %+v", s)
}
