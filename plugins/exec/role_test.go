package exec

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/plugins/tools"
)

// roleVariable is the environment variable with the role of this test binary as a child.
const roleVariable = "A2E_EXEC_TEST_ROLE"

// runRole runs the child: in the role "host" a whole host with the built-in tools, else an actor whose
// role is a list of words.
func runRole(role string) int {
	if role == "child host" {
		return serveTools()
	}
	a := &actor{
		words: strings.Fields(role), held: make(map[string]jsontext.Value),
		asked: make(map[string]chan jsontext.Value),
	}
	return a.run()
}

func serveTools() int {
	p, err := tools.New("inner", tools.DefaultOptions(), host.Env{Workspace: "."})
	if err == nil {
		var h *host.Host
		if h, err = host.New(host.Options{Plugins: []host.Plugin{p}, MaxParallel: 8}); err == nil {
			err = h.Serve(os.Stdin, os.Stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// everyTool has the tools of an actor whose role names none.
const everyTool = "say,tell,who,read,block,hang,hold,release,asked,null-data,null-fields,null-event,fail,unsure,ask,elicit,custom-ask," +
	"flood,shout,huge,twice,nan,stray,wrong,half,bad-error,bad-events,nameless,unauthorized"

// actor is a child whose tools do what their names say.
type actor struct {
	words  []string
	hellos atomic.Int64
	state  atomic.Pointer[string] // agent_id of the last handshake

	mu    sync.Mutex                // guards stdout and the fields below
	held  map[string]jsontext.Value // requests that it does not answer, by tool
	asked map[string]chan jsontext.Value
	asks  int
	lists int // requests for its list
}

func (a *actor) is(word string) bool { return slices.Contains(a.words, word) }

// word returns the rest of the first word with a prefix, or usual.
func (a *actor) word(prefix, usual string) string {
	for _, w := range a.words {
		if rest, ok := strings.CutPrefix(w, prefix); ok {
			return rest
		}
	}
	return usual
}

type got struct {
	Type      string         `json:"type"`
	ID        string         `json:"id"`
	ReqID     string         `json:"req_id"`
	ToolName  string         `json:"tool_name"`
	AgentID   string         `json:"agent_id"`
	AuthToken string         `json:"auth_token"`
	Args      jsontext.Value `json:"arguments"`
	Text      string         `json:"text"`
	Times     int            `json:"times"`
}

func (a *actor) run() int {
	if a.is("die-at-start") {
		fmt.Fprintln(os.Stderr, "it cannot run")
		return 4
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return 0
		}
		var m got
		if err := json.Unmarshal(line, &m); err != nil {
			fmt.Fprintf(os.Stderr, "bad line %q: %v\n", line, err)
			return 5
		}
		if code := a.take(&m, bytes.Clone(line)); code >= 0 {
			return code
		}
	}
}

func (a *actor) take(m *got, line []byte) (exit int) {
	a.mu.Lock()
	waiting := a.asked[m.ReqID]
	delete(a.asked, m.ReqID)
	a.mu.Unlock()
	if waiting != nil {
		waiting <- line
		return -1
	}
	switch m.Type {
	case "handshake/req":
		return a.hello(m)
	case "ping":
		if !a.is("no-ping") {
			a.say(m, "pong", `"uptime_seconds":1`)
		}
	case "shutdown":
		if a.is("note-shutdown") {
			_ = os.WriteFile("shutdown", nil, 0o600)
		}
		if a.is("stays") {
			return -1
		}
		return 0
	case "cancel":
		a.cancel(m)
	case "tool/list/req":
		a.lists++
		if file := a.word("list-when=", ""); file != "" {
			go func() {
				awaitFile(file)
				a.list(m)
			}()
			return -1
		}
		a.list(m)
	case "tool/call/req":
		return a.call(m)
	case "skill/discover/req":
		a.say(m, "skill/discover/resp", `"skills":[{"name":"brew","version":"1","description":"d","triggers":[],"status":"Published","arguments":{},"when_to_use":"w","argument_hint":"","source":"user"}]`)
	case "env/exp/list/req":
		a.say(m, "env/exp/list/resp", `"episodes":[{"episode_id":"theirs","env_name":"x","step":1,"ts":1,"state":{},"action":{},"reward":0,"next_state":{},"done":false}]`)
	case "env/reset/req":
		a.say(m, "error", `"code":"unknown_env","message":"no such environment"`)
	case "env/step/req":
		if reward := a.word("reward=", ""); reward != "" {
			a.say(m, "env/step/resp", `"obs":{"episode_id":"e","step_num":1,"state":{},"reward":`+reward+`}`)
			return -1
		}
		a.say(m, "error", `"code":"unknown_episode","message":"no such episode"`)
	case "weather/ask/req", "weather/watch/req", "weather/poll/req", "memory/store/req", "proc/spawn/req":
		go a.custom(m)
	default:
		a.say(m, "error", fmt.Sprintf(`"code":"invalid_message","message":"unknown type %s"`, m.Type))
	}
	return -1
}

// awaitFile waits until a file of this name exists.
func awaitFile(name string) {
	for {
		if _, err := os.Stat(name); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (a *actor) hello(m *got) int {
	n := a.hellos.Add(1)
	a.state.Store(new(m.AgentID))
	switch {
	case a.is("mute"), a.is("mute-second") && n > 1:
		return -1
	case m.AuthToken != a.word("token=", ""):
		a.say(m, "handshake/resp", `"ok":false,"reason":"auth_failed","accepted_caps":[]`)
		return -1
	}
	if a.is("junk") {
		a.raw("Welcome! this is not a JSON\n\n[1,2]\n\"text\"\n{\"type\":5}\n{\"a\":1,\"a\":2}\n\xff\xfe\n")
	}
	rows := a.word("caps=", `[{"capability":"tools","enabled":true,"metadata":{}}]`)
	a.say(m, "handshake/resp", fmt.Sprintf(`"ok":true,"session_id":"s%d","max_parallel":%s,"accepted_caps":%s`, n,
		a.word("parallel=", "4"), rows))
	return -1
}

func (a *actor) list(m *got) {
	if a.is("null-list") {
		a.say(m, "tool/list/resp", `"tools":null`)
		return
	}
	names := strings.Split(a.word("lists=", a.word("tools=", everyTool)), ",")
	for i, name := range names {
		names[i] = fmt.Sprintf(`{"name":%q,"description":"x","x-own":12345678901234567890}`, name)
	}
	if a.is("typed") {
		names = []string{
			`{"name":"say","description":"Speak","tags":["voice"],"input_parameters":[{"name":"text","type":"string","description":"","required":true},{"name":"n","type":"integer","description":""},{"name":"how","type":"Callable","description":""}]}`,
			`{"name":"who","description":"x","input_parameters":[]}`,
			`{"name":"hidden","description":"Speak up","defer_loading":true}`,
		}
	}
	if a.is("bad-list") {
		names = []string{`{"name":7}`}
	}
	a.say(m, "tool/list/resp", `"x-more":[ 1.50 ],"tools":[`+strings.Join(names, ",")+`]`)
}

// cancel answers a held request.
func (a *actor) cancel(m *got) {
	a.mu.Lock()
	held := a.held[m.ReqID]
	delete(a.held, m.ReqID)
	a.mu.Unlock()
	if held != nil && !a.is("no-cancel") {
		a.say(&got{ID: m.ReqID}, "error", `"code":"cancelled","message":"stopped"`)
	}
}

// call does what the tool's name says.
func (a *actor) call(m *got) (exit int) {
	args := struct {
		Text string `json:"text"`
		N    int    `json:"n"`
	}{}
	_ = json.Unmarshal(m.Args, &args)
	if strings.HasPrefix(m.ToolName, "die") {
		fmt.Fprintln(os.Stderr, "a last word, and the token "+a.word("token=", "none"))
		return 3
	}
	if tools := a.word("tools=", m.ToolName); !slices.Contains(strings.Split(tools, ","), m.ToolName) {
		return a.unknown(m)
	}
	switch m.ToolName {
	case "say", "tell":
		a.result(m, fmt.Sprintf(`{"text":%q}`, args.Text))
	case "who":
		a.result(m, fmt.Sprintf(`{"agent":%q,"hellos":%d,"me":%q}`, *a.state.Load(), a.hellos.Load(),
			a.word("me=", "")))
	case "read":
		text, err := os.ReadFile(args.Text)
		a.result(m, fmt.Sprintf(`{"text":%q,"error":%q}`, text, fmt.Sprint(err)))
	case "block": // the whole child
		if args.Text != "" {
			awaitFile(args.Text)
		}
		a.result(m, `{}`)
	case "hang":
		time.Sleep(time.Hour) // select {} would end the program, as nothing else runs in it
	case "hold":
		a.mu.Lock()
		a.held[m.ID] = jsontext.Value(m.ID)
		n := len(a.held)
		a.mu.Unlock()
		a.say(m, "invoke/event", fmt.Sprintf(`"kind":"status","data":{"message":"held %d"},"seq":77`, n))
	case "release": // late answers
		a.mu.Lock()
		held := a.held
		a.held = make(map[string]jsontext.Value)
		a.mu.Unlock()
		for id := range held {
			a.result(&got{ID: id, ToolName: "hold"}, `{"late":true}`)
		}
		a.result(m, fmt.Sprintf(`{"held":%d}`, len(held)))
	case "asked":
		a.result(m, fmt.Sprintf(`{"times":%d}`, a.lists))
	case "null-data":
		a.say(m, "tool/call/resp", `"data":null,"created_at":1`)
	case "null-fields":
		a.say(m, "tool/call/resp", `"data":{"success":true,"tool_name":"x","data":{"mine":null},"summary":null,"duration_ms":1,"events":null,"error":null},"created_at":1,"own":null`)
	case "null-event":
		a.say(m, "tool/event", `"kind":"progress","data":null,"seq":null`)
		a.result(m, `{}`)
	case "fail":
		a.say(m, "error", `"code":"tool_error","message":"no luck","detail":{"big":12345678901234567890,"list":["a"]},"retryable":true,"capability_name":"tools"`)
	case "unsure":
		a.say(m, "tool/call/resp", `"data":{"success":false,"tool_name":"unsure","data":null,"summary":null,"duration_ms":0,"events":[],"error":"it failed"},"created_at":1`)
	case "ask", "elicit", "custom-ask":
		go a.ask(m)
	default:
		return a.misbehave(m, args.N)
	}
	return -1
}

// misbehave breaks the protocol in the way of the tool's name.
func (a *actor) misbehave(m *got, n int) int {
	switch m.ToolName {
	case "flood":
		for i := range n {
			a.raw(fmt.Sprintf("junk %d\n", i))
		}
		for i := range n {
			a.say(m, "invoke/event", fmt.Sprintf(`"kind":"log","data":{"level":"info","message":"%d"},"seq":%d`, i, i))
		}
		a.result(m, `{}`)
	case "shout":
		fmt.Fprint(os.Stderr, strings.Repeat("stderr without an end ", n))
		a.result(m, `{}`)
	case "huge":
		a.result(m, `"`+strings.Repeat("x", n)+`"`)
	case "twice":
		a.result(m, `{"n":1}`)
		a.result(m, `{"n":2}`)
		a.say(m, "error", `"code":"tool_error","message":"and again"`)
	case "nan":
		a.result(m, `{"n":NaN}`)
	case "stray":
		a.result(&got{ID: "123456"}, `{}`)
		a.result(&got{ID: "no number"}, `{}`)
		a.raw(`{"a2e":"1.0","type":"tool/call/resp","data":{}}` + "\n" + `{"type":"handshake/req","id":"1"}` + "\n" +
			`{"type":"pong"}` + "\n")
		a.result(m, `{}`)
	case "wrong":
		a.say(m, "env/step/resp", `"obs":{}`)
	case "half":
		a.say(m, "tool/call/resp", `"created_at":1`)
	case "bad-error":
		a.say(m, "error", `"code":7`)
	case "bad-events":
		for _, e := range []string{
			`"kind":"progress","data":{"pct":"x"}`, `"kind":"progress"`,
			`"kind":7,"data":{"message":"status"}`, `"kind":"weird","data":{"any":[1]}`,
		} {
			a.say(m, "tool/event", e)
		}
		a.result(m, `{}`)
	case "nameless":
		a.say(&got{}, "tool/call/resp", `"data":{"success":true,"tool_name":"nameless","data":null,"duration_ms":0,"events":[]}`)
	case "unauthorized":
		a.say(m, "error", `"code":"unauthorized","message":"handshake first"`)
	default:
		return a.unknown(m)
	}
	return -1
}

func (a *actor) unknown(m *got) int {
	a.say(m, "error", fmt.Sprintf(`"code":"unknown_tool","message":"unknown tool \"%s\"; there are: say, who","detail":{"known":["say","who"]}`, m.ToolName))
	return -1
}

// ask asks the agent, and answers with the agent's answer.
func (a *actor) ask(m *got) {
	answer := make(chan jsontext.Value, 1)
	a.mu.Lock()
	a.asks++
	id := fmt.Sprintf("ask %d \"é\"", a.asks)
	a.asked[id] = answer
	a.mu.Unlock()
	line := map[string]any{
		"a2e": "1.0", "id": id, "type": map[string]string{
			"ask":    "mcp/sample/req",
			"elicit": "mcp/elicit/req", "custom-ask": "weather/permit/req",
		}[m.ToolName],
		"server_id": "s", "mcp_request_id": "r", "messages": []any{}, "message": "may I?",
		"big": jsontext.Value("12345678901234567890"),
	}
	b, _ := json.Marshal(line)
	a.raw(string(b) + "\n")
	a.result(m, `{"said":`+string(bytes.TrimSpace(<-answer))+`}`)
}

// custom answers types of the child's own, and those of other capabilities.
func (a *actor) custom(m *got) {
	switch m.Type {
	case "weather/ask/req":
		for i := range m.Times {
			a.say(m, "invoke/event", fmt.Sprintf(`"kind":"progress","data":{"pct":%d,"message":"x"}`, i))
			a.say(m, "weather/cloud/event", fmt.Sprintf(`"cloud":%d,"seq":5`, i))
		}
		a.say(m, "weather/ask/resp", fmt.Sprintf(`"answer":{"text":%q, "big":12345678901234567890}`, m.Text))
	case "weather/watch/req":
		a.say(m, "weather/watch/resp", `"ok":true`)
		for i := range m.Times {
			a.say(m, "weather/cloud/event", fmt.Sprintf(`"cloud":%d`, i))
		}
		a.raw(`{"type":"weather/news/push","id":"n","news":"sunny"}` + "\n")
	case "weather/poll/req":
		a.say(m, "weather/poll/event", `"x":1`) // and no answer
	case "memory/store/req":
		a.say(m, "error", `"code":"memory_not_found","message":"none here"`)
	case "proc/spawn/req":
		a.say(m, "proc/read/event", `"kind":"log","proc_id":"p1","stream_type":"stdout","data":{"text":"early"},"seq":0`)
		a.say(m, "proc/spawn/resp", `"ok":true,"proc_id":"p1","pid":7`)
		a.say(m, "proc/read/event", `"kind":"log","proc_id":"p1","stream_type":"stdout","data":{"text":"hi"},"seq":1`)
		a.say(m, "proc/read/event", `"kind":"status","proc_id":"p1","stream_type":"stdout","data":{"code":0},"seq":2`)
		a.say(m, "proc/read/event", `"kind":"log","proc_id":"p1","stream_type":"stdout","data":{"text":"after the end"},"seq":3`)
	}
}

func (a *actor) result(m *got, data string) {
	a.say(m, "tool/call/resp", fmt.Sprintf(`"data":{"success":true,"tool_name":%q,"data":%s,"summary":null,"duration_ms":0,"events":[]},"created_at":1`, m.ToolName, data))
}

func (a *actor) say(m *got, t, members string) {
	line := fmt.Sprintf(`{"a2e":"1.0","version":"1.0","type":%q,"id":"x","ts":1,"req_id":%q,%s}`+"\n", t, m.ID, members)
	if a.is("prints") || a.is("prints-too") {
		line = "line: " + line
		if a.is("prints-too") {
			line += strings.TrimPrefix(line, "line: ")
		}
	}
	a.raw(line)
}

func (a *actor) raw(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, _ = os.Stdout.WriteString(text)
}
