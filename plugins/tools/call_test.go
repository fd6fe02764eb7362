package tools

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// silent is an Emitter that drops everything.
type silent struct{}

func (silent) Progress(float64, string)              {}
func (silent) Status(string)                         {}
func (silent) Log(string, string, string)            {}
func (silent) Artifact(string, string, []byte, bool) {}
func (silent) Streaming() bool                       { return false }

// made returns a tool that runs a function.
func made(name string, call func(ctx context.Context, args protocol.Object, emit host.Emitter) (*Outcome, error),
	ps ...protocol.ToolParameter,
) Tool {
	return Tool{
		Def:  protocol.ToolDefinition{Name: name, Description: "A tool of a test.", InputParameters: ps},
		Kind: KindBuiltin, Call: call,
	}
}

// gives returns a tool that always has the same outcome.
func gives(name string, out Outcome) Tool {
	return made(name, func(context.Context, protocol.Object, host.Emitter) (*Outcome, error) { return &out, nil })
}

// fails returns a tool that always ends with the same error.
func fails(name string, err error) Tool {
	return made(name, func(context.Context, protocol.Object, host.Emitter) (*Outcome, error) { return nil, err })
}

// withTools returns a plugin that has the given tools and no others.
func withTools(t testing.TB, opts Options, all ...Tool) *Plugin {
	t.Helper()
	p := &Plugin{Set: NewSet(SetOptions{Name: "tools", MaxOutputBytes: opts.MaxOutputBytes, StateDir: t.TempDir()})}
	must.OK(t, p.fill(all, opts))
	return p
}

func called(t testing.TB, p *Plugin, name, args string) (protocol.ToolResult, error) {
	t.Helper()
	req := &protocol.ToolCallRequest{ToolName: name, Arguments: parsed(t, args)}
	resp, err := p.call(t.Context(), req, silent{})
	if err != nil {
		return protocol.ToolResult{}, err
	}
	raw := must.Get(resp.AppendJSON(nil))(t)
	fitsSchema(t, protocol.TypeToolCallResp, raw)
	var out protocol.ToolCallResponse
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	assert.That(t, !(out.CreatedAt < 1e9), "created_at is %v", out.CreatedAt)
	return out.Data, nil
}

// fitsSchema checks the body of a message against its schema in messages.json.
func fitsSchema(t testing.TB, typ protocol.Type, body []byte) {
	t.Helper()
	schemas := must.Get(wireSchemas())(t)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	must.That(t, err == nil, "%.300s: %v", body, err)
	value.(map[string]any)["type"] = string(typ)
	if err := schemas[typ].Validate(value); err != nil {
		t.Errorf("%.300s: %v", body, err)
	}
}

// wireSchemas compiles, once, the schemas of the messages that this plugin sends.
var wireSchemas = sync.OnceValues(func() (map[protocol.Type]*jsonschema.Schema, error) {
	file, err := os.Open(filepath.Join("..", "..", "testdata", "wire", "messages.json"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all, err := jsonschema.UnmarshalJSON(file)
	if err != nil {
		return nil, err
	}
	out := make(map[protocol.Type]*jsonschema.Schema)
	for _, entry := range all.([]any) {
		typ := protocol.Type(entry.(map[string]any)["type"].(string))
		if typ != protocol.TypeToolCallResp && typ != protocol.TypeToolListResp {
			continue
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("message.json", entry.(map[string]any)["schema"]); err != nil {
			return nil, err
		}
		if out[typ], err = c.Compile("message.json"); err != nil {
			return nil, err
		}
	}
	return out, nil
})

func wantCode(t testing.TB, err error, code protocol.ErrorCode, text string) {
	t.Helper()
	e, ok := errors.AsType[*protocol.Error](err)
	assert.That(t, ok && e.Code == code && strings.Contains(e.Message, text), "got %v, want %s saying %q", err, code,
		text)
}

func TestResultFields(t *testing.T) {
	type answer struct {
		Text string   `json:"text"`
		List []string `json:"list"`
	}
	null := jsontext.Value(nil)
	failure, toolError := "it broke: \"x\"", protocol.CodeToolError
	for _, tc := range []struct {
		out  Outcome
		want protocol.ToolResult
	}{
		{Outcome{}, protocol.ToolResult{Success: true, Data: null, Summary: null, Truncated: new(false)}},
		{Outcome{Data: answer{Text: "<&>\xff"}, Summary: "done \"well\""}, protocol.ToolResult{
			Success: true, Data: jsontext.Value("{\"text\":\"<&>\ufffd\",\"list\":[]}"),
			Summary: jsontext.Value(`"done \"well\""`), Truncated: new(false),
		}},
		{
			Outcome{Data: jsontext.Value(`[1.0, 12345678901234567890]`), Truncated: true, ExitCode: new(0)},
			protocol.ToolResult{
				Success: true, Data: jsontext.Value(`[1.0,12345678901234567890]`), Truncated: new(true), ExitCode: new(0),
			},
		},
		{Outcome{Data: map[string]any{}, Failed: true, Failure: failure, ExitCode: new(-1)}, protocol.ToolResult{
			Data: jsontext.Value(`{}`), Truncated: new(false), ExitCode: new(-1), Error: &failure,
			ErrorCode: &toolError,
		}},
	} {
		got, err := called(t, withTools(t, Options{}, gives("tool", tc.out)), "tool", `{}`)
		must.That(t, err == nil && got.DurationMS >= 0, "%v %v", got.DurationMS, err)
		tc.want.DurationMS = got.DurationMS // the time that the call really took
		tc.want.ToolName, tc.want.Events = "tool", []protocol.PastEvent{}
		for _, v := range []*jsontext.Value{&got.Data, &got.Summary} {
			if v.Kind() == 'n' {
				*v = nil
			}
		}
		diff := cmp.Diff(tc.want, got)
		assert.Equal(t, diff, "", "%+v", tc.out)
	}
}

func TestRefusals(t *testing.T) {
	reader := gives("read_it", Outcome{})
	reader.Detail.ReadOnly = true
	all := []Tool{reader, gives("write_it", Outcome{}), gives("write_more", Outcome{}), gives("echo", Outcome{})}
	open := withTools(t, Options{}, all...)
	for _, one := range all {
		must.Get(called(t, open, one.Def.Name, `{}`))(t)
	}
	for _, tc := range []struct {
		opts    Options
		refused []string
	}{
		{Options{Deny: []string{"write_it"}}, []string{"write_it"}},
		{Options{Deny: []string{"write_*", "nothing"}}, []string{"write_it", "write_more"}},
		{Options{Deny: []string{"*"}}, []string{"echo", "read_it", "write_it", "write_more"}},
		{Options{Deny: []string{"{echo,read_it}"}}, []string{"echo", "read_it"}},
		{Options{AllowedTools: []string{"write_*", "echo"}}, []string{"read_it"}},
		{Options{AllowedTools: []string{"write_*"}, Deny: []string{"*_it"}}, []string{"echo", "read_it", "write_it"}},
		{Options{AllowedTools: []string{}}, []string{"echo", "read_it", "write_it", "write_more"}},
		{Options{ReadOnly: true}, []string{"echo", "write_it", "write_more"}},
		{Options{ReadOnly: true, Deny: []string{"read_it"}}, []string{"echo", "read_it", "write_it", "write_more"}},
	} {
		p := withTools(t, tc.opts, all...)
		listed := listNames(t, p, &protocol.ToolListRequest{})
		for _, one := range all {
			name := one.Def.Name
			_, err := called(t, p, name, `{}`)
			refused := slices.Contains(tc.refused, name)
			if refused {
				wantCode(t, err, protocol.CodeToolDenied, name)
			} else if err != nil {
				t.Errorf("%+v: %v", tc.opts, err)
			}
			assert.That(t, slices.Contains(listed, name) != refused, "%+v: the list is %v", tc.opts, listed)
		}
	}
}

func TestUnknownTool(t *testing.T) {
	p := withTools(t, Options{Deny: []string{"secret_tool"}}, echoTool(), gives("read_file", Outcome{}),
		gives("secret_tool", Outcome{}))
	for name, want := range map[string]string{
		"ehco": `unknown tool "ehco"; did you mean "echo"?`, "Read_File": `did you mean "read_file"?`,
		"":         `unknown tool ""`,
		"echo\x00": `did you mean "echo"?`, strings.Repeat("x", 1<<20): "unknown tool",
	} {
		_, err := called(t, p, name, `{}`)
		wantCode(t, err, protocol.CodeUnknownTool, want)
		e, ok := errors.AsType[*protocol.Error](err)
		assert.That(t, !ok || len(e.Message) <= 300 && cmp.Equal(e.Detail["known"], []string{"echo", "read_file"}),
			"%.20q: %+v", name, e)
	}
}

func TestToolsThatCouldNot(t *testing.T) {
	own := protocol.Errorf(protocol.CodeToolDenied, "not here")
	p := withTools(t, Options{}, fails("plain", errors.New("disk on fire")), fails("own", own),
		fails("late", context.DeadlineExceeded),
		gives("odd", Outcome{Data: func() {}}))
	for _, tc := range []struct {
		name string
		code protocol.ErrorCode
		says string
	}{
		{"plain", protocol.CodeToolError, `tool "plain": disk on fire`},
		{"own", protocol.CodeToolDenied, "not here"},
		{"late", protocol.CodeToolError, "deadline"},
		{"odd", protocol.CodeToolError, "not JSON"},
	} {
		_, err := called(t, p, tc.name, `{}`)
		wantCode(t, err, tc.code, tc.says)
	}
}

// waits returns a tool that runs until its context ends.
func waits(name string, bound time.Duration) Tool {
	t := made(name, func(ctx context.Context, _ protocol.Object, _ host.Emitter) (*Outcome, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	t.Timeout = bound
	return t
}

func TestTimeouts(t *testing.T) {
	for _, tc := range []struct {
		name    string
		option  float64 // the limit in the options of the plugin, in seconds
		own     time.Duration
		request time.Duration
		want    time.Duration
	}{
		{"the tool's own", 0, time.Second, time.Minute, time.Second},
		{"the plugin's", 2.5, 0, time.Minute, 2500 * time.Millisecond},
		{"the tool's before the plugin's", 2, 3 * time.Second, time.Minute, 3 * time.Second},
		{"the request's", 20, time.Minute, 5 * time.Second, 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := withTools(t, Options{Timeout: tc.option}, waits("wait", tc.own))
				ctx, cancel := context.WithTimeout(t.Context(), tc.request)
				defer cancel()
				start := time.Now()
				_, err := p.call(ctx, &protocol.ToolCallRequest{ToolName: "wait"}, silent{})
				assert.Equal(t, time.Since(start), tc.want, "it took")
				if tc.want == tc.request {
					assert.Is(t, err, context.DeadlineExceeded, "got …; the host has to see that its own limit was "+
						"reached")
					return
				}
				wantCode(t, err, protocol.CodeTimeout, `tool "wait"`)
			})
		})
	}
}

func TestPatternsThatDoNotFit(t *testing.T) {
	for want, opts := range map[string]Options{
		`deny: "[a"`: {Deny: []string{"[a"}}, `allowed_tools: "[a"`: {AllowedTools: []string{"[a"}},
	} {
		assert.Fails(t, (&Plugin{Set: NewSet(SetOptions{})}).fill([]Tool{gives("tool", Outcome{})}, opts), want)
	}
}

// TestCallFromWithin: a call from within the host has the same result as a call over the wire.
func TestCallFromWithin(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\n"), 0o600))
	p := must.Get(New("mytools", Options{Deny: []string{"http_get"}}, host.Env{Workspace: dir}))(t)
	defer p.Close(context.Background())
	for _, tc := range []struct {
		tool, args string
		code       protocol.ErrorCode
	}{
		{"read_file", `{"path":"a.txt"}`, ""},
		{"run_command", `{"command":["sh","-c","echo out; exit 3"]}`, ""},
		{"read_file", `{"path":"../a"}`, protocol.CodeToolDenied},
		{"read_file", `{"paht":"a"}`, protocol.CodeSchemaViolation},
		{"http_get", `{"url":"http://localhost"}`, protocol.CodeToolDenied},
		{"nothing", `{}`, protocol.CodeUnknownTool},
	} {
		args := must.Get(protocol.ParseObject([]byte(tc.args)))(t)
		got, err := p.Call(t.Context(), tc.tool, args)
		var known *protocol.Error
		if tc.code != "" {
			assert.That(t, errors.As(err, &known) && known.Code == tc.code, "%s %s: %v, want %s", tc.tool, tc.args, err,
				tc.code)
			continue
		}
		wire, err2 := called(t, p, tc.tool, tc.args)
		must.That(t, err == nil && err2 == nil, "%v %v", err, err2)
		got.DurationMS, wire.DurationMS = 0, 0
		a, err := json.Marshal(got)
		b, err2 := json.Marshal(wire)
		assert.That(t, err == nil && err2 == nil && string(a) == string(b), "%s gave %s, over the wire %s; %v %v",
			tc.tool, a, b, err, err2)
	}
	var names []string
	for _, def := range p.Tools() {
		names = append(names, def.Name)
	}
	assert.That(t, slices.IsSorted(names) && slices.Contains(names, "edit_file") && !slices.Contains(names, "http_get"),
		"the tools are %v", names)
	assert.That(t, !p.ReadOnly("edit_file") && !p.ReadOnly("nothing") && p.ReadOnly("grep"),
		"which tools change something is wrong")
}

func TestContract(t *testing.T) {
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		dir := t.TempDir()
		must.OK(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\ntwo\n"), 0o600))
		return must.Get(New("mytools", Options{}, host.Env{
			Workspace: dir, StateDir: t.TempDir(),
			Launcher: launcherIn(t, dir),
		}))(t)
	}, []hosttest.Sample{
		{Type: protocol.TypeToolListReq, Fields: `{"filter_kind":"builtin","filter_tags":["file"],"query":"read","include_deferred":true}`},
		{Type: protocol.TypeToolCallReq, Fields: `{"session_id":"","tool_name":"echo","arguments":{"text":"x"},"correlation_id":"c","streaming":false,"timeout":30}`},
		{
			Name: "read", Type: protocol.TypeToolCallReq,
			Fields: `{"tool_name":"read_file","arguments":{"path":"a.txt"},"streaming":true}`,
		},
		{Name: "grep", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"grep","arguments":{"pattern":"t.o"}}`},
		{
			Name: "run", Type: protocol.TypeToolCallReq,
			Fields: `{"tool_name":"run_command","arguments":{"command":["echo","hi"]},"streaming":true}`,
		},
		{
			Name: "unknown tool", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"ehco","arguments":{}}`,
			Code: protocol.CodeUnknownTool,
		},
		{
			Name: "missing argument", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"echo","arguments":{}}`,
			Code: protocol.CodeSchemaViolation,
		},
		{
			Name: "forbidden", Type: protocol.TypeToolCallReq,
			Fields: `{"tool_name":"read_file","arguments":{"path":"../x"}}`, Code: protocol.CodeToolDenied,
		},
		{
			Name: "not there", Type: protocol.TypeToolCallReq,
			Fields: `{"tool_name":"read_file","arguments":{"path":"b.txt"}}`, Code: protocol.CodeToolError,
		},
	})
}

// patience is how long a test waits for something that should happen at once. Only a test that fails waits that long.
const patience = 60 * time.Second

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// launcherIn returns a function that makes the launcher for the programs of a plugin. The test closes the launcher.
func launcherIn(t testing.TB, workspace string) func() (*sandbox.Launcher, error) {
	t.Helper()
	return sandboxtest.For(t, sandbox.Options{
		Path:      sandbox.SafePath(os.Getenv("PATH"), workspace),
		Workspace: workspace,
	})
}
