package plugins_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/config"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/plugins"
	"a2e/protocol"
	"a2e/protocol/client"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// load reads a config whose workspace is a temporary folder of its own.
func load(t *testing.T, text string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a2e.yaml")
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	cfg, _, err := config.Load(config.Source{Path: file, Dir: t.TempDir(), Available: plugins.Types()})
	must.OK(t, err)
	cfg.StateDir = t.TempDir()
	return cfg
}

// agent is a client in a session with a host that has the config's plugins.
type agent struct {
	t *testing.T
	*client.Client
	caps map[protocol.Capability]map[string]any // metadata by capability, from the answer to the handshake
	end  func()                                 // ends the host and waits until it has ended
}

func start(t *testing.T, cfg *config.Config, log io.Writer) *agent {
	t.Helper()
	made := must.Get(plugins.New(cfg, plugins.Deps{Log: zerolog.New(log)}))(t)
	h := must.Get(host.New(host.Options{Plugins: made, MaxParallel: 4}))(t)
	hostIn, toHost := io.Pipe()
	fromHost, hostOut := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := h.Serve(hostIn, hostOut)
		hostOut.Close()
		served <- err
	}()
	a := &agent{
		t: t, Client: client.Attach(fromHost, toHost, client.Options{}),
		caps: map[protocol.Capability]map[string]any{},
	}
	ended := false
	a.end = func() {
		if ended {
			return
		}
		ended = true
		_ = a.Close() // an error of the host is reported below
		assert.OK(t, <-served)
	}
	t.Cleanup(a.end)
	resp := must.Get(a.Handshake(t.Context(), "test", []protocol.Capability{protocol.CapTools, protocol.CapProc},
		""))(t)
	for _, row := range resp.AcceptedCaps {
		a.caps[row.Capability] = row.Metadata
	}
	return a
}

// run calls a tool that starts a program, and returns the program's stdout or the error.
func (a *agent) run(tool string, args map[string]any) (string, error) {
	a.t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		a.t.Fatal(err)
	}
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		a.t.Fatal(err)
	}
	var resp protocol.ToolCallResponse
	err = a.Call(a.t.Context(), protocol.TypeToolCallReq, &protocol.ToolCallRequest{
		ToolName: tool, Arguments: obj,
		Timeout: 120,
	}, &resp)
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(resp.Data.Data)
	if err != nil {
		a.t.Fatal(err)
	}
	var out struct {
		Stdout string `json:"stdout"`
		Stderr string `json:"stderr"`
	}
	if err := json.Unmarshal(data, &out); err != nil {
		a.t.Fatalf("%v in %s", err, data)
	}
	if !resp.Data.Success {
		return out.Stdout, errors.New(*resp.Data.Error + ": " + out.Stderr)
	}
	return out.Stdout, nil
}

func (a *agent) command(words ...string) (string, error) {
	a.t.Helper()
	return a.run("run_command", map[string]any{"command": words})
}

// spawn starts a process and returns the answer.
func (a *agent) spawn(words ...string) protocol.ProcSpawnResponse {
	a.t.Helper()
	var resp protocol.ProcSpawnResponse
	if err := a.Call(a.t.Context(), protocol.TypeProcSpawnReq, &protocol.ProcSpawnRequest{
		Cmd:       words,
		StdinMode: "null",
	}, &resp); err != nil {
		a.t.Fatal(err)
	}
	return resp
}

// offers reports whether the sandbox can use the named mechanism on this machine.
func offers(t *testing.T, name string) bool {
	t.Helper()
	l := must.Get(sandbox.New(sandbox.Options{}))(t)
	defer l.Close()
	all := must.Get(l.Probe(t.Context()))(t)
	return slices.ContainsFunc(all, func(f sandbox.Finding) bool { return f.Name == name && f.OK })
}

const toolsAndProc = "plugins: [{name: t, type: tools}, {name: p, type: proc}]\n"

// TestToolsAndProcShareOneTmp: tools and proc share one temporary folder. A process of proc can read what run_command
// writes there, and the other way round; the machine's own temporary folder has none of these files.
func TestToolsAndProcShareOneTmp(t *testing.T) {
	tmp := "$TMPDIR"
	if offers(t, "mount_namespace") {
		tmp = "/tmp"
	}
	a := start(t, load(t, toolsAndProc), io.Discard)
	name := "a2e-test-" + filepath.Base(t.TempDir()) + fmt.Sprint(os.Getpid())
	if out, err := a.command("sh", "-c", "echo from tools > "+tmp+"/"+name); err != nil {
		t.Fatal(out, err)
	}
	// The move stays within one file system, so it is one step: the loop below never reads half a file.
	resp := a.spawn("sh", "-c", "cat "+tmp+"/"+name+" > back; echo and proc >> back; cp back "+tmp+"/"+name+".new; mv "+tmp+"/"+name+".new "+tmp+"/"+name+".back")
	must.That(t, resp.OK, "%v", resp.Error)
	out, err := a.command("sh", "-c", "until cat "+tmp+"/"+name+".back; do sleep 0.01; done 2>/dev/null")
	assert.That(t, err == nil && out == "from tools\nand proc\n", "%q, %v", out, err)
	if _, err := os.Stat(filepath.Join(os.TempDir(), name)); err == nil {
		t.Error("the file is in the machine's temporary folder")
	}
}

// TestLauncherEndsWithItsLastUser: the launcher lives as long as any plugin uses it, and leaves no folder behind.
func TestLauncherEndsWithItsLastUser(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		tmp := t.TempDir()
		t.Setenv("TMPDIR", tmp)
		cfg := load(t, toolsAndProc)
		made := must.Get(plugins.New(cfg, plugins.Deps{}))(t)
		folders := func() int {
			found := must.Get(filepath.Glob(filepath.Join(tmp, "*")))(t)
			return len(found)
		}
		runner := made[1].(interface{ Unwrap() host.Plugin }).Unwrap().(child.ProcRunner)
		assert.Equal(t, folders(), 0, "a folder was made before the first child")
		res, err := runner.RunProc(t.Context(), child.ProcRun{Cmd: []string{"echo", "x"}})
		must.That(t, err == nil && res.Stdout == "x\n", "%v %v", res, err)
		for i, which := range order {
			assert.That(t, folders() != 0, "order %v: the private folder is gone after %d closed", order, i)
			for range 2 { // a second Close changes nothing
				err := made[which].Close(context.Background())
				assert.That(t, err == nil || strings.Contains(err.Error(), os.ErrClosed.Error()), "%v", err)
			}
		}
		assert.Equal(t, folders(), 0, "order %v: … folders are left", order)
	}
}

func TestHandshakeNamesTheSandbox(t *testing.T) {
	for text, want := range map[string]string{
		"": "best_effort", "sandbox: required\n": "required",
		"sandbox: off\n": "off",
	} {
		a := start(t, load(t, text+toolsAndProc), io.Discard)
		for _, name := range []protocol.Capability{protocol.CapTools, protocol.CapProc} {
			meta := a.caps[name]
			assert.That(t, meta["sandbox"] == want && meta["priority"] != nil, "%q: %s says %v, want %s", text, name,
				meta, want)
			missing, _ := meta["sandbox_missing"].([]any)
			for _, line := range missing {
				mechanism, reason, ok := strings.Cut(line.(string), ": ")
				assert.That(t, ok && reason != "" && !offers(t, mechanism) && want != "off",
					"%q: %s misses %v, which the machine has", text, name, line)
			}
		}
		a.end()
	}
}

// TestSandboxModes: with sandbox: required, children start only on a machine that has every mechanism the sandbox
// needs. With best_effort they start without it, after one warning; with off they start without a warning.
func TestSandboxModes(t *testing.T) {
	l := must.Get(sandbox.New(sandbox.Options{}))(t)
	defer l.Close()
	all := must.Get(l.Probe(t.Context()))(t)
	missing := slices.ContainsFunc(all, func(f sandbox.Finding) bool { return !f.OK && !f.Optional })
	for _, mode := range []string{"best_effort", "required", "off"} {
		var log bytes.Buffer
		a := start(t, load(t, "sandbox: '"+mode+"'\n"+toolsAndProc), &log)
		out, err := a.command("echo", "x")
		assert.Equal(t, err != nil, (missing && mode == "required"), "%s: %q, %v", mode, out, err)
		_, _ = a.command("echo", "again")
		spawned := a.spawn("echo", "x")
		assert.That(t, spawned.OK != (missing && mode == "required"), "%s: proc: %+v", mode, spawned)
		a.end()
		want := 0
		if missing && mode == "best_effort" {
			want = 1
		}
		got := strings.Count(log.String(), "the sandbox of child processes is incomplete")
		assert.Equal(t, got, want, "%s: … warnings, want …: %s", mode, log.String())
	}
}

// TestChildrenOfTheConfig: the children section of the config holds for tools and for proc.
func TestChildrenOfTheConfig(t *testing.T) {
	secret := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(secret, "file"), []byte("granted\n"), 0o644))
	file := filepath.Join(secret, "file")
	section := fmt.Sprintf("children: {read: [%q], open_files: 77, cpu_seconds: 55}\n", secret)
	for _, c := range []struct {
		config string
		limits string
		reads  bool
	}{{section, "77 55", true}, {"", "16384 unlimited", !offers(t, "mount_namespace")}} {
		a := start(t, load(t, c.config+toolsAndProc), io.Discard)
		const script = "echo $(ulimit -n) $(ulimit -t)"
		out, err := a.command("sh", "-c", script)
		assert.That(t, err == nil && out == c.limits+"\n", "%q: %q, %v", c.config, out, err)
		resp := a.spawn("sh", "-c", script+" > made; mv made limits")
		assert.That(t, resp.OK, "%v", resp.Error)
		out, err = a.command("sh", "-c", "until cat limits; do sleep 0.01; done 2>/dev/null")
		assert.That(t, err == nil && out == c.limits+"\n", "proc with %q: %q, %v", c.config, out, err)
		out, err = a.command("cat", file)
		assert.Equal(t, (err == nil && out == "granted\n"), c.reads, "%q: reading gives %q, %v", c.config, out, err)
		_, err = a.command("sh", "-c", "echo x >> "+file)
		assert.That(t, err != nil || !offers(t, "mount_namespace"), "%q: a file to read was written to", c.config)
		a.end()
	}
}

// dial is a Python program that reads a word from a port of this machine and prints it.
const dial = `import socket,sys; print(socket.create_connection(("127.0.0.1", int(sys.argv[1]))).recv(9).decode())`

func TestNetworkIsOffUnlessAskedFor(t *testing.T) {
	ln := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "reached") // if the write fails, the reader shows it
			conn.Close()
		}
	}()
	port := fmt.Sprint(ln.Addr().(*net.TCPAddr).Port)
	declared := fmt.Sprintf("commands: [{name: with, command: [python3, -c, %q, %q], network: true}, {name: "+
		"without, command: [python3, -c, %[1]q, %[2]q]}]", dial, port)
	for _, c := range []struct {
		options string
		reaches map[string]bool
	}{
		{declared, map[string]bool{"with": true, "without": false, "run_command": false, "proc": false}},
		{declared + ", network_disabled: false", map[string]bool{
			"with": true, "without": true, "run_command": true,
			"proc": false,
		}},
		{declared + ", DISABLE_NETWORK: no", map[string]bool{
			"with": true, "without": true, "run_command": true,
			"proc": false,
		}},
	} {
		a := start(t, load(t, "plugins: [{name: t, type: tools, metadata: {"+c.options+"}}, {name: p, type: proc}]"),
			io.Discard)
		got := map[string]bool{}
		for name := range c.reaches {
			var out string
			switch name {
			case "run_command":
				out, _ = a.command("python3", "-c", dial, port)
			case "proc":
				a.spawn("sh", "-c", `python3 -c "$0" "$1" > out; mv out reached`, dial, port)
				out, _ = a.command("sh", "-c", "until cat reached; do sleep 0.01; done 2>/dev/null")
			default:
				out, _ = a.run(name, map[string]any{})
			}
			got[name] = strings.TrimSpace(out) == "reached"
		}
		diff := cmp.Diff(c.reaches, got)
		assert.Equal(t, diff, "", "%s", c.options)
		a.end()
	}
}

// TestPythonOptionsOfProc: proc takes the options of a config that was written for the Python host.
func TestPythonOptionsOfProc(t *testing.T) {
	cfg := load(t, `
plugins:
  - name: shells
    type: procs
    cls: procs.plugin.Procs
    metadata: {ALLOWED_COMMANDS: [bash, sleep], DEFAULT_TIMEOUT: 1000, MAX_OUTPUT_BYTES: 500000, MAX_PROCS: 2, DISABLE_NETWORK: false}
`)
	a := start(t, cfg, io.Discard)
	if resp := a.spawn("cat"); resp.OK || !strings.Contains(resp.Error, "bash, sleep") {
		t.Errorf("a program off the list: %+v", resp)
	}
	for range 2 {
		resp := a.spawn("sleep", "1000")
		assert.That(t, resp.OK, "%v", resp.Error)
	}
	var resp protocol.ProcSpawnResponse
	err := a.Call(t.Context(), protocol.TypeProcSpawnReq, &protocol.ProcSpawnRequest{
		Cmd:       []string{"sleep", "1000"},
		StdinMode: "null",
	}, &resp)
	wire, ok := errors.AsType[*protocol.Error](err)
	assert.That(t, ok && wire.Code == protocol.CodeProcLimit, "a third process: %+v, %v", resp, err)
}

// TestAllowListsAreSharedUnlessSetApart: an allow list that only one of tools and proc has holds for both, so that
// neither is a way around the other's list.
func TestAllowListsAreSharedUnlessSetApart(t *testing.T) {
	const of = "plugins: [{name: t, type: tools, metadata: {%s}}, {name: p, type: proc, metadata: {%s}}]\n"
	const onlyEcho, onlySh = "allowed_commands: [echo]", "allowed_commands: [sh]"
	for _, c := range []struct {
		tools, proc    string
		byTool, byProc bool // whether sh may be started
	}{
		{"", "", true, true},
		{"", onlyEcho, false, false},
		{onlyEcho, "", false, false},
		{onlyEcho, onlySh, false, true},
		{onlySh, onlyEcho, true, false},
	} {
		cfg := load(t, fmt.Sprintf(of, c.tools, c.proc))
		a := start(t, cfg, io.Discard)
		if _, err := a.command("sh", "-c", "exit 0"); (err == nil) != c.byTool {
			t.Errorf("tools %q, proc %q: run_command: %v", c.tools, c.proc, err)
		}
		resp := a.spawn("sh", "-c", "exit 0")
		assert.Equal(t, resp.OK, c.byProc, "tools %q, proc %q: proc/spawn: %+v", c.tools, c.proc, resp)
		a.end()
		lists, err := plugins.AllowedPrograms(cfg)
		must.That(t, err == nil && len(lists) == 2, "%v, %v", lists, err)
		for i, want := range []bool{c.byTool, c.byProc} {
			_, err := lists[i].List.Resolve("", "sh")
			assert.Equal(t, (err == nil), want, "tools %q, proc %q: doctor says of sh: %v", c.tools, c.proc, err)
		}
	}
}

// TestMemoryOfTheConfig: a child that takes more memory than the config allows is ended, and the answer says why.
func TestMemoryOfTheConfig(t *testing.T) {
	a := start(t, load(t, "children: {memory_bytes: 134217728}\n"+toolsAndProc), io.Discard)
	defer a.end()
	const greedy = "import os, time; b = bytearray(os.urandom(1 << 20) * 300); time.sleep(1000)"
	var failed *protocol.Error
	if out, err := a.command("python3", "-c", greedy); !errors.As(err, &failed) ||
		failed.Code != protocol.CodeOutOfMemory || !strings.Contains(failed.Message, "memory_bytes") {
		t.Errorf("%q, %v", out, err)
	}
	out, err := a.command("echo", "enough")
	assert.That(t, err == nil && out == "enough\n", "%q, %v", out, err)
}
