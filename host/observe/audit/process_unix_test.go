//go:build unix

package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestDiskFull: the chain holds and no entry is lost when the disk is full for a while. A file size limit cuts writes
// within a line, as a full disk does, and also applies to root.
func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	must.OK(t, start(t, "full", path, "", 0).Wait())
	r := verified(t, path)
	assert.That(t, r.Entries == 400 && r.Anchor == "", "%+v", r)
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
		l.Take(sample(i))
	}
	for deadline := time.Now().Add(time.Minute); len(n.all()) == 0; {
		if time.Now().After(deadline) {
			return errors.New("the disk never became full")
		}
	}
	// between two tries the file has only whole lines, as many as fit
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

// TestFewFiles: a host that has no free file descriptor for a while does not break the chain.
func TestFewFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	must.OK(t, start(t, "few files", path, "", 0).Wait())
	r := must.Get(Verify(path, KeyOf(path, filepath.Dir(path), "", "")))(t)
	assert.That(t, r.OK() && r.Entries == 21, "%s", r)
}

// childLacksFiles has ten new hosts write an entry, the first with no free descriptor, each next one with one more.
// After each of them a host that has written before does the same.
func childLacksFiles(path string) error {
	var old unix.Rlimit
	next, err := unix.Dup(0)
	err = errors.Join(err, unix.Close(next), unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	host := func() *file {
		return &file{path: path, note: func(string) {}, key: KeyOf(path, filepath.Dir(path), "", "")}
	}
	entry, lasting := appendEntry(nil, sample(1), 0), host()
	_, failed := lasting.write(entry, nil, time.Minute)
	err = errors.Join(err, failed)
	for more := range uint64(10) {
		for _, f := range []*file{host(), lasting} {
			err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{
				Cur: uint64(next) + more,
				Max: old.Max,
			}))
			n, _ := f.write(entry, nil, time.Minute)
			err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
			if n == 0 {
				_, failed := f.write(entry, nil, time.Minute)
				err = errors.Join(err, failed)
			}
		}
	}
	return err
}

// The names of environment variables that give the test binary a role when it starts itself.
const (
	childRole  = "AUDIT_TEST_ROLE"
	childPath  = "AUDIT_TEST_PATH"
	childName  = "AUDIT_TEST_NAME"
	childCount = "AUDIT_TEST_COUNT"
)

func child(role string) int {
	path, name := os.Getenv(childPath), os.Getenv(childName)
	count, _ := strconv.Atoi(os.Getenv(childCount))
	var err error
	switch role {
	case "write":
		err = childWrites(path, name, count)
	case "full":
		err = childFillsDisk(path)
	case "few files":
		err = childLacksFiles(path)
	default:
		err = errors.New("unknown role " + role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// childWrites records count entries with the name of this child; 0 means without end. It begins when its stdin ends.
func childWrites(path, name string, count int) error {
	l, err := Open(Options{Path: path})
	if err != nil {
		return err
	}
	os.Stdout.Close()
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	for i := 0; i != count || count == 0; i++ {
		e := sample(i)
		e.SessionID = name
		l.Take(e)
		if i%50 == 49 { // so that the batches of several children mix
			for waiting := 1; waiting > 0; {
				waiting, _ = l.Waiting()
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	return l.Close()
}

// start starts a child. together holds the ends of a pipe that all children of the role "write" share: they begin
// when each of them has opened the log and closed its end.
func start(t *testing.T, role, path, name string, count int, together ...*os.File) *exec.Cmd {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childRole+"="+role, childPath+"="+path, childName+"="+name,
		childCount+"="+strconv.Itoa(count))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if together != nil {
		cmd.Stdin, cmd.Stdout = together[0], together[1]
	}
	must.OK(t, cmd.Start())
	return cmd
}

func TestSeveralProcessesShareOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	const children, each = 3, 600
	var cmds []*exec.Cmd
	in, out, err := os.Pipe()
	must.OK(t, err)
	for i := range children {
		cmds = append(cmds, start(t, "write", path, fmt.Sprintf("child-%d", i), each, in, out))
	}
	must.OK(t, in.Close(), out.Close())
	for _, cmd := range cmds {
		assert.OK(t, cmd.Wait())
	}
	r := verified(t, path)
	assert.That(t, r.Entries == children*each && r.Anchor == "",
		"%d entries in %d files, anchor %q", r.Entries, len(r.Files), r.Anchor)
	seen, changes, last := map[string]int{}, 0, ""
	for _, f := range r.Files {
		for _, line := range lines(t, f.Path) {
			id, _, _ := strings.Cut(line[strings.Index(line, `"session_id"`):], `,"correlation_id"`)
			seen[id]++
			if name, _, _ := strings.Cut(id, ","); name != last {
				changes, last = changes+1, name
			}
		}
	}
	assert.Equal(t, len(seen), children*each, "… different entries")
	assert.That(t, changes > children, "the children wrote one after the other: this test shows nothing")
}

// TestKilledWhileWriting: hosts are killed while they write, several times. After each repair the chain holds and is
// longer.
func TestKilledWhileWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	entries := 0
	for round := range 8 {
		cmds := []*exec.Cmd{start(t, "write", path, "a", 0), start(t, "write", path, "b", 0)}
		size := func() int64 {
			if fi, err := os.Stat(path); err == nil {
				return fi.Size()
			}
			return 0
		}
		eventually(t, "much more is written", func() bool { return size() >= int64(round+1)*100_000 })
		for _, cmd := range cmds {
			must.OK(t, cmd.Process.Kill())
			assert.Fails(t, cmd.Wait(), "", "the child ended by itself")
		}
		l := open(t, Options{Path: path})
		l.Take(sample(round))
		closeLog(t, l)
		r := verified(t, path)
		must.That(t, r.Entries > entries+100 && r.Anchor == "",
			"round %d: %d entries after %d, anchor %q", round, r.Entries, entries, r.Anchor)
		entries = r.Entries
	}
}

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(child(role))
	}
	goleak.VerifyTestMain(m)
}
