//go:build unix

package e2e_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// shellLine runs a shell script in dir, and returns its exit status and stderr.
func shellLine(t *testing.T, dir, line string) (code int, stderr string) {
	t.Helper()
	cmd := command(t, dir, "sh", "-c", line)
	var text bytes.Buffer
	cmd.Stderr = &text
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), text.String()
}

// TestOutputThatFails: if stdout cannot be written, the host and the commands that print end with exit status 4 and
// one line on stderr. If the reader has gone, that is the end of the work and not a fault.
func TestOutputThatFails(t *testing.T) {
	dir := workDir(t)
	const ping = `printf '{"type":"ping","id":"1"}\n'`
	for line, code := range map[string]int{
		ping + " | ./a2e >/dev/full": 4,
		// the input stays open: whoever holds it must still be there when the host has ended
		"mkfifo in; (" + ping + "; exec sleep 300) >in & ./a2e <in >/dev/full; code=$?; kill $! || code=9; exit $code": 4,
		"./a2e tools list >/dev/full":             4,
		"./a2e tools list --json >/dev/full":      4,
		"./a2e tools call echo text=x >/dev/full": 4,
		"./a2e check >/dev/full":                  4,
		"./a2e doctor >/dev/full":                 4,
		"./a2e doctor --json >/dev/full":          4,
		"./a2e memory list --json >/dev/full":     4,
		"./a2e state path >/dev/full":             4,
		"./a2e schema config >/dev/full":          4,
		"./a2e schema protocol >/dev/full":        4,
		"./a2e version >/dev/full":                4,
		"./a2e --help >/dev/full":                 4,
		"./a2e tools call --help >/dev/full":      4,
		ping + " | ./a2e >/dev/null":              0,
		ping + " | ./a2e >file":                   0,
		"./a2e tools list >/dev/null":             0,
		ping + " | ./a2e 1<>/dev/null":            0,
		ping + " | ./a2e | :":                     0,
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			got, stderr := shellLine(t, dir, line)
			assert.Equal(t, got, code, "exit status …, want …; stderr: %s", stderr)
			lines := strings.Count(stderr, "\n")
			assert.Equal(t, strings.Contains(stderr, "nobody reads the answers"), strings.Contains(line, "<>"),
				"stderr: %s; it warns: …, want …", stderr)
			assert.That(t, code != 4 || lines == 1 && strings.HasPrefix(stderr, "a2e: "), "stderr: %q", stderr)
		})
	}
}

// TestLostAuditEntriesAreTold: if entries of the audit trail are lost, the host says so at its end, with their
// number.
func TestLostAuditEntriesAreTold(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for name, text := range map[string]string{
		"a2e.yaml":   "state_dir: state\naudit: {path: file/audit.jsonl}\n",
		"state/file": "not a folder",
	} {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	code, stderr := shellLine(t, dir, `printf '{"type":"ping","id":"%s"}\n' 1 2 3 | ./a2e --config a2e.yaml >out`)
	assert.That(t, code == 1 && strings.Contains(stderr, "lost at least 3 entries"), "exit status %d, stderr: %s", code,
		stderr)
	out, err := os.ReadFile(filepath.Join(dir, "out"))
	assert.That(t, err == nil && bytes.Count(out, []byte(`"pong"`)) == 3, "%v: %s", err, out)
}

// TestTheEndOfStdinIsSeenBehindUnreadAnswers: a parent that reads nothing closes stdin. The host notices, although
// its answers fill the output and unread lines wait before the end of the input, and ends when its time for that is
// over.
func TestTheEndOfStdinIsSeenBehindUnreadAnswers(t *testing.T) {
	t.Parallel()
	l := start(t, workDir(t))
	l.send(hello)
	l.answer("h")
	text := strings.Repeat("x", 200_000)
	stalled := make(chan struct{})
	var taken atomic.Int64
	go func() {
		defer close(stalled)
		line := []byte(call("c", "echo", fmt.Sprintf(`{"text":%q}`, text)) + "\n")
		for range 200 { // 40 MB: more than the output and both pipes hold
			if n, err := l.stdin.Write(line); err != nil || n < len(line) {
				return
			}
			taken.Add(1)
		}
		t.Error("the host took all of it")
	}()
	full, last := 0, int64(-1)
	hosttest.Eventually(t, "the host reads no more", func() bool {
		now := taken.Load()
		if full++; now == 0 || now != last {
			full, last = 0, now
		}
		return full > 20
	})
	l.stdin.Close()
	<-stalled
	begun := time.Now()
	if code := l.exit(); code != 0 {
		t.Errorf("exit status %d: %s", code, l.stderr.String())
	}
	t.Logf("it took %v", time.Since(begun))
}

// TestMCPAddKeepsRights: a file that `mcp add` changes keeps its owner, mode and attributes.
func TestMCPAddKeepsRights(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	path := filepath.Join(dir, ".mcp.json")
	writeFile(t, dir, ".mcp.json", "{}\n")
	must.OK(t, os.Chmod(path, 0o640), unix.Setxattr(path, "user.note", []byte("kept"), 0))
	uid := os.Getuid()
	if uid == 0 {
		uid = 4242
		must.OK(t, os.Chown(path, uid, uid))
	}
	for _, name := range []string{"one", "two"} {
		run(t, dir, nil, "mcp", "add", "--no-try", name, "--", "npx").want(t, 0, "added")
		info := must.Get(os.Lstat(path))(t)
		note := make([]byte, 16)
		n := must.Get(unix.Getxattr(path, "user.note", note))(t)
		assert.Equal(t, fmt.Sprint(info.Mode(), info.Sys().(*syscall.Stat_t).Uid, string(note[:n])),
			fmt.Sprint(os.FileMode(0o640), uid, "kept"), "after mcp add %s", name)
		assert.Contains(t, textOf(t, path), name)
	}
}
