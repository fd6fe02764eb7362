package sandbox

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// TestWallHomeRights: a child with more rights than others does not see files that the others left, and leaves no
// files for them, even if its caller sets no home.
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
		for _, lv := range usable(t) {
			t.Run(name+" on "+string(lv.mechanism), func(t *testing.T) {
				t.Parallel()
				l, workspace, _ := walled(t, Options{})
				l.start.levels = []level{lv}
				policy := policy
				policy.Dir = workspace
				const leave, look = `echo x > "$HOME/left"; echo x > "$TMPDIR/left"; echo x > /tmp/left; echo "$HOME $TMPDIR"`, `ls "$HOME" "$TMPDIR" /tmp /dev/shm 2>/dev/null; true`
				places, _ := tryPolicy(t, l, Policy{Dir: workspace}, leave)
				out, _ := tryPolicy(t, l, Policy{Dir: workspace}, look)
				must.That(t, strings.Contains(out, "left"), "the control finds nothing: %s", out)
				if out, state := tryPolicy(t, l, policy, look); strings.Contains(out, "left") || state.Code != 0 {
					t.Errorf("it finds what others left: %v %s", state, out)
				}
				for _, dir := range strings.Fields(places)[:2] {
					out, state := tryPolicy(t, l, policy, "cat "+dir+"/left")
					assert.That(t, state.Code != 0, "it reads %s: %s", dir, out)
				}
				places, state := tryPolicy(t, l, policy, leave)
				home, _, _ := strings.Cut(places, " ")
				if state.Code != 0 && !strings.Contains(places, "/tmp/left") ||
					home == "" { // without mounts a child cannot use /tmp
					t.Fatalf("it cannot use its home: %v %s", state, places)
				}
				if out, state := tryPolicy(t, l, Policy{Dir: workspace}, "cat "+home+"/left"); state.Code == 0 {
					t.Errorf("others read what it left: %s", out)
				}
				if policy.Home != HomeShared {
					poll.Eventually(t, "its home goes with it", func() bool {
						_,
							err := os.Lstat(home)
						return os.IsNotExist(err)
					})
				} else if out, _ := tryPolicy(t, l, policy, look); !strings.Contains(out, "left") {
					t.Errorf("children alike share no home: %s", out)
				}
			})
		}
	}
}

// TestWallHomeBeside: two children that hold secrets do not see each other's home while both run.
func TestWallHomeBeside(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	secret := Policy{Dir: workspace, HostEnv: map[string]string{"KEY": "x"}}
	first, stdout, _ := shell(t, `echo mine > "$HOME/left"; echo "$HOME" > home.new; mv home.new home; read wait; cat "$HOME/left"; [ ! -e "$HOME/.profile" ]`)
	first.Dir, first.HostEnv = secret.Dir, secret.HostEnv
	read, write, err := os.Pipe()
	must.OK(t, err)
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
		for who, policy := range map[string]Policy{
			"another with a secret": secret, "one without": {Dir: workspace},
			"one on line": {Dir: workspace, Network: NetworkHost, Home: HomeShared},
		} {
			t.Run(name+" by "+who, func(t *testing.T) {
				out, state := tryPolicy(t, l, policy, script)
				assert.That(t, state.Code != 0, "it went well: %s", out)
			})
		}
	}
	write.Close()
	if state, err := p.Wait(); err != nil || state.Code != 0 || stdout.String() != "mine\n" {
		t.Errorf("the first: %v, %v, %q", state, err, stdout)
	}
}

// TestHomeOfAPolicy: a policy with a home that makes no sense is refused, and a start that fails leaves no home behind.
func TestHomeOfAPolicy(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	for name, policy := range map[string]Policy{
		"a shared home with secrets on line": {
			Home: HomeShared, Network: NetworkHost,
			HostEnv: map[string]string{"A": "b"},
		},
		"a shared scratch folder": {Home: HomeShared, Scratch: workspace},
		"an unknown home":         {Home: "everybody"},
		"a wrong variable":        {Home: HomeOwn, HostEnv: map[string]string{"A=": "b"}},
		"a missing program":       {Home: HomeOwn, Path: filepath.Join(workspace, "none")},
	} {
		if policy.Path == "" {
			policy.Path = program(t, "true")
		}
		_, err := l.Command(t.Context(), policy)
		assert.That(t, err != nil, "%s: it was started", name)
	}
	_, tmp, err := l.env.home.get()
	must.OK(t, err)
	poll.Eventually(t, "nothing to be left", func() bool { // the home is removed in the background
		left, err := filepath.Glob(filepath.Join(filepath.Dir(tmp), "scratch-*"))
		return err == nil && len(left) == 0
	})
}

// TestWallKeptHome: files in a home that is kept are there at the next start of the same child, but its temporary files
// are not. Other children cannot read that home, even if it lies in the workspace, as far as mounts can hide it.
func TestWallKeptHome(t *testing.T) {
	for i, lv := range usable(t) {
		t.Run(string(lv.mechanism), func(t *testing.T) {
			base := realTemp(t)
			state := filepath.Join(base, "work", "state")
			// Without mounts no child could start with the home in the workspace.
			if i > 0 || lv.mechanism == MechanismSubreaper {
				state = filepath.Join(base, "state")
			}
			must.OK(t, os.MkdirAll(state, 0o700), os.MkdirAll(base+"/work", 0o700))
			l := newLauncher(t, Options{Workspace: filepath.Join(base, "work"), Hidden: []string{state}})
			l.start.levels = []level{lv}
			homes := filepath.Join(state, "homes")
			kept := func(name string) Policy {
				k := must.Get(KeepHome(homes, name))(t)
				t.Cleanup(k.Close)
				return Policy{Dir: base + "/work", HomeDir: k.Dir(), Network: NetworkHost}
			}
			mine := kept("mine")
			out, end := tryPolicy(t, l, mine, `echo x > "$HOME/left" && echo x > "$TMPDIR/left" && echo "$HOME"`)
			must.That(t, end.Code == 0 && strings.TrimSpace(out) == mine.HomeDir, "%v %s", end, out)
			if out, end := tryPolicy(t, l, mine, `cat "$HOME/left"; ls "$TMPDIR"; echo x > "$HOME/../ready"; ls "$HOME/../.."`); !strings.HasPrefix(out, "x\n") || strings.Contains(out, "left\n") || end.Code == 0 && strings.Contains(out, "other") {
				t.Errorf("at its next start: %v %s", end, out)
			}
			k := (&KeptHome{dir: filepath.Dir(mine.HomeDir)})
			assert.That(t, !k.Ready(), "a child says of itself that it is installed")
			for who, policy := range map[string]Policy{
				"one without rights": {}, "one on line": {Network: NetworkHost},
				"another with a home": kept("other"),
			} {
				policy.Dir = base + "/work"
				out, end := tryPolicy(t, l, policy, "cat "+mine.HomeDir+"/left || cat state/homes/mine/home/left")
				assert.That(t, end.Code != 0, "%s reads it: %s", who, out)
			}
		})
	}
}

// TestKeptHomes: homes that are not used for a month are removed, and homes in use stay. A half-finished installation
// is removed when nobody works on it.
func TestKeptHomes(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *KeptHome {
		t.Helper()
		k := must.Get(KeepHome(dir, name))(t)
		return k
	}
	half := filepath.Join(dir, "a", "home", ".npm", "_npx", "half")
	first := open("a")
	must.OK(t, os.MkdirAll(half, 0o700))
	second := open("a")
	_, used := HomeState(dir, "a")
	assert.That(t, used, "it is in use")
	_, err := os.Stat(half)
	assert.That(t, err == nil, "another host removes what one installs")
	first.Close()
	second.Close()
	open("a").Close()
	_, err = os.Stat(half)
	assert.That(t, err != nil, "what is half done stays")
	must.OK(t, os.MkdirAll(half, 0o700))
	must.OK(t, first.SetReady(true))
	open("a").Close()
	_, err = os.Stat(half)
	assert.That(t, err == nil, "what is whole is installed anew")

	open("old").Close()
	held := open("held")
	defer held.Close()
	RemoveHomes(context.Background(), dir, time.Now())
	assert.Slice(t, names(t, dir), []string{"a", "held", "old"}, "after a start")
	RemoveHomes(context.Background(), dir, time.Now().Add(KeepHomesFor))
	assert.Slice(t, names(t, dir), []string{"held"}, "after a month")
	for _, name := range []string{"", "..", "a/b"} {
		_, err := KeepHome(dir, name)
		assert.That(t, err != nil, "%q is a name", name)
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// TestKeptHomeOverflows: the size of a kept home counts for the disk limit, and a home that is too large is emptied.
func TestKeptHomeOverflows(t *testing.T) {
	k := must.Get(KeepHome(t.TempDir(), "full"))(t)
	defer k.Close()
	l := newLauncher(t, Options{Workspace: t.TempDir(), Disk: NewDisk(1 << 20)})
	policy, _, _ := shell(t, `head -c 4000000 /dev/zero > "$HOME/full"; sleep 600`)
	policy.HomeDir = k.Dir()
	_, err := begin(t, l, policy).Wait()
	assert.That(t, err == ErrDisk, "it ended with %v", err)
	poll.Eventually(t, "it is empty", func() bool { return k.Size() == 0 })
}

// TestNetworkEnvironment: children with network get the machine's certificates, proxies and registries. Only programs
// of the config get those that contain a password.
func TestNetworkEnvironment(t *testing.T) {
	base := realTemp(t)
	cert := filepath.Join(base, "ca.pem")
	for name, text := range map[string]string{
		cert: "certificate", filepath.Join(base, ".npmrc"): "//registry.example/:_authToken=hunter2\nregistry = " +
			"https://npm.example/\n",
		filepath.Join(base, ".config/pip/pip.conf"): "[global]\nindex-url = https://me:hunter2@pip.example/simple\n",
	} {
		must.OK(t, os.MkdirAll(filepath.Dir(name), 0o700))
		must.OK(t, os.WriteFile(name, []byte(text), 0o600))
	}
	l := newLauncher(t, Options{Workspace: t.TempDir(), Environ: []string{
		"HOME=" + base, "SSL_CERT_FILE=" + cert, "https_proxy=http://me:hunter2@proxy.example:1", "NO_PROXY=localhost",
		"TOKEN=hunter2",
	}})
	const look = `env | grep -i -E "cert|proxy|registry|index|token" | sort; cat ` + "%s; cat %s; true"
	script := strings.Replace(strings.Replace(look, "%s", cert, 1), "%s", filepath.Join(base, ".npmrc"), 1) +
		" 2>/dev/null"
	plain := []string{"NO_PROXY=localhost", "SSL_CERT_FILE=" + cert, "npm_config_registry=https://npm.example/"}
	secret := []string{
		"PIP_INDEX_URL=https://me:hunter2@pip.example/simple",
		"https_proxy=http://me:hunter2@proxy.example:1",
	}
	for name, c := range map[string]struct {
		policy Policy
		want   []string
	}{
		"without network":       {Policy{Home: HomeOwn}, nil},
		"an agent's, on line":   {Policy{Network: NetworkHost, Home: HomeShared}, plain},
		"the config's, on line": {Policy{Network: NetworkHost, Home: HomeOwn}, append(secret, plain...)},
	} {
		out, _ := tryPolicy(t, l, c.policy, script)
		for _, line := range append(secret, plain...) {
			if strings.Contains(out, line) != slices.Contains(c.want, line) {
				t.Errorf("%s: it has %s: %t\n%s", name, line, !slices.Contains(c.want, line), out)
			}
		}
		assert.That(t, !strings.Contains(out, "TOKEN") && !strings.Contains(out, "_authToken") &&
			strings.Contains(out, "certificate") == (c.want != nil), "%s: %s", name, out)
	}
	for text, want := range map[string]string{
		"https://me:pass@x.example/": "pass", "me:p%40ss@proxy:1": "p@ss",
		"http://token@x":                        "token",
		"corp=https://me:pass@x.example/simple": "pass", "a=https://x.example b=https://tok@y.example": "tok",
		"http://me:1/2@proxy":        "http://me:1/2@proxy",
		"https://x.example/?token=t": "https://x.example/?token=t", "http://x.example:80": "",
		"localhost,.example": "",
	} {
		assert.Equal(t, strings.Join(Credentials(text), " "), want, "%s", text)
	}
}

// TestReadOnly: no way to change a folder works if the policy makes it read-only, on every level, and other access
// still works.
func TestReadOnly(t *testing.T) {
	acts := []string{
		`echo x > new`, `echo x >> old`, `: > old`, `rm old`, `mv old other`, `mkdir d`, `rmdir empty`, `ln old hard`,
		`ln -s old soft`,
		`chmod 700 empty`, `touch -d 2001-01-01 old`, `cp old empty/copy`,
		`exec python3 -c 'import os; os.truncate("old", 0)'`, `mount -o remount,rw . && echo x > new`,
		`exec python3 -c 'import os; os.open(".", os.O_TMPFILE | os.O_RDWR)'`,
	}
	for i, lv := range usable(t) {
		if lv.mechanism == MechanismSubreaper || i > 0 && lv.mechanism != MechanismPIDNamespace {
			continue // without a mount namespace only Landlock works: see TestReadOnlyWeakly
		}
		t.Run(string(lv.mechanism), func(t *testing.T) {
			l, workspace, _ := walled(t, Options{})
			l.start.levels = []level{lv}
			part := filepath.Join(workspace, "part")
			fillReadOnly(t, workspace)
			fillReadOnly(t, part)
			for what, p := range map[string]Policy{
				"all":    {Dir: workspace, ReadOnly: []string{workspace}},
				"a part": {Dir: part, ReadOnly: []string{part}},
			} {
				for _, act := range acts {
					out, state := tryPolicy(t, l, p, act)
					assert.That(t, state.Code != 0, "%s: %s went well: %s", what, act, out)
				}
				out, state := tryPolicy(t, l, p, `cat old && cd / && cat `+p.Dir+`/old`)
				assert.That(t, out == "oldold" && state.Code == 0, "%s: reading: %v, %q", what, state, out)
				holdsReadOnly(t, p.Dir)
			}
			out, state := tryPolicy(t, l, Policy{Dir: workspace, ReadOnly: []string{part}}, "echo x > beside")
			assert.Equal(t, state.Code, 0, "beside a read-only part: %v %s", state, out)
			out, state = tryPolicy(t, l, Policy{Dir: workspace}, "echo x > later && echo x > part/later")
			assert.Equal(t, state.Code, 0, "the next child without it: %v %s", state, out)
		})
	}
}

// TestReadOnlyWeakly: a folder is also read-only on the weakest level: a host that is not root and has no mounts of
// its own.
func TestReadOnlyWeakly(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	all := levels(BestEffort)
	weak := all[len(all)-1]
	weak.sys.AmbientCaps = nil
	l.start.levels = []level{weak}
	fillReadOnly(t, workspace)
	for _, act := range []string{
		`echo x > new`, `echo x >> old`, `rm old`, `mv old other`, `mkdir d`, `rmdir empty`,
		`ln -s old soft`,
	} {
		out, state := tryPolicy(t, l, Policy{Dir: workspace, ReadOnly: []string{workspace}}, act)
		assert.That(t, state.Code != 0, "%s went well: %s", act, out)
	}
	holdsReadOnly(t, workspace)
}

// TestReadOnlyView: a read-only workspace has no grant to write, because in Landlock no grant can take back what
// another one allows.
func TestReadOnlyView(t *testing.T) {
	base := t.TempDir()
	var paths []string
	for _, name := range []string{"home", "tmp", "workspace", "workspace/part", "scratch"} {
		paths = append(paths, filepath.Join(base, name))
		must.OK(t, os.Mkdir(paths[len(paths)-1], 0o700))
	}
	home, tmp, workspace, part, scratch := paths[0], paths[1], paths[2], paths[3], paths[4]
	v := newView(&Options{Workspace: workspace}, nil, home, tmp)
	for _, c := range []struct {
		policy Policy
		write  []string // sources of the grants to write
	}{
		{Policy{}, []string{home, tmp, tmp, workspace}},
		{Policy{ReadOnly: []string{workspace}}, []string{home, tmp, tmp}},
		{Policy{ReadOnly: []string{part}}, []string{home, tmp, tmp, workspace}},
		{
			Policy{ReadOnly: []string{workspace}, Write: []string{part}, Scratch: scratch},
			[]string{scratch, scratch, part},
		},
		{Policy{Scratch: scratch}, []string{scratch, scratch, workspace}},
		{Policy{}, []string{home, tmp, tmp, workspace}}, // the next child has again what another was denied
	} {
		c.policy.Path = program(t, "sh")
		var write []string
		for _, g := range v.with(&c.policy) {
			if g.Access == accessWrite {
				write = append(write, g.Source)
			}
		}
		slices.Sort(write)
		assert.Slice(t, write, c.write, "%+v: … may be changed", c.policy)
	}
}

// TestScratch: files that a child leaves in its home or temporary folder are not seen by other children.
func TestScratch(t *testing.T) {
	l, workspace, _ := walled(t, Options{Home: t.TempDir()})
	home, shared, err := l.env.home.get()
	must.OK(t, err)
	more := t.TempDir()
	scratch := must.Get(l.MakeScratch())(t)
	p := Policy{Dir: workspace, Scratch: scratch, Write: []string{more}, ReadOnly: []string{workspace}}
	tmp := "/tmp"
	if plainContainer() {
		tmp = "$TMPDIR"
	}
	script := `echo 1 > "$HOME/a" && echo 2 > "$TMPDIR/b" && echo 3 > ` + tmp + `/c && echo 4 > ` + more + `/d && cd ` +
		tmp + ` && ls a b c`
	out, state := tryPolicy(t, l, p, script)
	assert.That(t, state.Code == 0 && out == "a\nb\nc\n", "in its own: %v, %q", state, out)
	for _, dir := range []string{home, shared} {
		out, state := tryPolicy(t, l, p, "echo x > "+dir+"/planted")
		assert.That(t, state.Code != 0, "it reached %s: %q", dir, out)
	}
	out, state = tryPolicy(t, l, Policy{Dir: workspace}, `ls -A "$HOME" /tmp `+scratch+` 2>/dev/null`)
	assert.That(t, !strings.Contains(out, "a\nb"), "the next child sees it: %v, %q", state, out)
	for _, bad := range []Policy{{Scratch: "tmp"}, {Write: []string{"x"}}, {ReadOnly: []string{"x\x00"}}} {
		bad.Path = program(t, "sh")
		_, err := l.Command(t.Context(), bad)
		assert.That(t, err != nil, "started: %+v", bad)
	}
}

func fillReadOnly(t *testing.T, dir string) {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Join(dir, "empty"), 0o755), os.WriteFile(filepath.Join(dir, "old"), []byte("old"),
		0o644))
}

// holdsReadOnly checks from outside that the folder is unchanged.
func holdsReadOnly(t *testing.T, dir string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "old"))
	assert.That(t, err == nil && string(data) == "old", "old: %q, %v", data, err)
	for _, name := range []string{"new", "other", "d", "hard", "soft", "empty/copy"} {
		_, err := os.Lstat(filepath.Join(dir, name))
		assert.That(t, err != nil, "%s was made", name)
	}
	if _, err := os.Lstat(filepath.Join(dir, "empty")); err != nil {
		t.Error(err)
	}
}
