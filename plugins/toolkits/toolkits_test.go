package toolkits

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
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
		{Name: "call", Type: protocol.TypeToolCallReq, Fields: `{"session_id":"","tool_name":"filesystem_read_file","arguments":{"path":"a.txt"},"correlation_id":"","streaming":false,"timeout":30}`},
		{Name: "unknown toolkit", Type: protocol.TypeToolkitConfigureReq, Fields: `{"toolkit_name":"nope","config":{"a":1}}`, Code: protocol.CodeSchemaViolation},
		{Name: "unknown tool", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"filesystem_nope","arguments":{}}`, Code: protocol.CodeUnknownTool},
	})
}

// configure sends one configuration.
func configure(p *hosttest.Pair, kit, config string) hosttest.Message {
	return p.Call(protocol.TypeToolkitConfigureReq, `{"toolkit_name":"`+kit+`","config":`+config+`}`)
}

// toolNames lists the tools of toolkits that there are.
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
		if list.Get(at+"/name") != name || list.Get(at+"/configured") != "false" || list.Get(at+"/schema/type") != "object" || list.Get(at+"/tools") == "[]" {
			t.Errorf("toolkit %s: %s", name, list.Get(at))
		}
	}
	if names := toolNames(t, p); names != "" {
		t.Errorf("tools before anything is configured: %s", names)
	}
	for _, folder := range []string{"docs", "notes"} {
		if m := configure(p, "filesystem", `{"root_dir":"`+folder+`","read_only":true}`); m.Get("/status") != "ok" || m.Get("/toolkit_name") != "filesystem" {
			t.Fatalf("configure: %s", m.Line)
		}
		if names := toolNames(t, p); names != "filesystem_glob filesystem_grep filesystem_list_dir filesystem_read_file" {
			t.Errorf("tools: %s", names)
		}
		if m := call(t, p, "filesystem_read_file", `{"path":"a.txt"}`); m.Get("/data/data/content") != folder+"\n" {
			t.Errorf("a file of %s: %s", folder, m.Line)
		}
	}
	m := p.Call(protocol.TypeToolListReq, `{"query":"read a file"}`)
	if m.Get("/tools/0/name") != "filesystem_read_file" || m.Get("/tools/0/toolkit") != "filesystem" {
		t.Errorf("search: %s", m.Line)
	}
	if m := configure(p, "filesystem", `{"root_dir":"gone"}`); m.Problem() != "/config/root_dir" {
		t.Errorf("a folder that is not there: %s", m.Line)
	}
	if m := call(t, p, "filesystem_read_file", `{"path":"a.txt"}`); m.Get("/data/data/content") != "notes\n" {
		t.Errorf("a wrong configuration took the old one away: %s", m.Line)
	}
	if m := configure(p, "filesystem", `{}`); m.Get("/status") != "ok" || toolNames(t, p) != "" {
		t.Errorf("configured away: %s, tools %q", m.Line, toolNames(t, p))
	}
	p.Handshake(protocol.CapToolkits, protocol.CapTools)
}

// TestConfigureWrong: what does not fit is refused with its name, and never shown.
func TestConfigureWrong(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "docs/a.txt", "", 0o644)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
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
		{"http", `{"base_url":"http://127.0.0.1:9/"}`, "", ""}, // refused when it is called: the address counts
		{"http", `{"base_url":"http://localhost/"}`, "tool_denied", ""},
		{"http", `{"base_url":"http://user:` + secret + `@example.com/"}`, "tool_error", ""},
		{"http", `{"base_url":"https://example.com/?k=` + secret + `"}`, "schema_violation", "/config/base_url"},
		{"http", `{"base_url":"https://example.com/","headers":{"Authorization":{"` + secret + `":1}}}`, "schema_violation", "/config/headers"},
		{"http", `{"base_url":"https://example.com/","headers":{"X-Key":"` + secret + `\r\nX: y"}}`, "schema_violation", "/config/headers"},
		{"http", `{"base_url":"https://example.com/","headers":{"Host":"` + secret + `"}}`, "schema_violation", "/config/headers"},
	} {
		m := configure(p, c.kit, c.config)
		if string(m.Code) != c.code || c.path != "" && m.Problem() != c.path {
			t.Errorf("%s %s: %s, should be %s %s", c.kit, c.config, m.Line, c.code, c.path)
		}
		if strings.Contains(string(m.Line), secret) {
			t.Errorf("%s %s: the answer shows the secret: %s", c.kit, c.config, m.Line)
		}
	}
	if m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"api_get","arguments":{"path":""}}`); m.Code != protocol.CodeToolDenied {
		t.Errorf("an API on this machine: %s", m.Line)
	}
}

// TestLocked: the agent cannot change what the config configures.
func TestLocked(t *testing.T) {
	p := open(t, t.TempDir(), Options{Locked: true})
	if m := configure(p, "filesystem", `{"root_dir":"."}`); m.Code != protocol.CodeToolDenied {
		t.Errorf("configure: %s", m.Line)
	}
}

// TestFolders: the config may open further folders to the agent, and root a toolkit
// anywhere itself.
func TestFolders(t *testing.T) {
	other, own := t.TempDir(), t.TempDir()
	write(t, other, "sub/x.txt", "x", 0o644)
	p := open(t, t.TempDir(), Options{Folders: []string{other}, Filesystem: &FilesystemOptions{RootDir: own}})
	if m := configure(p, "filesystem", `{"root_dir":"`+filepath.Join(other, "sub")+`"}`); m.Get("/status") != "ok" {
		t.Fatalf("configure: %s", m.Line)
	}
	if m := call(t, p, "filesystem_read_file", `{"path":"x.txt"}`); m.Get("/data/data/content") != "x" {
		t.Errorf("read: %s", m.Line)
	}
	if m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"filesystem_read_file","arguments":{"path":"../../x"}}`); m.Code != protocol.CodeToolDenied {
		t.Errorf("out of the folder: %s", m.Line)
	}
	// what the agent configured ends with its session
	p.Handshake(protocol.CapToolkits, protocol.CapTools)
	call(t, p, "filesystem_write_file", `{"path":"y.txt","content":"y"}`)
	if _, err := os.Stat(filepath.Join(own, "y.txt")); err != nil {
		t.Error(err)
	}
}

// TestReplaceWaits: a toolkit is closed after the calls that still use it.
func TestReplaceWaits(t *testing.T) {
	closed := make(chan struct{})
	m := newMade("k", nil, func() { close(closed) })
	if !m.enter() {
		t.Fatal("no call may begin")
	}
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

// TestCallWhileConfigured: a call that came in before its toolkit was configured anew is
// served by what took its place, as long as that has the tool.
func TestCallWhileConfigured(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "docs/a.txt", "one\n", 0o644)
	plugin := newPlugin(t, dir, Options{Filesystem: &FilesystemOptions{RootDir: "docs"}})
	old := plugin.toolsLocked()[0]
	args, err := protocol.ParseObject([]byte(`{"path":"a.txt"}`))
	if err != nil {
		t.Fatal(err)
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
	p.Handshake(protocol.CapToolkits)
	configure(p, "filesystem", `{"root_dir":"docs","read_only":true}`)
	if out, err := old.Call(t.Context(), args, nil); err != nil || out.Failed {
		t.Errorf("%s of the toolkit that was replaced: %v", old.Def.Name, err)
	}
	configure(p, "filesystem", `{}`)
	if _, err := old.Call(t.Context(), args, nil); err == nil || !strings.Contains(err.Error(), "list the tools again") {
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
