package tools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// rack is a plugin of another capability that has tools as well.
type rack struct {
	name string
	set  *Set
}

func newRack(t testing.TB, o SetOptions, all ...Tool) *rack {
	t.Helper()
	s := NewSet(o)
	if err := s.Replace(all); err != nil {
		t.Fatal(err)
	}
	return &rack{o.Name, s}
}

func (r *rack) Info() host.PluginInfo {
	return host.PluginInfo{Name: r.name, Capability: protocol.CapToolkits, Also: []protocol.Capability{protocol.CapTools}}
}

func (r *rack) Start(ctx context.Context, s *host.Services) error { return r.set.Start(ctx, s) }

func (r *rack) Close(context.Context) error { return nil }

func (r *rack) Routes() []host.Route {
	return append(r.set.Routes(),
		host.Handle(protocol.TypeToolkitListReq, func(context.Context, *protocol.ToolkitListRequest, host.Emitter) (*protocol.ToolkitListResponse, error) {
			return &protocol.ToolkitListResponse{}, nil
		}),
		host.Handle(protocol.TypeToolkitConfigureReq, func(_ context.Context, req *protocol.ToolkitConfigureRequest, _ host.Emitter) (*protocol.ToolkitConfigureResponse, error) {
			return &protocol.ToolkitConfigureResponse{ToolkitName: req.ToolkitName, Status: "ok"}, nil
		}))
}

// kit is a tool of a toolkit.
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
	checked.Def.InputParameters = []protocol.ToolParameter{{Name: "odd", Type: "string|null"}} // a Check makes sense of it
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

// The new content is there for the next request, and a wrong one changes nothing.
func TestReplace(t *testing.T) {
	set := NewSet(SetOptions{Name: "kits"})
	content := func() string {
		var seen []string
		for _, query := range []string{"", "ship"} {
			resp, err := set.list(t.Context(), &protocol.ToolListRequest{Query: query}, silent{})
			if err != nil {
				t.Fatal(err)
			}
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
			var e *protocol.Error
			if errors.As(err, &e) {
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
	if err := set.Replace([]Tool{kit("ship_b", Outcome{}), withheld, kit("ship_a", Outcome{})}); err != nil {
		t.Fatal(err)
	}
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
		{[]Tool{kit("one", Outcome{}), kit("one", Outcome{})}, `plugin "kits": tool "one": the name is taken by another tool of this plugin`},
		{[]Tool{kit("two", Outcome{}, par("a", "text"))}, `plugin "kits": tool "two": parameter "a": unknown type "text"`},
		{[]Tool{idle}, `plugin "kits": tool "idle": nothing runs it`},
	} {
		if err := set.Replace(tc.wrong); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("got %v, want %s", err, tc.want)
		}
		if now := content(); now != full {
			t.Errorf("%s: the content is now %s", tc.want, now)
		}
	}
	if err := set.Replace(nil); err != nil || content() != none {
		t.Errorf("emptied: %v, %s", err, content())
	}
}

// Names that one plugin does not have may be another's, and a refusal lists all.
func TestSetsShareTheCapability(t *testing.T) {
	builtin, err := New("mytools", Options{}, Env{Workspace: t.TempDir()})
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
		return p.Call(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":%q,"arguments":{},"correlation_id":"c"}`, name))
	}
	for _, name := range []string{"other", "list_dir"} {
		if m := call(name); m.Get("/data/success") != "true" {
			t.Errorf("%s: %s", name, m.Line)
		}
	}
	if m := call("empty"); m.Code != protocol.CodeToolError || m.Get("/message") != `tool "empty" gave no result` {
		t.Errorf("%s", m.Line)
	}
	if m := call("broken"); m.Get("/data/success") != "false" || m.Get("/data/error") != "it broke" || m.Get("/data/exit_code") != "3" || m.Get("/data/data/0") != "1" {
		t.Errorf("%s", m.Line)
	}
	if last, n := book.last(); last != "tool broken c false" || n != 4 {
		t.Errorf("%d calls were counted, the last as %s", n, last)
	}
	m := call("long")
	whole, err := os.ReadFile(m.Get("/data/data/spilled"))
	if err != nil || !strings.HasPrefix(m.Get("/data/data/spilled"), state) || !strings.Contains(string(whole), strings.Repeat("x", 5000)) {
		t.Errorf("%d bytes are kept, %v: %s", len(whole), err, m.Line)
	}
	if n := len(m.Get("/data/data/text")); n < 500 || n > 1000 || m.Get("/data/truncated") != "true" {
		t.Errorf("%d bytes of output: %s", n, m.Line)
	}
	var refusal protocol.Error
	call("nothing").Decode(t, &refusal)
	known := fmt.Sprint(refusal.Detail["known"])
	if refusal.Code != protocol.CodeUnknownTool || !strings.Contains(known, "broken") || !strings.Contains(known, "other") || !strings.Contains(known, "read_file") {
		t.Errorf("%+v", refusal)
	}
}

// A call of a set's tool does not keep later requests waiting, and its own limit of time
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
	if m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"late","arguments":{}}`); m.Code != protocol.CodeTimeout || !strings.Contains(m.Get("/message"), "its own limit of 20ms") {
		t.Errorf("%s", m.Line)
	}
	close(done)
	if m := p.Answer(id); m.Get("/data/success") != "true" {
		t.Errorf("%s", m.Line)
	}
}

// The file tools of FileTools are those of their folder.
func TestFileToolsOfAnotherFolder(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"a.txt": "here"})
	r := newRack(t, SetOptions{Name: "one"}, FileTools(w.files.root, 0, nil, func() *host.Services { return nil })...)
	var names []string
	for name, e := range r.set.content.Load().tools {
		names = append(names, name)
		if e.quick {
			t.Errorf("%s would run on the reading goroutine", name)
		}
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "edit_file glob grep list_dir read_file write_file" {
		t.Errorf("the tools are %s", got)
	}
	resp, err := r.set.call(t.Context(), &protocol.ToolCallRequest{ToolName: "read_file", Arguments: parsed(t, `{"path":"a.txt"}`)}, silent{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := resp.result(); err != nil || !strings.Contains(string(res.Data), "here") {
		t.Errorf("%+v, %v", res, err)
	}
}

// A call of echo is on the fast path: what all tools have in common adds nothing to it.
func TestCallAllocations(t *testing.T) {
	p := withTools(t, Options{}, echoTool())
	req := &protocol.ToolCallRequest{ToolName: "echo", Arguments: parsed(t, `{"text":"x"}`)}
	var dst []byte
	n := testing.AllocsPerRun(200, func() {
		resp, err := p.set.call(t.Context(), req, silent{})
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
