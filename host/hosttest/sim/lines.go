//go:build linux

package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest"
	"a2e/protocol"
)

// step is one thing that the agent does: it sends a line, or a fault happens.
type step struct {
	line  string        // may have <<id path>>: a member of the answer to an earlier request
	speak string        // the dialect; "" = the line is broken
	of    string        // the dialect that answers a broken line; "" = that of the last good line
	key   string        // id of its answer; "" = no answer
	then  func(*answer) // called with the answer
	bits  bool          // write the line byte by byte
	what  string        // description of a fault
	do    func(*host)
}

// draw draws the steps for one host in one life. They do not depend on the output of the host.
type draw struct {
	*rand.Rand
	prefix  string // of all ids
	model   *model
	mcp     bool // its JSON-RPC is MCP's
	token   string
	plan    string // of tasks that are added; "" = none
	schemas map[protocol.Type]*hosttest.Schema
	others  []protocol.Type // all requests that do not end the session
	ids     int
	last    string            // id of the last native request
	spawned map[string]string // by kind: id of the last request whose answer has an id for later requests
}

func (s *Sim) newDraw(r *rand.Rand, prefix string, m *model) *draw {
	d := &draw{
		Rand: r, prefix: prefix, model: m, token: s.secret("token"), plan: s.plan, mcp: r.IntN(2) == 0,
		spawned: map[string]string{}, schemas: hosttest.Schemas(s.t),
	}
	for _, row := range protocol.Types() {
		if row.Direction == protocol.AgentRequest &&
			!slices.Contains([]protocol.Type{protocol.TypeShutdown, protocol.TypeCancel, protocol.TypeHandshakeReq},
				row.Type) {
			d.others = append(d.others, row.Type)
		}
	}
	return d
}

func (d *draw) id(kind string) string {
	d.ids++
	return fmt.Sprintf("%s%s-%d", kind, d.prefix, d.ids)
}

func (d *draw) of(words ...string) string { return words[d.IntN(len(words))] }

// native returns a request of A2E. For the kind "k" the judge keeps the answer for later requests.
func (d *draw) native(kind, typ, fields string) step {
	id := d.id(kind)
	d.last = id
	if fields != "" {
		fields = "," + fields
	}
	return step{line: fmt.Sprintf(`{"type":%q,"id":%q%s}`, typ, id, fields), speak: "a2e", key: id}
}

// line draws a line of any protocol, or a broken one.
func (d *draw) line() step {
	switch n := d.IntN(100); {
	case n < 12:
		return d.change()
	case n < 50:
		return d.request()
	case n < 62:
		return d.random()
	case n < 74:
		return d.rpc()
	case n < 80:
		return d.task()
	case n < 84:
		return d.cancel()
	case n < 88:
		return d.chain()
	default:
		return d.broken()
	}
}

// request draws a meaningful request of A2E.
func (d *draw) request() step {
	tool := func(name, args string) step {
		more := d.of("", `,"streaming":true`, `,"timeout":1`)
		return d.native("r", "tool/call/req", fmt.Sprintf(`"tool_name":%q,"arguments":{%s}%s`, name, args, more))
	}
	shell := func(script string) step {
		return tool("run_command", fmt.Sprintf(`"command":["bash","-c",%q]`, script))
	}
	file := fmt.Sprintf(`"path":"f%d.txt"`, d.IntN(5))
	switch d.IntN(22) {
	case 0:
		return d.native("r", "ping", "")
	case 1:
		return tool("echo", `"text":"`+strings.Repeat("é\\u0000", d.IntN(2000))+`"`)
	case 2:
		return tool("write_file", fmt.Sprintf(`%s,"content":"%d"`, file, d.IntN(1000)))
	case 3:
		return tool(d.of("read_file", "list_dir"), `"path":`+d.of(`"f1.txt"`, `"."`, `"pipe"`, `"loop"`, `"deep"`,
			`"../config.yaml"`, `"/etc/passwd"`, `"many"`))
	case 4:
		return tool("edit_file", file+`,"old":"1","new":"2","all":true`)
	case 5:
		return tool("glob", `"pattern":"`+d.of("**/*", "{a,b}*{c,d}", strings.Repeat("*a", 50), "[", "many/*")+`"`)
	case 6:
		return tool("grep", `"pattern":"`+d.of("1", "(a*)*b", "(((", ".*.*.*=.*", `\\p{Greek}`)+`"`)
	case 7:
		return tool("http_get", `"url":"http://127.0.0.1:1/`+d.of("", "x", "%zz")+`"`)
	case 8:
		return shell(d.of("env", "exit 3", "yes | head -c 300000", "sleep 300 & echo $!", "kill -9 $$", "sleep 0.2",
			"echo $0 >&2; cat /proc/self/environ; cat ../config.yaml", "ulimit -a; head -c 100 /dev/urandom"))
	case 9:
		s := d.native("k", "proc/spawn/req", `"cmd":["bash","-c",`+d.of(`"cat"`, `"yes | head -c 100000"`,
			`"env; sleep 1"`, `"trap '' TERM; sleep 300 & wait"`)+`]`)
		d.spawned["proc"] = d.last
		return s
	case 10, 11:
		proc := d.named("proc", "proc_id")
		return d.native("r", d.of("proc/write/req", "proc/kill/req", "proc/status/req"),
			`"proc_id":`+proc+`,"data":"words\n","signal":"`+d.of("SIGTERM", "SIGKILL", "SIGSTOP")+`"`)
	case 12:
		return tool(d.of("say", "say", "told"), `"text":"`+d.of("x", "x", "die", "hang", "mute", "huge", "error",
			"half", "twice")+`"`)
	case 13, 14:
		return tool(d.of(ways()...)+"__do", "")
	case 15:
		return d.native("r", d.of("mcp/server/list/req", "mcp/resource/list/req", "mcp/prompt/list/req",
			"tool/list/req", "skill/discover/req", "toolkit/list/req", "learn/stats/req", "multi_agent/list"), "")
	case 16:
		s := d.native("k", "multi_agent/spawn", fmt.Sprintf(`"name":"n%d","role":"worker"`, d.IntN(9)))
		d.spawned["agent"] = d.last
		return s
	case 17:
		agent := d.named("agent", "subagent_id")
		return d.native("r", d.of("multi_agent/delegate", "multi_agent/await", "multi_agent/terminate"),
			`"subagent_id":`+agent+`,"task_name":"t","instruction":"`+d.brief()+`","timeout":1`)
	case 18:
		s := d.native("k", "env/reset/req", fmt.Sprintf(`"env_name":"gridworld","seed":%d`, d.IntN(9)))
		d.spawned["episode"] = d.last
		return s
	case 19, 20:
		return d.native("r", d.of("env/step/req", "env/step/req", "env/observe/req", "env/render/req", "env/plan/req",
			"env/close/req"), `"episode_id":`+d.named("episode", "obs/episode_id")+`,"action":{"type":"`+d.of("up",
			"down", "jump")+`"}`)
	default:
		return d.native("r", "learn/feedback/req",
			`"feedbacks":[{"source":"user","score":0.5,"confidence":1,"kind":"explicit","correlation_id":"c"}]`)
	}
}

// named returns a placeholder for a value of the answer to the last request of a kind.
func (d *draw) named(kind, path string) string {
	if id := d.spawned[kind]; id != "" && d.IntN(10) > 0 {
		return `"<<` + id + " " + path + `>>"`
	}
	return `"nobody"`
}

func (d *draw) brief() string {
	return d.of("echo done", "sleep 0.05; echo done", "exit 1", "sleep 0.5", "yes | head -c 200000", "kill -9 $$",
		"env", "echo '{\\\"status\\\":\\\"partial\\\"}'")
}

// random draws a request of any type. Its fields have values that its schema allows, and sometimes
// others.
func (d *draw) random() step {
	typ := d.others[d.IntN(len(d.others))]
	properties, _ := d.schemas[typ].Schema["properties"].(map[string]any)
	defs, _ := d.schemas[typ].Schema["$defs"].(map[string]any)
	fields := map[string]any{"timeout": 1}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if !slices.Contains([]string{"a2e", "version", "type", "id", "ts", "timeout", "max_steps"}, name) &&
			d.IntN(8) > 0 {
			fields[name] = d.value(properties[name], defs, 0)
		}
	}
	if d.IntN(10) == 0 {
		fields[d.of("grease", "Type", "\u2028", "req_id")] = d.value(nil, nil, 0)
	}
	text, _ := json.Marshal(fields, json.Deterministic(true))
	if strings.Contains(string(text), memoryID) {
		return d.request()
	}
	return d.native("r", string(typ), strings.TrimSuffix(string(text[1:]), "}"))
}

// value draws a value of a schema, or any value without a schema.
func (d *draw) value(schema any, defs map[string]any, depth int) any {
	s, _ := schema.(map[string]any)
	if ref, ok := s["$ref"].(string); ok {
		s, _ = defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	for _, key := range []string{"anyOf", "oneOf", "enum"} {
		if options, ok := s[key].([]any); ok && d.IntN(10) > 0 {
			if one := options[d.IntN(len(options))]; key != "enum" {
				return d.value(one, defs, depth)
			} else {
				return one
			}
		}
	}
	kind, _ := s["type"].(string)
	if kind == "" || d.IntN(15) == 0 {
		kind = d.of("string", "integer", "number", "boolean", "array", "object", "null")
	}
	switch kind {
	case "string":
		return d.of("", "x", "echo", "semantic", "../..", "a\x00b", strings.Repeat("é", d.IntN(300)), "{{7*7}}",
			"$.a[?b]", "http://127.0.0.1:1/", "nobody", "tools", "\U0001F600")
	case "integer", "number":
		return []any{0, 1, -1, 3, 1 << 30, 1e300, 0.5, -1e-9}[d.IntN(8)]
	case "boolean":
		return d.IntN(2) == 0
	case "array":
		list := []any{}
		for range d.IntN(4 - min(depth, 3)) {
			list = append(list, d.value(s["items"], defs, depth+1))
		}
		return list
	case "object":
		properties, _ := s["properties"].(map[string]any)
		object := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			if depth < 4 && d.IntN(6) > 0 {
				object[name] = d.value(properties[name], defs, depth+1)
			}
		}
		if len(properties) == 0 && depth < 3 {
			object[d.of("a", "text", "type")] = d.value(nil, nil, depth+1)
		}
		return object
	}
	return nil
}

// rpc draws a line of JSON-RPC: of sessions, or of MCP.
func (d *draw) rpc() step {
	id, method, params := d.of(`"r%s"`, `"r\u00e9 %s"`, "%d", "-%d", "%d.50", "%d00000000000000000000"), "", "{}"
	if d.ids++; strings.Contains(id, "%s") {
		id = fmt.Sprintf(id, d.id(""))
	} else {
		id = fmt.Sprintf(id, d.ids)
	}
	if d.mcp {
		method = d.of("tools/list", "tools/call", "tools/call", "prompts/list", "resources/list", "resources/read",
			"ping", "logging/setLevel", "completion/complete", "nothing")
		params = d.of(`{}`, `{"name":"echo","arguments":{"text":"x"}}`,
			`{"name":"`+d.of(ways()...)+`__do","arguments":{}}`, `{"name":"say","arguments":{"text":"error"}}`,
			`{"uri":"file:///etc/passwd"}`, `{"level":"error"}`, `[]`)
	} else {
		method = d.of("system.ping", "state.get", "tools.list", "skills.list", "history.list", "limits.get",
			"model.list", "session.create", "session.get", "session.queue.list", "nothing", "command.execute",
			"session.send")
		switch method {
		case "session.create":
			id = fmt.Sprintf(`"%s"`, d.id("k"))
			d.spawned["session"] = strings.Trim(id, `"`)
		case "session.get", "session.queue.list":
			params = `{"session_id":` + d.named("session", "session_id") + `}`
		case "session.send":
			params = `{"session_id":` + d.named("session", "session_id") + `,"text":"` + d.brief() + `","enqueue":true}`
		case "command.execute":
			params = `{"session_id":` + d.named("session", "session_id") + `,"raw_command":"` +
				d.of("/echo text=x", "/help", "/told", "/say text=error", "/nothing", "x") + `"}`
		}
	}
	if d.IntN(20) == 0 && method != "session.create" { // later requests need the answer to session.create
		return step{line: fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`,
			d.of("notifications/initialized", "$/cancelRequest", "nothing"), params), speak: "rpc"}
	}
	return step{
		line:  fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params),
		speak: "rpc", key: strings.Trim(id, `"`),
	}
}

// task draws a task of the fleet protocol.
func (d *draw) task() step {
	id := d.id("t")
	more := d.of("", "", `,"requirements":{"required_capabilities":["flying"]}`,
		`,"requirements":{"required_mcp":["good"]}`, `,"deadline":"2001-01-01T00:00:00Z"`)
	return step{speak: "fleet", key: id, line: fmt.Sprintf(`{"type":"TASK_DISPATCH","protocol_version":%q,"auth_token":%q,"task":{"task_id":%q,"priority":%q},"brief":"%s"%s}`,
		d.of("2.0", "2.0", "2.0", "9.0"), d.token, id, d.of("low", "normal", "high", "urgent", "soon"),
		d.of("echo done", "echo done", "exit 1", "sleep 0.05; echo done", "kill -9 $$", "env"), more)}
}

// cancel draws a cancel of the previous request; it has no answer of its own.
func (d *draw) cancel() step {
	return step{line: fmt.Sprintf(`{"type":"cancel","id":%q,"req_id":%q}`, d.id("c"), d.last), speak: "a2e"}
}

// broken draws a line that no protocol understands. The host answers in the dialect of its type, if that
// can be read, else in the dialect of the last good line.
func (d *draw) broken() step {
	whole := fmt.Sprintf(`{"type":"ping","id":%q,"x":{"a":[1,2,{"b":"c"}]},"y":"z"}`, d.id("b"))
	line := []string{
		whole[:1+d.IntN(len(whole)-2)], "nonsense", "\x00", "{}x", `"text"`, "7", "null",
		`{"type":"ping","type":"ping"}`, "{\"type\":\"\xff\"}", `{"type":"ping","id":"b","x":"` + "\x01" + `"}`,
		strings.Repeat("[", 1000+d.IntN(100_000)), `{"type":"ping","x":` + strings.Repeat(`{"a":`, 5000+d.IntN(1000)),
		`{"x":1e99999`, strings.Repeat("x", maxLine+1+d.IntN(maxLine)), `{"a":"` + strings.Repeat("y", maxLine) +
			`"}`, `[1,2]`, `{"type":"\ud800"`,
	}[d.IntN(17)]
	if rest, typed := strings.CutPrefix(line, `{"type":"ping"`); typed && !strings.HasPrefix(rest, `,"type"`) {
		return step{line: line, of: "a2e"}
	}
	return step{line: line}
}
