//go:build unix

package skill

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// A pipe in the place of a folder of skills would keep an open waiting for its other end,
// and with it every request that is about skills.
func TestPipeInPlaceOfFolderKeepsNobodyWaiting(t *testing.T) {
	s := newStage(t, map[string]string{"one/SKILL.md": md("name: one\ndescription: d", "text")}, func(o *Options, env *Env) {
		o.SkillsPath = []any{filepath.Join(env.Workspace, "more")}
	})
	if all := names(s.discover()); all != "one" {
		t.Fatal(all)
	}
	skills, hidden := filepath.Join(s.work, ".a2e", "skills"), filepath.Join(s.work, "hidden")
	one := must.Get(s.plugin.find("one"))(t)
	must.OK(t, os.Rename(skills, hidden), makePipe(skills))
	if all := names(s.discover()); all != "" {
		t.Error(all)
	}
	if _, err := one.open(); err == nil {
		t.Error("the skill of a folder that is gone can be opened")
	}
	must.OK(t, os.Remove(skills), os.Rename(hidden, skills))
	own := filepath.Join(skills, "one")
	must.OK(t, os.Rename(own, hidden), makePipe(own), makePipe(filepath.Join(s.work, "more")))
	if _, err := one.open(); err == nil || !strings.Contains(err.Error(), "cannot be opened") {
		t.Error(err)
	}
	if _, _, err := one.files(); err == nil {
		t.Error("files of a folder that is a pipe")
	}
	s.refused("one", "{}", protocol.CodeUnknownSkill)
}

// makePipe makes a named pipe.
func makePipe(path string) error { return syscall.Mkfifo(path, 0o644) }
