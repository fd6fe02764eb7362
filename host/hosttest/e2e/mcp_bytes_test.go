package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// echoRole is an environment variable that has the test binary play an MCP server. Its value is a file with sayings.
const echoRole = "CLI_TEST_MCP"

// sayings are the answers of such a server: results by method, errors by the method and " error", and by "before" the
// lines that it writes before the answer to a call. In these lines $TOKEN is the call's progress token.
type sayings map[string]jsontext.Value

// playEcho is the server. It writes the params of each call to the file `called`.
func playEcho(file string, in io.Reader, out io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var says sayings
	if err := json.Unmarshal(text, &says); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var m struct {
			ID     jsontext.Value `json:"id"`
			Method string         `json:"method"`
			Params jsontext.Value `json:"params"`
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil || m.ID == nil || m.Method == "" {
			continue
		}
		answer := fmt.Sprintf(`"result":%s`, cmpOr(says[m.Method], "{}"))
		if failed, ok := says[m.Method+" error"]; ok {
			answer = fmt.Sprintf(`"error":%s`, failed)
		}
		if m.Method == "tools/call" {
			if err := os.WriteFile("called", m.Params, 0o600); err != nil {
				return err
			}
			var p struct {
				Meta struct {
					Token jsontext.Value `json:"progressToken"`
				} `json:"_meta"`
			}
			_ = json.Unmarshal(m.Params, &p)
			var before []string
			_ = json.Unmarshal(says["before"], &before)
			for _, line := range before {
				fmt.Fprintln(out, strings.ReplaceAll(line, "$TOKEN", string(p.Meta.Token)))
			}
		}
		fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,%s}`+"\n", m.ID, answer)
	}
	return lines.Err()
}

func cmpOr(v jsontext.Value, other string) string {
	if v == nil {
		return other
	}
	return string(v)
}

// gateway is a host that serves MCP, with one server behind it whose answers a test sets.
type gateway struct {
	t     *testing.T
	dir   string
	in    io.Writer
	lines *bufio.Scanner
	last  int
	notes []string // notifications that were read
}

func openGateway(t *testing.T, says sayings) *gateway {
	t.Helper()
	if says["initialize"] == nil {
		says["initialize"] = jsontext.Value(`{"protocolVersion":"2025-11-25","serverInfo":{"name":"x","version":"1"},` +
			`"capabilities":{"tools":{},"resources":{},"prompts":{},"completions":{},"logging":{}}}`)
	}
	dir := workDir(t)
	exe := must.Get(os.Executable())(t)
	text := must.Get(json.Marshal(says, jsontext.PreserveRawStrings(true)))(t)
	writeFile(t, dir, "says.json", string(text))
	server := map[string]any{
		"command": exe, "read": []string{exe},
		"env": map[string]string{echoRole: "says.json", "GORACE": "atexit_sleep_ms=0"},
	}
	config := must.Get(json.Marshal(map[string]any{"mcpServers": map[string]any{"srv": server}}))(t)
	writeFile(t, dir, "gateway.yaml", string(config))
	cmd := command(t, dir, "./a2e", "--config", "gateway.yaml", "mcp", "serve")
	g := &gateway{t: t, dir: dir}
	in, out := must.Get(cmd.StdinPipe())(t), must.Get(cmd.StdoutPipe())(t)
	cmd.Stderr = &bytes.Buffer{}
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // the exit status does not matter here
		if t.Failed() {
			t.Logf("%s", cmd.Stderr)
		}
	})
	g.in, g.lines = in, bufio.NewScanner(out)
	g.lines.Buffer(nil, 1<<24)
	g.call("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	_, err := io.WriteString(g.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	must.OK(t, err)
	return g
}

// call sends a request and returns the line of its answer.
func (g *gateway) call(method, params string) string {
	g.t.Helper()
	g.last++
	_, err := fmt.Fprintf(g.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", g.last, method, params)
	must.OK(g.t, err)
	head := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,`, g.last)
	for g.lines.Scan() {
		line := g.lines.Text()
		must.That(g.t, jsontext.Value(line).IsValid(), "no JSON: %s", line)
		if strings.HasPrefix(line, head) {
			return line
		}
		g.notes = append(g.notes, line)
	}
	g.t.Fatalf("%s: no answer: %v", method, g.lines.Err())
	return ""
}

// odd is JSON that changes if it is decoded into Go types and encoded again.
const odd = `{"big":1765432109876543210,"more":123456789012345678901234567890,"one":1.0,"huge":1e400,"minus":-0,` +
	`"long":0.1000000000000000055511151231257827,"exp":1E+2,"esc":"\u003c\u0041\/\ud83d\ude00<&>","":null,` +
	`"deep":{"n":[9007199254740993,[]]}}`

// TestMCPBytes: all that servers say reaches an MCP client byte for byte: numbers, escapes and members that MCP does
// not know, in definitions, results and notifications. All that the client says reaches the server likewise.
func TestMCPBytes(t *testing.T) {
	t.Parallel()
	news := `"_meta":` + odd + `,"new":` + odd
	text := `{"type":"text","text":"\u0041\/b","annotations":{"priority":0.50,"x":1.0},` + news + `}`
	schema := `{"type":"object","properties":{"n":{"type":"integer","maximum":9007199254740993,"default":1.0,` +
		`"title":"\u0041"},"esc":{"type":"string"}},"x-own":` + odd + `}`
	output := `{"type":"object","properties":{"big":{"type":"integer","minimum":-9007199254740993}}}`
	icons := `[{"src":"data:,\u0041","sizes":["48x48"],"x":1.0}]`
	own := `"icons":` + icons + `,"_meta":` + odd
	g := openGateway(t, sayings{
		"tools/list": jsontext.Value(`{"tools":[{"name":"do","inputSchema":` + schema + `,"outputSchema":` + output +
			`,"annotations":{"readOnlyHint":true,"x":1.0},` + own + `}]}`),
		"tools/call": jsontext.Value(`{"content":[` + text + `],"structuredContent":` + odd + `,` + news + `}`),
		"resources/list": jsontext.Value(`{"resources":[{"uri":"x://1","name":"r","size":1.0,` +
			`"annotations":{"priority":0.50},` + own + `}]}`),
		"resources/templates/list": jsontext.Value(`{"resourceTemplates":[{"uriTemplate":"y://{id}","name":"t",` +
			own + `}]}`),
		"resources/read": jsontext.Value(`{"contents":[{"uri":"x://1","text":"\u0041\/",` +
			news + `}],"_meta":` + odd + `}`),
		"prompts/list": jsontext.Value(`{"prompts":[{"name":"p","arguments":[{"name":"a","new":` +
			odd + `}],` + own + `}]}`),
		"prompts/get": jsontext.Value(`{"messages":[{"role":"user","content":` + text + `,"new":` + odd + `}],` +
			`"_meta":` + odd + `}`),
		"completion/complete": jsontext.Value(`{"completion":{"values":["\u0041"],"total":3.0},"_meta":` + odd + `}`),
		"before": must.Get(json.Marshal([]string{
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$TOKEN,"progress":1.0,` +
				`"total":9007199254740993,"message":"\u0041","_meta":` + odd + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":` +
				odd + `,` + news + `}}`,
		}, jsontext.PreserveRawStrings(true)))(t),
	})
	holds := func(line string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			assert.That(t, strings.Contains(line, part), "the answer lacks\n%s\n%s", part, line)
		}
	}
	g.call("logging/setLevel", `{"level":"debug"}`)
	holds(g.call("tools/list", `{}`), `"name":"srv__do"`, `"inputSchema":`+schema, `"outputSchema":`+output,
		`"icons":`+icons, `"_meta":`+odd, `"annotations":{"readOnlyHint":true,"x":1.0`)
	args := `{"n":9007199254740993,"esc":"\u0041<\/"}`
	meta := `{"progressToken":12345678901234567890,"mine":` + odd + `,"a2e/x":1}`
	holds(g.call("tools/call", `{"name":"srv__do","arguments":`+args+`,"_meta":`+meta+`}`),
		`"content":[`+text+`]`, `"structuredContent":`+odd, `"_meta":`+odd, `"new":`+odd)
	called := textOf(t, g.dir, "called")
	holds(called, `"arguments":`+args, `"mine":`+odd)
	assert.That(t, !strings.Contains(called, "a2e/x"), "the server got %s", called)
	hosttest.Eventually(t, "the log message, which waits for no call", func() bool {
		g.call("ping", `{}`)
		return strings.Contains(strings.Join(g.notes, "\n"), "notifications/message")
	})
	holds(strings.Join(g.notes, "\n"), `{"progressToken":12345678901234567890,"progress":1.0,"total":9007199254740993,`+
		`"message":"\u0041","_meta":`+odd+`}`, `"data":`+odd+`,`+news)
	holds(g.call("resources/list", `{}`), `"uri":"x://1"`, `"size":1.0`, `"icons":`+icons, `"_meta":`+odd,
		`"annotations":{"priority":0.50}`)
	holds(g.call("resources/templates/list", `{}`), `"uriTemplate":"y://{id}"`, `"icons":`+icons, `"_meta":`+odd)
	holds(g.call("resources/read", `{"uri":"x://1"}`), `"text":"\u0041\/"`, `"_meta":`+odd+`,`, `"new":`+odd,
		`"_meta":`+odd+`}`)
	holds(g.call("prompts/list", `{}`), `"name":"srv__p"`, `"new":`+odd, `"icons":`+icons, `"_meta":`+odd)
	holds(g.call("prompts/get", `{"name":"srv__p"}`), `"content":`+text, `"new":`+odd, `"_meta":`+odd)
	complete := `{"ref":{"type":"ref/prompt","name":"srv__p"},"argument":{"name":"a","value":""}}`
	holds(g.call("completion/complete", complete), `{"completion":{"values":["\u0041"],"total":3.0},"_meta":`+odd+`}`)
}

// A server's error reaches the client with its code and its data.
func TestMCPErrorsOfServers(t *testing.T) {
	t.Parallel()
	failed := `{"code":-32042,"message":"look here","data":` + odd + `}`
	g := openGateway(t, sayings{
		"tools/list":     jsontext.Value(`{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}`),
		"resources/list": jsontext.Value(`{"resources":[{"uri":"x://1","name":"r"}]}`),
		"prompts/list":   jsontext.Value(`{"prompts":[{"name":"p"}]}`),

		"tools/call error": jsontext.Value(failed), "resources/read error": jsontext.Value(failed),
		"prompts/get error": jsontext.Value(failed), "completion/complete error": jsontext.Value(failed),
	})
	g.call("tools/list", `{}`)
	for method, params := range map[string]string{
		"tools/call": `{"name":"srv__do"}`, "resources/read": `{"uri":"x://1"}`, "prompts/get": `{"name":"srv__p"}`,
		"completion/complete": `{"ref":{"type":"ref/prompt","name":"srv__p"},"argument":{"name":"a","value":""}}`,
	} {
		line := g.call(method, params)
		fits := strings.Contains(line, `"error":{"code":-32042,`) && strings.Contains(line, `"data":`+odd) &&
			strings.Contains(line, "look here") && !strings.Contains(line, "Go ")
		assert.That(t, fits, "%s: %s", method, line)
	}
}

// oddMember is a member of a type or value that MCP does not allow, in one kind of entry or block.
type oddMember struct{ of, member string }

// TestMCPOddMembers: only the member that does not fit is left out; its entry and all others are there.
func TestMCPOddMembers(t *testing.T) {
	t.Parallel()
	base := map[string]string{
		"tool": `"name":"%s","inputSchema":{"type":"object"}`, "resource": `"uri":"x://%s","name":"r"`,
		"template": `"uriTemplate":"y://%s/{id}","name":"t"`, "prompt": `"name":"%s"`,
		"block": `"type":"text","text":"%s"`, "part": `"uri":"x://%s","text":"t"`,
	}
	var all []oddMember
	for _, of := range []string{"tool", "resource", "template", "prompt"} {
		for _, member := range []string{
			`"title":3`, `"description":["d"]`, `"icons":"none"`,
			`"icons":[{"src":"u","sizes":"48x48"}]`, `"icons":[{"src":5},7]`,
			`"icons":[{"src":"u","theme":"blue"}]`, `"_meta":[]`, `"title":null`,
		} {
			all = append(all, oddMember{of, member})
		}
	}
	for _, hint := range []string{
		`"readOnlyHint":"yes"`, `"destructiveHint":1`, `"idempotentHint":null`, `"openWorldHint":{}`, `"title":7`,
	} {
		all = append(all, oddMember{"tool", `"annotations":{` + hint + `}`})
	}
	all = append(all,
		oddMember{"tool", `"annotations":"none"`}, oddMember{"tool", `"execution":true`},
		oddMember{"tool", `"outputSchema":null`},
		oddMember{"prompt", `"arguments":{}`},
		oddMember{"prompt", `"arguments":[{"name":"a","required":"yes"},{"title":"no name"},4]`})
	for _, of := range []string{"resource", "template", "block"} {
		for _, a := range []string{
			`"priority":"high"`, `"priority":7`, `"audience":"user"`, `"audience":["nobody"]`, `"lastModified":"today"`,
		} {
			all = append(all, oddMember{of, `"annotations":{` + a + `}`})
		}
	}
	for _, of := range []string{"resource", "template", "part"} {
		all = append(all, oddMember{of, `"mimeType":5`})
	}
	all = append(all, oddMember{"resource", `"size":"3"`}, oddMember{"resource", `"name":4`},
		oddMember{"part", `"_meta":1`}, oddMember{"block", `"_meta":"x"`})

	made := map[string][]string{}
	for i, m := range all {
		head := fmt.Sprintf(base[m.of], fmt.Sprintf("n%d", i))
		if key, _, _ := strings.Cut(m.member, ":"); strings.Contains(head, key+":") {
			head = strings.Replace(head, `,"name":"r"`, "", 1)
		}
		made[m.of] = append(made[m.of], "{"+head+","+m.member+"}")
	}
	for _, of := range []string{"tool", "resource", "template", "prompt"} { // values that cannot be an entry
		made[of] = append(made[of], `null`, `[]`, `"x"`, `{}`, `{"name":4,"uri":4,"uriTemplate":4}`)
	}
	list := func(name, of string) jsontext.Value {
		return jsontext.Value(fmt.Sprintf(`{%q:[%s],"nextCursor":null}`, name, strings.Join(made[of], ",")))
	}
	g := openGateway(t, sayings{
		"tools/list": list("tools", "tool"), "resources/list": list("resources", "resource"),
		"prompts/list": list("prompts", "prompt"), "resources/templates/list": list("resourceTemplates", "template"),
		"resources/read": list("contents", "part"),
		"tools/call": jsontext.Value(`{"content":[` + strings.Join(made["block"], ",") +
			`,{"type":"image","data":"%"},{"type":"resource","resource":{}},5,{"type":"new","x":1}],` +
			`"isError":"no","structuredContent":null}`),
	})
	answers := map[string]string{
		"tool": g.call("tools/list", `{}`), "resource": g.call("resources/list", `{}`),
		"template": g.call("resources/templates/list", `{}`), "prompt": g.call("prompts/list", `{}`),
		"block": g.call("tools/call", `{"name":"srv__n0"}`), "part": g.call("resources/read", `{"uri":"x://n8"}`),
	}
	must.That(t, len(all) >= 25, "%d members", len(all))
	for i, m := range all {
		name := fmt.Sprintf("n%d", i)
		there := strings.Contains(answers[m.of], "__"+name+`"`) || strings.Contains(answers[m.of], "://"+name) ||
			strings.Contains(answers[m.of], `"text":"`+name+`"`)
		assert.That(t, there, "the %s with %s is not there", m.of, m.member)
		if strings.HasPrefix(m.member, `"icons":[`) && strings.Contains(m.member, `"src":"u"`) {
			continue // the rest of the icon stays
		}
		assert.That(t, !strings.Contains(answers[m.of], m.member), "the %s has %s", m.of, m.member)
	}
	for _, part := range []string{`"sizes":"48x48"`, `"theme":"blue"`, `{"title":"no name"`, `"required":"yes"`} {
		for of, line := range answers {
			assert.That(t, !strings.Contains(line, part), "a %s has %s", of, part)
		}
	}
	assert.That(t, strings.Count(answers["tool"], `"icons":[{"src":"u"}]`) == 2, "icons: %s", answers["tool"])
	for _, part := range []string{
		`has no member \"data\" that fits: {\"type\":\"image\",\"data\":\"%\"}`, `has no member \"resource\"`,
		`is not a JSON object: 5`, `{\"type\":\"new\",\"x\":1}`,
	} {
		assert.That(t, strings.Contains(answers["block"], part), "no text says %s: %s", part, answers["block"])
	}
	assert.That(t, !strings.Contains(answers["block"], "isError"), "the call failed: %s", answers["block"])
	out, err := command(t, g.dir, "./a2e", "--config", "gateway.yaml", "mcp", "list", "--json").CombinedOutput()
	must.That(t, err == nil, "%v: %s", err, out)
	for _, part := range []string{
		"is not a JSON object", `has no member \"name\" that fits`, `has no member \"uri\" that fits`,
		`has no member \"uriTemplate\" that fits`,
	} {
		assert.That(t, bytes.Contains(out, []byte(part)), "mcp list does not say %q:\n%s", part, out)
	}
}

// TestMCPOddCursors: an unusual cursor does not break a list; each tool is in it once.
func TestMCPOddCursors(t *testing.T) {
	t.Parallel()
	for _, cursor := range []string{`2`, `null`, `""`, `{}`, `true`} {
		tools := `{"tools":[{"name":"do","inputSchema":{"type":"object"}}],"nextCursor":` + cursor + `}`
		g := openGateway(t, sayings{"tools/list": jsontext.Value(tools)})
		line := g.call("tools/list", `{}`)
		assert.That(t, strings.Count(line, `"srv__do"`) == 1, "nextCursor %s: %s", cursor, line)
	}
}
