package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/poll"
)

// TestWallHomeRights: a child that may more than others finds nothing that those left, and
// leaves nothing for them, also where its caller says nothing of a home.
func TestWallHomeRights(t *testing.T) {
	more := t.TempDir()
	for name, policy := range map[string]Policy{
		"network":           {Network: NetworkHost},
		"a secret":          {HostEnv: map[string]string{"KEY": "x"}},
		"a secret on line":  {HostEnv: map[string]string{"KEY": "x"}, Network: NetworkHost},
		"files to read":     {Read: []string{more}},
		"files to change":   {Write: []string{more}},
		"a name of its own": {Home: HomeOwn},
		"network, shared":   {Network: NetworkHost, Home: HomeShared},
	} {
		for _, lv := range weakerLevels(t) {
			t.Run(name+" on "+string(lv.mechanism), func(t *testing.T) {
				t.Parallel()
				l, workspace, _ := walled(t, Options{})
				l.start.levels = []level{lv}
				policy := policy
				policy.Dir = workspace
				const leave, look = `echo x > "$HOME/left"; echo x > "$TMPDIR/left"; echo x > /tmp/left; echo "$HOME $TMPDIR"`, `ls "$HOME" "$TMPDIR" /tmp /dev/shm 2>/dev/null; true`
				places, _ := tryPolicy(t, l, Policy{Dir: workspace}, leave)
				if out, _ := tryPolicy(t, l, Policy{Dir: workspace}, look); !strings.Contains(out, "left") {
					t.Fatalf("the control finds nothing: %s", out)
				}
				if out, state := tryPolicy(t, l, policy, look); strings.Contains(out, "left") || state.Code != 0 {
					t.Errorf("it finds what others left: %v %s", state, out)
				}
				for _, dir := range strings.Fields(places)[:2] {
					if out, state := tryPolicy(t, l, policy, "cat "+dir+"/left"); state.Code == 0 {
						t.Errorf("it reads %s: %s", dir, out)
					}
				}
				places, state := tryPolicy(t, l, policy, leave)
				home, _, _ := strings.Cut(places, " ")
				if state.Code != 0 && !strings.Contains(places, "/tmp/left") || home == "" { // without mounts /tmp is out of reach
					t.Fatalf("it cannot use its home: %v %s", state, places)
				}
				if out, state := tryPolicy(t, l, Policy{Dir: workspace}, "cat "+home+"/left"); state.Code == 0 {
					t.Errorf("others read what it left: %s", out)
				}
				if policy.Home != HomeShared {
					poll.Eventually(t, "its home goes with it", func() bool { _, err := os.Lstat(home); return os.IsNotExist(err) })
				} else if out, _ := tryPolicy(t, l, policy, look); !strings.Contains(out, "left") {
					t.Errorf("children alike share no home: %s", out)
				}
			})
		}
	}
}

// TestWallHomeBeside: two children that hold secrets do not see each other's home while
// both run.
func TestWallHomeBeside(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	secret := Policy{Dir: workspace, HostEnv: map[string]string{"KEY": "x"}}
	first, stdout, _ := shell(t, `echo mine > "$HOME/left"; echo "$HOME" > home.new; mv home.new home; read wait; cat "$HOME/left"; [ ! -e "$HOME/.profile" ]`)
	first.Dir, first.HostEnv = secret.Dir, secret.HostEnv
	read, write, err := os.Pipe()
	must(t, err)
	defer read.Close()
	defer write.Close()
	first.Stdin = read
	p := begin(t, l, first)
	var home string
	poll.Eventually(t, "the first runs", func() bool {
		text, err := os.ReadFile(filepath.Join(workspace, "home"))
		home = strings.TrimSpace(string(text))
		return err == nil
	})
	for name, script := range map[string]string{
		"read": "cat " + home + "/left", "list": "ls " + home, "write": "echo evil > " + home + "/.profile",
		"by the folder above": "ls " + home + "/../*/left", "find": `find / -name left 2>/dev/null | grep .`,
	} {
		for who, policy := range map[string]Policy{"another with a secret": secret, "one without": {Dir: workspace}, "one on line": {Dir: workspace, Network: NetworkHost, Home: HomeShared}} {
			t.Run(name+" by "+who, func(t *testing.T) {
				if out, state := tryPolicy(t, l, policy, script); state.Code == 0 {
					t.Errorf("it went well: %s", out)
				}
			})
		}
	}
	write.Close()
	if state, err := p.Wait(); err != nil || state.Code != 0 || stdout.String() != "mine\n" {
		t.Errorf("the first: %v, %v, %q", state, err, stdout)
	}
}

// TestHomeOfAPolicy: what makes no sense is refused, and a start that fails leaves no home.
func TestHomeOfAPolicy(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	for name, policy := range map[string]Policy{
		"a shared home with secrets on line": {Home: HomeShared, Network: NetworkHost, HostEnv: map[string]string{"A": "b"}},
		"a shared scratch folder":            {Home: HomeShared, Scratch: workspace},
		"an unknown home":                    {Home: "everybody"},
		"a wrong variable":                   {Home: HomeOwn, HostEnv: map[string]string{"A=": "b"}},
		"a missing program":                  {Home: HomeOwn, Path: filepath.Join(workspace, "none")},
	} {
		if policy.Path == "" {
			policy.Path = program(t, "true")
		}
		if _, err := l.Command(t.Context(), policy); err == nil {
			t.Errorf("%s: it was started", name)
		}
	}
	_, tmp, err := l.env.home.get()
	must(t, err)
	poll.Eventually(t, "nothing to be left", func() bool { // it is removed in the background
		left, err := filepath.Glob(filepath.Join(filepath.Dir(tmp), "scratch-*"))
		return err == nil && len(left) == 0
	})
}
