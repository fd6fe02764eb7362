package mcp_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// oddTool is a tool of the server "odd": its schemas, and the schemas that the host offers instead. Without Offered
// or Shaped, the host offers the server's schema unchanged.
type oddTool struct {
	Name     string         `json:"name"`
	Input    jsontext.Value `json:"input"`
	Offered  jsontext.Value `json:"offered"`
	Withheld string         `json:"withheld"`
	Output   jsontext.Value `json:"output"`
	Shaped   jsontext.Value `json:"shaped"` // null = there is no output schema
	Result   jsontext.Value `json:"result"`
	Args     jsontext.Value `json:"args"`

	alias string // "" = the host offers it under its name
}

// oddTools returns the tools of testdata/peers/schemas.json, and some with odd names or deep schemas.
func oddTools(t *testing.T) (all []oddTool) {
	t.Helper()
	must.OK(t, json.Unmarshal(must.Get(os.ReadFile(peer(t, "schemas.json")))(t), &all))
	long := strings.Repeat("n", 200)
	deep := strings.Repeat(`{"type":"array","items":`, 38) + `{}` + strings.Repeat("}", 38)
	for name, alias := range map[string]string{
		"plain.name": "plain_name", "a.b": "a_b_2e7336dc", "a/b": "a_b_c14cddc0", "a_b": "", "ünï cödé": "_n__c_d_",
		long: long[:114] + "_" + "1be63cc0",
	} {
		offered := jsontext.Value(`{"type":"object","properties":{}}`)
		all = append(all, oddTool{Name: name, alias: alias, Offered: offered})
	}
	for i, of := range []string{"input", "output"} {
		one := oddTool{Name: "deep_" + of, Result: jsontext.Value(`{}`)}
		schemas := []*jsontext.Value{&one.Input, &one.Output}
		*schemas[i] = jsontext.Value(`{"type":"object","properties":{"a":` + deep + `}}`)
		all = append(all, one)
	}
	return all
}

// host returns the name under which the host offers the tool.
func (o oddTool) host() string {
	if o.alias != "" {
		return "odd__" + o.alias
	}
	return "odd__" + o.Name
}

// oddServer is an MCP server with these tools.
type oddServer struct {
	tools []oddTool

	mu  sync.Mutex
	got map[string]string // arguments of calls by tool; guarded by mu
}

func (o *oddServer) definitions() string {
	var all []string
	for _, tool := range o.tools {
		def := fmt.Sprintf(`{"name":%q`, tool.Name)
		if tool.Input != nil {
			def += `,"inputSchema":` + string(tool.Input)
		}
		if tool.Output != nil {
			def += `,"outputSchema":` + string(tool.Output)
		}
		all = append(all, def+"}")
	}
	return strings.Join(all, ",")
}

func (o *oddServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var req struct {
		ID     jsontext.Value `json:"id"`
		Method string         `json:"method"`
		Params struct {
			Name      string         `json:"name"`
			Arguments jsontext.Value `json:"arguments"`
			Version   string         `json:"protocolVersion"`
		} `json:"params"`
	}
	if r.Method != http.MethodPost || json.Unmarshal(body, &req) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	answer := "{}"
	switch req.Method {
	case "initialize":
		const hello = `{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"odd","version":"1"}}`
		answer = fmt.Sprintf(hello, req.Params.Version)
	case "tools/list":
		answer = `{"tools":[` + o.definitions() + `]}`
	case "tools/call":
		answer = o.call(req.Params.Name, req.Params.Arguments)
	}
	if len(req.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, answer)
}

func (o *oddServer) call(name string, args jsontext.Value) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.got[name] = string(args)
	i := slices.IndexFunc(o.tools, func(tool oddTool) bool { return tool.Name == name })
	result := ""
	if i >= 0 && o.tools[i].Result != nil {
		result = `,"structuredContent":` + string(o.tools[i].Result)
	}
	return `{"content":[{"type":"text","text":"called"}]` + result + `}`
}

// seen returns the calls since the last time, and forgets them.
func (o *oddServer) seen() map[string]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	got := o.got
	o.got = make(map[string]string)
	return got
}

// TestOddSchemas: clients that use MCP's own SDKs list all tools that the host can offer, whatever schemas the tools
// have, and the arguments of their calls arrive unchanged.
func TestOddSchemas(t *testing.T) {
	odd := &oddServer{tools: oddTools(t), got: make(map[string]string)}
	web := httptest.NewServer(odd)
	defer web.Close()
	dir := workDir(t, fmt.Sprintf("{odd: {url: %q}}", web.URL), nil)
	binary := hosttest.Program(t, "a2e")
	const usual = `{"free":{"k":[1,null,"é"],"n":1.5}}`
	args := map[string]jsontext.Value{"": jsontext.Value(usual)}
	want, names := make(map[string]string), []string{}
	for _, tool := range odd.tools {
		if tool.Withheld != "" {
			continue
		}
		names = append(names, tool.host())
		if want[tool.Name] = usual; tool.Args != nil {
			args[tool.host()], want[tool.Name] = tool.Args, string(tool.Args)
		}
	}
	slices.Sort(names)
	for _, c := range []struct{ name, program, script, host string }{
		{"TypeScript on the pipe", "node", "schemas.mjs", binary},
		{"TypeScript over HTTP", "node", "schemas.mjs", "http"},
		{"Python on the pipe", peer(t, "venv", "bin", "python3"), "schemas.py", binary},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.host == "http" {
				c.host = startWeb(t, dir, binary)
			}
			cmd := program(t, dir, c.program, peer(t, c.script), c.host)
			cmd.Env = append(cmd.Env, "ARGUMENTS="+string(must.Get(json.Marshal(args))(t)))
			errs := &strings.Builder{}
			cmd.Stderr = errs
			out, err := cmd.Output()
			listed := strings.Fields(string(out))
			assert.That(t, err == nil, "%v %s", err, tail(errs.String()))
			slices.Sort(listed)
			assert.That(t, slices.Equal(listed, names), "%d of %d were called", len(listed), len(names))
			got := odd.seen()
			for name, args := range want {
				assert.Equal(t, got[name], args, "the arguments of %s", name)
			}
		})
	}
	t.Run("bytes", func(t *testing.T) { offeredBytes(t, program(t, dir, binary, "mcp", "serve"), odd) })
	t.Run("withheld", func(t *testing.T) { toldOfWithheld(t, dir, binary, odd.tools) })
}

// tail returns the last 2,000 bytes of a text.
func tail(text string) string { return text[max(0, len(text)-2000):] }

// startWeb starts a host that serves HTTP, and returns its URL for MCP.
func startWeb(t *testing.T, dir, binary string) string {
	t.Helper()
	cmd := program(t, dir, binary, "serve", "--http", "127.0.0.1:0")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	errs := must.Get(cmd.StderrPipe())(t)
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test has ended the host
	lines := bufio.NewScanner(errs)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "listens on http://"); ok {
			go func() { _, _ = io.Copy(io.Discard, errs) }()
			address := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789.:"))]
			return "http://" + address + "/mcp"
		}
	}
	t.Fatal("the host tells no address")
	return ""
}

// offeredBytes checks that schemas and arguments keep their bytes if there is nothing to change.
func offeredBytes(t *testing.T, cmd *exec.Cmd, odd *oddServer) {
	in, out := must.Get(cmd.StdinPipe())(t), must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	id := 0
	ask := func(method, params string) (result jsontext.Value) {
		id++
		_, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", id, method, params)
		for must.OK(t, err); lines.Scan(); {
			obj := must.Get(protocol.ParseObject(lines.Bytes()))(t)
			if got, ok := obj.Get("id"); ok && string(got) == fmt.Sprint(id) {
				answer, _ := obj.Get("result")
				return slices.Clone(jsontext.Value(answer))
			}
		}
		t.Fatalf("%s has no answer", method)
		return nil
	}
	ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`)
	var listed map[string]jsontext.Value
	hosttest.Eventually(t, "the tools", func() bool {
		var found struct {
			Tools []struct {
				Name   string         `json:"name"`
				Input  jsontext.Value `json:"inputSchema"`
				Output jsontext.Value `json:"outputSchema"`
			} `json:"tools"`
		}
		must.OK(t, json.Unmarshal(ask("tools/list", "{}"), &found))
		listed = make(map[string]jsontext.Value)
		for _, tool := range found.Tools {
			listed[tool.Name], listed[tool.Name+" output"] = tool.Input, tool.Output
		}
		return listed["odd__ordinary"] != nil
	})
	for _, tool := range odd.tools {
		if tool.Withheld != "" {
			continue
		}
		orElse := func(made, given jsontext.Value) string {
			if made == nil {
				made = given
			}
			return strings.TrimSuffix(string(made), "null")
		}
		if tool.Input != nil {
			assert.Equal(t, string(listed[tool.host()]), orElse(tool.Offered, tool.Input), "%s", tool.Name)
		}
		output := string(listed[tool.host()+" output"])
		assert.Equal(t, output, orElse(tool.Shaped, tool.Output), "%s: the output", tool.Name)
	}
	const args = `{"id":1765432109876543210,"f":1.0,"e":1E2}`
	ask("tools/call", `{"name":"odd__empty","arguments":`+args+`}`)
	assert.Equal(t, odd.seen()["empty"], args, "the arguments")
	must.OK(t, in.Close(), cmd.Wait())
}

// toldOfWithheld checks that the commands name each tool that is withheld, with the reason, and no other tool.
func toldOfWithheld(t *testing.T, dir, binary string, tools []oddTool) {
	var rows []struct {
		Withheld []struct {
			Name   string `json:"name"`
			Reason string `json:"reason"`
		} `json:"withheld"`
	}
	must.OK(t, json.Unmarshal(must.Get(program(t, dir, binary, "mcp", "list", "--json").Output())(t), &rows))
	got := make(map[string]string)
	for _, w := range rows[0].Withheld {
		got[w.Name] = w.Reason
	}
	list := string(must.Get(program(t, dir, binary, "mcp", "list").Output())(t))
	live, _ := program(t, dir, binary, "doctor", "--live").Output()
	for _, tool := range tools {
		assert.That(t, (tool.Withheld != "") == (got[tool.Name] != ""), "%s: withheld %q", tool.Name, got[tool.Name])
		if tool.Withheld == "" {
			continue
		}
		assert.Contains(t, got[tool.Name], tool.Withheld, tool.Name)
		for what, text := range map[string]string{"mcp list": list, "doctor --live": string(live)} {
			told := strings.Contains(text, tool.Name) && strings.Contains(text, got[tool.Name])
			assert.That(t, told, "%s does not tell of %s: %s", what, tool.Name, text)
		}
	}
}
