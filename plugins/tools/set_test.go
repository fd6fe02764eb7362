package tools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// rack is a plugin of another capability that also has tools.
type rack struct{ *Set }

func newRack(t testing.TB, o SetOptions, all ...Tool) *rack {
	t.Helper()
	s := NewSet(o)
	must.OK(t, s.Replace(all))
	return &rack{s}
}

func (r *rack) Info() host.PluginInfo {
	return host.PluginInfo{
		Name: r.name, Capability: protocol.CapToolkits,
		Also: []protocol.Capability{protocol.CapTools},
	}
}

func (r *rack) Routes() []host.Route {
	return append(r.Set.Routes(),
		host.Handle(protocol.TypeToolkitListReq, func(context.Context, *protocol.ToolkitListRequest,
			host.Emitter,
		) (*protocol.ToolkitListResponse, error) {
			return &protocol.ToolkitListResponse{}, nil
		}),
		host.Handle(protocol.TypeToolkitConfigureReq, func(_ context.Context, req *protocol.ToolkitConfigureRequest,
			_ host.Emitter,
		) (*protocol.ToolkitConfigureResponse, error) {
			return &protocol.ToolkitConfigureResponse{ToolkitName: req.ToolkitName, Status: "ok"}, nil
		}))
}

// kit returns a tool of a toolkit.
func kit(name string, out Outcome, ps ...protocol.ToolParameter) Tool {
	t := gives(name, out)
	t.Kind, t.Def.Toolkit, t.Def.InputParameters = KindToolkit, new("kit"), ps
	return t
}

func TestSetContract(t *testing.T) {
	checked := kit("checked", Outcome{})
	checked.Check = func(args protocol.Object) error {
		if _, ok := args.Get("no"); ok {
			return protocol.Violation(protocol.FieldError{Path: "/arguments/no", Message: "is not for this tool"})
		}
		return nil
	}
	checked.Def.InputParameters = []protocol.ToolParameter{{
		Name: "odd",
		Type: "string|null",
	}} // the tool's own Check reads this type
	withheld := kit("withheld", Outcome{})
	withheld.Denied = "is withheld: it has changed"
	call := func(name, args string, code protocol.ErrorCode) hosttest.Sample {
		return hosttest.Sample{
			Name: name + args, Type: protocol.TypeToolCallReq, Code: code,
			Fields: fmt.Sprintf(`{"session_id":"","tool_name":%q,"arguments":%s,"correlation_id":"c","streaming":false,"timeout":30}`, name, args),
		}
	}
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		return newRack(t, SetOptions{Name: "kits", StateDir: t.TempDir()},
			checked, withheld, kit("plain", Outcome{Data: jsontext.Value(`{ "a": [1] }`)}, par("a", "string")))
	}, []hosttest.Sample{
		{Type: protocol.TypeToolkitListReq, Fields: `{"filter_kind":"","filter_tags":[]}`},
		{Type: protocol.TypeToolkitConfigureReq, Fields: `{"session_id":"","toolkit_name":"k","config":{}}`},
		{Type: protocol.TypeToolListReq, Fields: `{"filter_kind":"toolkit","filter_tags":[],"query":"plain","include_deferred":true}`},
		call("plain", `{"a":"x"}`, ""),
		call("plain", `{"b":1}`, protocol.CodeSchemaViolation),
		call("checked", `{"odd":null}`, ""),
		call("checked", `{"no":1}`, protocol.CodeSchemaViolation),
		call("withheld", `{}`, protocol.CodeToolDenied),
		call("nothing", `{}`, protocol.CodeUnknownTool),
	})
}

// TestAwait: a list waits for all tools that are still loading. A call waits only for the tool that it names, or for
// none if it names none.
func TestAwait(t *testing.T) {
	var waits []string
	set := NewSet(SetOptions{Name: "kits", Await: func(_ context.Context, tool string) error {
		waits = append(waits, tool)
		return nil
	}})
	for _, name := range []string{"", "srv__a"} {
		_, err := set.call(t.Context(), &protocol.ToolCallRequest{ToolName: name}, silent{})
		assert.That(t, err != nil && strings.Contains(err.Error(), fmt.Sprintf("unknown tool %q", name)), "%q: %v",
			name, err)
	}
	must.Get(set.list(t.Context(), &protocol.ToolListRequest{}, silent{}))(t)
	assert.Equal(t, fmt.Sprintf("%q", waits), `["srv__a" ""]`, "what was waited for")
}

// TestReplace: new content is there for the next request, and wrong content changes nothing.
func TestReplace(t *testing.T) {
	set := NewSet(SetOptions{Name: "kits"})
	content := func() string {
		var seen []string
		for _, query := range []string{"", "ship"} {
			resp := must.Get(set.list(t.Context(), &protocol.ToolListRequest{Query: query}, silent{}))(t)
			for _, def := range resp.Tools {
				seen = append(seen, def.Name)
			}
			seen = append(seen, "|")
		}
		for _, name := range []string{"ship_a", "ship_b", "ship_c"} {
			if _, ok := set.DescribeTool(name); ok {
				seen = append(seen, name)
			}
			_, err := set.call(t.Context(), &protocol.ToolCallRequest{ToolName: name}, silent{})
			if e, ok := errors.AsType[*protocol.Error](err); ok {
				seen = append(seen, string(e.Code), e.Message)
			}
		}
		return strings.Join(seen, " ")
	}
	none := content()
	if want := `| | unknown_tool unknown tool "ship_a" unknown_tool unknown tool "ship_b" unknown_tool unknown tool "ship_c"`; none != want {
		t.Fatalf("a new set: %s", none)
	}
	withheld := kit("ship_c", Outcome{})
	withheld.Denied, withheld.Call = "is withheld", nil
	must.OK(t, set.Replace([]Tool{kit("ship_b", Outcome{}), withheld, kit("ship_a", Outcome{})}))
	full := content()
	if want := `ship_a ship_b | ship_a ship_b | ship_a ship_b tool_denied tool "ship_c" is withheld`; full != want {
		t.Errorf("got  %s\nwant %s", full, want)
	}
	idle := kit("idle", Outcome{})
	idle.Call = nil
	for _, tc := range []struct {
		wrong []Tool
		want  string
	}{
		{[]Tool{kit("one", Outcome{}), kit("", Outcome{})}, `plugin "kits": tool "": a tool needs a name`},
		{
			[]Tool{kit("one", Outcome{}), kit("one", Outcome{})},
			`plugin "kits": tool "one": the name is taken by another tool of this plugin`,
		},
		{
			[]Tool{kit("two", Outcome{}, par("a", "text"))},
			`plugin "kits": tool "two": parameter "a": unknown type "text"`,
		},
		{[]Tool{idle}, `plugin "kits": tool "idle": nothing runs it`},
	} {
		if err := set.Replace(tc.wrong); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("got %v, want %s", err, tc.want)
		}
		now := content()
		assert.That(t, now == full, "%s: the content is now %s", tc.want, now)
	}
	if err := set.Replace(nil); err != nil || content() != none {
		t.Errorf("emptied: %v, %s", err, content())
	}
}

// TestSetsShareTheCapability: a name that one plugin does not have may belong to another plugin. A refusal lists the
// names of all plugins.
func TestSetsShareTheCapability(t *testing.T) {
	builtin, err := New("mytools", Options{}, host.Env{Workspace: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	book := &ledger{}
	long := kit("long", Outcome{Data: map[string]string{"text": strings.Repeat("x", 5000)}})
	broken := kit("broken", Outcome{Data: []int{1}, Failed: true, Failure: "it broke", ExitCode: new(3)})
	empty := made("empty", func(context.Context, protocol.Object, host.Emitter) (*Outcome, error) { return nil, nil })
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{
		newRack(t, SetOptions{Name: "one", MaxOutputBytes: 1000, StateDir: state}, long, broken),
		newRack(t, SetOptions{Name: "two"}, kit("other", Outcome{}), empty), builtin, book,
	}})
	p.Handshake(protocol.CapTools)
	call := func(name string) hosttest.Message {
		return p.Call(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":%q,"arguments":{},"correlation_id":"c"}`,
			name))
	}
	for _, name := range []string{"other", "list_dir"} {
		if m := call(name); m.Get("/data/success") != "true" {
			t.Errorf("%s: %s", name, m.Line)
		}
	}
	if m := call("empty"); m.Code != protocol.CodeToolError || m.Get("/message") != `tool "empty" gave no result` {
		t.Errorf("%s", m.Line)
	}
	if m := call("broken"); m.Get("/data/success") != "false" || m.Get("/data/error") != "it broke" ||
		m.Get("/data/exit_code") != "3" || m.Get("/data/data/0") != "1" {
		t.Errorf("%s", m.Line)
	}
	if last, n := book.last(); last != "tool broken c false" || n != 4 {
		t.Errorf("%d calls were counted, the last as %s", n, last)
	}
	m := call("long")
	whole, err := os.ReadFile(m.Get("/data/data/spilled"))
	if err != nil || !strings.HasPrefix(m.Get("/data/data/spilled"), state) || !strings.Contains(string(whole),
		strings.Repeat("x", 5000)) {
		t.Errorf("%d bytes are kept, %v: %s", len(whole), err, m.Line)
	}
	if n := len(m.Get("/data/data/text")); n < 500 || n > 1000 || m.Get("/data/truncated") != "true" {
		t.Errorf("%d bytes of output: %s", n, m.Line)
	}
	var refusal protocol.Error
	call("nothing").Decode(t, &refusal)
	known := fmt.Sprint(refusal.Detail["known"])
	assert.That(t, refusal.Code == protocol.CodeUnknownTool && strings.Contains(known, "broken") &&
		strings.Contains(known, "other") && strings.Contains(known, "read_file"), "%+v", refusal)
}

// TestSetCallsRunAside: a call of a set's tool does not keep later requests waiting, and the tool's own time limit
// holds.
func TestSetCallsRunAside(t *testing.T) {
	asked, done := make(chan struct{}), make(chan struct{})
	slow := made("slow", func(context.Context, protocol.Object, host.Emitter) (*Outcome, error) {
		close(asked)
		<-done
		return &Outcome{}, nil
	})
	late := waits("late", 20*time.Millisecond)
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{newRack(t, SetOptions{Name: "one"}, slow, late)}})
	p.Handshake(protocol.CapTools)
	id := p.Go(protocol.TypeToolCallReq, `{"tool_name":"slow","arguments":{}}`)
	<-asked
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"late","arguments":{}}`, protocol.CodeTimeout,
		"its own limit of 20ms")
	close(done)
	m := p.Answer(id)
	assert.That(t, m.Get("/data/success") == "true", "%s", m.Line)
}

// TestFileToolsOfAnotherFolder: FileTools returns the file tools of the given folder.
func TestFileToolsOfAnotherFolder(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"a.txt": "here"})
	r := newRack(t, SetOptions{Name: "one"}, FileTools(w.files.root, 0, nil, func() *host.Services { return nil })...)
	var names []string
	for name, e := range r.registry().tools {
		names = append(names, name)
		assert.That(t, !e.quick, "%s would run on the reading goroutine", name)
	}
	slices.Sort(names)
	got := strings.Join(names, " ")
	assert.That(t, got == "edit_file glob grep list_dir read_file write_file", "the tools are %s", got)
	resp := must.Get(r.call(t.Context(), &protocol.ToolCallRequest{
		ToolName:  "read_file",
		Arguments: parsed(t, `{"path":"a.txt"}`),
	}, silent{}))(t)
	res, _, err := resp.ToolResult()
	assert.That(t, err == nil && strings.Contains(string(res.Data), "here"), "%+v, %v", res, err)
}

// TestCallAllocations: a call of echo is on the fast path: the parts that all tools share add no allocation to it.
func TestCallAllocations(t *testing.T) {
	p := withTools(t, Options{}, echoTool())
	req := &protocol.ToolCallRequest{ToolName: "echo", Arguments: parsed(t, `{"text":"x"}`)}
	var dst []byte
	n := testing.AllocsPerRun(200, func() {
		resp, err := p.call(t.Context(), req, silent{})
		if err != nil {
			t.Fatal(err)
		}
		if dst, err = protocol.AppendJSON(dst[:0], resp); err != nil {
			t.Fatal(err)
		}
	})
	if n > 4 { // the outcome, its data twice as an interface, and the answer
		t.Errorf("%v allocations", n)
	}
}

// ledger is a plugin that counts calls and has weights for tools.
type ledger struct {
	weights map[string]float64

	mu    sync.Mutex
	calls []host.CallOutcome // guarded by mu
}

func (l *ledger) Info() host.PluginInfo {
	return host.PluginInfo{Name: "ledger", Capability: protocol.CapLearning}
}
func (l *ledger) Routes() []host.Route        { return nil }
func (l *ledger) Close(context.Context) error { return nil }

func (l *ledger) CountCall(c host.CallOutcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}

func (l *ledger) Weight(kind, component string) float64 {
	if w, ok := l.weights[component]; ok && kind == host.KindTool {
		return w
	}
	return 1
}

// last returns the last recorded call as text, and the number of all calls.
func (l *ledger) last() (string, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.calls) == 0 {
		return "", 0
	}
	c := l.calls[len(l.calls)-1]
	return fmt.Sprintf("%s %s %s %t", c.Kind, c.Component, c.Correlation, c.Success), len(l.calls)
}

// TestCallsAreRecorded: each call that ran is recorded once, with its result. A call that was refused before, or
// cancelled by the agent, tells nothing about a tool and is not recorded.
func TestCallsAreRecorded(t *testing.T) {
	p := must.Get(New("mytools", Options{Deny: []string{"write_file"}}, host.Env{Workspace: t.TempDir()}))(t)
	book := &ledger{}
	pair := hosttest.New(t, host.Options{Plugins: []host.Plugin{p, book}})
	pair.Handshake()
	n := 0
	for _, c := range []struct{ fields, want string }{
		{`{"tool_name":"echo","arguments":{"text":"x"},"correlation_id":"c1"}`, "tool echo c1 true"},
		{`{"tool_name":"read_file","arguments":{"path":"none"},"correlation_id":"c2"}`, "tool read_file c2 false"},
		{
			`{"tool_name":"run_command","arguments":{"command":["sh","-c","exit 1"]},"correlation_id":"c3"}`,
			"tool run_command c3 false",
		},
		{
			`{"tool_name":"run_command","arguments":{"command":["sleep","60"]},"correlation_id":"c4","timeout":1}`,
			"tool run_command c4 false",
		},
		{`{"tool_name":"echo","arguments":{}}`, ""},
		{`{"tool_name":"ecko","arguments":{"text":"x"}}`, ""},
		{`{"tool_name":"write_file","arguments":{"path":"a","content":"b"}}`, ""},
	} {
		pair.Call(protocol.TypeToolCallReq, c.fields)
		if c.want != "" {
			n++
		}
		hosttest.Eventually(t, "it is counted", func() bool {
			_,
				count := book.last()
			return count == n
		}) // a call that timed out is answered before it is recorded
		if got, _ := book.last(); c.want != "" && got != c.want {
			t.Errorf("%s: the last call was counted as %q", c.fields, got)
		}
	}
	id := pair.Go(protocol.TypeToolCallReq, `{"tool_name":"run_command","arguments":{"command":["sh","-c","echo up; exec sleep 60"]},"streaming":true}`)
	pair.Event(id)
	pair.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	m := pair.Answer(id)
	must.That(t, m.Code == protocol.CodeCancelled, "answered by %s", m)
	pair.Close() // waits until the handler has ended
	if got, count := book.last(); count != n {
		t.Errorf("a cancelled call was counted: %s", got)
	}
}

// TestSearchBreaksTiesByWeight: tools that match a search equally are sorted by weight, even tools of different
// plugins.
func TestSearchBreaksTiesByWeight(t *testing.T) {
	ship := func(name string) Tool {
		return Tool{
			Def: protocol.ToolDefinition{Name: "ship_" + name, Description: "Ship it."}, Kind: KindBuiltin,
			Call: echoTool().Call,
		}
	}
	shelf := func(name string, all ...Tool) *Plugin {
		p := withTools(t, Options{}, all...)
		folder := must.Get(wall.OpenFolder(t.TempDir()))(t)
		p.name, p.folder = name, folder // the host closes it
		return p
	}
	for name, plugins := range map[string][]host.Plugin{
		"one":  {shelf("one", ship("a"), ship("b"), ship("c"), ship("d"))},
		"more": {shelf("one", ship("a"), ship("c")), shelf("two", ship("b"), ship("d"))},
	} {
		t.Run(name, func(t *testing.T) {
			book := &ledger{weights: map[string]float64{"ship_d": 3, "ship_c": 2, "ship_b": 0.5}}
			pair := hosttest.New(t, host.Options{Plugins: append(plugins, book)})
			pair.Handshake()
			for query, want := range map[string]string{
				`"query":"ship"`: "ship_d ship_c ship_a ship_b",
				"":               "ship_a ship_b ship_c ship_d",
			} {
				m := pair.Call(protocol.TypeToolListReq, "{"+query+"}")
				var names []string
				for i := range 4 {
					names = append(names, m.Get(fmt.Sprintf("/tools/%d/name", i)))
				}
				got := strings.Join(names, " ")
				assert.That(t, got == want, "%s: %s, should be %s", query, got, want)
			}
		})
	}
}

// TestSettingsOfTools: the settings of a tool by a refinement take the place of its own.
func TestSettingsOfTools(t *testing.T) {
	waits := func(ctx context.Context, _ protocol.Object, _ host.Emitter) (*Outcome, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	slow, shown, hidden := made("slow", waits), made("shown", waits), made("hidden", waits)
	slow.Timeout = time.Nanosecond // the setting takes its place
	hidden.Def.DeferLoading = true
	names := func(p *hosttest.Pair, fields string) string {
		var resp protocol.ToolListResponse
		p.Call(protocol.TypeToolListReq, fields).Decode(t, &resp)
		var words []string
		for _, d := range resp.Tools {
			words = append(words, fmt.Sprintf("%s:%t", d.Name, d.DeferLoading))
		}
		return strings.Join(words, " ")
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{
		withTools(t, Options{}, slow, shown, hidden),
		hosttest.Overrides{host.KindTool: {
			"shown": {Deferred: new(true)}, "hidden": {Deferred: new(false)}, "slow": {Timeout: 50 * time.Millisecond},
		}},
	}})
	p.Handshake(protocol.CapTools)
	if got := names(p, `{}`); got != "hidden:false slow:false" {
		t.Errorf("listed are %s", got)
	}
	if got := names(p, `{"include_deferred":true}`); got != "hidden:false shown:true slow:false" {
		t.Errorf("with the deferred ones: %s", got)
	}
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"slow","arguments":{}}`, protocol.CodeTimeout,
		"its own limit of 50ms")
}
