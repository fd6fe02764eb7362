//go:build unix

package skill

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	one, err := s.plugin.find("one")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(skills, hidden), makePipe(skills)); err != nil {
		t.Fatal(err)
	}
	if all := names(s.discover()); all != "" {
		t.Error(all)
	}
	if _, err := one.open(); err == nil {
		t.Error("the skill of a folder that is gone can be opened")
	}
	if err := errors.Join(os.Remove(skills), os.Rename(hidden, skills)); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(skills, "one")
	if err := errors.Join(os.Rename(own, hidden), makePipe(own), makePipe(filepath.Join(s.work, "more"))); err != nil {
		t.Fatal(err)
	}
	if _, err := one.open(); err == nil || !strings.Contains(err.Error(), "cannot be opened") {
		t.Error(err)
	}
	if _, _, err := one.files(); err == nil {
		t.Error("files of a folder that is a pipe")
	}
	s.refused("one", "{}", protocol.CodeUnknownSkill)
}
