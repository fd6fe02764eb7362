package mcp

import (
	"bufio"
	"encoding/base64"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// The tests in this file send messages of A2E to real servers, which `make tools` installs. One host
// and one process serve all tests of one server.

// peersDir is the folder in which `make tools` installs the programs of others.
const peersDir = "../../testdata/peers"

// peer returns the absolute path of a file or folder in peersDir, which must exist.
func peer(t testing.TB, parts ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(append([]string{peersDir}, parts...)...))
	if err == nil {
		_, err = os.Stat(path)
	}
	must.OK(t, err)
	return path
}

// script returns the program of a server of the npm scope @modelcontextprotocol.
func script(t testing.TB, name string) string {
	t.Helper()
	return peer(t, "node_modules", "@modelcontextprotocol", name, "dist", "index.js")
}

// wireFile is the file in the workspace with the lines that a server was sent.
const wireFile = "wire.ndjson"

// npmServer returns the config of a server of that npm scope as a child process. The lines that the
// server is sent are also written to wireFile.
func npmServer(t testing.TB, name string, args ...any) map[string]any {
	t.Helper()
	node(t)
	return map[string]any{
		"command": "sh", "args": append([]any{"-c", `export MEMORY_FILE_PATH="$PWD/graph.jsonl"; tee ` + wireFile +
			` | node "$@"`, "sh", script(t, name)}, args...),
		"read": []any{peer(t, "node_modules"), peer(t, "package.json")}, "network": false,
	}
}

// node returns the program of Node.js.
func node(t testing.TB) string {
	t.Helper()
	path := must.Get(exec.LookPath("node"))(t)
	return path
}

// sent waits until the server was sent a line with these words. It does nothing if the lines are not
// recorded.
func (r *real) sent(words ...string) {
	r.t.Helper()
	if r.wire == "" {
		return
	}
	hosttest.Eventually(r.t, "the server is sent "+strings.Join(words, " "), func() bool {
		wire, _ := os.ReadFile(r.wire)
		return slices.ContainsFunc(strings.Split(string(wire), "\n"), func(line string) bool {
			return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
		})
	})
}

// real is a host with one real server, called `all`.
type real struct {
	*stage
	asked map[protocol.Type]int // requests of the host so far
	wire  string                // the file with the lines that the server was sent; "" = they are not recorded
}

func newReal(t testing.TB, cfg map[string]any) *real {
	t.Helper()
	return &real{stage: newStage(t, map[string]any{"all": cfg}, nil), asked: map[protocol.Type]int{}}
}

// within returns the same host to a subtest.
func (r *real) within(t *testing.T) *real {
	s := *r.stage
	s.t = t
	return &real{stage: &s, asked: r.asked, wire: r.wire}
}

// question waits for the next request of the host of a type.
func (r *real) question(typ protocol.Type) hosttest.Message {
	r.t.Helper()
	r.asked[typ]++
	return r.asks(typ, r.asked[typ])
}

// call sends a call of a tool of the server.
func (r *real) call(tool, args, more string) string {
	return r.Go(protocol.TypeToolCallReq, callFields("all__"+tool, args, more))
}

// result calls a tool, which must succeed.
func (r *real) result(tool, args string) hosttest.Message {
	r.t.Helper()
	return r.succeeded(r.call(tool, args, ""))
}

func (r *real) succeeded(id string) hosttest.Message {
	r.t.Helper()
	m := r.Answer(id)
	must.That(r.t, m.Get("/data/success") == "true", "%.2000s\nlog: %s", m.Line, r.log)
	return m
}

// holds checks the values at JSON Pointers.
func holds(t testing.TB, m hosttest.Message, want map[string]string) {
	t.Helper()
	for pointer, value := range want {
		assert.Equal(t, m.Get(pointer), value, "%s is …, want … in %.1500s", pointer, m.Line)
	}
}

// TestEverything: each feature of server-everything works by messages of A2E.
func TestEverything(t *testing.T) {
	r := newReal(t, npmServer(t, "server-everything"))
	r.wire = filepath.Join(r.dir, wireFile)
	r.each(t, []everything{
		{"roots", everythingRoots}, // first: the server asks for its roots only once, 350 ms after the handshake
		{"tools", everythingTools},
		{"results", everythingResults},
		{"resources", everythingResources},
		{"session resources", everythingSessionResources},
		{"prompts", everythingPrompts},
		{"subscriptions", everythingSubscriptions},
		{"logging", everythingLogging},
		{"sampling", everythingSampling},
		{"elicitation", everythingElicitation},
		{"unanswered elicitation", everythingUnanswered},
		{"url elicitation", everythingURLElicitation},
		{"progress", everythingProgress},
		{"cancellation", everythingCancellation},
	})
}

// TestEverythingOverHTTP: the features that may depend on the transport also work over HTTP.
func TestEverythingOverHTTP(t *testing.T) {
	for _, c := range []struct{ transport, path string }{{"streamableHttp", "/mcp"}, {"sse", "/sse"}} {
		t.Run(c.transport, func(t *testing.T) {
			r := newReal(t, map[string]any{"url": httpServer(t, c.transport) + c.path})
			r.each(t, []everything{
				{"roots", everythingRoots},
				{"tools", everythingTools},
				{"results", everythingResults},
				{"session resources", everythingSessionResources},
				{"subscriptions", everythingSubscriptions},
				{"logging", everythingLogging},
				{"sampling", everythingSampling},
				{"elicitation", everythingElicitation},
				{"progress", everythingProgress},
				{"cancellation", everythingCancellation},
			})
		})
	}
}

// everything is a feature of server-everything.
type everything struct {
	name string
	test func(t *testing.T, r *real)
}

// each runs the tests, in order.
func (r *real) each(t *testing.T, tests []everything) {
	for _, part := range tests {
		t.Run(part.name, func(t *testing.T) { part.test(t, r.within(t)) })
	}
}

func everythingTools(t *testing.T, r *real) {
	names := r.toolNames()
	for _, name := range []string{
		"echo", "get-annotated-message", "get-env", "get-resource-links", "get-resource-reference",
		"get-structured-content", "get-sum", "get-tiny-image",
		"gzip-file-as-resource", "toggle-simulated-logging", "toggle-subscriber-updates",
		"trigger-long-running-operation",
		"get-roots-list", "trigger-elicitation-request", "trigger-url-elicitation", "trigger-sampling-request",
		// the last four are listed only for a host that declares roots, elicitation and sampling
	} {
		assert.That(t, slices.Contains(names, "all__"+name), "there is no tool %s among %v", name, names)
	}
	for _, name := range []string{
		"trigger-sampling-request-async",
		"trigger-elicitation-request-async",
	} { // need tasks, which the SDK does not have
		assert.That(t, !slices.Contains(names, "all__"+name), "%s is there: then there is something more to test", name)
	}
	d, ok := r.plugin.DescribeTool("all__get-sum")
	assert.That(t, ok && d.ReadOnly && !d.Destructive && !d.OpenWorld && d.Title == "Get Sum Tool" &&
		strings.Contains(string(d.InputSchema), `"First number"`), "get-sum: %+v", d)
	if d, _ := r.plugin.DescribeTool("all__get-structured-content"); !strings.Contains(string(d.OutputSchema),
		`"Humidity percentage"`) {
		t.Errorf("its output schema: %s", d.OutputSchema)
	}
	holds(t, r.result("echo", `{"message":"héllo"}`), map[string]string{
		"/data/data/content/0/text": "Echo: héllo",
		"/data/summary":             "Echo: héllo",
	})
	holds(t, r.result("get-sum", `{"a":40,"b":2.5}`), map[string]string{"/data/data/content/0/text": "The sum of 40 " +
		"and 2.5 is 42.5."})
	r.Refused(protocol.TypeToolCallReq, callFields("all__get-sum", `{"a":"x","b":1}`, ""), protocol.CodeSchemaViolation)
	r.Refused(protocol.TypeToolCallReq, callFields("all__none", `{}`, ""), protocol.CodeUnknownTool)
	if r.wire == "" {
		return // the test has started this server, so it does not have the environment that the host sets
	}
	env := strings.ReplaceAll(r.result("get-env", `{}`).Get("/data/data/content/0/text"), `"A2E_SANDBOX"`, "")
	assert.That(t, strings.Contains(env, `"PATH"`) && !strings.Contains(env, "A2E_") &&
		!strings.Contains(env, "MCP_TEST"),
		"its environment: %s", env)
}

// everythingResults checks each kind of content block in results.
func everythingResults(t *testing.T, r *real) {
	const at = "/data/data/content/"
	holds(t, r.result("get-annotated-message", `{"messageType":"error","includeImage":true}`), map[string]string{
		at + "0/type": "text", at + "0/annotations/priority": "1", at + "0/annotations/audience": `["user","assistant"]`,
		at + "1/type": "image", at + "1/mimeType": "image/png", at + "1/annotations/priority": "0.5",
	})
	id := r.call("get-tiny-image", `{}`, `,"streaming":true`)
	m := r.succeeded(id)
	holds(t, m, map[string]string{at + "1/type": "image", at + "1/mimeType": "image/png"})
	png, err := base64.StdEncoding.DecodeString(m.Get(at + "1/data"))
	assert.That(t, err == nil && strings.HasPrefix(string(png), "\x89PNG"), "the image: %v %.20q", err, png)
	artifact := r.Wait("the image as an artifact",
		func(m hosttest.Message) bool { return m.ReqID == id && m.Get("/kind") == "artifact" })
	assert.Equal(t, artifact.Get("/data/mime"), "image/png", "the artifact: %.300s", artifact.Line)
	m = r.result("get-structured-content", `{"location":"Chicago"}`)
	holds(t, m, map[string]string{"/data/data/structuredContent": `{"conditions":"Light rain / drizzle","humidity":82,"temperature":36}`})
	holds(t, r.result("get-resource-links", `{"count":2}`), map[string]string{
		at + "1/type": "resource_link", at + "1/uri": "demo://resource/dynamic/blob/1",
		at + "2/uri": "demo://resource/dynamic/text/2", at + "2/mimeType": "text/plain",
	})
	m = r.result("get-resource-reference", `{"resourceType":"Text","resourceId":3}`)
	holds(t, m, map[string]string{at + "1/type": "resource", at + "1/resource/uri": "demo://resource/dynamic/text/3"})
	assert.That(t, strings.HasPrefix(m.Get(at+"1/resource/text"), "Resource 3: "), "the embedded resource: %s", m.Line)
	failed := r.Answer(r.call("get-resource-reference", `{"resourceType":"Text","resourceId":-1}`, ""))
	assert.That(t, failed.Get("/data/success") == "false" && strings.Contains(failed.Get("/data/error"),
		"Invalid resourceId"),
		"a tool that fails: %s", failed.Line)
}

func everythingResources(t *testing.T, r *real) {
	var list protocol.MCPResourceListResponse
	r.ask(protocol.TypeMCPResourceListReq, `{"server_id":"all"}`, &list)
	uris := map[any]map[string]any{}
	for _, row := range list.Resources {
		uris[row["uri"]] = row
		if row["uri_template"] != nil {
			uris[row["uri_template"]] = row
		}
	}
	doc := uris["demo://resource/static/document/features.md"]
	assert.That(t, doc != nil && doc["mime_type"] == "text/markdown" && doc["server_id"] == "all", "features.md: %v",
		doc)
	row := uris["demo://resource/dynamic/blob/{resourceId}"]
	assert.That(t, row != nil && row["uri"] == "" && row["mime_type"] == "application/octet-stream", "the template: %v",
		row)
	text := r.ask(protocol.TypeMCPResourceReadReq, `{"uri":"demo://resource/static/document/features.md"}`, nil)
	assert.Contains(t, text.Get("/contents/0/text"), "Everything Server - Features", "features.md: %.300s", text.Line)
	blob := r.ask(protocol.TypeMCPResourceReadReq, `{"uri":"demo://resource/dynamic/blob/7"}`,
		nil) // found by its template
	holds(t, blob, map[string]string{"/server_id": "all", "/contents/0/type": "blob"})
	raw, _ := base64.StdEncoding.DecodeString(blob.Get("/contents/0/blob"))
	assert.That(t, strings.HasPrefix(string(raw), "Resource 7: "), "the blob: %q", raw)
	r.Refused(protocol.TypeMCPResourceReadReq, `{"uri":"demo://none","server_id":"all"}`,
		protocol.CodeMCPResourceNotFound)
	r.Refused(protocol.TypeMCPResourceReadReq, `{"uri":"other://none"}`, protocol.CodeMCPResourceNotFound)
}

// everythingSessionResources lets the server add a resource: the host gets a notification, and lists
// and reads the resource.
func everythingSessionResources(t *testing.T, r *real) {
	data := "data:text/plain," + url.QueryEscape(strings.Repeat("a", 500))
	holds(t, r.result("gzip-file-as-resource", `{"name":"a.gz","data":`+quoted(data)+`}`), map[string]string{
		"/data/data/content/0/type": "resource_link", "/data/data/content/0/uri": "demo://resource/session/a.gz",
		"/data/data/content/0/mimeType": "application/gzip",
	})
	r.pushed("notifications/resources/list_changed")
	hosttest.Eventually(t, "the new resource is listed", func() bool {
		return strings.Contains(string(r.ask(protocol.TypeMCPResourceListReq, `{}`, nil).Line),
			"demo://resource/session/a.gz")
	})
	m := r.ask(protocol.TypeMCPResourceReadReq, `{"uri":"demo://resource/session/a.gz"}`, nil)
	raw, _ := base64.StdEncoding.DecodeString(m.Get("/contents/0/blob"))
	assert.That(t, strings.HasPrefix(string(raw), "\x1f\x8b"), "it is not a gzip: %s", m.Line)
	m = r.result("gzip-file-as-resource", `{"name":"b.gz","data":`+quoted(data)+`,"outputType":"resource"}`)
	assert.That(t, m.Get("/data/data/content/0/resource/blob") != "", "it is not an embedded resource: %s", m.Line)
}

func everythingPrompts(t *testing.T, r *real) {
	var list protocol.MCPPromptListResponse
	r.ask(protocol.TypeMCPPromptListReq, `{}`, &list)
	known := map[any]map[string]any{}
	for _, row := range list.Prompts {
		known[row["name"]] = row
	}
	if quoted(known["args-prompt"]["arguments"]) != `[{"description":"Name of the city","name":"city","required":true},{"description":"","name":"state","required":false}]` || known["args-prompt"]["title"] != "Arguments Prompt" {
		t.Errorf("args-prompt: %v", known["args-prompt"])
	}
	for _, c := range []struct{ name, args, pointer, want string }{
		{"simple-prompt", `{}`, "/messages/0/content/text", "This is a simple prompt without arguments."},
		{"args-prompt", `{"city":"Oslo"}`, "/messages/0/content/text", "What's weather in Oslo?"},
		{"args-prompt", `{"city":"Austin","state":"Texas"}`, "/messages/0/content/text", "What's weather in Austin, " +
			"Texas?"},
		{
			"completable-prompt", `{"department":"Sales","name":"Eve"}`, "/messages/0/content/text",
			"Please promote Eve to the head of the Sales team.",
		},
		{
			"resource-prompt", `{"resourceType":"Text","resourceId":5}`, "/messages/1/content/resource/uri",
			"demo://resource/dynamic/text/5",
		},
		{
			"resource-prompt", `{"resourceType":"Blob","resourceId":"6"}`, "/messages/1/content/resource/uri",
			"demo://resource/dynamic/blob/6",
		},
	} {
		holds(t, r.ask(protocol.TypeMCPPromptGetReq, `{"name":`+quoted(c.name)+`,"arguments":`+c.args+`}`, nil),
			map[string]string{c.pointer: c.want, "/messages/0/role": "user", "/server_id": "all"})
	}
	r.Refused(protocol.TypeMCPPromptGetReq, `{"name":"args-prompt","arguments":{}}`, protocol.CodeMCPProtocolError,
		"city")
	r.Refused(protocol.TypeMCPPromptGetReq, `{"name":"none"}`, protocol.CodeMCPPromptNotFound)
}

// TestFilesystem: server-filesystem works in the folder of its arguments and, after the agent has sent
// its roots, in these.
func TestFilesystem(t *testing.T) {
	r := newReal(t, npmServer(t, "server-filesystem", "."))
	r.reply(protocol.TypeMCPRootListResp, r.question(protocol.TypeMCPRootListReq),
		`{"roots":[`+quoted(map[string]any{"uri": "file://" + r.dir})+`]}`)
	hosttest.Eventually(t, "the root is the allowed folder", func() bool {
		return strings.Contains(r.result("list_allowed_directories", `{}`).Get("/data/data/content/0/text"), r.dir)
	})
	path := filepath.Join(r.dir, "note.txt")
	args := func(more string) string { return `{"path":` + quoted(path) + more + `}` }
	r.result("write_file", args(`,"content":"one\ntwo\n"`))
	text, err := os.ReadFile(path)
	assert.That(t, err == nil && string(text) == "one\ntwo\n", "the file has %q %v", text, err)
	r.result("edit_file", args(`,"edits":[{"oldText":"two","newText":"three"}]`))
	m := r.result("read_text_file", args(""))
	holds(t, m, map[string]string{
		"/data/data/content/0/text":            "one\nthree\n",
		"/data/data/structuredContent/content": "one\nthree\n",
	})
	if m := r.result("list_directory", `{"path":`+quoted(r.dir)+`}`); !strings.Contains(m.Get("/data/data/content/0/text"), "[FILE] note.txt") {
		t.Errorf("the folder: %s", m.Line)
	}
	d, _ := r.plugin.DescribeTool("all__write_file")
	read, _ := r.plugin.DescribeTool("all__read_text_file")
	assert.That(t, read.ReadOnly && !d.ReadOnly && d.Destructive && d.Idempotent, "annotations: %+v %+v", d, read)
	for _, outside := range []string{"/etc/passwd", filepath.Join(r.dir, "..", "x")} {
		m := r.Answer(r.call("read_text_file", `{"path":`+quoted(outside)+`}`, ""))
		assert.That(t, m.Get("/data/success") == "false" && strings.Contains(m.Get("/data/error"),
			"outside allowed directories"),
			"%s: %s", outside, m.Line)
	}
}

// TestTime: a server in Python works from a virtual environment.
func TestTime(t *testing.T) {
	r := newReal(t, map[string]any{
		"command": peer(t, "venv", "bin", "python3"), "args": []any{
			"-m", "mcp_server_time",
			"--local-timezone=Europe/Oslo",
		}, "network": false,
	})
	assert.Slice(t, r.toolNames(), []string{"all__convert_time", "all__get_current_time"}, "tools")
	text := r.result("convert_time", `{"source_timezone":"Asia/Tokyo","time":"16:30","target_timezone":"Asia/Kolkata"}`).Get("/data/data/content/0/text")
	assert.That(t, strings.Contains(text, "T13:00:00+05:30") && strings.Contains(text, `"-3.5h"`), "the time: %s", text)
	m := r.Answer(r.call("get_current_time", `{"timezone":"Mars/Olympus"}`, ""))
	assert.That(t, m.Get("/data/success") == "false" && strings.Contains(m.Get("/data/error"), "Mars/Olympus"),
		"a zone that is none: %s", m.Line)
}

// httpServer starts server-everything with a transport over HTTP, and returns its address.
func httpServer(t *testing.T, transport string) string {
	t.Helper()
	cmd := exec.Command(node(t), "--require", peer(t, "loopback.cjs"), script(t, "server-everything"), transport)
	cmd.Env = append(os.Environ(), "PORT=0")
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // an error says that it was killed
	})
	port := ""
	for lines := bufio.NewScanner(out); port == ""; {
		must.That(t, lines.Scan(), "server-everything %s ended: run make tools", transport)
		port, _ = strings.CutPrefix(lines.Text(), "port ")
		if port == lines.Text() {
			port = ""
		}
	}
	go func() { // reads on, as the server prints a line for each request
		for buf := make([]byte, 4096); ; {
			if _, err := out.Read(buf); err != nil {
				return
			}
		}
	}()
	return "http://127.0.0.1:" + port
}

// TestMemory: server-memory stores entities in its file, and finds, lists and deletes them.
func TestMemory(t *testing.T) {
	r := newReal(t, npmServer(t, "server-memory"))
	r.result("create_entities", `{"entities":[{"name":"Ada","entityType":"person","observations":["wrote a program"]},{"name":"Engine","entityType":"machine","observations":[]}]}`)
	r.result("create_relations", `{"relations":[{"from":"Ada","to":"Engine","relationType":"programmed"}]}`)
	r.result("add_observations", `{"observations":[{"entityName":"Ada","contents":["was a countess"]}]}`)
	m := r.result("search_nodes", `{"query":"countess"}`)
	holds(t, m, map[string]string{
		"/data/data/structuredContent/entities/0/name":         "Ada",
		"/data/data/structuredContent/entities/0/observations": `["wrote a program","was a countess"]`,
	})
	holds(t, r.result("read_graph", `{}`), map[string]string{"/data/data/structuredContent/relations/0/relationType": "programmed"})
	r.result("delete_entities", `{"entityNames":["Ada"]}`)
	holds(t, r.result("read_graph", `{}`), map[string]string{
		"/data/data/structuredContent/entities/0/name": "Engine",
		"/data/data/structuredContent/relations":       "[]",
	})
	r.Refused(protocol.TypeToolCallReq, callFields("all__create_entities", `{"entities":[{"name":3}]}`, ""),
		protocol.CodeSchemaViolation)
}
