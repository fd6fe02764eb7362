package plugins_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/cli/record"
	"a2e/host/config"
	"a2e/host/config/trust"
	"a2e/host/dialect/fleet"
	"a2e/host/dialect/httpd"
	"a2e/host/dialect/jsonrpc"
	"a2e/host/dialect/mcp"
	"a2e/host/guard/auth"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/observe/audit"
	"a2e/host/state/store"
	"a2e/plugins"
	"a2e/plugins/chains"
	mcpservers "a2e/plugins/mcp"
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
  env: {env: gridworld}
  memory: true
  planning: true
  learning: true
  chains: true
  multi_agent: true
`

// canary is a secret of the host. No request contains it, so no answer may contain it.
const canary = "canary-\u16a0-7f3a91"

// ground is what the hosts of a fuzz target share.
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
	g := &ground{cfg, plugins.NewShared(cfg, zerolog.Nop(), nil)}
	f.Cleanup(func() { must.OK(f, g.shared.Close()) })
	return g
}

// options returns the options of a host with all plugins.
func (g *ground) options(t testing.TB) host.Options {
	return host.Options{
		Plugins: must.Get(plugins.New(g.cfg, plugins.Deps{Log: zerolog.Nop(), Shared: g.shared}))(t),
		Secrets: g.cfg.Secrets,
	}
}

// envelope lists the members that belong to the envelope of a message, not to its type.
func envelope() []string { return []string{"a2e", "version", "type", "id", "req_id", "ts"} }

// placeholder matches a reference to a member of an earlier answer: <<NUMBER OF THE REQUEST/JSON POINTER>>.
var placeholder = regexp.MustCompile(`<<([0-9])(/[a-z_/0-9]*)>>`)

// fieldsOf returns the fields of a message without those of the envelope. ok is false if the text is not a JSON object.
func fieldsOf(text string) (fields string, ok bool) {
	var members map[string]jsontext.Value
	if json.Unmarshal([]byte(text), &members) != nil || members == nil {
		return "", false
	}
	for _, key := range envelope() {
		delete(members, key)
	}
	raw, err := json.Marshal(members, json.Deterministic(true))
	return string(raw), err == nil
}

// stories returns texts for play. Each is a few requests, of which later ones need the answers to earlier ones.
func stories() []string {
	return []string{
		"env/reset/req {\"env_name\":\"env\",\"seed\":3}\nenv/step/req " +
			"{\"episode_id\":\"<<0/obs/episode_id>>\",\"action\":{\"type\":\"up\"}}\nenv/batch_step/req " +
			"{\"episode_ids\":[\"<<0/obs/episode_id>>\"],\"actions\":[{\"type\":\"left\"}]}\nenv/exp/list/req " +
			"{\"episode_id\":\"<<0/obs/episode_id>>\",\"limit\":5}",
		"memory/init/req {\"namespace\":\"n/m\",\"scope\":{\"user\":\"u\"}}\nmemory/store/req " +
			"{\"memory_id\":\"<<0/memory_id>>\",\"entries\":[{\"key\":{\"user\":{\"age\":3}},\"content\":\"one " +
			"two\",\"tags\":[\"a\"]}]}\nmemory/retrieve/req {\"memory_id\":\"<<0/memory_id>>\",\"query\":\"two AND " +
			"(\",\"filter\":{\"user.age\":{\"gt\":2.50}},\"limit\":3}\nmemory/forget/req " +
			"{\"memory_id\":\"<<0/memory_id>>\",\"keys\":[{\"user\":{\"age\":4}}]}",
		"planning/plan/create {\"name\":\"p\",\"columns\":[\"a\",\"b\"]}\nplanning/task/add " +
			"{\"plan_id\":\"<<0/plan_id>>\",\"title\":\"t\",\"due\":\"2030-01-01\",\"priority\":\"high\",\"estimate\":\"1h30m\"}\nplanning/task/update {\"plan_id\":\"<<0/plan_id>>\",\"task_id\":\"<<1/task_id>>\",\"status\":\"b\",\"comment\":\"c\"}\nplanning/plan/board {\"plan_id\":\"<<0/plan_id>>\"}",
		"chain/req {\"chain_id\":\"c\",\"nodes\":[{\"id\":\"a\",\"kind\":\"tool\",\"name\":\"echo\",\"input_map\":{\"text\":\"input.text\"}},{\"id\":\"b\",\"kind\":\"tool\",\"name\":\"echo\",\"input_map\":{\"text\":\"join(',', keys(@))\"}}],\"initial_input\":{\"text\":\"hello\"},\"journal\":true}\nchain/req {\"chain_id\":\"c\",\"resume\":true,\"nodes\":[]}",
		"learn/feedback/req " +
			"{\"feedbacks\":[{\"source\":\"human\",\"score\":0.5,\"confidence\":1,\"polarity\":\"positive\",\"correlation_id\":\"c\"}]}\nlearn/experience/req {\"experiences\":[{\"state\":{\"a\":1},\"action\":{\"type\":\"inc\"},\"reward\":0.5,\"next_state\":{},\"done\":true}]}\nlearn/stats/req {\"component\":\"c\"}\nlearn/adapt/req {\"component\":\"c\"}",
		"tool/call/req " +
			"{\"tool_name\":\"write_file\",\"arguments\":{\"path\":\"a.txt\",\"content\":\"one\\ntwo\\n\"},\"correlation_id\":\"c\"}\ntool/call/req {\"tool_name\":\"grep\",\"arguments\":{\"pattern\":\"t.o\",\"path\":\".\"}}\ntool/call/req {\"tool_name\":\"edit_file\",\"arguments\":{\"path\":\"a.txt\",\"old\":\"one\",\"new\":\"three\"}}\ntool/call/req {\"tool_name\":\"glob\",\"arguments\":{\"pattern\":\"**/{a,b}*\"}}",
	}
}

// play sends the requests in a text. A line is one request: its type, a space, its fields. A placeholder in the fields
// stands for a member of the answer to an earlier request.
func play(t testing.TB, p *hosttest.Pair, story string) {
	const most = 5
	var got []hosttest.Message
	for line := range strings.Lines(story) {
		typ, fields, _ := strings.Cut(strings.TrimSpace(line), " ")
		info, known := protocol.Lookup(protocol.Type(typ))
		fields = placeholder.ReplaceAllStringFunc(fields, func(ref string) string {
			if i := int(ref[2] - '0'); i < len(got) {
				quoted, _ := json.Marshal(got[i].Get(ref[3 : len(ref)-2]))
				return string(quoted[1 : len(quoted)-1])
			}
			return "none"
		})
		fields, ok := fieldsOf(fields)
		if !ok || !known || info.Direction != protocol.AgentRequest || info.Type == protocol.TypeCancel ||
			info.Type == protocol.TypeShutdown || len(got) == most {
			return
		}
		got = append(got, answered(t, p, info, fields))
	}
}

// FuzzRequests sends requests of any types to a host with every plugin: each is answered once, by its response or an
// error.
func FuzzRequests(f *testing.F) {
	g := newGround(f)
	for line := range bytes.Lines(hosttest.ReadTestdata(f, "wire/samples.ndjson")) {
		m := hosttest.Message{Line: line}
		if fields, ok := fieldsOf(string(line)); ok {
			f.Add(m.Get("/type") + " " + fields)
		}
	}
	for _, story := range stories() {
		f.Add(story)
	}
	f.Fuzz(func(t *testing.T, story string) {
		p := hosttest.Start(t, g.options(t))
		defer p.Close()
		p.Handshake()
		play(t, p, story)
		p.Call(protocol.TypePing, "")
		for _, m := range p.Messages() {
			must.That(t, !bytes.Contains(m.Line, []byte(canary)), "the secret is shown: %s", m.Line)
		}
	})
}

// answered sends a request and returns its answer. It cancels a request that takes longer than a second.
func answered(t testing.TB, p *hosttest.Pair, info *protocol.Info, fields string) hosttest.Message {
	id := p.Go(info.Type, fields)
	late := time.AfterFunc(time.Second, func() {
		p.Send(fmt.Sprintf(`{"type":"cancel","id":"c-%s","req_id":%q}`, id,
			id))
	})
	defer late.Stop()
	m := p.Answer(id)
	must.That(t, m.Type == info.Response || m.Type == protocol.TypeError && m.Code != protocol.CodeRuntimeError,
		"%s %s was answered by %s", info.Type, fields, m.Line)
	return m
}

// FuzzDialects sends any lines to a host that speaks all protocols: the host writes whole messages only, and answers
// each request once, in the protocol of that request.
func FuzzDialects(f *testing.F) {
	g := newGround(f)
	const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{}},"clientInfo":{"name":"x","version":"1"}}}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
	for _, s := range []string{
		hello + `{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{}}`,
		hello + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"},"_meta":{"progressToken":7}}}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"resources/list"}`,
		hello + `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///etc/passwd"}}` + "\n" +
			`{"jsonrpc":"2.0","id":1.5,"method":"prompts/get","params":{"name":"x"}}`,
		hello + `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"a","value":"b"}}}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
		`{"jsonrpc":"2.0","id":"s","method":"session.create","params":{"title":"t"}}` + "\n" +
			`{"jsonrpc":"2.0","id":2,"method":"session.list","params":{"limit":2}}`,
		`{"jsonrpc":"2.0","id":1,"method":"command.execute","params":{"raw_command":"/echo text=x {\"a\":1}"}}` + "\n" +
			`{"jsonrpc":"2.0","id":2,"method":"tools.list"}`,
		`{"jsonrpc":"2.0","id":1,"method":"session.send","params":{"text":"hi","images":[{"data":"aGk=","mime_type":"image/png"}]}}` + "\n" + `{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}`,
		`[{"jsonrpc":"2.0","id":1,"method":"system.ping"},{"jsonrpc":"2.0","id":1}]` + "\n" +
			`{"jsonrpc":"1.0","id":null,"method":7}`,
		`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t1","priority":"high","deadline":"2030-01-01T00:00:00Z","reply_schema":"json"},"brief":"echo done","requirements":{"required_capabilities":["x"]}}`,
		`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t2"},"brief":"b","inputs":{"files":[{"path":"a","content":"b"}]}}` + "\n" + `{"type":"TASK_STEER","protocol_version":"2.0","task_id":"t2","text":"x"}` + "\n" + `{"type":"TASK_CANCEL","task_id":"t2"}`,
		`{"type":"ping","id":"p"}` + "\n" + `{"jsonrpc":"2.0","id":"q","method":"system.ping"}` + "\n{",
		`{"type":"handshake/req","id":"h","agent_caps":["tools"]}` + "\n" +
			`{"type":"tool/call/req","id":"c","tool_name":"echo","arguments":{"text":"x"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		opts := g.options(t)
		opts.Dialects = []host.Dialect{
			mcp.New(mcp.Options{Workspace: g.cfg.Workspace, Log: zerolog.Nop()}),
			jsonrpc.New(jsonrpc.Options{
				Store: g.shared.Store, Workspace: g.cfg.Workspace, Wall: g.cfg.Wall,
				Log: zerolog.Nop(), StateDir: g.cfg.StateDir, Secrets: g.cfg.Secrets,
			}),
			fleet.New(fleet.Options{
				Workspace: g.cfg.Workspace, StateDir: g.cfg.StateDir, Launcher: g.shared.Launcher,
				Store: g.shared.Store, Log: zerolog.Nop(),
			}),
		}
		h := must.Get(host.New(opts))(t)
		var out bytes.Buffer
		must.OK(t, h.Serve(strings.NewReader(string(text)+"\n"+`{"type":"ping","id":"the last"}`+"\n"+`{"type":"shutdown","timeout":1}`+"\n"), &out))
		judge(t, text, out.Bytes())
	})
}

// export returns the content of a store, in the text form of an export.
func export(t testing.TB, s store.Store) string {
	var out strings.Builder
	must.OK(t, s.Export(t.Context(), &out))
	return out.String()
}

// FuzzImport: the export of an imported text is the same after another import, and nothing in it keeps a host from
// answering. A refused import leaves nothing in the store.
func FuzzImport(f *testing.F) {
	g := newGround(f)
	p := hosttest.Start(f, g.options(f))
	p.Handshake()
	for _, story := range stories() {
		play(f, p, story)
	}
	p.Close()
	whole := export(f, must.Get(g.shared.Store(f.Context()))(f))
	f.Add([]byte(whole))
	head, rest, _ := strings.Cut(whole, "\n")
	for line := range strings.Lines(rest) {
		f.Add([]byte(head + "\n" + line))
	}
	f.Add([]byte(`{"a2e_state":1}`))
	before := export(f, must.Get(store.OpenMemory(f.Context(), plugins.StateParts()...))(f))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := must.Get(store.OpenMemory(t.Context(), plugins.StateParts()...))(t)
		defer s.Close()
		if _, err := s.Import(t.Context(), bytes.NewReader(text), store.Merge); err != nil {
			must.Equal(t, export(t, s), before, "what was refused with %v has left something", err)
			return
		}
		once := export(t, s)
		must.Get(s.Import(t.Context(), strings.NewReader(once), store.Replace))(t)
		must.Equal(t, export(t, s), once, "taken in once more")
	})
}

// spoken has the members that tell to which request a line belongs, in all protocols.
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

// judge checks the lines that a host wrote against the lines that it was sent.
func judge(t *testing.T, in, out []byte) {
	got := map[string]int{}
	for line := range bytes.Lines(out) {
		var m spoken
		must.That(t, line[len(line)-1] == '\n' && json.Unmarshal(line, &m) == nil &&
			!bytes.Contains(line, []byte(canary)), "the line %s", line)
		switch {
		case bytes.HasPrefix(line, []byte(`{"a2e"`)):
			hosttest.CheckLine(t, line)
			if info, ok := protocol.Lookup(protocol.Type(m.Type)); ok && (info.Direction == protocol.HostResponse ||
				m.Type == "error") {
				got["a2e "+string(m.ReqID)]++
			}
		case m.RPC != "":
			must.That(t, m.RPC == "2.0" && (m.Method != nil || m.ID != nil && (m.Result == nil) != (m.Error == nil)),
				"no message of JSON-RPC: %s", line)
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
			return // a batch, or a line whose answer has no id
		}
		id := string(m.ID)
		if m.ID.Kind() == '0' { // a number: A2E answers with it as a string
			id = strconv.Quote(id)
		}
		for key, is := range map[string]bool{
			"a2e " + id: strings.HasPrefix(id, `"`), "rpc " + string(m.ID): m.ID != nil, "fleet " + m.Task.TaskID: true,
		} {
			if is {
				sent[key]++
			}
		}
	}
	for key, n := range got {
		must.That(t, n <= sent[key] || key == `a2e ""` || key == "rpc null" || strings.HasPrefix(key, "fleet "),
			"%d answers to %s, which was sent %d times: %s", n, key, sent[key], out)
	}
	must.That(t, got[`a2e "the last"`] == 1 || bytes.Contains(in, []byte("shutdown")) ||
		bytes.Contains(in, []byte(`\u`)), "the last request has no answer: %s", out)
}

// readers returns functions that read a file, one for each kind of file. Each returns an error that tells what is
// wrong, or a value that is the same at the next read.
func readers() []func(t testing.TB, file string, text []byte) (any, error) {
	return []func(t testing.TB, file string, text []byte) (any, error){
		func(_ testing.TB, file string, text []byte) (any, error) {
			n := 0
			h, damage, err := record.Read(file, func(*record.Entry) { n++ })
			if lines := bytes.Count(text, []byte("\n")); n+damage.Broken > lines {
				return nil, fmt.Errorf("canary: %d entries of %d lines", n+damage.Broken, lines)
			}
			return []any{h, damage, n}, err
		},
		func(_ testing.TB, file string, _ []byte) (any, error) {
			report, err := audit.Verify(file, audit.Key{})
			return report.String(), err
		},
		func(t testing.TB, file string, text []byte) (any, error) {
			list := trust.List{Dir: filepath.Dir(file)}
			must.OK(t, os.Rename(file, filepath.Join(list.Dir, "trusted.json")))
			must.That(t, list.Check("/not/named", text) != nil, "a file that nobody named is trusted")
			return list.Files()
		},
		func(_ testing.TB, file string, text []byte) (any, error) { return chains.ParseFile(file, text) },
		func(_ testing.TB, _ string, text []byte) (any, error) { return mcpservers.ParseServers(text) },
		func(_ testing.TB, _ string, text []byte) (any, error) {
			c, schema, place, err := store.PostgresConfig(string(text))
			if err == nil && len(c.Password) > 8 && !strings.Contains(c.Host+c.Database, c.Password) &&
				strings.Contains(place, c.Password) {
				err = fmt.Errorf("canary: the password is shown in %s", place)
			}
			return []string{schema, place}, err
		},
		func(_ testing.TB, _ string, text []byte) (any, error) {
			asked, variables, err := config.Asks(config.ServersFile, text)
			return []any{asked, variables}, err
		},
	}
}

// FuzzFiles: two reads of a file return the same result, or an error that tells what is wrong.
func FuzzFiles(f *testing.F) {
	for i, text := range []string{
		`{"a2e_record":1,"version":"x","started":1,"workspace":"/w"}` + "\n" +
			`{"n":1,"ts":1.5,"dir":"in","msg":{"type":"ping","id":"a"}}` + "\n" +
			`{"n":2,"dir":"out","text":"x","cut":true}` + "\n",
		`{"type":"ping","prev":"` + strings.Repeat("0", 64) + "\"}\n",
		`[{"path":"/a/a2e.yaml","sha256":"` + strings.Repeat("a", 64) + `"}]`,
		"chain_id: c\nnodes:\n  - {id: a, kind: tool, name: echo, input_map: {text: input.text}}\n",
		`{"mcpServers":{"a":{"command":"npx","args":["-y","x"],"env":{"K":"${env:V}"}},"b":{"url":"https://x.example/mcp","headers":{"Authorization":"Bearer ${input:t}"}}}}`,
		`{"mcpServers":{"a":{"command":"npx","args":["-y","x"],"timeout":5000},"b":{"url":"https://x.example/mcp","headers":{"X":"${env:V}"}}}}`,
		"postgres://me:p%40ss-word@db.example:5432/app?sslmode=require&schema=team",
		"mcpServers:\n  a: {command: b} # c\nhost_id: x\n",
	} {
		f.Add(uint8(i), []byte(text))
	}
	all := readers()
	f.Fuzz(func(t *testing.T, kind uint8, text []byte) {
		read := func() (string, error) {
			file := filepath.Join(t.TempDir(), "file")
			must.OK(t, os.WriteFile(file, text, 0o600))
			got, err := all[int(kind)%len(all)](t, file, text)
			if err != nil {
				must.That(t, err.Error() != "" && !strings.HasPrefix(err.Error(), "canary"), "%v", err)
				return "", err
			}
			shown, err := json.Marshal(got, json.Deterministic(true), jsonv1.FormatDurationAsNano(true))
			must.OK(t, err)
			return strings.ReplaceAll(string(shown), filepath.Dir(file), ""), nil
		}
		once, err := read()
		again, wrong := read()
		must.That(t, once == again && (err == nil) == (wrong == nil), "read as %s, %v, then as %s, %v", once, err,
			again, wrong)
	})
}

// FuzzHTTP: the answer to any HTTP request is JSON, and only a request with the token gets a session.
func FuzzHTTP(f *testing.F) {
	const token = "tok-1234"
	for _, head := range []string{
		"POST /session HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + token + "\r\n\r\n",
		"POST /session HTTP/1.1\r\nHost: localhost:1\r\nAuthorization: Bearer tok\r\n\r\n",
		"POST /send HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: bearer  " + token + "\r\nX-Session-Id: " +
			"x\r\nContent-Length: 2\r\n\r\n{}", "GET /stream HTTP/1.1\r\nHost: evil.example\r\nOrigin: " +
			"https://app.example\r\n\r\n",
		"OPTIONS /mcp HTTP/1.1\r\nHost: [::1]:80\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: " +
			"POST\r\n\r\n", "GET /health HTTP/1.0\r\n\r\n",
		"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + token + "\r\nContent-Type: " +
			"application/json\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: " +
			"2025-11-25\r\nContent-Length: 40\r\n\r\n" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
	} {
		f.Add([]byte(head))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var begun atomic.Int64 // sessions that have begun
		s := httpd.New(httpd.Options{
			Loopback: true, Origins: []string{"https://app.example"},
			Tokens: auth.Tokens{auth.New(token, "")}, MaxLine: 1 << 16, Log: zerolog.Nop(),
			Serve: func(_ context.Context, _ httpd.Protocol, in io.Reader, _ io.Writer) error {
				begun.Add(1)
				_, err := io.Copy(io.Discard, in)
				return err
			},
		})
		defer s.Close(ctx)
		got := httptest.NewRecorder()
		s.ServeHTTP(got, r.WithContext(ctx))
		res := got.Result()
		must.That(t, res.Header.Get("X-Content-Type-Options") == "nosniff", "headers %v", res.Header)
		if res.Header.Get("Content-Type") == "application/json" {
			must.That(t, jsontext.Value(got.Body.Bytes()).IsValid(), "the answer %s", got.Body)
		}
		if !strings.HasSuffix(r.Header.Get("Authorization"), token) {
			must.That(t, begun.Load() == 0 && (r.URL.Path == "/health" || got.Code >= 300 ||
				got.Code == http.StatusNoContent), "%d without the token", got.Code)
		}
	})
}
