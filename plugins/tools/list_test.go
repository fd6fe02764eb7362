package tools

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"a2e/host"
	"a2e/host/hosttest/must"
	"a2e/host/schema"
	"a2e/protocol"
)

// shown is a tool with what the list looks at.
func shown(name, description string, kind Kind, deferred bool, tags ...string) Tool {
	t := gives(name, Outcome{})
	t.Kind, t.Def.Description, t.Def.Tags, t.Def.DeferLoading = kind, description, tags, deferred
	return t
}

func listPlugin(t *testing.T) *Plugin {
	return withTools(t, Options{},
		shown("zip", "Pack files.", KindCommand, false, "Files", "archive"),
		shown("read_file", "Read a file.", KindBuiltin, false, "files"),
		shown("deploy", "Deploy files to the server.", KindCommand, true, "ops"),
		shown("http_get", "Fetch a page.", KindBuiltin, false, "web"),
		shown("unpack", "Unpack an archive.", KindCommand, true, "files", "archive"),
	)
}

func listNames(t *testing.T, p *Plugin, req *protocol.ToolListRequest) []string {
	t.Helper()
	resp := must.Get(p.set.list(t.Context(), req, silent{}))(t)
	body := must.Get(protocol.AppendJSON(nil, resp))(t)
	fitsSchema(t, protocol.TypeToolListResp, body)
	names := []string{}
	for _, def := range resp.Tools {
		names = append(names, def.Name)
	}
	return names
}

func TestList(t *testing.T) {
	p := listPlugin(t)
	for _, tc := range []struct {
		req  protocol.ToolListRequest
		want []string
	}{
		{protocol.ToolListRequest{}, []string{"http_get", "read_file", "zip"}},
		{protocol.ToolListRequest{Query: " \t"}, []string{"http_get", "read_file", "zip"}},
		{protocol.ToolListRequest{IncludeDeferred: true}, []string{"deploy", "http_get", "read_file", "unpack", "zip"}},
		{protocol.ToolListRequest{FilterTags: []string{"FILES"}}, []string{"read_file", "zip"}},
		{protocol.ToolListRequest{FilterTags: []string{"files", "Archive"}}, []string{"zip"}},
		{protocol.ToolListRequest{FilterTags: []string{"files", "web"}}, []string{}},
		{protocol.ToolListRequest{FilterTags: []string{"file"}}, []string{}},
		{protocol.ToolListRequest{FilterTags: []string{"archive"}, IncludeDeferred: true}, []string{"unpack", "zip"}},
		{protocol.ToolListRequest{FilterKind: "builtin"}, []string{"http_get", "read_file"}},
		{protocol.ToolListRequest{FilterKind: "command"}, []string{"zip"}},
		{protocol.ToolListRequest{FilterKind: "command", IncludeDeferred: true}, []string{"deploy", "unpack", "zip"}},
		{protocol.ToolListRequest{FilterKind: "mcp"}, []string{}},
		{protocol.ToolListRequest{Query: "read files"}, []string{"read_file", "zip"}},
		{protocol.ToolListRequest{Query: "files", IncludeDeferred: true}, []string{"read_file", "zip", "unpack", "deploy"}},
		{protocol.ToolListRequest{Query: "files", FilterKind: "command"}, []string{"zip"}},
		{protocol.ToolListRequest{Query: "deploy"}, []string{}},
		{protocol.ToolListRequest{Query: "deploy", IncludeDeferred: true}, []string{"deploy"}},
		{protocol.ToolListRequest{Query: "zebra"}, []string{}},
	} {
		if diff := cmp.Diff(tc.want, listNames(t, p, &tc.req)); diff != "" {
			t.Errorf("%+v: %s", tc.req, diff)
		}
	}
	if _, err := called(t, p, "deploy", `{}`); err != nil {
		t.Errorf("a deferred tool can be called without being listed: %v", err)
	}
}

func TestMergeLists(t *testing.T) {
	def := func(name, from string) protocol.ToolDefinition {
		return protocol.ToolDefinition{Name: name, Description: from}
	}
	list := func(scores []float64, defs ...protocol.ToolDefinition) *protocol.ToolListResponse {
		return &protocol.ToolListResponse{Tools: defs, Scores: scores}
	}
	t.Run("by name", func(t *testing.T) {
		got := list(nil, def("b", "high"), def("d", "high"))
		protocol.MergeTools(got, list(nil, def("a", "low"), def("b", "low"), def("e", "low")))
		protocol.MergeTools(got, list(nil, def("a", "lowest"), def("c", "lowest")))
		want := []protocol.ToolDefinition{def("a", "low"), def("b", "high"), def("c", "lowest"), def("d", "high"), def("e", "low")}
		if diff := cmp.Diff(want, got.Tools); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("by score", func(t *testing.T) {
		got := list([]float64{3, 1}, def("z", "high"), def("b", "high"))
		protocol.MergeTools(got, list([]float64{5, 2, 1}, def("b", "low"), def("y", "low"), def("a", "low")))
		want := []protocol.ToolDefinition{def("z", "high"), def("y", "low"), def("a", "low"), def("b", "high")}
		if diff := cmp.Diff(want, got.Tools); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		got := list(nil)
		protocol.MergeTools(got, list(nil))
		if got.Tools == nil || len(got.Tools) != 0 {
			t.Errorf("got %v", got.Tools)
		}
	})
}

// catalogue is a set of tools as an agent may meet them: the built-in ones, and
// the kind that commands and MCP servers add.
var catalogue = []struct {
	name, description string
	tags              []string
}{
	{"read_file", "Read a text file of the workspace, whole or by lines.", []string{"files"}},
	{"write_file", "Write a file of the workspace, replacing what was there.", []string{"files"}},
	{"edit_file", "Replace one passage of a file by another.", []string{"files"}},
	{"list_dir", "List the entries of a folder with type and size.", []string{"files"}},
	{"glob", "Find files whose path matches a pattern such as **/*.go.", []string{"files", "search"}},
	{"grep", "Search the contents of files for a regular expression.", []string{"files", "search"}},
	{"http_get", "Fetch a web page or another URL; HTML comes back as Markdown.", []string{"web"}},
	{"run_command", "Run a program with arguments and give its output.", []string{"shell", "process"}},
	{"echo", "Give back the text that was sent.", []string{"test"}},
	{"github__create_issue", "Open a new issue in a GitHub repository.", []string{"github"}},
	{"github__list_issues", "List the issues of a repository, filtered by state and label.", []string{"github"}},
	{"github__create_pull_request", "Open a pull request from one branch to another.", []string{"github", "git"}},
	{"github__merge_pull_request", "Merge a pull request.", []string{"github", "git"}},
	{"github__search_code", "Search code over all repositories.", []string{"github", "search"}},
	{"gitCommit", "Record the staged changes.", []string{"git"}},
	{"gitDiff", "Show changes between commits or the work tree.", []string{"git"}},
	{"gitBlame", "Show who last changed each line of a file.", []string{"git"}},
	{"slack-post-message", "Send a message to a Slack channel.", []string{"chat"}},
	{"slack-list-channels", "List the channels of a workspace.", []string{"chat"}},
	{"send_email", "Send an e-mail with subject, body and attachments.", []string{"mail"}},
	{"search_inbox", "Find e-mails by sender, subject or date.", []string{"mail", "search"}},
	{"get_weather", "Current temperature, wind and forecast for a city.", []string{"weather"}},
	{"convert_currency", "Convert an amount of money at today's exchange rate.", []string{"finance"}},
	{"stock_quote", "Price of a share by its ticker.", []string{"finance"}},
	{"sql_query", "Run a read-only SQL query on the database.", []string{"database"}},
	{"describe_table", "Columns, types and indexes of a database table.", []string{"database"}},
	{"create_calendar_event", "Add a meeting to the calendar and invite people.", []string{"calendar"}},
	{"list_calendar_events", "Meetings of a day or week.", []string{"calendar"}},
	{"translate_text", "Translate text from one language to another.", []string{"language"}},
	{"summarize_document", "Shorten a long document to its main points.", []string{"language"}},
	{"detect_language", "Tell which language a text is written in.", []string{"language"}},
	{"resize_image", "Scale a picture to a width and height.", []string{"image"}},
	{"ocr_image", "Recognise the text in a scanned picture.", []string{"image"}},
	{"generate_chart", "Draw a bar, line or pie chart from numbers.", []string{"image", "data"}},
	{"csv_to_json", "Convert a CSV table to JSON.", []string{"data"}},
	{"run_tests", "Run the project's unit tests and report failures.", []string{"code"}},
	{"format_code", "Format source code in the language's usual style.", []string{"code"}},
	{"dockerBuildImage", "Build a container image from a Dockerfile.", []string{"docker"}},
	{"dockerListContainers", "List the running containers.", []string{"docker"}},
	{"kubectl_get_pods", "Show the pods of a Kubernetes namespace and their state.", []string{"kubernetes"}},
	{"wetter_abfragen", "Wetter für eine Stadt in Österreich abfragen.", []string{"Überblick"}},
	{"日程表", "查看今天的会议安排。", nil},
}

func catalogueIndex() *searchIndex {
	var x searchIndex
	for _, c := range catalogue {
		x.add(c.name, c.description, c.tags)
	}
	return &x
}

func found(x *searchIndex, query string) []string {
	names := []string{}
	for _, h := range x.search(query, nil) {
		names = append(names, x.docs[h.doc].name)
	}
	return names
}

func TestSearchFindsTheRightTool(t *testing.T) {
	x := catalogueIndex()
	for _, tc := range []struct{ query, want string }{
		{"read file", "read_file"},
		{"readFile", "read_file"},
		{"readfile", "read_file"},
		{"reading a file", "read_file"},
		{"READ-FILES", "read_file"},
		{"write text into a file", "write_file"},
		{"replace a passage", "edit_file"},
		{"folder entries", "list_dir"},
		{"path pattern", "glob"},
		{"regular expressions", "grep"},
		{"search file contents", "grep"},
		{"fetch a URL", "http_get"},
		{"download web pages", "http_get"},
		{"run a shell command", "run_command"},
		{"new issue", "github__create_issue"},
		{"listing issues by label", "github__list_issues"},
		{"pull request merging", "github__merge_pull_request"},
		{"commit", "gitCommit"},
		{"git diff", "gitDiff"},
		{"who changed this line", "gitBlame"},
		{"post slack messages", "slack-post-message"},
		{"send an e-mail", "send_email"},
		{"find e-mails by sender", "search_inbox"},
		{"weather forecast", "get_weather"},
		{"temperatures", "get_weather"},
		{"exchange rates", "convert_currency"},
		{"share price", "stock_quote"},
		{"query the database", "sql_query"},
		{"table columns", "describe_table"},
		{"invite people to a meeting", "create_calendar_event"},
		{"translation translate", "translate_text"},
		{"which language is this", "detect_language"},
		{"resizing images", "resize_image"},
		{"recognise scanned text", "ocr_image"},
		{"pie chart", "generate_chart"},
		{"CSV", "csv_to_json"},
		{"unit test failures", "run_tests"},
		{"docker build", "dockerBuildImage"},
		{"running containers", "dockerListContainers"},
		{"kubernetes pod", "kubectl_get_pods"},
		{"österreich", "wetter_abfragen"},
		{"ÜBERBLICK", "wetter_abfragen"},
		{"会议", "日程表"},
	} {
		if got := found(x, tc.query); len(got) == 0 || got[0] != tc.want {
			t.Errorf("query %q: want %s first, got %v", tc.query, tc.want, got[:min(len(got), 4)])
		}
	}
}

// The score of a small case, worked out by hand from the formula.
func TestSearchScore(t *testing.T) {
	var x searchIndex
	x.add("alpha", "rain rain snow", nil) // length 3 + 3
	x.add("beta", "snow", nil)            // length 3 + 1
	hits := x.search("rain", nil)
	idf := math.Log(1 + (2-1+0.5)/(1+0.5))
	want := idf * 2 * 2.2 / (2 + 1.2*(0.25+0.75*6/5))
	if len(hits) != 1 || math.Abs(hits[0].score-want) > 1e-12 {
		t.Errorf("got %+v, want one hit of %v", hits, want)
	}
}

func TestTokens(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string
	}{
		{"read_file", []string{"read", "file"}},
		{"readFile", []string{"read", "file"}},
		{"HTTPServer2go", []string{"http", "server", "2", "go"}},
		{"slack-post.message", []string{"slack", "post", "message"}},
		{"Größe ändern", []string{"größe", "ändern"}},
		{"cafe\u0301", []string{"cafe"}},
		{"读文件 file", []string{"读", "文", "件", "file"}},
		{"\xff\xfe", nil},
	} {
		var want []string
		for _, w := range tc.want {
			want = append(want, stem(w))
		}
		if diff := cmp.Diff(want, tokens(tc.text)); diff != "" {
			t.Errorf("%q: %s", tc.text, diff)
		}
	}
}

// compiled makes a JSON Schema ready for use.
func compiled(t testing.TB, schema jsontext.Value) *jsonschema.Schema {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("tool.json", value); err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	s, err := c.Compile("tool.json")
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	return s
}

// What a tool's schema allows is what its calls take.
func TestSchemaAgreesWithTheCheck(t *testing.T) {
	nested := par("where", "object")
	nested.Properties = map[string]protocol.ToolParameter{"b": par("", "integer!"), "a": par("", "string", "x", "y")}
	declared := []protocol.ToolParameter{
		par("text", "string!"), par("n", "integer", "1", "2"), par("f", "number"), par("flag", "boolean"), par("list", "array"), par("free", "object"),
		par("what", "any"), par("pick", "any", "1", "one", "null"), nested,
	}
	ps := must.Get(newParams(declared))(t)
	ready := compiled(t, schema.Object(declared, true))
	values := []string{`null`, `true`, `"x"`, `"z"`, `""`, `1`, `2.0`, `3`, `1.5`, `"1"`, `"one"`, `[]`, `[1,"a"]`, `{}`, `{"b":1}`, `{"b":1,"a":"x"}`, `{"b":1,"a":"z"}`, `{"a":"x"}`, `{"b":1,"c":2}`}
	accepted := 0
	for _, p := range append(declared, par("unknown", "any")) {
		for _, v := range values {
			args := fmt.Sprintf(`{"text":"t",%q:%s}`, p.Name, v)
			if p.Name == "text" {
				args = fmt.Sprintf(`{"text":%s}`, v)
			}
			_, refused := ps.check(parsed(t, args))
			value := must.Get(jsonschema.UnmarshalJSON(strings.NewReader(args)))(t)
			if broken := ready.Validate(value); (broken == nil) != (refused == nil) {
				t.Errorf("%s: the schema says %v, the check %v", args, broken, refused)
			}
			if refused == nil {
				accepted++
			}
		}
	}
	if _, err := ps.check(parsed(t, `{}`)); err == nil || ready.Validate(map[string]any{}) == nil {
		t.Error("a required argument may be missing")
	}
	if accepted < 40 || accepted > len(values)*len(declared)/2 {
		t.Errorf("%d were accepted", accepted)
	}
}

func TestDescribeBuiltinTools(t *testing.T) {
	commands := []CommandTool{{Name: "say", Command: []string{"echo", "{what}"}, Parameters: []CommandParameter{{Name: "what", Required: true}}}, {Name: "call", Command: []string{"echo"}, Network: true}}
	for _, network := range []bool{false, true} {
		p := must.Get(New("mytools", Options{Commands: commands, NetworkDisabled: !network, Deny: []string{"glob"}}, host.Env{Workspace: t.TempDir()}))(t)
		defer p.Close(context.Background())
		run := "destructive"
		if network {
			run = "destructive open"
		}
		want := map[string]string{
			"echo": "reads idempotent", "read_file": "reads idempotent", "list_dir": "reads idempotent", "grep": "reads idempotent",
			"write_file": "destructive idempotent", "edit_file": "destructive", "http_get": "reads idempotent open",
			"run_command": run, "say": run, "call": "destructive open",
		}
		var describer host.ToolDescriber = p
		for _, def := range p.Tools() {
			d, ok := describer.DescribeTool(def.Name)
			if got := traits(d); !ok || got != want[def.Name] {
				t.Errorf("%s is %q, should be %q", def.Name, got, want[def.Name])
			}
			delete(want, def.Name)
			ready := compiled(t, d.InputSchema)
			for _, in := range def.InputParameters {
				if ready.Properties[in.Name] == nil || slices.Contains(ready.Required, in.Name) != in.Required {
					t.Errorf("%s: %s is not in %s as it is declared", def.Name, in.Name, d.InputSchema)
				}
			}
		}
		if len(want) > 0 {
			t.Errorf("not described: %v", want)
		}
		for _, name := range []string{"glob", "nothing", ""} {
			if d, ok := describer.DescribeTool(name); ok || d.InputSchema != nil {
				t.Errorf("%q is described: %+v", name, d)
			}
		}
	}
}

// traits returns the annotations of a tool in words.
func traits(d host.ToolDetail) string {
	var words []string
	for word, on := range map[string]bool{"reads": d.ReadOnly, "destructive": d.Destructive, "idempotent": d.Idempotent, "open": d.OpenWorld} {
		if on {
			words = append(words, word)
		}
	}
	order := []string{"reads", "destructive", "idempotent", "open"}
	slices.SortFunc(words, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
	return strings.Join(words, " ")
}

// Each term of a query is looked for in each tool, so only its beginning counts.
func TestLongQueryIsCut(t *testing.T) {
	var query strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&query, "w%dx ", i)
	}
	if terms := queryTerms(query.String()); len(terms) > maxQuery {
		t.Errorf("%d terms", len(terms))
	}
	if terms := queryTerms("files " + strings.Repeat("é", maxQuery)); len(terms) != 2 || terms[0] != "fil" {
		t.Errorf("%.100q", terms)
	}
}
