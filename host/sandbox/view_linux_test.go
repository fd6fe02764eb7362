package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReadOnly shows that no way to change a folder works where the policy takes it away,
// on every level, and that what stays open works.
func TestReadOnly(t *testing.T) {
	acts := []string{
		`echo x > new`, `echo x >> old`, `: > old`, `rm old`, `mv old other`, `mkdir d`, `rmdir empty`, `ln old hard`, `ln -s old soft`,
		`chmod 700 empty`, `touch -d 2001-01-01 old`, `cp old empty/copy`, `exec python3 -c 'import os; os.truncate("old", 0)'`, `mount -o remount,rw . && echo x > new`,
		`exec python3 -c 'import os; os.open(".", os.O_TMPFILE | os.O_RDWR)'`,
	}
	for i, lv := range levels(BestEffort) {
		if lv.mechanism == MechanismSubreaper || i > 0 && lv.mechanism != MechanismPIDNamespace {
			continue // without a mount namespace Landlock alone holds: TestReadOnlyWeakly
		}
		t.Run(string(lv.mechanism), func(t *testing.T) {
			l, workspace, _ := walled(t, Options{})
			l.start.levels = []level{lv}
			part := filepath.Join(workspace, "part")
			fillReadOnly(t, workspace)
			fillReadOnly(t, part)
			for what, p := range map[string]Policy{"all": {Dir: workspace, ReadOnly: []string{workspace}}, "a part": {Dir: part, ReadOnly: []string{part}}} {
				for _, act := range acts {
					if out, state := tryPolicy(t, l, p, act); state.Code == 0 {
						t.Errorf("%s: %s went well: %s", what, act, out)
					}
				}
				if out, state := tryPolicy(t, l, p, `cat old && cd / && cat `+p.Dir+`/old`); out != "oldold" || state.Code != 0 {
					t.Errorf("%s: reading: %v, %q", what, state, out)
				}
				holdsReadOnly(t, p.Dir)
			}
			if out, state := tryPolicy(t, l, Policy{Dir: workspace, ReadOnly: []string{part}}, "echo x > beside"); state.Code != 0 {
				t.Errorf("beside a read-only part: %v %s", state, out)
			}
			if out, state := tryPolicy(t, l, Policy{Dir: workspace}, "echo x > later && echo x > part/later"); state.Code != 0 {
				t.Errorf("the next child without it: %v %s", state, out)
			}
		})
	}
}

// TestReadOnlyWeakly shows the same on the weakest level. For a host that is not root that
// is without mounts of its own.
func TestReadOnlyWeakly(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	all := levels(BestEffort)
	weak := all[len(all)-1]
	weak.sys.AmbientCaps = nil
	l.start.levels = []level{weak}
	fillReadOnly(t, workspace)
	for _, act := range []string{`echo x > new`, `echo x >> old`, `rm old`, `mv old other`, `mkdir d`, `rmdir empty`, `ln -s old soft`} {
		if out, state := tryPolicy(t, l, Policy{Dir: workspace, ReadOnly: []string{workspace}}, act); state.Code == 0 {
			t.Errorf("%s went well: %s", act, out)
		}
	}
	holdsReadOnly(t, workspace)
}

// TestReadOnlyView: Landlock goes by the grants alone, and what one grant allows no other
// one takes back. So a read-only workspace must have no grant to write.
func TestReadOnlyView(t *testing.T) {
	base := t.TempDir()
	var paths []string
	for _, name := range []string{"home", "tmp", "workspace", "workspace/part", "scratch"} {
		paths = append(paths, filepath.Join(base, name))
		must(t, os.Mkdir(paths[len(paths)-1], 0o700))
	}
	home, tmp, workspace, part, scratch := paths[0], paths[1], paths[2], paths[3], paths[4]
	v := newView(&Options{Workspace: workspace}, nil, home, tmp)
	for _, c := range []struct {
		policy Policy
		write  []string // the sources that may be changed
	}{
		{Policy{}, []string{home, tmp, tmp, workspace}},
		{Policy{ReadOnly: []string{workspace}}, []string{home, tmp, tmp}},
		{Policy{ReadOnly: []string{part}}, []string{home, tmp, tmp, workspace}},
		{Policy{ReadOnly: []string{workspace}, Write: []string{part}, Scratch: scratch}, []string{scratch, scratch, part}},
		{Policy{Scratch: scratch}, []string{scratch, scratch, workspace}},
		{Policy{}, []string{home, tmp, tmp, workspace}}, // what one child is denied, the next one has
	} {
		c.policy.Path = program(t, "sh")
		var write []string
		for _, g := range v.with(&c.policy) {
			if g.Access == accessWrite {
				write = append(write, g.Source)
			}
		}
		slices.Sort(write)
		if !slices.Equal(write, c.write) {
			t.Errorf("%+v: %v may be changed, should be %v", c.policy, write, c.write)
		}
	}
}

// TestScratch: what one child leaves in its home or temporary folder is found by no other.
func TestScratch(t *testing.T) {
	l, workspace, _ := walled(t, Options{Home: t.TempDir()})
	home, shared, err := l.env.home.get()
	must(t, err)
	more := t.TempDir()
	scratch, err := l.MakeScratch()
	must(t, err)
	p := Policy{Dir: workspace, Scratch: scratch, Write: []string{more}, ReadOnly: []string{workspace}}
	script := `echo 1 > "$HOME/a" && echo 2 > "$TMPDIR/b" && echo 3 > /tmp/c && echo 4 > ` + more + `/d && cd /tmp && ls a b c`
	if out, state := tryPolicy(t, l, p, script); state.Code != 0 || out != "a\nb\nc\n" {
		t.Errorf("in its own: %v, %q", state, out)
	}
	for _, dir := range []string{home, shared} {
		if out, state := tryPolicy(t, l, p, "echo x > "+dir+"/planted"); state.Code == 0 {
			t.Errorf("it reached %s: %q", dir, out)
		}
	}
	if out, state := tryPolicy(t, l, Policy{Dir: workspace}, `ls -A "$HOME" /tmp `+scratch+` 2>/dev/null`); strings.Contains(out, "a\nb") {
		t.Errorf("the next child sees it: %v, %q", state, out)
	}
	for _, bad := range []Policy{{Scratch: "tmp"}, {Write: []string{"x"}}, {ReadOnly: []string{"x\x00"}}} {
		bad.Path = program(t, "sh")
		if _, err := l.Command(t.Context(), bad); err == nil {
			t.Errorf("started: %+v", bad)
		}
	}
}

func fillReadOnly(t *testing.T, dir string) {
	t.Helper()
	must(t, errors.Join(os.MkdirAll(filepath.Join(dir, "empty"), 0o755), os.WriteFile(filepath.Join(dir, "old"), []byte("old"), 0o644)))
}

// holdsReadOnly looks from outside whether the folder is as it was made.
func holdsReadOnly(t *testing.T, dir string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "old"))
	if err != nil || string(data) != "old" {
		t.Errorf("old: %q, %v", data, err)
	}
	for _, name := range []string{"new", "other", "d", "hard", "soft", "empty/copy"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "empty")); err != nil {
		t.Error(err)
	}
}
