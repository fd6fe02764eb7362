package tools

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// A workspace that holds a file system of the kernel gives nothing of it, by
// whatever tool; the files beside it can be read all the same.
func TestKernelFileSystemsAreRefused(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain.txt")
	must.OK(t, os.WriteFile(plain, []byte(inside), 0o666))
	root := openWorkspace(t, "/", 0)
	got, _ := mustCall[readData](t, root, "read_file", args{"path": strings.TrimPrefix(plain, "/")})
	must.Equal(t, got.Content, inside, "a plain file: %+v", got)
	text, err := os.ReadFile("/proc/self/environ")
	must.That(t, err == nil && len(text) != 0, "a plain read of the environment: %d bytes, %v", len(text), err)
	proc, own := openWorkspace(t, "/proc", 0), openWorkspace(t, "/proc/self", 0)
	for _, c := range []struct {
		w      *workspace
		folder string
	}{{root, "proc/self/"}, {root, "proc/1/../self/"}, {proc, "self/"}, {own, ""}} {
		for _, tool := range []struct {
			name string
			args args
		}{
			{"read_file", args{"path": c.folder + "environ"}},
			{"read_file", args{"path": c.folder + "status"}},
			{"grep", args{"path": c.folder + "environ", "pattern": "."}},
			{"grep", args{"path": c.folder + "net", "pattern": "."}},
			{"list_dir", args{"path": c.folder + "fd"}},
			{"glob", args{"pattern": c.folder + "fd/*"}},
		} {
			c.w.fails(t, tool.name, tool.args, protocol.CodeToolDenied)
		}
		for name, a := range map[string]args{
			"write_file": {"path": c.folder + "comm", "content": "x"},
			"edit_file":  {"path": c.folder + "comm", "old": "a", "new": "b", "all": true},
		} {
			c.w.fails(t, name, a, protocol.CodeToolDenied)
		}
	}
	root.fails(t, "list_dir", args{"path": "sys/kernel"}, protocol.CodeToolDenied, "kernel")
	must.Get(os.ReadDir("/sys/kernel"))(t)
}

// Files with a second name and pipes are passed over in a walk, and counted.
func TestGrepPassesOverWhatIsRefused(t *testing.T) {
	s := newStage(t)
	all := grepData{Matches: []grepMatch{{"a/b/deep.txt", 1, inside}, {"ok.txt", 1, inside}, {"real/in.txt", 1, inside}}}
	got, _ := mustCall[grepData](t, s.workspace, "grep", args{"pattern": "SECRET|INSIDE"})
	must.That(t, cmp.Equal(all, got), "before: %+v", got)
	hardLinked("a/hard")(t, s)
	s.link(t, "../outside", "link")
	s.link(t, "real", "inner")
	must.OK(t, syscall.Mkfifo(filepath.Join(s.dir, "fifo"), 0o666))
	all.Skipped = 2
	got, _ = mustCall[grepData](t, s.workspace, "grep", args{"pattern": "SECRET|INSIDE"})
	assert.That(t, cmp.Equal(all, got), "got %+v, want %+v", got, all)
}
