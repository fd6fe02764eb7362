package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/store"
	"a2e/protocol"
)

// durableLimit is what keeps a host's files from growing.
type durableLimit struct {
	name    string
	start   func(t *testing.T, dir string) *durableHost
	squeeze func(t *testing.T, h *durableHost, dir string)
	lift    func(t *testing.T, h *durableHost, dir string)
	code    protocol.ErrorCode
	words   string
}

// TestNoSpace lets a host's writes fail in the middle, by a limit on the size of files and
// by a full disk. Each request has its answer, what was acknowledged stays and what was
// refused is not there.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	limits := []durableLimit{{
		name: "size of files", start: durableStart, code: protocol.CodeRuntimeError, words: "cannot be read or written",
		squeeze: func(t *testing.T, h *durableHost, dir string) {
			durableFileSize(t, h, uint64(durableLog(t, dir))+200_000) // ends within a page
		},
		lift: func(t *testing.T, h *durableHost, _ string) { durableFileSize(t, h, unix.RLIM_INFINITY) },
	}}
	if durableMayMount(t) {
		limits = append(limits, durableLimit{
			name: "full disk", code: protocol.CodeMemoryFull, words: store.ErrFull.Error(),
			start: func(t *testing.T, dir string) *durableHost {
				return durableSession(t, durableApart(t, dir, "./a2e"))
			},
			squeeze: func(*testing.T, *durableHost, string) {}, // it is small from the start
			lift: func(t *testing.T, h *durableHost, dir string) {
				must.OK(t, os.Remove(durableInside(h, dir, "state", "ballast")))
			},
		})
	}
	for _, limit := range limits {
		t.Run(limit.name, func(t *testing.T) {
			dir := durableDir(t)
			state := filepath.Join(dir, "state")
			h := limit.start(t, dir)
			kept := durableKeep(t, h, "before", 5)
			limit.squeeze(t, h, dir)
			stored, refused := durableFill(t, h, &limit)
			kept = append(kept, stored...)
			durableGoesOn(t, h)
			if there := h.versions(kept); len(there) != len(kept) {
				t.Errorf("while there is no space %d of %d entries are there", len(there), len(kept))
			}
			limit.lift(t, h, dir)
			kept = append(kept, durableKeep(t, h, "after", 20)...)
			t.Logf("%d entries stored, %d refused", len(kept), len(refused))
			must.OK(t, os.CopyFS(filepath.Join(dir, "copy"), os.DirFS(durableInside(h, dir, "state"))))
			h.end()
			must.OK(t, os.RemoveAll(state))
			durableMove(t, filepath.Join(dir, "copy"), state)
			there := durableStart(t, dir).versions(slices.Concat(kept, refused))
			for _, key := range kept {
				assert.That(t, there[key] != 0, "%s was acknowledged and is gone", key)
			}
			for _, key := range refused {
				assert.Equal(t, there[key], 0, "%s was refused and is there", key)
			}
			durableCheck(t, state)
		})
	}
}

// durableFill stores until there is no space, and then more, several requests at once.
func durableFill(t *testing.T, h *durableHost, limit *durableLimit) (stored, refused []string) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range 8 {
		all.Go(func() {
			failed := 0
			for n := 0; n < 500 && failed < 10; n++ {
				key := fmt.Sprintf("fill-%d-%d", i, n)
				err := h.store(durableSemantic(key, strings.Repeat(key+" takes space ", 200)))
				answer := durableRefusal(err)
				mu.Lock()
				if err == nil {
					stored = append(stored, key)
				} else {
					refused, failed = append(refused, key), failed+1
				}
				mu.Unlock()
				if err != nil && (answer == nil || answer.Code != limit.code || !strings.Contains(answer.Message, limit.words) || !strings.Contains(answer.Message, store.FileName)) {
					t.Errorf("%s should be refused with %s, saying %q: %v; stderr: %s", key, limit.code, limit.words, err, h.stderr)
				}
			}
			assert.That(t, failed != 0, "worker %d never came to the limit", i)
		})
	}
	all.Wait()
	return stored, refused
}

// durableLog returns the size of the store's log.
func durableLog(t *testing.T, dir string) int64 {
	t.Helper()
	info := must.Get(os.Stat(filepath.Join(dir, "state", store.FileName+"-wal")))(t)
	return info.Size()
}

// durableFileSize limits the size of the files that a running host writes.
func durableFileSize(t *testing.T, h *durableHost, size uint64) {
	t.Helper()
	var limit unix.Rlimit
	must.OK(t, unix.Prlimit(h.PID(), unix.RLIMIT_FSIZE, nil, &limit))
	limit.Cur = min(size, limit.Max)
	must.OK(t, unix.Prlimit(h.PID(), unix.RLIMIT_FSIZE, &limit, nil))
}

// durableDisk mounts a disk of 8 MiB, most of it taken, as the folder "state", and becomes a
// command that sees it.
const durableDisk = `mkdir state && mount -t tmpfs -o size=8m,mode=700 none state && head -c 7000000 /dev/zero >state/ballast && exec "$@"`

// durableApart prepares a command that sees such a disk, in namespaces of its own.
func durableApart(t *testing.T, dir, name string) *exec.Cmd {
	t.Helper()
	cmd := command(t, dir, "sh", "-c", durableDisk, "sh", name)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	return cmd
}

// durableMayMount reports whether this machine lets users mount a disk.
func durableMayMount(t *testing.T) bool {
	t.Helper()
	out, err := durableApart(t, t.TempDir(), "true").CombinedOutput()
	if err != nil {
		t.Logf("no disk can be mounted here, so only the size of files is limited: %v: %s", err, out)
	}
	return err == nil
}

// durableInside is a path as the host sees it.
func durableInside(h *durableHost, path ...string) string {
	return filepath.Join(append([]string{"/proc", fmt.Sprint(h.PID()), "root"}, path...)...)
}
