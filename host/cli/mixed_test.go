package cli_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"a2e/host/cli"
	"a2e/host/config"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/plugins"
	"a2e/protocol"
)

// mixer writes lines of the three dialects and keeps the answers that they must get.
type mixer struct {
	lines []string
	want  map[string]int // how often each answer must come
	next  int
	last  string // the dialect of the last good line; "" = there was none
}

// id returns a new id.
func (m *mixer) id() string {
	m.next++
	return fmt.Sprintf("r%d", m.next)
}

// add puts a line in, whose answer is want; "" = it gets none.
func (m *mixer) add(dialect, line, want string) {
	m.lines = append(m.lines, line)
	m.last = dialect
	if want != "" {
		m.want[want]++
	}
}

// a2e adds a request of A2E.
func (m *mixer) a2e(typ, fields string) {
	id := m.id()
	m.add("a2e", fmt.Sprintf(`{"type":%q,"id":%q%s}`, typ, id, fields), "a2e "+id)
}

// rpc adds a request of JSON-RPC with an id of any kind.
func (m *mixer) rpc(kind int, method, params string) {
	m.next++
	id := [...]string{`"s%d"`, `%d`, `-%d`, `%d.50`, `%d00000000000000000000`, `"\u00e9 %d"`}[kind]
	id = fmt.Sprintf(id, m.next)
	line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q`, id, method)
	if params != "" {
		line += `,"params":` + params
	}
	m.add("rpc", line+"}", "rpc "+id)
}

// fleet adds a task. What it needs, nobody has: it is blocked.
func (m *mixer) fleet(id, extra string) {
	m.add("fleet", fmt.Sprintf(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":%q,"priority":"high"},"brief":"b"%s}`, id, extra), "fleet "+id)
}

// broken adds a line that no protocol understands, and that looks like one of a dialect.
func (m *mixer) broken(line, like string) {
	m.lines = append(m.lines, line)
	m.want[map[string]string{"a2e": "a2e ", "rpc": "rpc null", "fleet": "fleet "}[cmp.Or(m.last, like)]]++
}

// draw adds one line of any dialect.
func (m *mixer) draw(t *rapid.T) {
	kind := rapid.IntRange(0, 5).Draw(t, "kind of id")
	switch rapid.SampledFrom([]string{
		"ping", "echo", "unknown type", "tools", "handshake", "system.ping", "notification", "unknown method", "params", "tools.list", "session", "answer",
		"blocked", "done", "done again", "no task", "version", "announce", "garbage", "array", "batch", "twice",
	}).Draw(t, "line") {
	case "ping":
		m.a2e("ping", "")
	case "echo":
		m.a2e("tool/call/req", `,"tool_name":"echo","arguments":{"text":"TASK_DISPATCH jsonrpc"}`)
	case "unknown type":
		m.a2e("no/such/req", "")
	case "tools":
		m.a2e("tool/list/req", "")
	case "handshake":
		m.a2e("handshake/req", `,"agent_caps":["tools"]`)
	case "system.ping":
		m.rpc(kind, "system.ping", "")
	case "notification":
		m.add("rpc", `{"jsonrpc":"2.0","method":"system.ping"}`, "")
	case "unknown method":
		m.rpc(kind, "foobar", `[1,2]`)
	case "params":
		m.rpc(kind, "session.get", `{"session_id":7}`)
	case "tools.list":
		m.rpc(kind, "tools.list", `{}`)
	case "session":
		m.rpc(kind, "session.create", `{"title":"t"}`)
	case "answer":
		m.add("rpc", `{"jsonrpc":"2.0","id":7,"result":{}}`, "")
	case "blocked":
		m.fleet(m.id(), `,"requirements":{"required_mcp":["nowhere"]}`)
	case "done": // not each time: it starts a process
		if kind == 0 {
			m.fleet(m.id(), "")
		}
	case "done again":
		m.fleet("again", "")
	case "no task":
		m.add("fleet", `{"type":"TASK_DISPATCH","protocol_version":"2.0"}`, "fleet ")
	case "version":
		m.add("fleet", `{"type":"TASK_DISPATCH","protocol_version":"9.0","task":{"task_id":"v"},"brief":"b"}`, "fleet v")
	case "announce":
		m.add("fleet", `{"type":"SESSION_ANNOUNCE","protocol_version":"2.0"}`, "fleet ")
	case "garbage":
		m.broken(`{"jsonrpc":"2.0","id":1,"method":"system.ping"`, "rpc")
	case "array":
		m.broken(`[{"type":"ping","id":"x"}]`, "a2e")
	case "batch": // is JSON-RPC's, whatever came before
		m.lines = append(m.lines, `[{"jsonrpc":"2.0","id":1,"method":"system.ping"}]`)
		m.want["rpc null"]++
	case "twice":
		m.broken(`{"type":"ping","type":"ping"}`, "a2e")
	}
}

// answers counts what the host answered, in the terms of mixer.want.
func answers(t *rapid.T, out string) map[string]int {
	got := make(map[string]int)
	for line := range strings.Lines(out) {
		obj, err := protocol.ParseObject([]byte(line))
		must.That(t, err == nil, "a line of the output is no object: %v\n%s", err, line)
		typ, id := member(obj, "type"), member(obj, "id")
		switch {
		case member(obj, "jsonrpc") != "" && id == "": // an event
			must.Equal(t, member(obj, "method"), `"event"`, "neither answer nor event: %s", line)
		case member(obj, "jsonrpc") != "":
			got["rpc "+id]++
		case typ == `"SESSION_ANNOUNCE"`:
		case typ == `"TASK_RESULT"`:
			got["fleet "+unquoted(member(obj, "task_id"))]++
		case member(obj, "a2e") == `"1.0"`:
			got["a2e "+unquoted(member(obj, "req_id"))]++
		default:
			t.Fatalf("a line of no dialect: %s", line)
		}
	}
	return got
}

// member returns a member of an object as it stands there.
func member(obj protocol.Object, name string) string {
	val, _ := obj.Get(name)
	return string(val)
}

func unquoted(text string) string {
	plain, _ := jsontext.AppendUnquote(nil, text)
	return string(plain)
}

// TestThreeDialectsOnOnePipe: however lines of A2E, JSON-RPC and the fleet protocol are
// mixed, each request gets its one answer in its own dialect, and a broken line one in that
// of the last good line.
func TestThreeDialectsOnOnePipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "a2e.yaml")
	must.OK(t, os.WriteFile(file, []byte("plugins:\n  - {name: tools, type: tools}\n  - {name: agents, type: multi_agent, metadata: {workers: [{name: w, command: [sh, -c, 'cat >/dev/null; echo done']}]}}\n"), 0o600))
	cfg, _, err := config.Load(config.Source{Path: file, Dir: dir, Available: plugins.Types()})
	must.OK(t, err)
	cfg.StateDir = filepath.Join(dir, "state")
	rapid.Check(t, func(rt *rapid.T) {
		m := &mixer{want: make(map[string]int)}
		for range rapid.IntRange(1, 60).Draw(rt, "lines") {
			m.draw(rt)
		}
		text := strings.Join(m.lines, "\n") + "\n"
		var out bytes.Buffer
		err := cli.ServeAll(cfg, zerolog.Nop(), &pieces{text: text, size: rapid.SampledFrom([]int{1, 7, 100, 1 << 20}).Draw(rt, "piece")}, &out)
		must.That(rt, err == nil, "%v", err)
		if got := answers(rt, out.String()); !maps.Equal(got, m.want) {
			rt.Fatalf("sent:\n%s\nanswered:\n%s\n%s", text, out.String(), differences(m.want, got))
		}
	})
}

// differences says which answers came too often or not.
func differences(want, got map[string]int) string {
	var all []string
	for key := range maps.Keys(want) {
		if got[key] != want[key] {
			all = append(all, fmt.Sprintf("%q came %d times, not %d", key, got[key], want[key]))
		}
	}
	for key := range maps.Keys(got) {
		if want[key] == 0 {
			all = append(all, fmt.Sprintf("%q came, which nobody asked for", key))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// pieces returns a text in pieces of a size.
type pieces struct {
	text string
	size int
}

// Read implements io.Reader.
func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b, p.text[:min(p.size, len(p.text))])
	p.text = p.text[n:]
	return n, nil
}

// Input for a process that is sent at once arrives in order, its end last, whether or not the
// host reads on elsewhere meanwhile, which a busy machine makes it do.
func TestInputOfAProcessKeepsItsOrder(t *testing.T) {
	t.Parallel()
	l := start(t, workDir(t))
	l.send(`{"type":"handshake/req","id":"h","agent_caps":["tools","proc"]}`)
	l.answer("h")
	for round := range 30 {
		spawn := fmt.Sprint("s", round)
		l.send(fmt.Sprintf(`{"type":"proc/spawn/req","id":%q,"cmd":["cat"]}`, spawn))
		m := l.answer(spawn)
		must.That(t, m["ok"] == true, "cat was not started: %v", m)
		var lines []string
		var want strings.Builder
		for i := range 300 {
			text := fmt.Sprintf("%04d%s\n", i, strings.Repeat("x", 3000))
			want.WriteString(strings.TrimSpace(text))
			lines = append(lines, fmt.Sprintf(`{"type":"proc/write/req","id":"w","proc_id":%q,"data":%q}`, m["proc_id"], text))
		}
		lines = append(lines, fmt.Sprintf(`{"type":"proc/write/req","id":"e","proc_id":%q,"eof":true}`, m["proc_id"]))
		done := make(chan string)
		go func() { done <- l.output(spawn) }()
		l.send(lines...)
		got := <-done
		must.Equal(t, got, want.String(), "round %d: %d bytes came back, and not in order, of %d", round, len(got), want.Len())
	}
}

// output reads what a process prints, up to its end, without the ends of lines.
func (l *live) output(spawn string) string {
	var text strings.Builder
	for {
		m := l.next()
		if m["type"] != "proc/read/event" || m["req_id"] != spawn {
			continue
		}
		data := m["data"].(map[string]any)
		if part, ok := data["text"].(string); ok {
			text.WriteString(strings.ReplaceAll(part, "\n", ""))
			continue
		}
		return text.String()
	}
}

// Calls that are sent at once see what the calls before them wrote: reads of the file by
// another spelling, searches of its folder, and programs. The file is large, so that no call
// is done before the next one is read.
func TestCallsOnOneFileKeepTheirOrder(t *testing.T) {
	t.Parallel()
	l := start(t, workDir(t))
	l.send(`{"type":"handshake/req","id":"h","agent_caps":["tools","proc"]}`)
	l.answer("h")
	pad := strings.Repeat("x", 200<<10)
	sees := []string{
		call("%s", "read_file", `{"path":"./sub//f.txt","limit":1}`),
		call("%s", "grep", `{"pattern":"^v[0-9]+$","path":"sub"}`),
		call("%s", "run_command", `{"command":["head","-n1","sub/f.txt"]}`),
		call("%s", "read_file", `{"path":"sub/../sub/f.txt","limit":1}`),
	}
	for round := range 50 {
		version := fmt.Sprint("v", round)
		lines := []string{call("w", "write_file", fmt.Sprintf(`{"path":"sub/f.txt","content":"%s\n%s\n"}`, version, pad))}
		for i, see := range sees {
			if i == 2 && round%10 > 0 {
				see = sees[0]
			}
			lines = append(lines, strings.Replace(see, "%s", fmt.Sprintf("r%d.%d", round, i), 1))
		}
		lines = append(lines, call("e", "edit_file", fmt.Sprintf(`{"path":"sub/f.txt","old":"%s\n","new":"edited\n"}`, version)),
			call(fmt.Sprintf("l%d", round), "read_file", `{"path":"sub/f.txt","limit":1}`))
		l.send(lines...)
		for left := len(sees) + 1; left > 0; {
			m := l.next()
			id, _ := m["req_id"].(string)
			if id == "w" || id == "e" || m["type"] == "invoke/event" {
				continue
			}
			left--
			want := version
			if id[0] == 'l' {
				want = "edited"
			}
			text := fmt.Sprint(m["data"])
			if id == fmt.Sprintf("r%d.2", round) && round%10 == 0 { // a program may see what comes later too
				assert.That(t, strings.Contains(text, version) || strings.Contains(text, "edited"),
					"round %d: the program saw %.300s", round, text)
			} else if !strings.Contains(text, want) {
				t.Errorf("round %d: %s saw %.300s", round, id, text)
			}
		}
	}
}
