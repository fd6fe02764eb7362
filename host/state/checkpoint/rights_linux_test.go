package checkpoint_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/checkpoint"
)

// The attributes that hold the ACLs of a file and of a folder.
const (
	aclOfFile   = "system.posix_acl_access"
	aclOfFolder = "system.posix_acl_default"
)

func hidingACL() []byte {
	raw := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 6, ^uint32(0)}, {0x02, 6, 4242}, {0x04, 0, ^uint32(0)}, {0x10, 6, ^uint32(0)}, {0x20, 0, ^uint32(0)}} {
		raw = binary.LittleEndian.AppendUint16(raw, e.tag)
		raw = binary.LittleEndian.AppendUint16(raw, e.perm)
		raw = binary.LittleEndian.AppendUint32(raw, e.id)
	}
	return raw
}

func attribute(path, name string) string {
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(path, name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// TestRestoreWidensNothing: a file that is restored in place keeps its ACL and attributes. A file that is made anew
// has no ACL, neither its own nor the folder's, and its group gets no right that an ACL had hidden.
func TestRestoreWidensNothing(t *testing.T) {
	s := newStage(t, nil)
	for _, name := range []string{"changed", "removed", "plain"} {
		s.write(name, "one")
		path := filepath.Join(s.dir, name)
		must.OK(t, os.Chmod(path, 0o640))
		if name != "plain" {
			must.OK(t, unix.Setxattr(path, aclOfFile, hidingACL(), 0))
			must.OK(t, unix.Setxattr(path, "user.note", []byte("kept"), 0))
		}
	}
	s.take("")
	s.write("changed", "two")
	for _, name := range []string{"removed", "plain"} {
		must.OK(t, os.Remove(filepath.Join(s.dir, name)))
	}
	must.OK(t, unix.Setxattr(s.dir, aclOfFolder, hidingACL(), 0))
	done := must.Get(s.Restore(t.Context(), checkpoint.RestoreOptions{Steps: 1}))(t)
	must.That(t, len(done.Problems) == 1 && done.Problems[0].Path == "removed", "%v", done.Problems)
	assert.Contains(t, done.Problems[0].Why, "its ACL was not kept")
	for name, want := range map[string]struct {
		mode      os.FileMode
		acl, note string
	}{"changed": {0o660, string(hidingACL()), "kept"}, "removed": {0o600, "", ""}, "plain": {0o640, "", ""}} {
		path := filepath.Join(s.dir, name)
		s.want(name, "one")
		info := must.Get(os.Lstat(path))(t)
		acl, note := attribute(path, aclOfFile), attribute(path, "user.note")
		assert.That(t, info.Mode() == want.mode && acl == want.acl && note == want.note,
			"%s: %v, ACL %q, note %q", name, info.Mode(), acl, note)
	}
}
