package run

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestLinkInPlaceOfSkillGrantsNothing: a skill of the workspace is in a place where others may write. A link that
// replaces the skill's folder after the check must not open the folder that it leads to.
func TestLinkInPlaceOfSkillGrantsNothing(t *testing.T) {
	p := newPlace(t, nil)
	outside, own := filepath.Join(p.up, "private"), filepath.Join(p.work, "skill")
	script := "cat \"$A2E_SKILL_DIR/key\" " + outside + "/key\n"
	must.OK(t, errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "key"), []byte("geheim"),
		0o644),
		os.WriteFile(filepath.Join(outside, "run.sh"), []byte(script), 0o755), os.Symlink(outside, own)))
	for _, write := range []bool{false, true} {
		j := p.job("run.sh")
		j.Dir, j.Write = own, write
		r, lines, err := p.script(t, j)
		said := asLines(lines)
		assert.That(t, (err != nil || r.Failed) && !strings.Contains(said, "geheim") &&
			(r == nil || !strings.Contains(string(r.Data), "geheim")), "write %v: %+v %v %s", write, r, err, said)
	}
}

// TestSkillInWorkspaceIsGrantedWithIt: a skill of the workspace runs, by whichever path the job names the workspace.
func TestSkillInWorkspaceIsGrantedWithIt(t *testing.T) {
	p := newPlace(t, nil)
	own, link := filepath.Join(p.work, "skill"), filepath.Join(p.up, "link")
	must.OK(t, errors.Join(os.Mkdir(own, 0o755), os.WriteFile(filepath.Join(own, "run.sh"),
		[]byte("cat \"$A2E_SKILL_DIR/../data.txt\"\n"), 0o755), os.Symlink(p.work, link)))
	for _, work := range []string{p.work, link} {
		j := p.job("run.sh")
		j.Dir, j.Workspace = own, work
		r, _, err := p.script(t, j)
		assert.That(t, err == nil && string(r.Data) == `"the data"` && j.inWorkspace(), "%s: %v %+v", work, err, r)
	}
}
