package plugins_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/fleet"
	"a2e/host/dialect/jsonrpc"
	"a2e/host/dialect/mcp"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/plugins"
	"a2e/protocol"
)

// fuzzed is a config with all plugins that starts no program and opens no connection.
const fuzzed = `
plugins:
  tools: {deny: [http_get, run_command]}
  proc: {allowed_commands: [a2e-has-no-such-program]}
  toolkits: {locked: true}
  mcp: {register: off}
  skill: {user_skills: false}
  env: true
  memory: true
  planning: true
  learning: true
  chains: true
  multi_agent: true
`

// canary is a secret of the host that no request names.
const canary = "canary-\u16a0-7f3a91"

// ground is what the hosts of a fuzz target have in common.
type ground struct {
	cfg    *config.Config
	shared *plugins.Shared
}

func newGround(f *testing.F) *ground {
	file := filepath.Join(f.TempDir(), "a2e.yaml")
	must.OK(f, os.WriteFile(file, []byte(fuzzed), 0o600))
	cfg, _, err := config.Load(config.Source{Path: file, Dir: f.TempDir(), Available: plugins.Types()})
	must.OK(f, err)
	cfg.StateDir = f.TempDir()
	cfg.Secrets.AddSecret(canary)
	g := &ground{cfg, plugins.NewShared(cfg, zerolog.Nop())}
	f.Cleanup(func() { must.OK(f, g.shared.Close()) })
	return g
}

// options are those of a host with all plugins.
func (g *ground) options(t testing.TB) host.Options {
	return host.Options{Plugins: must.Get(plugins.New(g.cfg, plugins.Deps{Log: zerolog.Nop(), Shared: g.shared}))(t), Secrets: g.cfg.Secrets}
}

// envelope are the members of a request that are not its own.
var envelope = []string{"a2e", "version", "type", "id", "req_id", "ts"}

// placeholder stands in a request for a member of the answer to the one before.
var placeholder = regexp.MustCompile(`<<(/[a-z_/0-9]*)>>`)

// fieldsOf returns the own fields of a message.
func fieldsOf(text string) (fields string, ok bool) {
	var members map[string]jsontext.Value
	if json.Unmarshal([]byte(text), &members) != nil {
		return "", false
	}
	for _, key := range envelope {
		delete(members, key)
	}
	raw, err := json.Marshal(members, json.Deterministic(true))
	return string(raw), err == nil
}

// FuzzRequests sends a request of any type and another one to a host with every plugin, whose
// fields may name what the first was answered: each is answered once, by its response or an error.
func FuzzRequests(f *testing.F) {
	g := newGround(f)
	var types []protocol.Type
	at := map[protocol.Type]uint8{}
	for _, info := range protocol.Types() {
		if info.Direction == protocol.AgentRequest && info.Type != protocol.TypeCancel && info.Type != protocol.TypeShutdown {
			at[info.Type] = uint8(len(types))
			types = append(types, info.Type)
		}
	}
	for line := range bytes.Lines(hosttest.ReadTestdata(f, "wire/samples.ndjson")) {
		m := hosttest.Message{Line: line}
		typ := protocol.Canonical(protocol.Type(m.Get("/type")))
		if fields, ok := fieldsOf(string(line)); ok && slices.Contains(types, typ) {
			f.Add(at[typ], fields, at[typ], fields)
		}
	}
	for _, s := range []struct {
		first  protocol.Type
		with   string
		second protocol.Type
		fields string
	}{
		{"env/reset/req", `{"env_name":"gridworld","seed":3}`, "env/step/req", `{"episode_id":"<</obs/episode_id>>","action":{"type":"up"}}`},
		{"env/reset/req", `{"env_name":"maze","options":{"width":5}}`, "env/batch_step/req", `{"episode_ids":["<</obs/episode_id>>"],"actions":[{"type":"right"}]}`},
		{"memory/store/req", `{"memory_id":"semantic","entries":[{"key":{"user":{"age":3}},"value":"one two","tags":["a"]}]}`, "memory/retrieve/req", `{"memory_id":"semantic","query":"two","filter":{"user.age":{"gt":2}},"limit":3}`},
		{"plan/create/req", `{"title":"p"}`, "task/add/req", `{"plan_id":"<</plan/plan_id>>","tasks":[{"title":"t","due":"2030-01-01","priority":"high","estimate":"1h30m"}]}`},
		{"chain/run/req", `{"nodes":[{"id":"a","tool":"echo","arguments":{"text":{"$ref":"input.x"}}},{"id":"b","when":"a.text == 'y'","tool":"echo","arguments":{"text":"{{a.text}}"}}],"edges":[{"from":"a","to":"b"}],"initial_input":{"x":"y"}}`, "chain/plan/req", `{"nodes":[]}`},
		{"learn/feedback/req", `{"feedbacks":[{"source":"user","score":0.5,"confidence":1,"kind":"explicit","correlation_id":"c"}]}`, "learn/stats/req", `{"component":"c"}`},
		{"tool/call/req", `{"tool_name":"write_file","arguments":{"path":"a.txt","content":"one\ntwo\n"}}`, "tool/call/req", `{"tool_name":"grep","arguments":{"pattern":"t.o","path":"."}}`},
		{"tool/call/req", `{"tool_name":"edit_file","arguments":{"path":"a.txt","old":"one","new":"three"}}`, "tool/call/req", `{"tool_name":"glob","arguments":{"pattern":"**/{a,b}*"}}`},
	} {
		f.Add(at[s.first], s.with, at[s.second], s.fields)
	}
	f.Fuzz(func(t *testing.T, first uint8, with string, second uint8, fields string) {
		with, one := fieldsOf(with)
		if !one {
			return
		}
		p := hosttest.Start(t, g.options(t))
		defer p.Close()
		p.Handshake()
		got := answered(t, p, types[int(first)%len(types)], with)
		fields = placeholder.ReplaceAllStringFunc(fields, func(ref string) string {
			quoted, _ := json.Marshal(got.Get(ref[2 : len(ref)-2]))
			return string(quoted[1 : len(quoted)-1])
		})
		if fields, ok := fieldsOf(fields); ok {
			answered(t, p, types[int(second)%len(types)], fields)
		}
		p.Call(protocol.TypePing, "")
		for _, m := range p.Messages() {
			must.That(t, !bytes.Contains(m.Line, []byte(canary)), "the secret is shown: %s", m.Line)
		}
	})
}

// answered returns the answer to a request, which is cancelled if it takes long.
func answered(t *testing.T, p *hosttest.Pair, typ protocol.Type, fields string) hosttest.Message {
	id := p.Go(typ, fields)
	late := time.AfterFunc(time.Second, func() { p.Send(fmt.Sprintf(`{"type":"cancel","id":"c-%s","req_id":%q}`, id, id)) })
	defer late.Stop()
	m := p.Answer(id)
	info, _ := protocol.Lookup(typ)
	must.That(t, m.Type == info.Response || m.Type == protocol.TypeError && m.Code != protocol.CodeRuntimeError, "%s %s was answered by %s", typ, fields, m.Line)
	return m
}

// FuzzDialects sends any lines to a host that speaks all protocols: what it says is whole messages,
// and each request is answered once in its own protocol.
func FuzzDialects(f *testing.F) {
	g := newGround(f)
	const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{}},"clientInfo":{"name":"x","version":"1"}}}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
	for _, s := range []string{
		hello + `{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{}}`,
		hello + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"},"_meta":{"progressToken":7}}}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"resources/list"}`,
		hello + `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///etc/passwd"}}` + "\n" + `{"jsonrpc":"2.0","id":1.5,"method":"prompts/get","params":{"name":"x"}}`,
		hello + `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"a","value":"b"}}}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
		`{"jsonrpc":"2.0","id":"s","method":"session.create","params":{"title":"t"}}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"session.list","params":{"limit":2}}`,
		`{"jsonrpc":"2.0","id":1,"method":"command.execute","params":{"raw_command":"/echo text=x {\"a\":1}"}}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"tools.list"}`,
		`{"jsonrpc":"2.0","id":1,"method":"session.send","params":{"text":"hi","images":[{"data":"aGk=","mime_type":"image/png"}]}}` + "\n" + `{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}`,
		`[{"jsonrpc":"2.0","id":1,"method":"system.ping"},{"jsonrpc":"2.0","id":1}]` + "\n" + `{"jsonrpc":"1.0","id":null,"method":7}`,
		`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t1","priority":"high","deadline":"2030-01-01T00:00:00Z","reply_schema":"json"},"brief":"echo done","requirements":{"required_capabilities":["x"]}}`,
		`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t2"},"brief":"b","inputs":{"files":[{"path":"a","content":"b"}]}}` + "\n" + `{"type":"TASK_STEER","protocol_version":"2.0","task_id":"t2","text":"x"}` + "\n" + `{"type":"TASK_CANCEL","task_id":"t2"}`,
		`{"type":"ping","id":"p"}` + "\n" + `{"jsonrpc":"2.0","id":"q","method":"system.ping"}` + "\n{",
		`{"type":"handshake/req","id":"h","agent_caps":["tools"]}` + "\n" + `{"type":"tool/call/req","id":"c","tool_name":"echo","arguments":{"text":"x"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		opts := g.options(t)
		opts.Dialects = []host.Dialect{
			mcp.New(mcp.Options{Workspace: g.cfg.Workspace, Log: zerolog.Nop()}),
			jsonrpc.New(jsonrpc.Options{Store: g.shared.Store, Workspace: g.cfg.Workspace, Wall: g.cfg.Wall, Log: zerolog.Nop(), StateDir: g.cfg.StateDir, Secrets: g.cfg.Secrets}),
			fleet.New(fleet.Options{Workspace: g.cfg.Workspace, StateDir: g.cfg.StateDir, Launcher: g.shared.Launcher, Store: g.shared.Store, Log: zerolog.Nop()}),
		}
		h := must.Get(host.New(opts))(t)
		var out bytes.Buffer
		must.OK(t, h.Serve(strings.NewReader(string(text)+"\n"+`{"type":"ping","id":"the last"}`+"\n"+`{"type":"shutdown","timeout":1}`+"\n"), &out))
		judge(t, text, out.Bytes())
	})
}

// spoken is what tells whose a line is, in all protocols.
type spoken struct {
	Type   string         `json:"type"`
	ID     jsontext.Value `json:"id"`
	ReqID  jsontext.Value `json:"req_id"`
	RPC    string         `json:"jsonrpc"`
	Method *string        `json:"method"`
	Result jsontext.Value `json:"result"`
	Error  jsontext.Value `json:"error"`
	TaskID string         `json:"task_id"`
	Task   struct {
		TaskID string `json:"task_id"`
	} `json:"task"`
}

// judge holds what a host said against what it was sent.
func judge(t *testing.T, in, out []byte) {
	got := map[string]int{}
	for line := range bytes.Lines(out) {
		var m spoken
		must.That(t, line[len(line)-1] == '\n' && json.Unmarshal(line, &m) == nil && !bytes.Contains(line, []byte(canary)), "the line %s", line)
		switch {
		case bytes.HasPrefix(line, []byte(`{"a2e"`)):
			hosttest.CheckLine(t, line)
			if info, _ := protocol.Lookup(protocol.Type(m.Type)); info.Direction == protocol.HostResponse || m.Type == "error" {
				got["a2e "+string(m.ReqID)]++
			}
		case m.RPC != "":
			must.That(t, m.RPC == "2.0" && (m.Method != nil || m.ID != nil && (m.Result == nil) != (m.Error == nil)), "no message of JSON-RPC: %s", line)
			if m.Method == nil {
				got["rpc "+string(m.ID)]++
			}
		case m.Type == "TASK_RESULT":
			got["fleet "+m.TaskID]++
		}
	}
	sent := map[string]int{`a2e "the last"`: 1}
	for line := range bytes.Lines(bytes.TrimPrefix(in, []byte("\ufeff"))) {
		var m spoken
		if json.Unmarshal(line, &m) != nil {
			return // a batch, or one whose answer has no id
		}
		for key, is := range map[string]bool{"a2e " + string(m.ID): m.ID.Kind() == '"', "rpc " + string(m.ID): m.ID != nil, "fleet " + m.Task.TaskID: true} {
			if is {
				sent[key]++
			}
		}
	}
	for key, n := range got {
		must.That(t, n <= sent[key] || key == `a2e ""` || key == "rpc null" || strings.HasPrefix(key, "fleet "), "%d answers to %s, which was sent %d times: %s", n, key, sent[key], out)
	}
	must.That(t, got[`a2e "the last"`] == 1 || bytes.Contains(in, []byte("shutdown")) || bytes.Contains(in, []byte(`\u`)), "the last request has no answer: %s", out)
}
