package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest/poll"
)

// TestWallKeptHome: what a child leaves in a home that is kept is there at its next start,
// and for nobody else, also where it lies in the workspace, as far as there are mounts to hide
// it; its temporary files are gone.
func TestWallKeptHome(t *testing.T) {
	for i, lv := range weakerLevels(t) {
		t.Run(string(lv.mechanism), func(t *testing.T) {
			base := realTemp(t)
			state := filepath.Join(base, "work", "state")
			if i > 0 || lv.mechanism == MechanismSubreaper { // no child starts where it could not be hidden
				state = filepath.Join(base, "state")
			}
			must(t, errors.Join(os.MkdirAll(state, 0o700), os.MkdirAll(base+"/work", 0o700)))
			l := newLauncher(t, Options{Workspace: filepath.Join(base, "work"), Hidden: []string{state}})
			l.start.levels = []level{lv}
			homes := filepath.Join(state, "homes")
			kept := func(name string) Policy {
				k, err := KeepHome(homes, name)
				must(t, err)
				t.Cleanup(k.Close)
				return Policy{Dir: base + "/work", HomeDir: k.Dir(), Network: NetworkHost}
			}
			mine := kept("mine")
			if out, end := tryPolicy(t, l, mine, `echo x > "$HOME/left" && echo x > "$TMPDIR/left" && echo "$HOME"`); end.Code != 0 || strings.TrimSpace(out) != mine.HomeDir {
				t.Fatalf("%v %s", end, out)
			}
			if out, end := tryPolicy(t, l, mine, `cat "$HOME/left"; ls "$TMPDIR"; echo x > "$HOME/../ready"; ls "$HOME/../.."`); !strings.HasPrefix(out, "x\n") || strings.Contains(out, "left\n") || end.Code == 0 && strings.Contains(out, "other") {
				t.Errorf("at its next start: %v %s", end, out)
			}
			if k := (&KeptHome{dir: filepath.Dir(mine.HomeDir)}); k.Ready() {
				t.Error("a child says of itself that it is installed")
			}
			for who, policy := range map[string]Policy{"one without rights": {}, "one on line": {Network: NetworkHost}, "another with a home": kept("other")} {
				policy.Dir = base + "/work"
				if out, end := tryPolicy(t, l, policy, "cat "+mine.HomeDir+"/left || cat state/homes/mine/home/left"); end.Code == 0 {
					t.Errorf("%s reads it: %s", who, out)
				}
			}
		})
	}
}

// TestKeptHomes: those that nobody uses go, those in use stay, and what an installer left
// half done is removed once nobody is at it.
func TestKeptHomes(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *KeptHome {
		t.Helper()
		k, err := KeepHome(dir, name)
		must(t, err)
		return k
	}
	half := filepath.Join(dir, "a", "home", ".npm", "_npx", "half")
	first := open("a")
	must(t, os.MkdirAll(half, 0o700))
	second := open("a")
	if _, used := HomeState(dir, "a"); !used {
		t.Error("it is in use")
	}
	if _, err := os.Stat(half); err != nil {
		t.Error("another host removes what one installs")
	}
	first.Close()
	second.Close()
	open("a").Close()
	if _, err := os.Stat(half); err == nil {
		t.Error("what is half done stays")
	}
	must(t, os.MkdirAll(half, 0o700))
	must(t, first.SetReady(true))
	open("a").Close()
	if _, err := os.Stat(half); err != nil {
		t.Error("what is whole is installed anew")
	}

	open("old").Close()
	held := open("held")
	defer held.Close()
	RemoveHomes(context.Background(), dir, time.Now())
	if got := names(t, dir); !slices.Equal(got, []string{"a", "held", "old"}) {
		t.Errorf("after a start: %v", got)
	}
	RemoveHomes(context.Background(), dir, time.Now().Add(KeepHomesFor))
	if got := names(t, dir); !slices.Equal(got, []string{"held"}) {
		t.Errorf("after a month: %v", got)
	}
	for _, name := range []string{"", "..", "a/b"} {
		if _, err := KeepHome(dir, name); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// TestKeptHomeOverflows: a home that is kept counts for the disk, and is emptied.
func TestKeptHomeOverflows(t *testing.T) {
	k, err := KeepHome(t.TempDir(), "full")
	must(t, err)
	defer k.Close()
	l := newLauncher(t, Options{Workspace: t.TempDir(), Disk: NewDisk(1 << 20)})
	policy, _, _ := shell(t, `head -c 4000000 /dev/zero > "$HOME/full"; sleep 600`)
	policy.HomeDir = k.Dir()
	if _, err := begin(t, l, policy).Wait(); err != ErrDisk {
		t.Errorf("it ended with %v", err)
	}
	poll.Eventually(t, "it is empty", func() bool { return k.Size() == 0 })
}

// TestNetworkEnvironment: certificates, proxies and registries of the machine are for
// children with network, those with a password in them for programs of the config alone.
func TestNetworkEnvironment(t *testing.T) {
	base := realTemp(t)
	cert := filepath.Join(base, "ca.pem")
	for name, text := range map[string]string{
		cert: "certificate", filepath.Join(base, ".npmrc"): "//registry.example/:_authToken=hunter2\nregistry = https://npm.example/\n",
		filepath.Join(base, ".config/pip/pip.conf"): "[global]\nindex-url = https://me:hunter2@pip.example/simple\n",
	} {
		must(t, os.MkdirAll(filepath.Dir(name), 0o700))
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	l := newLauncher(t, Options{Workspace: t.TempDir(), Environ: []string{
		"HOME=" + base, "SSL_CERT_FILE=" + cert, "https_proxy=http://me:hunter2@proxy.example:1", "NO_PROXY=localhost", "TOKEN=hunter2",
	}})
	const look = `env | grep -i -E "cert|proxy|registry|index|token" | sort; cat ` + "%s; cat %s; true"
	script := strings.Replace(strings.Replace(look, "%s", cert, 1), "%s", filepath.Join(base, ".npmrc"), 1) + " 2>/dev/null"
	plain := []string{"NO_PROXY=localhost", "SSL_CERT_FILE=" + cert, "npm_config_registry=https://npm.example/"}
	secret := []string{"PIP_INDEX_URL=https://me:hunter2@pip.example/simple", "https_proxy=http://me:hunter2@proxy.example:1"}
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
		if strings.Contains(out, "TOKEN") || strings.Contains(out, "_authToken") || strings.Contains(out, "certificate") != (c.want != nil) {
			t.Errorf("%s: %s", name, out)
		}
	}
	for text, want := range map[string]string{"https://me:pass@x.example/": "pass", "me:p%40ss@proxy:1": "p@ss", "http://token@x": "token",
		"corp=https://me:pass@x.example/simple": "pass", "a=https://x.example b=https://tok@y.example": "tok", "http://me:1/2@proxy": "http://me:1/2@proxy",
		"https://x.example/?token=t": "https://x.example/?token=t", "http://x.example:80": "", "localhost,.example": ""} {
		if got := strings.Join(Credentials(text), " "); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
