//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package audit

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A file size limit cuts writes short within a line, as a full disk does, and
// holds for root as well.
func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := start(t, "full", path, "", 0).Wait(); err != nil {
		t.Fatal(err)
	}
	if r := verified(t, path); r.Entries != 400 || r.Anchor != "" {
		t.Errorf("%+v", r)
	}
}

func childFillsDisk(path string) error {
	signal.Ignore(unix.SIGXFSZ)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		return err
	}
	const full = 50_000
	limit := unix.Rlimit{Cur: full, Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	var n notes
	l, err := Open(Options{Path: path, Logger: n.add})
	if err != nil {
		return err
	}
	for i := range 400 {
		l.Record(sample(i))
	}
	for deadline := time.Now().Add(20 * time.Second); len(n.all()) == 0; {
		if time.Now().After(deadline) {
			return errors.New("the disk never became full")
		}
	}
	// Between two tries the file holds whole lines, as many as fit.
	unlock, err := l.file.lock(nil, 10*time.Second)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil || len(data) < full-500 || data[len(data)-1] != '\n' {
		return fmt.Errorf("%d bytes, %v: want whole lines up to %d bytes; notes %q", len(data), err, full, n.all())
	}
	unlock()
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		return err
	}
	return l.Close()
}
