package sandbox

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inWalls runs a shell in a launcher and gives what it printed.
func inWalls(t *testing.T, opts Options, policy Policy, script string) string {
	t.Helper()
	l := homelyLauncher(t, opts)
	var out bytes.Buffer
	policy.Path, policy.Args, policy.Stdout, policy.Stderr = program(t, "sh"), []string{"sh", "-c", script}, &out, &out
	if policy.Dir == "" {
		policy.Dir = opts.Workspace
	}
	p, err := l.Command(t.Context(), policy)
	if err != nil {
		return "refused: " + err.Error()
	}
	_, err = p.Wait()
	return out.String() + errText(err)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// wallTree makes files by their paths in a folder.
func wallTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	for name, text := range files {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
	}
	must(t, err)
	return dir
}

// A hidden folder is hidden wherever a grant shows it, and what was granted in it by itself
// stays open.
func TestWallHidden(t *testing.T) {
	tree := func(t *testing.T) string {
		return wallTree(t, map[string]string{"ws/deep/own/secret": "SECRET", "ws/deep/own/part/f": "PART", "ws/deep/f": "OPEN", "ws/f": "OPEN", "more/f": "OPEN"})
	}
	for _, c := range []struct {
		name, script string
		policy       func(dir string) Policy
		shows        string
	}{
		{"in the workspace", `cat deep/own/secret; ls deep/own; cat deep/f`, nil, "OPEN"},
		{"in a grant to read above", `cat deep/own/secret ../ws/deep/own/secret; cat ../more/f`, func(dir string) Policy { return Policy{Read: []string{dir}} }, "OPEN"},
		{"in a grant to change above", `cat deep/own/secret; mv deep away; cat away/own/secret; cat ../more/f`, func(dir string) Policy { return Policy{Write: []string{dir}} }, "OPEN"},
		{"in a grant to change between", `cat own/secret; mv own away; cat f`, func(dir string) Policy { return Policy{Write: []string{dir + "/ws/deep"}, Dir: dir + "/ws/deep"} }, "OPEN"},
		{"read-only around", `cat deep/own/secret; mkdir deep/x; touch deep/own/x deep/x; cat deep/f`, func(dir string) Policy { return Policy{ReadOnly: []string{dir + "/ws"}} }, "OPEN"},
		{"a part of it granted", `cat deep/own/secret; ls deep/own; cat deep/own/part/f`, func(dir string) Policy { return Policy{Read: []string{dir + "/ws/deep/own/part"}} }, "PART"},
		{"granted as a whole", `cat deep/own/part/f`, func(dir string) Policy { return Policy{Write: []string{dir + "/ws/deep/own"}} }, "PART"},
		{"granted as a whole, and above", `cat deep/own/part/f`, func(dir string) Policy { return Policy{Write: []string{dir + "/ws/deep/own"}, Read: []string{dir}} }, "PART"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := tree(t)
			var policy Policy
			if c.policy != nil {
				policy = c.policy(dir)
			}
			out := inWalls(t, Options{Workspace: dir + "/ws", Hidden: []string{dir + "/ws/deep/own"}}, policy, c.script)
			if strings.Contains(out, "SECRET") {
				t.Errorf("it shows what is hidden: %s", out)
			}
			if !strings.Contains(out, c.shows) && !strings.HasPrefix(out, "refused: ") {
				t.Errorf("it does not show what is open: %s", out)
			}
			for name, want := range map[string]string{"ws/deep/own/secret": "SECRET", "ws/deep/own/part/f": "PART"} {
				if text, err := os.ReadFile(filepath.Join(dir, name)); string(text) != want {
					t.Errorf("%s is %q, %v: %s", name, text, err, out)
				}
			}
			if _, err := os.Lstat(dir + "/ws/deep/x"); err == nil && c.name == "read-only around" {
				t.Errorf("a read-only folder was changed: %s", out)
			}
		})
	}
}

// Where there is no mount namespace, no child starts that would see what is hidden, and the
// error says why; a host within the sandbox of another, and what is only fixed, are let be.
func TestWallWithoutMounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		firm   bool
		grants []grant
		want   bool
	}{
		{"firm", true, nil, true},
		{"loose", false, nil, false},
	} {
		f := &frame{Mode: BestEffort, Firm: c.firm, Grants: c.grants}
		err := f.refuses(errors.New("no mounts"))
		if (err != nil) != c.want || err != nil && !strings.Contains(err.Error(), "move them out of the workspace") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	dir := wallTree(t, map[string]string{"ws/own/f": "x"})
	for name, c := range map[string]struct {
		opts Options
		firm bool
	}{
		"hidden in the workspace": {Options{Workspace: dir + "/ws", Hidden: []string{dir + "/ws/own"}}, true},
		"hidden elsewhere":        {Options{Workspace: dir + "/ws", Hidden: []string{dir + "/other"}}, false},
		"a firm file":             {Options{Workspace: dir + "/ws", Fixed: []string{dir + "/ws/own/f"}, Firm: true}, true},
		"a fixed file":            {Options{Workspace: dir + "/ws", Fixed: []string{dir + "/ws/own/f"}}, false},
		"within another sandbox":  {Options{Workspace: dir + "/ws", Hidden: []string{dir + "/ws/own"}, Firm: true, Loose: true}, false},
	} {
		l, err := New(c.opts)
		must(t, err)
		f, err := l.start.frame(&Policy{Path: program(t, "sh")})
		if err != nil || f.Firm != c.firm {
			t.Errorf("%s: firm %t, want %t, %v", name, f.Firm, c.firm, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A link in what children may change grants nothing outside of it.
func TestWallLinksOfChildrenGrantNothing(t *testing.T) {
	dir := wallTree(t, map[string]string{"private/more/secret": "SECRET", "ws/docs/f": "OPEN"})
	for name, to := range map[string]string{"out": dir + "/private", "up": "../private", "twice": "up", "inside": "docs"} {
		must(t, os.Symlink(to, filepath.Join(dir, "ws", name)))
	}
	t.Run("of all children", func(t *testing.T) {
		if out := inWalls(t, Options{Workspace: dir + "/ws", Read: []string{dir + "/ws/out", dir + "/ws/up/more"}}, Policy{}, "cat "+dir+"/private/more/secret"); strings.Contains(out, "SECRET") {
			t.Errorf("it shows %s", out)
		}
	})
	for name, policy := range map[string]Policy{
		"read":             {Read: []string{dir + "/ws/out"}},
		"read below":       {Read: []string{dir + "/ws/out/more"}},
		"change":           {Write: []string{dir + "/ws/up"}},
		"two links":        {Read: []string{dir + "/ws/twice"}},
		"read-only":        {ReadOnly: []string{dir + "/ws/out/more"}},
		"with one inside":  {Read: []string{dir + "/ws/inside", dir + "/ws/out"}},
		"with all of them": {Write: []string{dir + "/ws/out", dir + "/ws/up/more", dir + "/ws/inside"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := inWalls(t, Options{Workspace: dir + "/ws"}, policy, "cat "+dir+"/private/more/secret out/more/secret up/more/secret twice/more/secret; echo x > up/planted; cat inside/f")
			if strings.Contains(out, "SECRET") || !strings.Contains(out, "OPEN") {
				t.Errorf("it shows %s", out)
			}
			if _, err := os.Lstat(dir + "/private/planted"); err == nil {
				t.Error("a file was put outside")
			}
		})
	}
}

// A workspace that another folder has taken the place of is not granted, by whatever the
// other one came there, and in each way of confining.
func TestWallWorkspaceReplaced(t *testing.T) {
	for name, swap := range map[string]func(dir string) error{
		"a link":         func(dir string) error { return os.Symlink(dir+"/private", dir+"/up/ws") },
		"another folder": func(dir string) error { return os.Rename(dir+"/private", dir+"/up/ws") },
		"nothing":        func(string) error { return nil },
		"a link above": func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/up2", 0o755), os.Rename(dir+"/private", dir+"/up2/ws"), os.Remove(dir+"/up"), os.Symlink(dir+"/up2", dir+"/up"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := wallTree(t, map[string]string{"up/ws/f": "OPEN", "private/f": "SECRET"})
			open, err := os.Open(dir + "/up/ws")
			must(t, err)
			defer open.Close()
			info, err := open.Stat()
			must(t, err)
			opts := Options{Workspace: dir + "/up/ws", WorkspaceInfo: info}
			if out := inWalls(t, opts, Policy{}, "cat f"); out != "OPEN" {
				t.Fatalf("at first it shows %q", out)
			}
			must(t, errors.Join(os.Rename(dir+"/up/ws", dir+"/old"), swap(dir)))
			if out := inWalls(t, opts, Policy{Dir: "/"}, "cat "+dir+"/up/ws/f "+dir+"/private/f; echo x > "+dir+"/up/ws/planted"); strings.Contains(out, "SECRET") {
				t.Errorf("it shows %s", out)
			}
			for _, place := range []string{"/up/ws/planted", "/private/planted"} {
				if _, err := os.Lstat(dir + place); err == nil {
					t.Errorf("%s was put outside", place)
				}
			}
		})
	}
}

// What has no walls costs nothing: the grants are those that were made once.
func TestNoWallsNoGrants(t *testing.T) {
	dir := wallTree(t, map[string]string{"ws/f": "x", "own/f": "x"})
	v := newView(&Options{Workspace: dir + "/ws", Hidden: []string{dir + "/own"}, Fixed: []string{dir + "/own/f"}}, nil, t.TempDir(), t.TempDir())
	if &v.walled[0] != &v.grants[0] || len(v.walled) != len(v.grants) {
		t.Error("the grants are copied though nothing is walled off")
	}
}
