package middleware_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// catalogue is a set of tools as an agent may see them: built-in ones, and the kind that commands and MCP servers
// add.
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
	{"echo", "Return the text that was sent.", []string{"test"}},
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

// shelf is a plugin that lists tools and has a weight for each.
type shelf struct {
	defs    []protocol.ToolDefinition
	weights map[string]float64
}

func (s *shelf) Info() host.PluginInfo {
	return host.PluginInfo{Name: "shelf", Capability: protocol.CapTools}
}

func (s *shelf) Routes() []host.Route {
	return []host.Route{host.List(protocol.TypeToolListReq, func(context.Context, *protocol.ToolListRequest,
		host.Emitter,
	) (*protocol.ToolListResponse, error) {
		return &protocol.ToolListResponse{Tools: slices.Clone(s.defs)}, nil
	}, protocol.MergeTools)}
}

func (s *shelf) Close(context.Context) error { return nil }

// Weight implements host.Weigher.
func (s *shelf) Weight(_, name string) float64 {
	if w, ok := s.weights[name]; ok {
		return w
	}
	return 1
}

// searched starts a host with these tools and weights, and returns a function that searches them.
func searched(t *testing.T, weights map[string]float64, defs ...protocol.ToolDefinition) func(query string) []string {
	h := hosttest.New(t, host.Options{Plugins: []host.Plugin{&shelf{defs, weights}}})
	h.Handshake(protocol.CapTools)
	return func(query string) []string {
		t.Helper()
		var resp protocol.ToolListResponse
		h.Call(protocol.TypeToolListReq, fmt.Sprintf(`{"query":%q}`, query)).Decode(t, &resp)
		names := []string{}
		for _, def := range resp.Tools {
			if names = append(names, def.Name); def.Score != 0 {
				t.Errorf("%s is listed with a score", def.Name)
			}
		}
		return names
	}
}

func TestSearchFindsTheRightTool(t *testing.T) {
	var defs []protocol.ToolDefinition
	for _, c := range catalogue {
		defs = append(defs, protocol.ToolDefinition{Name: c.name, Description: c.description, Tags: c.tags})
	}
	found := searched(t, nil, defs...)
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
		{"gitcommit", "gitCommit"},
		{"HTTPServer2go http get", "http_get"},
		{"commit " + strings.Repeat("é", 1<<20), "gitCommit"}, // only the beginning of a query is used
	} {
		if got := found(tc.query); len(got) == 0 || got[0] != tc.want {
			t.Errorf("query %q: want %s first, got %v", tc.query, tc.want, got[:min(len(got), 4)])
		}
	}
}

// TestWeightsInASearch: weights order tools that match a query equally well, and tools of one group that match about
// as well. No weight puts a tool before one of another group that matches better. Tools that a plugin has found by
// itself come last.
func TestWeightsInASearch(t *testing.T) {
	def := func(name, description, task string) protocol.ToolDefinition {
		return protocol.ToolDefinition{Name: name, Description: description, Task: task}
	}
	odd := def("odd", "nothing of the kind", "")
	odd.Score = 3
	found := searched(t, map[string]float64{"b": 2, "heavy": 50, "slow": 0.5, "fast": 1.5, "odd": 9, "vague": 40},
		def("a", "paint a wall", ""), def("b", "paint a wall", ""), def("c", "paint a wall", ""),
		def("heavy", "paint a wall and drive a car through a tunnel to a far town", ""),
		def("slow", "query of the web", "web"), def("fast",
			"query of the web, and of many other sources that there are", "web"), def("query_web", "query the web", ""),
		def("vague",
			"says which pages of a long book of many chapters have a word that is on the web too, and writes them down",
			"web"), odd)
	for query, want := range map[string]string{
		"paint wall": "b a c heavy odd",
		"query web":  "query_web fast slow vague odd",
		"zebra":      "odd",
	} {
		got := strings.Join(found(query), " ")
		assert.That(t, got == want, "%s: %s, should be %s", query, got, want)
	}
}
