//go:build unix

package skill

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestPipeInPlaceOfFolderKeepsNobodyWaiting: a named pipe in the place of a folder of skills does not block the host.
// Opening it would wait for the pipe's other end, and every request about skills would wait, too.
func TestPipeInPlaceOfFolderKeepsNobodyWaiting(t *testing.T) {
	s := newStage(t, map[string]string{"one/SKILL.md": md("name: one\ndescription: d", "text")},
		func(o *Options, env *host.Env) {
			o.SkillsPath = []any{filepath.Join(env.Workspace, "more")}
		})
	must.Equal(t, names(s.discover()), "one")
	skills, hidden := filepath.Join(s.work, ".a2e", "skills"), filepath.Join(s.work, "hidden")
	one := must.Get(s.plugin.find("one"))(t)
	must.OK(t, os.Rename(skills, hidden), makePipe(skills))
	assert.Equal(t, names(s.discover()), "")
	_, err := one.open()
	assert.That(t, err != nil, "the skill of a folder that is gone can be opened")
	must.OK(t, os.Remove(skills), os.Rename(hidden, skills))
	own := filepath.Join(skills, "one")
	must.OK(t, os.Rename(own, hidden), makePipe(own), makePipe(filepath.Join(s.work, "more")))
	_, err = one.open()
	assert.Fails(t, err, "cannot be opened")
	_, _, err = one.files()
	assert.That(t, err != nil, "files of a folder that is a pipe")
	s.refused("one", "{}", protocol.CodeUnknownSkill)
}

// makePipe makes a named pipe.
func makePipe(path string) error { return syscall.Mkfifo(path, 0o644) }
