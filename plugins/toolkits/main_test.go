package toolkits

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/sandbox"
	"a2e/protocol"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	os.Exit(m.Run())
}

// newPlugin makes a plugin in the workspace dir.
func newPlugin(t testing.TB, dir string, opts Options) *Plugin {
	t.Helper()
	p, err := New("kits", opts, testEnv(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func testEnv(t testing.TB, dir string) Env {
	return Env{Workspace: dir, Log: zerolog.Nop(), Confined: func(c host.Confinement) (*sandbox.Launcher, error) {
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

// call calls a tool that must succeed and gives the answer.
func call(t testing.TB, p *hosttest.Pair, name, args string) hosttest.Message {
	t.Helper()
	m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"`+name+`","arguments":`+args+`}`)
	if m.Type != protocol.TypeToolCallResp {
		t.Fatalf("%s %s: %s", name, args, m.Line)
	}
	return m
}

// write puts a file into a folder.
func write(t testing.TB, dir, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// runGit runs the real git in a folder, outside of the sandbox.
func runGit(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return string(out)
}
