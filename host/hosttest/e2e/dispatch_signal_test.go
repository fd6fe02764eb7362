//go:build unix

package e2e_test

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest/must"
)

// TestDispatchStuck: if nobody reads the results, the first interrupt cannot end the program, but the second does.
func TestDispatchStuck(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	cmd := command(t, dir, "./a2e", "dispatch", "-", "-w", "1", "--no-contract", "--", "sh", "-c",
		`head -c 300000 /dev/zero | tr '\0' x`)
	cmd.Stdin = strings.NewReader("{\"brief\":\"1\"}\n{\"brief\":\"2\"}\n")
	r, w, err := os.Pipe()
	must.OK(t, err)
	defer r.Close()
	cmd.Stdout = w
	err = cmd.Start()
	w.Close()
	must.OK(t, err)
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil { // it has begun to write, and blocks
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			_ = cmd.Process.Signal(syscall.SIGINT) // fails if it has ended
		case <-late:
			_ = cmd.Process.Kill()
			t.Fatal("it did not end")
		}
	}
}
