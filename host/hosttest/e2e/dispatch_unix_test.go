//go:build unix

package e2e_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestDispatchOnATerminal: on a terminal the workers are redrawn in place, and only the results go to stdout.
func TestDispatchOnATerminal(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	terminal, stderr, err := pty.Open()
	must.OK(t, err)
	defer terminal.Close()
	cmd := command(t, dir, "./a2e", "dispatch", "-", "-w", "2", "--no-contract", "--", "sh", "-c", saysDone)
	cmd.Stdin = strings.NewReader("{\"brief\":\"one\"}\n{\"brief\":\"fail\"}\n{\"brief\":\"two\"}")
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, stderr
	shown := make(chan string)
	go func() {
		text, _ := io.ReadAll(terminal) // fails once the other end is closed
		shown <- string(text)
	}()
	_ = cmd.Run() // its status is checked below
	stderr.Close()
	text := <-shown
	assert.Equal(t, cmd.ProcessState.ExitCode(), 1, "status")
	got := toldResults(resultsIn(t, stdout.Bytes()))
	assert.Equal(t, got, "line-1 done one was done\nline-2 error \nline-3 done two was done", "results")
	for _, want := range []string{
		"\r\x1b[2Kworker-1  \x1b[32m", "\r\x1b[2Kworker-2  ", "\x1b[3A\r\x1b[2Kworker-1",
		"2 of 3 done, 1 failed", "a2e: 1 of 3 tasks not done",
	} {
		assert.Contains(t, text, want, "the terminal did not get … but")
	}
}

// TestDispatchIsCutOff: a signal, or the death of the program, ends the workers and all that they have started. A
// task that was not done has no result.
func TestDispatchIsCutOff(t *testing.T) {
	t.Parallel()
	const says = "a2e: interrupted: 3 of 4 tasks got no result\n"
	t.Run("interrupted", func(t *testing.T) { cutOff(t, syscall.SIGINT, 130, says) })
	t.Run("terminated", func(t *testing.T) { cutOff(t, syscall.SIGTERM, 130, says) })
	if runtime.GOOS == "linux" { // on other systems a killed program leaves its workers
		t.Run("killed", func(t *testing.T) { cutOff(t, syscall.SIGKILL, -1, "") })
	}
}

func cutOff(t *testing.T, signal syscall.Signal, code int, says string) {
	dir := workDir(t)
	pipe := filepath.Join(dir, "pipe")
	must.OK(t, syscall.Mkfifo(pipe, 0o600))
	held, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a read ends once no process has the pipe open
	must.OK(t, err)
	defer held.Close()
	cmd := command(t, dir, "./a2e", "dispatch", "-", "-w", "2", "--no-contract", "--", "sh", "-c",
		`read -r brief; [ "$brief" != quick ] || exit 0; exec 3>pipe; : >"up-$brief"; sleep 1000`)
	cmd.Stdin = strings.NewReader("{\"brief\":\"quick\",\"priority\":\"urgent\"}\n{\"brief\":\"1\"}\n{\"brief\":\"2\"}\n{\"brief\":\"3\",\"priority\":\"low\"}")
	out := must.Get(os.Create(filepath.Join(dir, "out")))(t)
	defer out.Close()
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &stderr
	must.OK(t, cmd.Start())
	hosttest.Eventually(t, "two tasks at work", func() bool {
		_, err1 := os.Stat(filepath.Join(dir, "up-1"))
		_, err2 := os.Stat(filepath.Join(dir, "up-2"))
		return err1 == nil && err2 == nil
	})
	must.OK(t, cmd.Process.Signal(signal))
	err = cmd.Wait()
	var exit *exec.ExitError
	assert.That(t, errors.As(err, &exit) && exit.ExitCode() == code && strings.HasSuffix(stderr.String(), says),
		"%v, stderr %q", err, stderr.String())
	must.OK(t, held.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := io.ReadAll(held); err != nil {
		t.Errorf("something that was started for a task still runs: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "out"))
	got := toldResults(resultsIn(t, text))
	assert.That(t, err == nil && got == "line-1 done ", "results %q (%v)", got, err)
}
