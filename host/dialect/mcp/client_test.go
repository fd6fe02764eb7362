package mcp_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	front "a2e/host/dialect/mcp"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/plugins/memory"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// connect starts a host and connects a client of the go-sdk to it.
func connect(t *testing.T, opts front.Options, plugins []host.Plugin, client *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	out, w := io.Pipe()
	p := serveTo(t, opts, host.Options{Plugins: plugins, Only: true}, w)
	go func() { // the client waits for the end of the output
		<-p.done
		w.Close()
	}()
	c := mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "1"}, client)
	session := must.Get(c.Connect(t.Context(), &mcp.IOTransport{Reader: out, Writer: p.in}, nil))(t)
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// toJSON returns JSON with the members of objects sorted.
func toJSON(t *testing.T, v any) string {
	t.Helper()
	raw := must.Get(json.Marshal(v, json.Deterministic(true)))(t)
	return string(raw)
}

// TestToolList: a client sees the host's tools with their schemas and annotations.
func TestToolList(t *testing.T) {
	workspace := must.Get(tools.New("tools", tools.DefaultOptions(), host.Env{Workspace: t.TempDir()}))(t)
	l := newLab()
	session := connect(t, front.Options{}, []host.Plugin{workspace, l}, nil)
	got := map[string]string{}
	for tool, err := range session.Tools(t.Context(), nil) {
		must.OK(t, err)
		got[tool.Name] = toJSON(t, map[string]any{
			"in": tool.InputSchema, "out": tool.OutputSchema,
			"notes": tool.Annotations, "title": tool.Title,
		})
	}
	for name, want := range map[string]string{
		"rich": `{"in":{"properties":{"n":{"type":"integer"}},"type":"object"},"notes":{"destructiveHint":false,"idempotentHint":false,"openWorldHint":true,"readOnlyHint":true,"title":"Rich"},` +
			`"out":{"required":["n"],"type":"object"},"title":"Rich"}`,
		"mcpcut": `{"in":{"properties":{},"type":"object"},"notes":{"destructiveHint":false,"idempotentHint":false,"openWorldHint":false,"readOnlyHint":false},` +
			`"out":{"required":["a"],"type":"object"},"title":""}`,
		"odd":  `{"in":{"properties":{},"type":"object"},"notes":{"destructiveHint":false,"idempotentHint":false,"openWorldHint":false,"readOnlyHint":false},"out":null,"title":""}`,
		"null": `{"in":{"properties":{},"type":"object"},"notes":{"idempotentHint":false,"readOnlyHint":false},"out":null,"title":""}`,
	} {
		assert.Equal(t, got[name], want, "%s", name)
	}
	for name, part := range map[string]string{
		"read_file": `"readOnlyHint":true`, "write_file": `"readOnlyHint":false`, "glob": `"required":["pattern"]`,
		"list_dir": `"type":"object"`,
	} {
		assert.Contains(t, got[name], part, "%s has no", name)
	}
}

// TestToolCalls: a client gets results, and progress if it asked for it.
func TestToolCalls(t *testing.T) {
	heard := make(chan string, 100)
	session := connect(t, front.Options{}, []host.Plugin{newLab()}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			heard <- fmt.Sprintf("%v: %v/%v %s", r.Params.ProgressToken, r.Params.Progress, r.Params.Total,
				r.Params.Message)
		},
	})
	call := func(token any, name string) *mcp.CallToolResult {
		t.Helper()
		params := &mcp.CallToolParams{Name: name, Arguments: map[string]any{}}
		if token != nil {
			params.SetProgressToken(token)
		}
		return must.Get(session.CallTool(t.Context(), params))(t)
	}
	if res := call(nil, "rich"); res.IsError || toJSON(t,
		res.StructuredContent) != `{"n":9007199254740992}` { // the client rounds the number
		t.Errorf("rich: %s", toJSON(t, res))
	}
	if res := call(nil, "denied"); !res.IsError {
		t.Errorf("denied: %s", toJSON(t, res))
	}
	if res := call(nil, "progress"); toJSON(t, res.Content) != `[{"type":"text","text":"false"}]` {
		t.Errorf("without listeners: %s", toJSON(t, res.Content))
	}
	if res := call("tok", "progress"); toJSON(t, res.Content) != `[{"type":"text","text":"true"}]` {
		t.Errorf("with a listener: %s", toJSON(t, res.Content))
	}
	for _, want := range []string{
		"tok: 0/100 at 0", "tok: 10/100 at 10", "tok: 33.5/100 at 33.5",
		"tok: 100/100 at 250",
	} {
		select {
		case got := <-heard:
			assert.Equal(t, got, want, "heard")
		case <-time.After(patience):
			t.Fatalf("not heard: %s", want)
		}
	}
}

// TestListChanges: a client that has seen the lists is told of new tools and skills, and then finds them.
func TestListChanges(t *testing.T) {
	l := newLab()
	changed := make(chan string, 10)
	session := connect(t, front.Options{Refresh: 5 * time.Millisecond}, []host.Plugin{l}, &mcp.ClientOptions{
		ToolListChangedHandler:   func(context.Context, *mcp.ToolListChangedRequest) { changed <- "tools" },
		PromptListChangedHandler: func(context.Context, *mcp.PromptListChangedRequest) { changed <- "prompts" },
	})
	must.Get(session.ListTools(t.Context(), nil))(t)
	must.Get(session.ListPrompts(t.Context(), nil))(t)
	for _, what := range []string{"tools", "prompts", "tools"} {
		l.mu.Lock()
		if what == "tools" {
			l.tools[fmt.Sprint("new", len(l.tools))] = give("1")
		} else {
			l.skills = append(l.skills, protocol.SkillDefinition{Name: "new"})
		}
		l.mu.Unlock()
		select {
		case got := <-changed:
			assert.Equal(t, got, what, "the client was told of new")
		case <-time.After(patience):
			t.Fatalf("the client was not told of new %s", what)
		}
	}
	all, err := session.ListTools(t.Context(), nil)
	assert.That(t, err == nil && slices.ContainsFunc(all.Tools,
		func(t *mcp.Tool) bool { return strings.HasPrefix(t.Name, "new") }),
		"the new tool is not listed: %v", err)
}

// TestPages: a long list comes in pages that contain each entry once.
func TestPages(t *testing.T) {
	l := newLab()
	clear(l.tools)
	for i := range 1201 {
		l.tools[fmt.Sprintf("tool%04d", i)] = give("1")
	}
	session := connect(t, front.Options{}, []host.Plugin{l}, nil)
	first, err := session.ListTools(t.Context(), nil)
	must.That(t, err == nil && len(first.Tools) == 500 && first.NextCursor != "", "the first page has %d tools, %v",
		len(first.Tools), err)
	next := 0
	for tool, err := range session.Tools(t.Context(), nil) {
		want := fmt.Sprintf("tool%04d", next)
		must.That(t, err == nil && tool.Name == want, "tool %d is %v: %v", next, tool, err)
		next++
	}
	assert.Equal(t, next, 1201, "… tools were listed")
}

// TestPrompts: skills are prompts, with the arguments of their schemas.
func TestPrompts(t *testing.T) {
	l := newLab()
	l.skills = []protocol.SkillDefinition{
		{
			Name: "report", Description: "Write a report.", Arguments: []string{"topic", "extra"},
			ArgumentHint: "what else", InputSchema: map[string]any{
				"type": "object", "required": []any{"topic"},
				"properties": map[string]any{
					"topic":  map[string]any{"type": "string", "description": "About what"},
					"pages":  map[string]any{"type": "integer"},
					"either": map[string]any{"type": []any{"string", "null"}}, "list": map[string]any{"type": "array"},
				},
			},
		},
		{Name: "plain", Status: protocol.SkillPublished},
		{Name: "odd", InputSchema: map[string]any{"properties": 5}},
		{Name: "blocked", Status: protocol.SkillBlocked},
		{Name: "broken"},
	}
	session := connect(t, front.Options{}, []host.Plugin{l}, nil)
	list := must.Get(session.ListPrompts(t.Context(), nil))(t)
	want := `[{"name":"broken"},{"name":"odd"},{"name":"plain"},{"arguments":[{"name":"either","required":false},{"name":"extra","description":"what else","required":false},{"name":"list","required":false},{"name":"pages","required":false},` +
		`{"name":"topic","description":"About what","required":true}],"description":"Write a report.","name":"report"}]`
	assert.Equal(t, toJSON(t, list.Prompts), want, "the prompts")
	res := must.Get(session.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "report", Arguments: map[string]string{
		"topic": "12", "pages": "3", "either": "5", "list": "[1]", "extra": "true",
	}}))(t)
	text := `do {"either":"5","extra":"true","list":[1],"pages":3,"topic":"12"}` + "\n\nFiles of this skill, for " +
		"the tool read_file: skill://s/a"
	if len(res.Messages) != 1 || res.Messages[0].Role != "user" ||
		res.Messages[0].Content.(*mcp.TextContent).Text != text || res.Description != "Write a report." {
		t.Errorf("the prompt is %s, should be %s", toJSON(t, res), text)
	}
	for name, part := range map[string]string{
		"broken": "it is broken", "blocked": "unknown prompt",
		"none": "unknown prompt",
	} {
		_, err := session.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: name})
		assert.That(t, err != nil && strings.Contains(err.Error(), part), "%s: %v", name, err)
	}
}

// TestNothingLoaded: without plugins the lists are empty and not null.
func TestNothingLoaded(t *testing.T) {
	p := serve(t, front.Options{}, host.Options{Only: true}).open()
	for method, want := range map[string]string{
		"tools/list": `{"tools":[]}`, "prompts/list": `{"prompts":[]}`, "resources/list": `{"resources":[]}`,
	} {
		l := p.call(`"`+method+`"`, method, `{}`)
		assert.Equal(t, string(l.Result), want, "%s: %s", method, l)
	}
}

// TestFiles: the files of the workspace are resources, and no other files can be read.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("0123456789abcdef\n", 80_000) // longer than one answer of read_file
	for name, content := range map[string]string{
		"a.txt": "text ü", "b/c d.md": "# x", "b/e.json": "{}", "empty": "", "long.txt": long, "bin": "\xff\x00",
		".git/config": "x", "b#1%.txt": "odd",
	} {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	must.OK(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	plugin := must.Get(tools.New("tools", tools.DefaultOptions(), host.Env{Workspace: dir}))(t)
	session := connect(t, front.Options{Workspace: dir}, []host.Plugin{plugin}, nil)
	var names []string
	uris := map[string]string{}
	for r, err := range session.Resources(t.Context(), nil) {
		must.OK(t, err)
		names = append(names, r.Name)
		uris[r.Name] = r.URI
	}
	want := []string{"a.txt", "b/c d.md", "b/e.json", "b#1%.txt", "bin", "empty", "long.txt"}
	assert.That(t, slices.Equal(names, want), "the files are %q, should be %q", names, want)
	read := func(uri string) string {
		res, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return err.Error()
		}
		return res.Contents[0].MIMEType + " " + res.Contents[0].Text
	}
	base := "file://" + filepath.ToSlash(dir)
	for uri, want := range map[string]string{
		uris["a.txt"]: "text/plain text ü", uris["b/c d.md"]: "text/markdown # x",
		uris["b/e.json"]: "application/json {}", uris["empty"]: "text/plain ",
		uris["long.txt"]: "text/plain " + long, uris["b#1%.txt"]: "text/plain odd",
		base + "/a.txt": "text/plain text ü", "file:///a.txt": "text/plain text ü",
		"file://localhost/b/e.json": "application/json {}",
	} {
		assert.Equal(t, read(uri), want, "%s", uri)
	}
	for uri, part := range map[string]string{
		uris["bin"]: "not UTF-8", "file:///etc/passwd": "does not exist", base + "/../../etc/passwd": "",
		"file:///../../etc/passwd": "", base + "/link": "",
		"file:///link": "", "file:///%2e%2e/x": "", "file://elsewhere/a.txt": "does not name a file", "file:///b": "",
		base: "", "file://": "", "file:///a%00b": "", "x": "no resource",
		"file:///a.txt?x": "does not name a file", "http://x/": "no resource", "skill://none/x": "no resource",
	} {
		got := read(uri)
		assert.That(t, strings.Contains(got, part) && strings.HasPrefix(got, "calling") &&
			!strings.Contains(got, "root:"), "%s: %.300q", uri, got)
	}
	templates, err := session.ListResourceTemplates(t.Context(), nil)
	assert.That(t, err == nil && len(templates.ResourceTemplates) == 2, "the templates are %v, %v", templates, err)
}

// TestManyFiles: the files of a large workspace come in pages that contain each file once, in order, whatever the
// folders are.
func TestManyFiles(t *testing.T) {
	dir := t.TempDir()
	want := 0
	for i := range 260 {
		sub := filepath.Join(dir, fmt.Sprintf("d%03d", i), "x", "y")
		must.OK(t, os.MkdirAll(sub, 0o755))
		if i%2 == 0 {
			continue // folders without a file
		}
		for j := range 4 {
			want++
			must.OK(t, os.WriteFile(filepath.Join(sub, fmt.Sprint(j)), nil, 0o644))
		}
	}
	plugin := must.Get(tools.New("tools", tools.DefaultOptions(), host.Env{Workspace: dir}))(t)
	session := connect(t, front.Options{}, []host.Plugin{plugin}, nil)
	seen := map[string]bool{}
	last := ""
	for r, err := range session.Resources(t.Context(), nil) {
		must.OK(t, err)
		must.That(t, !seen[r.Name] && r.Name >= last, "%s comes twice, or out of order", r.Name)
		seen[r.Name], last = true, r.Name
	}
	assert.Equal(t, len(seen), want, "… files were listed")
}

// TestMemories: the entries of the memory are resources.
func TestMemories(t *testing.T) {
	file := must.Get(store.OpenMemory(t.Context(), memory.Part()))(t)
	t.Cleanup(func() { _ = file.Close() })
	plugin := must.Get(memory.New("memory", memory.DefaultOptions(),
		host.Env{Store: func(context.Context) (store.Store, error) { return file, nil }}))(t)
	l := newLab()
	l.tools["store"] = func(ctx context.Context, _ *lab, args protocol.Object, _ host.Emitter) (*protocol.ToolResult,
		error,
	) {
		var memory protocol.MemoryInitResponse
		if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeMemoryInitReq,
			&protocol.MemoryInitRequest{Namespace: "default"}, &memory, nil); err != nil {
			return nil, err
		}
		var stored protocol.MemoryStoreResponse
		err := host.ServicesOf(ctx).Call(ctx, protocol.TypeMemoryStoreReq,
			&protocol.MemoryStoreRequest{MemoryID: memory.MemoryID, Entries: []protocol.Object{args}}, &stored, nil)
		return &protocol.ToolResult{Success: len(stored.Errors) == 0, Data: jsontext.Value(toJSON(t, stored))}, err
	}
	session := connect(t, front.Options{}, []host.Plugin{plugin, l}, nil)
	for _, entry := range []string{
		`{"key":{"name":"a/b %"},"content":"some text","tier":"semantic","tags":["one"]}`,
		`{"key":{"n":1,"m":[2]},"content":{"x":9007199254740993},"tier":"episodic"}`,
		`{"key":{"w":true},"content":"","tier":"working"}`,
	} {
		res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "store", Arguments: jsontext.Value(entry)})
		if err != nil || res.IsError {
			t.Fatalf("%s: %v %s", entry, err, toJSON(t, res))
		}
	}
	var got []string
	for r, err := range session.Resources(t.Context(), nil) {
		must.OK(t, err)
		res := must.Get(session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: r.URI}))(t)
		got = append(got, fmt.Sprintf("%s (%s) %s: %s %s", r.Name, r.Description, strings.Split(r.URI, "/")[2],
			res.Contents[0].MIMEType, res.Contents[0].Text))
	}
	want := []string{
		`{"w":true} (working memory) working: text/plain `,
		`{"n":1,"m":[2]} (episodic memory) episodic: application/json {"x":9007199254740993}`,
		`a/b % (semantic memory, one) semantic: text/plain some text`,
	}
	assert.Slice(t, got, want, "the memories are\n%s\nshould be\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	for uri, part := range map[string]string{
		"memory://semantic/%7B%22name%22%3A%22none%22%7D": "no entry", "memory://semantic/x": "as JSON",
		"memory://semantic/":   "as JSON",
		"memory://deep/%7B%7D": "the tiers", "memory://semantic/%zz": "escaped",
		"memory://episodic/%7B%22name%22%3A%22a/b%20%25%22%7D": "no entry",
	} {
		_, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		assert.That(t, err != nil && strings.Contains(err.Error(), part), "%s: %v", uri, err)
	}
}
