package tools

import (
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

// TestKernelFileSystemsAreRefused: no tool shows anything of a file system of the kernel within the workspace. The
// files beside it can be read all the same.
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

// TestGrepPassesOverWhatIsRefused: a walk passes over pipes and files with several hard links, and counts them.
func TestGrepPassesOverWhatIsRefused(t *testing.T) {
	s := newStage(t)
	all := grepData{Matches: []grepMatch{
		{"a/b/deep.txt", 1, inside},
		{"ok.txt", 1, inside},
		{"real/in.txt", 1, inside},
	}}
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

// aclFor encodes an ACL with six entries: the file's owner, a user, the group, another group, the mask and others. Each
// takes three bits of perms.
func aclFor(perms uint32) []byte {
	const nobody, named = ^uint32(0), 4242
	raw := binary.LittleEndian.AppendUint32(nil, 2)
	for i, e := range []struct {
		tag uint16
		id  uint32
	}{{0x01, nobody}, {0x02, named}, {0x04, nobody}, {0x08, named}, {0x10, nobody}, {0x20, nobody}} {
		raw = binary.LittleEndian.AppendUint16(raw, e.tag)
		raw = binary.LittleEndian.AppendUint16(raw, uint16(perms>>(3*i)&7))
		raw = binary.LittleEndian.AppendUint32(raw, e.id)
	}
	return raw
}

const (
	aclOfFile   = "system.posix_acl_access"
	aclOfFolder = "system.posix_acl_default"
	someUser    = 65534
)

// rights is all that must stay the same when the content of a file changes.
type rights struct {
	mode, uid, gid uint32
	acl, note      string
}

func rightsOf(t testing.TB, path string) rights {
	var st unix.Stat_t
	must.OK(t, unix.Lstat(path, &st))
	buf := make([]byte, 1024)
	attribute := func(name string) string {
		n, err := unix.Lgetxattr(path, name, buf)
		if err != nil {
			return ""
		}
		return string(buf[:n])
	}
	return rights{st.Mode, st.Uid, st.Gid, attribute(aclOfFile), attribute("user.note")}
}

// asUser calls a function with another user's rights to files, if the test may change users.
func asUser(uid int, call func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_, _ = unix.SetfsgidRetGid(uid)
		_, _ = unix.SetfsuidRetUid(uid)
		call()
	}()
	<-done
}

// TestChangedFilesKeepTheirRights: a change of a file's content keeps its owner, mode, ACL and attributes, whoever
// makes it and whatever ACL the folder gives to new files. A refused change keeps the content, too.
func TestChangedFilesKeepTheirRights(t *testing.T) {
	root := os.Geteuid() == 0
	perms := rapid.Uint32Range(0, 1<<18-1)
	property.Check(t, func(r *rapid.T) {
		w := newWorkspace(t, 0, map[string]string{"f": "old text"})
		path := filepath.Join(w.dir, "f")
		must.OK(t, os.Chmod(w.dir, 0o777))
		mode := rapid.Uint32Range(0, 0o777).Draw(r, "mode") | 0o600
		must.OK(t, unix.Chmod(path, mode))
		if rapid.Bool().Draw(r, "ACL of the file") {
			must.OK(t, unix.Setxattr(path, aclOfFile, aclFor(perms.Draw(r, "its rights")|6), 0))
		}
		if rapid.Bool().Draw(r, "ACL of the folder") {
			must.OK(t, unix.Setxattr(w.dir, aclOfFolder, aclFor(perms.Draw(r, "the folder's rights")|7), 0))
		}
		if rapid.Bool().Draw(r, "attribute") {
			must.OK(t, unix.Setxattr(path, "user.note", []byte("kept"), 0))
		}
		user := os.Geteuid()
		if root {
			own := rapid.SampledFrom([]int{0, someUser, 4242}).Draw(r, "owner")
			must.OK(t, os.Lchown(path, own, rapid.SampledFrom([]int{own, 4242}).Draw(r, "group")))
			user = rapid.SampledFrom([]int{0, someUser}).Draw(r, "user")
		}
		before := rightsOf(t, path)
		tool, a := "edit_file", args{"path": "f", "old": "old", "new": "a longer"}
		if rapid.Bool().Draw(r, "write") {
			tool, a = "write_file", args{"path": "f", "content": "a longer text"}
		}
		var failure error
		asUser(user, func() { _, failure = w.call(t, t.Context(), tool, a) })
		must.That(r, rightsOf(t, path) == before, "%s: %v\n%+v became\n%+v", tool, failure, before, rightsOf(t, path))
		want := "a longer text"
		if failure != nil {
			want = "old text"
		}
		must.Equal(r, w.get(t, "f"), want)
		must.That(r, failure == nil || user != 0 && int(before.uid) != user, "the owner is refused: %v", failure)
		must.That(r, leftOver(t, w.dir) == nil, "left behind: %v", leftOver(t, w.dir))
		info := must.Get(os.Lstat(path))(t)
		must.That(r, info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) == 0, "%v", info.Mode())
	})
}
