package tools

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// library is a plugin that serves folders of files by name, under a URI scheme.
type library struct {
	name, scheme string
	folders      map[string]string

	mu     sync.Mutex
	opened []*os.Root // guarded by mu
}

func (l *library) Info() host.PluginInfo {
	return host.PluginInfo{Name: l.name, Capability: protocol.CapPlanning}
}
func (l *library) Routes() []host.Route        { return nil }
func (l *library) Close(context.Context) error { return nil }
func (l *library) Scheme() string              { return l.scheme }

func (l *library) OpenFiles(_ context.Context, authority string) (*os.Root, error) {
	dir, ok := l.folders[authority]
	if !ok {
		return nil, protocol.Errorf(protocol.CodeToolError, "%s has no folder %q", l.name, authority)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened = append(l.opened, root)
	return root, nil
}

// left returns how many folders were opened, and how many of them are still open.
func (l *library) left() (all, open int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, root := range l.opened {
		if _, err := root.Stat("."); !errors.Is(err, os.ErrClosed) {
			open++
		}
	}
	return len(l.opened), open
}

// reader is a host with the tools of a workspace and some libraries.
type reader struct {
	*hosttest.Pair
	libraries []*library
}

func newReader(t *testing.T, workspace string, libraries ...*library) *reader {
	t.Helper()
	p := must.Get(New("mytools", Options{MaxOutputBytes: 4000}, host.Env{Workspace: workspace}))(t)
	plugins := []host.Plugin{p}
	for _, l := range libraries {
		plugins = append(plugins, l)
	}
	r := &reader{hosttest.New(t, host.Options{Plugins: plugins}), libraries}
	r.Handshake(protocol.CapTools)
	return r
}

// call runs a tool and returns its answer. Afterwards no folder of a library may be open.
func (r *reader) call(t testing.TB, tool string, a args) hosttest.Message {
	t.Helper()
	fields := must.Get(json.Marshal(map[string]any{"tool_name": tool, "arguments": a}))(t)
	m := r.Call(protocol.TypeToolCallReq, string(fields))
	for _, l := range r.libraries {
		_, open := l.left()
		assert.That(t, open <= 0, "%s %v left %d folders open", tool, a, open)
	}
	return m
}

// data returns the data of an answer, or its error.
func data(m hosttest.Message) string {
	if m.Code != "" {
		return string(m.Code) + " " + m.Get("/message")
	}
	var line struct {
		Data struct {
			Data jsontext.Value `json:"data"`
		} `json:"data"`
	}
	if err := json.Unmarshal(m.Line, &line); err != nil {
		return err.Error()
	}
	return string(line.Data.Data)
}

func TestReadingByURI(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"a.txt": "of the workspace\n"})
	pdf := newWorkspace(t, 0, map[string]string{
		"SKILL.md": "one\ntwo\nthree\n", "scripts/run.sh": "echo two\n", "with space/%41.txt": "as it is\n",
		"long.txt": strings.Repeat("x", 9000), "bin": "\xff\xfe",
	})
	docx, more := newWorkspace(t, 0, map[string]string{"a.txt": "of docx\n"}), newWorkspace(t, 0,
		map[string]string{"b.txt": "of more\n"})
	r := newReader(t, w.dir,
		&library{name: "skills", scheme: "skill", folders: map[string]string{"pdf": pdf.dir, "docx": docx.dir}},
		&library{name: "further", scheme: "skill", folders: map[string]string{"more": more.dir}},
		&library{name: "books", scheme: "book", folders: map[string]string{}})
	for _, tc := range []struct {
		tool, path string
		more       args   // further arguments
		want       string // part of the data or of the error
	}{
		{"read_file", "a.txt", nil, `"of the workspace\n"`},
		{"read_file", "skill://docx/a.txt", nil, `"of docx\n"`},
		{"read_file", "SKILL://more/./b.txt", nil, `"of more\n"`},
		{
			"read_file", "skill://pdf/scripts/../SKILL.md",
			args{"offset": 2, "limit": 1},
			`{"content":"two\n","lines":1,"size":14,"next_offset":3}`,
		},
		{
			"read_file", "skill://pdf/SKILL.md",
			args{"offset": 9},
			`tool_error offset 9 is past the end of "skill://pdf/SKILL.md", whose last line is 3`,
		},
		{"read_file", "skill://pdf/with space/%41.txt", nil, `"as it is\n"`},
		{"read_file", "skill://pdf/with%20space/A.txt", nil, `tool_error "%s" does not exist; list_dir`},
		{"read_file", "skill://pdf/long.txt", nil, `{"content":"xxx`},
		{"read_file", "skill://pdf/bin", nil, `tool_error "%s" is not UTF-8 text`},
		{"read_file", "skill://pdf/scripts", nil, `tool_error "%s" is a folder`},
		{"read_file", "skill://pdf/SKILL.md/x", nil, `tool_error "%s" goes through something that is not a folder`},
		{"read_file", "skill://pdf", nil, `tool_error path "%s" names a folder`},
		{
			"read_file", "skill://pdf/../docx/a.txt", nil,
			`tool_denied "%s" leads out of "skill://pdf"; give a path inside it`,
		},
		{
			"read_file", "skill://pdf//etc/passwd", nil,
			`tool_denied path "%s" is absolute; give it relative to "skill://pdf"`,
		},
		{"read_file", "skill://none/a.txt", nil, `tool_error skills has no folder "none"`},
		{"read_file", "skill://../a.txt", nil, `tool_error skills has no folder ".."`},
		{"read_file", "skill:///a.txt", nil, `tool_error skills has no folder ""`},
		{
			"read_file", "file:///etc/passwd", nil, "tool_error nothing here has files under file://; the schemes are " +
				"book://, skill://, spill://; without one a path is relative to the workspace",
		},
		{"read_file", "./skill://pdf/SKILL.md", nil, `tool_error "%s" does not exist`},
		{"read_file", "skill://pdf/a\x00", nil, `tool_error the path has a NUL character in it`},
		{
			"read_file", "skill://pdf/" + strings.Repeat("a", 5000), nil,
			`tool_error the path has 5012 bytes; at most 4096 are taken`,
		},
		{"list_dir", "skill://docx", nil, `{"entries":[{"name":"a.txt","type":"file","size":8}]}`},
		{"list_dir", "skill://pdf/scripts/", nil, `{"entries":[{"name":"run.sh","type":"file","size":9}]}`},
		{"list_dir", "skill://pdf/none", nil, `tool_error "%s" does not exist`},
		{"list_dir", "skill://pdf/..", nil, `tool_denied "%s" leads out of "skill://pdf"`},
		{"glob", "skill://pdf/**/*.sh", nil, `{"matches":["skill://pdf/scripts/run.sh"]}`},
		{"glob", "skill://pdf/scripts/*", nil, `{"matches":["skill://pdf/scripts/run.sh"]}`},
		{"glob", "skill://pdf/none/*", nil, `{"matches":[]}`},
		{"glob", "skill://pdf/../*", nil, `tool_denied pattern "%s" goes up with ..; give it relative to "skill://pdf"`},
		{"glob", "skill://none/*", nil, `tool_error skills has no folder "none"`},
		{
			"grep", "skill://pdf", args{"pattern": "two"}, `{"matches":[` +
				`{"path":"skill://pdf/SKILL.md","line":2,"text":"two"},` +
				`{"path":"skill://pdf/scripts/run.sh","line":1,"text":"echo two"}],"skipped":0}`,
		},
		{
			"grep", "skill://pdf/SKILL.md",
			args{"pattern": "thr"},
			`{"matches":[{"path":"%s","line":3,"text":"three"}],"skipped":0}`,
		},
		{
			"grep", ".",
			args{"pattern": "of "},
			`{"matches":[{"path":"a.txt","line":1,"text":"of the workspace"}],"skipped":0}`,
		},
		{
			"write_file", "skill://pdf/SKILL.md",
			args{"content": "x"},
			`tool_denied "%s" is a URI, and what it names can only be read`,
		},
		{"write_file", "other://pdf/new", args{"content": "x"}, `tool_denied "%s" is a URI`},
		{"edit_file", "skill://pdf/SKILL.md", args{"old": "one", "new": "x"}, `tool_denied "%s" is a URI`},
	} {
		a := args{"path": tc.path}
		if tc.tool == "glob" {
			a = args{"pattern": tc.path}
		}
		maps.Copy(a, tc.more)
		want := strings.Replace(tc.want, "%s", tc.path, 1)
		assert.Contains(t, data(r.call(t, tc.tool, a)), want, "%s %.100v", tc.tool, a)
	}
	long := r.call(t, "read_file", args{"path": "skill://pdf/long.txt"})
	if n := len(data(long)); n > 4000 || n < 3000 || long.Get("/data/summary") != "line 1 is longer than an answer "+
		"may be and was cut" {
		t.Errorf("the limit of output is 4000 bytes, the data has %d: %s", n, long.Get("/data/summary"))
	}
	assert.Equal(t, pdf.get(t, "SKILL.md"), "one\ntwo\nthree\n", "the skill's file is now")
	entries, err := os.ReadDir(w.dir)
	assert.That(t, err == nil && len(entries) == 1, "the workspace has %v, %v", entries, err)
	all, _ := r.libraries[0].left()
	assert.That(t, all >= 10, "only %d folders were opened", all)
}
