package e2e_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestInspectPage uses pages of `a2e inspect` in a browser, by testdata/inspect/page.mjs: one with a host of its own,
// and those of three records: of a session, of an attack, and a long one.
func TestInspectPage(t *testing.T) {
	t.Parallel()
	scripts := must.Get(filepath.Abs(filepath.Join(root, "testdata/inspect")))(t)
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "page.yaml"), []byte(`groups: {look: [echo, grep]}
plugins:
  multi_agent: {workers: [{name: counter, command: [sh, -c, "tail -n 1 | wc -w"], contract: false}]}
mcpServers:
  broken: {command: sh, args: [-c, "exit 1"]}
`), 0o600))
	must.OK(t, os.Mkdir(filepath.Join(dir, "chains"), 0o755),
		os.WriteFile(filepath.Join(dir, "chains/greet.yaml"), []byte("# says hello\nnodes:\n- {node_id: hello, "+
			"kind: tool, name: echo, input_map: {text: input.name}}\n"), 0o600))
	session := must.Get(os.Open(filepath.Join(scripts, "session.ndjson")))(t)
	defer session.Close()
	serve := command(t, dir, "./a2e", "--config=page.yaml", "serve", "--record", "session.ndjson")
	serve.Stdin = session
	out, err := serve.CombinedOutput()
	must.That(t, err == nil, "%v: %s", err, out)
	writeLongRecord(t, filepath.Join(dir, "long.ndjson"), 100_000)

	args := []string{filepath.Join(scripts, "page.mjs"), inspectPage(t, dir)}
	for _, record := range []string{"session.ndjson", filepath.Join(scripts, "hostile.ndjson"), "long.ndjson"} {
		args = append(args, inspectPage(t, dir, record))
	}
	out, err = command(t, t.TempDir(), "node", args...).CombinedOutput()
	assert.That(t, err == nil, "%v: %s", err, out)
}

// inspectPage starts `a2e inspect` and returns its address. The host that it may start has a state of its own.
func inspectPage(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := command(t, dir, "./a2e", append([]string{"--config=page.yaml", "inspect"}, args...)...)
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+t.TempDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // its host ends with it
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // ended by the test's context
	line, err := bufio.NewReader(out).ReadString('\n')
	must.OK(t, err)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	url, _, _ := strings.Cut(line, " ")
	return url
}

// writeLongRecord writes a record of n messages.
func writeLongRecord(t *testing.T, path string, n int) {
	t.Helper()
	file := must.Get(os.Create(path))(t)
	w := bufio.NewWriter(file)
	fmt.Fprintln(w, `{"a2e_record":1,"version":"1.0.0","started":1795440000,"workspace":"/work"}`)
	for i := 1; i <= n; i += 2 {
		ts := 1795440000 + float64(i)/1000
		fmt.Fprintf(w, `{"n":%d,"ts":%.3f,"dir":"in","msg":{"type":"tool/call/req","id":"%d","tool_name":"read_file","arguments":{"path":"src/file%d.go"}}}`+"\n", i, ts, i, i)
		fmt.Fprintf(w, `{"n":%d,"ts":%.3f,"dir":"out","msg":{"type":"tool/call/resp","id":"r%d","req_id":"%d","data":{"success":true,"tool_name":"read_file","data":{"content":"package main\n"}}}}`+"\n", i+1, ts+0.0005*float64(i%9), i, i)
	}
	must.OK(t, w.Flush())
	must.OK(t, file.Close())
}
