package toolkits

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/protocol"
)

func TestContract(t *testing.T) {
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		dir := t.TempDir()
		write(t, dir, "docs/a.txt", "one\n", 0o644)
		return newPlugin(t, dir, Options{Filesystem: &FilesystemOptions{RootDir: "docs"}})
	}, []hosttest.Sample{
		{Type: protocol.TypeToolkitListReq, Fields: `{"filter_kind":"files","filter_tags":["read"]}`},
		{Type: protocol.TypeToolkitConfigureReq, Fields: `{"session_id":"","toolkit_name":"filesystem","config":{"root_dir":"docs"}}`},
		{Type: protocol.TypeToolListReq, Fields: `{"filter_kind":"toolkit","filter_tags":[],"query":"","include_deferred":false}`},
		{
			Name: "call", Type: protocol.TypeToolCallReq,
			Fields: `{"session_id":"","tool_name":"filesystem_read_file","arguments":{"path":"a.txt"},"correlation_id":"","streaming":false,"timeout":30}`,
		},
		{
			Name: "unknown toolkit", Type: protocol.TypeToolkitConfigureReq,
			Fields: `{"toolkit_name":"nope","config":{"a":1}}`, Code: protocol.CodeSchemaViolation,
		},
		{
			Name: "unknown tool", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"filesystem_nope","arguments":{}}`,
			Code: protocol.CodeUnknownTool,
		},
	})
}

// configure configures a toolkit.
func configure(p *hosttest.Pair, kit, config string) hosttest.Message {
	return p.Call(protocol.TypeToolkitConfigureReq, `{"toolkit_name":"`+kit+`","config":`+config+`}`)
}

// toolNames returns the names of all tools of toolkits.
func toolNames(t testing.TB, p *hosttest.Pair) string {
	t.Helper()
	var names []string
	var resp protocol.ToolListResponse
	m := p.Call(protocol.TypeToolListReq, `{"filter_kind":"toolkit"}`)
	m.Decode(t, &resp)
	for _, def := range resp.Tools {
		names = append(names, def.Name)
	}
	return strings.Join(names, " ")
}

func TestConfigure(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "docs/a.txt", "docs\n", 0o644)
	write(t, dir, "notes/a.txt", "notes\n", 0o644)
	p := open(t, dir, Options{})
	list := p.Call(protocol.TypeToolkitListReq, `{}`)
	for i, name := range []string{"filesystem", "git", "http"} {
		at := "/toolkits/" + string(rune('0'+i))
		if list.Get(at+"/name") != name || list.Get(at+"/configured") != "false" ||
			list.Get(at+"/schema/type") != "object" || list.Get(at+"/tools") == "[]" {
			t.Errorf("toolkit %s: %s", name, list.Get(at))
		}
	}
	assert.Equal(t, toolNames(t, p), "", "tools before anything is configured")
	for _, folder := range []string{"docs", "notes"} {
		m := configure(p, "filesystem", `{"root_dir":"`+folder+`","read_only":true}`)
		must.That(t, m.Get("/status") == "ok" && m.Get("/toolkit_name") == "filesystem", "configure: %s", m.Line)
		assert.Equal(t, toolNames(t, p), "filesystem_glob filesystem_grep filesystem_list_dir filesystem_read_file",
			"tools")
		m = call(t, p, "filesystem_read_file", `{"path":"a.txt"}`)
		assert.Equal(t, m.Get("/data/data/content"), folder+"\n", "a file of %s: %s", folder, m.Line)
	}
	m := p.Call(protocol.TypeToolListReq, `{"query":"read a file"}`)
	assert.That(t, m.Get("/tools/0/name") == "filesystem_read_file" && m.Get("/tools/0/toolkit") == "filesystem",
		"search: %s", m.Line)
	if m := configure(p, "filesystem", `{"root_dir":"gone"}`); m.Problem() != "/config/root_dir" {
		t.Errorf("a folder that is not there: %s", m.Line)
	}
	call(t, p, "filesystem_read_file", `{"path":"a.txt"}`).Has(t, "/data/data/content", "notes\n")
	if m := configure(p, "filesystem", `{}`); m.Get("/status") != "ok" || toolNames(t, p) != "" {
		t.Errorf("configured away: %s, tools %q", m.Line, toolNames(t, p))
	}
	p.Handshake(protocol.CapToolkits, protocol.CapTools)
}

// TestConfigureWrong: a wrong configuration is refused with the path of the mistake, and secrets in it
// are not shown.
func TestConfigureWrong(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "docs/a.txt", "", 0o644)
	outside := t.TempDir()
	must.OK(t, os.Symlink(outside, filepath.Join(dir, "link")))
	p := open(t, dir, Options{})
	const secret = "sk-very-secret"
	for _, c := range []struct{ kit, config, code, path string }{
		{"filesystem", `{"root_dir":7}`, "schema_violation", "/config/root_dir"},
		{"filesystem", `{"read_only":true}`, "schema_violation", "/config/root_dir"},
		{"filesystem", `{"root_dir":"docs","rootdir":"` + secret + `"}`, "schema_violation", "/config/rootdir"},
		{"filesystem", `{"root_dir":""}`, "schema_violation", "/config/root_dir"},
		{"filesystem", `{"root_dir":"docs/a.txt"}`, "schema_violation", "/config/root_dir"},
		{"filesystem", `{"root_dir":".."}`, "tool_denied", ""},
		{"filesystem", `{"root_dir":"` + outside + `"}`, "tool_denied", ""},
		{"filesystem", `{"root_dir":"link"}`, "schema_violation", "/config/root_dir"},
		{"git", `{"repo":"docs"}`, "schema_violation", "/config/repo"},
		{"git", `{"repo":"."}`, "schema_violation", "/config/repo"},
		{"http", `{"base_url":"ftp://example.com"}`, "tool_error", ""},
		{"http", `{"base_url":"http://127.0.0.1:9/"}`, "", ""}, // refused at the call, when the address is known
		{"http", `{"base_url":"http://localhost/"}`, "tool_denied", ""},
		{"http", `{"base_url":"http://user:` + secret + `@example.com/"}`, "tool_error", ""},
		{"http", `{"base_url":"https://example.com/?k=` + secret + `"}`, "schema_violation", "/config/base_url"},
		{
			"http", `{"base_url":"https://example.com/","headers":{"Authorization":{"` + secret + `":1}}}`,
			"schema_violation", "/config/headers",
		},
		{
			"http", `{"base_url":"https://example.com/","headers":{"X-Key":"` + secret + `\r\nX: y"}}`, "schema_violation",
			"/config/headers",
		},
		{
			"http", `{"base_url":"https://example.com/","headers":{"Host":"` + secret + `"}}`, "schema_violation",
			"/config/headers",
		},
	} {
		m := configure(p, c.kit, c.config)
		assert.That(t, string(m.Code) == c.code && (c.path == "" || m.Problem() == c.path),
			"%s %s: %s, should be %s %s", c.kit, c.config, m.Line, c.code, c.path)
		assert.That(t, !strings.Contains(string(m.Line), secret), "%s %s: the answer shows the secret: %s", c.kit,
			c.config, m.Line)
	}
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"api_get","arguments":{"path":""}}`,
		protocol.CodeToolDenied) // an API on this machine
}

// TestLocked: the agent cannot change what the config configures.
func TestLocked(t *testing.T) {
	p := open(t, t.TempDir(), Options{Locked: true})
	configure(p, "filesystem", `{"root_dir":"."}`).Has(t, "/code", string(protocol.CodeToolDenied))
}

// TestFolders: the config may open further folders to the agent, and may itself use any folder as the
// root of a toolkit.
func TestFolders(t *testing.T) {
	other, own := t.TempDir(), t.TempDir()
	write(t, other, "sub/x.txt", "x", 0o644)
	p := open(t, t.TempDir(), Options{Folders: []string{other}, Filesystem: &FilesystemOptions{RootDir: own}})
	m := configure(p, "filesystem", `{"root_dir":"`+filepath.Join(other, "sub")+`"}`)
	must.Equal(t, m.Get("/status"), "ok", "configure: %s", m.Line)
	call(t, p, "filesystem_read_file", `{"path":"x.txt"}`).Has(t, "/data/data/content", "x")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"filesystem_read_file","arguments":{"path":"../../x"}}`,
		protocol.CodeToolDenied) // out of the folder
	// the agent's configuration ends with its session
	p.Handshake(protocol.CapToolkits, protocol.CapTools)
	call(t, p, "filesystem_write_file", `{"path":"y.txt","content":"y"}`)
	_, err := os.Stat(filepath.Join(own, "y.txt"))
	assert.That(t, err == nil, "%v", err)
}

// TestConfigureInOrder: requests that are sent without waiting take effect in order: a call uses the
// configuration before it, not the one after it, and reads what a call before it has written.
func TestConfigureInOrder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "docs/a.txt", "docs\n", 0o644)
	write(t, dir, "notes/a.txt", "notes\n", 0o644)
	p := open(t, dir, Options{})
	var lines []string
	add := func(typ protocol.Type, id, fields string) { lines = append(lines, hosttest.Request(typ, id, fields)) }
	for i := range 40 {
		folder := []string{"docs", "notes"}[i%2]
		add(protocol.TypeToolkitConfigureReq, fmt.Sprint("configure", i),
			`{"toolkit_name":"filesystem","config":{"root_dir":"`+folder+`"}}`)
		add(protocol.TypeToolCallReq, fmt.Sprint("read", i),
			`{"tool_name":"filesystem_read_file","arguments":{"path":"a.txt"}}`)
		add(protocol.TypeToolCallReq, fmt.Sprint("write", i),
			fmt.Sprintf(`{"tool_name":"filesystem_write_file","arguments":{"path":"b.txt","content":"%d"}}`, i))
		add(protocol.TypeToolCallReq, fmt.Sprint("again", i),
			`{"tool_name":"filesystem_read_file","arguments":{"path":"b.txt"}}`)
		add(protocol.TypeToolkitConfigureReq, fmt.Sprint("away", i), `{"toolkit_name":"filesystem","config":{}}`)
		add(protocol.TypeToolCallReq, fmt.Sprint("gone", i),
			`{"tool_name":"filesystem_read_file","arguments":{"path":"a.txt"}}`)
	}
	p.Send(lines...)
	for i := range 40 {
		p.Answer(fmt.Sprint("read", i)).Has(t, "/data/data/content", []string{"docs\n", "notes\n"}[i%2])
		p.Answer(fmt.Sprint("again", i)).Has(t, "/data/data/content", fmt.Sprint(i))
		assert.Equal(t, p.Answer(fmt.Sprint("gone", i)).Code, protocol.CodeUnknownTool, "the tool that was taken away")
	}
}

// TestReplaceWaits: a toolkit is closed after the calls that still use it.
func TestReplaceWaits(t *testing.T) {
	closed := make(chan struct{})
	m := newMade("k", nil, func() { close(closed) })
	must.That(t, m.enter(), "no call may begin")
	retired := make(chan struct{})
	go func() { m.retire(); close(retired) }()
	for m.enter() { // until retire has begun
		m.calls.RUnlock()
	}
	select {
	case <-closed:
		t.Error("closed while a call uses it")
	default:
	}
	m.calls.RUnlock()
	<-retired
	<-closed
}

// TestCallWhileConfigured: a call that was sent before its toolkit was configured again uses the new
// toolkit, if that has the tool.
func TestCallWhileConfigured(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "docs/a.txt", "one\n", 0o644)
	plugin := newPlugin(t, dir, Options{Filesystem: &FilesystemOptions{RootDir: "docs"}})
	old := plugin.toolsLocked()[0]
	args := must.Get(protocol.ParseObject([]byte(`{"path":"a.txt"}`)))(t)
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
	p.Handshake(protocol.CapToolkits)
	configure(p, "filesystem", `{"root_dir":"docs","read_only":true}`)
	out, err := old.Call(t.Context(), args, nil)
	assert.That(t, err == nil && !out.Failed, "%s of the toolkit that was replaced: %v", old.Def.Name, err)
	configure(p, "filesystem", `{}`)
	if _, err := old.Call(t.Context(), args, nil); err == nil || !strings.Contains(err.Error(),
		"list the tools again") {
		t.Errorf("%s of the toolkit that was taken away: %v", old.Def.Name, err)
	}
}

func TestNewWrong(t *testing.T) {
	for _, opts := range []Options{
		{Filesystem: &FilesystemOptions{RootDir: "gone"}},
		{Git: &GitOptions{Repo: "."}},
		{HTTP: &HTTPOptions{BaseURL: "nonsense"}},
	} {
		p, err := New("kits", opts, testEnv(t, t.TempDir()))
		if err == nil {
			t.Errorf("%+v was taken", opts)
			p.Close(context.Background())
		}
	}
}

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// newPlugin makes a plugin in the workspace dir.
func newPlugin(t testing.TB, dir string, opts Options) *Plugin {
	t.Helper()
	return must.Get(New("kits", opts, testEnv(t, dir)))(t)
}

func testEnv(t testing.TB, dir string) host.Env {
	return host.Env{Workspace: dir, Log: zerolog.Nop(), Confined: func(c host.Confinement) (*sandbox.Launcher, error) {
		return sandbox.New(sandbox.Options{Workspace: c.Folder, WorkspaceInfo: c.Is, Launcher: hosttest.Launcher(t)})
	}}
}

// open starts a host with the plugin and a session.
func open(t testing.TB, dir string, opts Options) *hosttest.Pair {
	t.Helper()
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{newPlugin(t, dir, opts)}})
	p.Handshake(protocol.CapToolkits, protocol.CapTools)
	return p
}

// call calls a tool that must succeed, and returns the answer.
func call(t testing.TB, p *hosttest.Pair, name, args string) hosttest.Message {
	t.Helper()
	m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"`+name+`","arguments":`+args+`}`)
	must.Equal(t, m.Type, protocol.TypeToolCallResp, "%s %s: %s", name, args, m.Line)
	return m
}

// write puts a file into a folder.
func write(t testing.TB, dir, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.OK(t, os.WriteFile(path, []byte(text), mode))
}

// runGit runs the real git in a folder, outside of the sandbox.
func runGit(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T",
		"GIT_COMMITTER_EMAIL=t@example.com")
	out, err := cmd.CombinedOutput()
	must.That(t, err == nil, "git %v: %v\n%s", args, err, out)
	return string(out)
}

// TestWallHTTPPaths: no path leaves the API, neither at a server nor at a proxy before it that decodes
// more than once, cuts parameters off a step or maps characters.
func TestWallHTTPPaths(t *testing.T) {
	var mu sync.Mutex
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.RequestURI)
		if to := r.URL.Query().Get("to"); to != "" {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		}
	}))
	defer server.Close()
	p := open(t, t.TempDir(), Options{HTTP: &HTTPOptions{BaseURL: server.URL + "/v1"}})
	for _, path := range []string{
		"../admin", "a/../../admin", "..;/admin", "..;a=b/admin", "a/..;/..;/admin", ".;/x", ";/../admin",
		"x;y/..;z/..;/admin",
		"%2e%2e/admin", "%2E%2E/admin", ".%2e/admin", "%2e./admin", "..%2fadmin", "..%2Fadmin", "%2e%2e%2fadmin",
		"a%2f..%2f..%2fadmin",
		"..%3b/admin", "..%3Ba=b/admin", "%2e%2e%3b%2fadmin", "%252e%252e/admin", "%252e%252e%252fadmin",
		"..%252fadmin", "..%253b/admin", "%25252e%25252e/admin",
		"%2525252525252e%2e/admin", `..\admin`, "..%5cadmin", "..%5Cadmin", "..%255cadmin", `a\..\..\admin`,
		"//evil.example/admin", "///evil.example", "http://evil.example/", "https:admin",
		"./admin", "a/./b", "%2e/admin", "..\t/admin", "..%09/admin", "..%0a/admin", "..%0d%0a/admin", "..%00/admin",
		"..%20/admin", "%20../admin", ".. /admin",
		"a%0d%0aHost:x", "\u2025/admin", "\uff0e\uff0e/admin", "%ef%bc%8e%ef%bc%8e/admin", "\u2024\u2024/admin",
		"..\uff0fadmin", "..%ef%bc%8fadmin", "..\u2215admin", "..\u2044admin",
		"\u3002\u3002/admin", "..\uff3cadmin", "..%c0%afadmin", "%c0%ae%c0%ae/admin", "%e0%80%ae%e0%80%ae/admin",
		"%u002e%u002e/admin", "..%/admin", "..?x=/admin", "..#/admin", ".../admin",
	} {
		t.Run(fmt.Sprintf("%q", path), func(t *testing.T) {
			raw := must.Get(json.Marshal(map[string]string{"path": path}))(t)
			for _, tool := range []string{"api_get", "api_delete"} {
				m := p.Call(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":%q,"arguments":%s}`, tool, raw))
				assert.That(t, m.Code == protocol.CodeToolDenied || m.Code == protocol.CodeSchemaViolation,
					"%s is not refused: %s", tool, m.Line)
			}
			mu.Lock()
			defer mu.Unlock()
			assert.That(t, len(got) == 0, "the server got %q", got)
			got = nil
		})
	}
	for _, to := range []string{
		"/v1/..;/admin", "/v1/%2e%2e/admin", "/v1/%252e%252e/admin", "/v1/..%2fadmin",
		"/v1/x/..;/..;/admin", "/v1/%ef%bc%8e%ef%bc%8e/admin",
	} {
		t.Run("redirect "+to, func(t *testing.T) {
			call(t, p, "api_get", fmt.Sprintf(`{"path":"r","query":{"to":%q}}`, to))
			mu.Lock()
			defer mu.Unlock()
			assert.That(t, len(got) == 1 && !strings.Contains(got[0], "admin?"), "the server got %q", got)
			got = nil
		})
	}
	// A path that only looks odd is sent.
	for path, want := range map[string]string{
		"a..b/c.": "/v1/a..b/c.", "v1.2;x=1/y": "/v1/v1.2;x=1/y", "100%25": "/v1/100%25", "a b": "/v1/a%20b",
		".hidden/..x": "/v1/.hidden/..x", "\u00fc/\u4f8b": "/v1/%C3%BC/%E4%BE%8B", "a;b": "/v1/a;b",
	} {
		raw := must.Get(json.Marshal(map[string]string{"path": path}))(t)
		m := call(t, p, "api_get", string(raw))
		mu.Lock()
		assert.That(t, len(got) == 1 && got[0] == want && m.Get("/data/success") == "true", "%s: the server got %q: %s",
			path, got, m.Line)
		got = nil
		mu.Unlock()
	}
}

// TestFolderMadeAgain: the toolkits work in a folder that was deleted and made again, whether the agent
// or the config has set it. A link in its place that leads out of the workspace is refused, and a
// folder without a repository is reported.
func TestFolderMadeAgain(t *testing.T) {
	for who, config := range map[string]bool{"agent": false, "config": true} {
		t.Run(who, func(t *testing.T) {
			dir, outside := t.TempDir(), t.TempDir()
			docs := filepath.Join(dir, "docs")
			anew := func() {
				t.Helper()
				must.OK(t, os.RemoveAll(docs))
				write(t, dir, "docs/a.txt", "one\n", 0o644)
				must.OK(t, exec.Command("git", "init", "-q", docs).Run())
			}
			anew()
			write(t, outside, "a.txt", "loot\n", 0o644)
			opts := Options{}
			if config {
				opts = Options{Filesystem: &FilesystemOptions{RootDir: "docs"}, Git: &GitOptions{Repo: "docs"}}
			}
			p := open(t, dir, opts)
			ask := func(tool, args string) hosttest.Message {
				return p.Call(protocol.TypeToolCallReq, `{"tool_name":"`+tool+`","arguments":`+args+`}`)
			}
			if !config {
				configure(p, "filesystem", `{"root_dir":"docs"}`).Has(t, "/status", "ok")
				configure(p, "git", `{"repo":"docs"}`).Has(t, "/status", "ok")
			}
			for range 2 {
				ask("git_status", `{}`).Has(t, "/data/success", "true")
				ask("filesystem_read_file", `{"path":"a.txt"}`).Has(t, "/data/data/content", "one\n")
				anew()
				ask("filesystem_write_file", `{"path":"b.txt","content":"two"}`).Has(t, "/data/success", "true")
				assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(docs, "b.txt")))(t)), "two")
				ask("git_status", `{}`).Has(t, "/data/data/files/1/path", "b.txt")
			}
			must.OK(t, os.RemoveAll(docs))
			must.OK(t, os.Symlink(outside, docs))
			m := ask("filesystem_read_file", `{"path":"a.txt"}`)
			assert.That(t, m.Code == protocol.CodeToolError && !strings.Contains(m.String(), "loot"), "a link out: %s",
				m)
			must.OK(t, os.Remove(docs))
			must.OK(t, os.Mkdir(docs, 0o755))
			m = ask("git_status", `{}`)
			assert.That(t, m.Code == protocol.CodeToolError && strings.Contains(m.Get("/message"), "has no .git"),
				"no repository: %s", m)
		})
	}
}
