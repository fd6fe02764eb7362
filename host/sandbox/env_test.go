package sandbox

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// environment runs env in a child of a host with the given environment.
func environment(t *testing.T, hostEnv []string, change func(*Policy)) map[string]string {
	t.Helper()
	l := newLauncher(t, Options{Environ: hostEnv, Home: "/some/home", Path: []string{"/usr/bin", "/bin"}})
	var out strings.Builder
	policy := Policy{Path: program(t, "env"), Stdout: &out}
	if change != nil {
		change(&policy)
	}
	if state, err := begin(t, l, policy).Wait(); err != nil || state.Code != 0 {
		t.Fatal(state, err)
	}
	got := map[string]string{}
	for _, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		name, value, _ := strings.Cut(line, "=")
		got[name] = value
	}
	return got
}

func TestEnvironmentIsScrubbed(t *testing.T) {
	secrets := []string{
		"A2E_AUTH_TOKEN=geheim", "A2E_CONFIG=/x", "AWS_SECRET_ACCESS_KEY=geheim", "GITHUB_TOKEN=geheim", "SSH_AUTH_SOCK=/s",
		"LD_PRELOAD=/x.so", "LD_LIBRARY_PATH=/x", "BASH_ENV=/x", "ENV=/x", "PYTHONPATH=/x", "NODE_OPTIONS=--require=/x", "IFS=x",
		"PATH=/evil", "HOME=/root", "XDG_CONFIG_HOME=/x", "HTTP_PROXY=http://u:p@h", "LCX=1", "LANG_=1", "=x", "broken", "TERMINFO=/x",
	}
	safe := map[string]string{"LANG": "de_DE.UTF-8", "LC_ALL": "C", "LC_TIME": "C", "TERM": "xterm", "TZ": "UTC", "A2E_AGENT": `{"agent_id":"a"}`, "A2E_SANDBOX": "1"}
	env := slices.Clone(secrets)
	for name, value := range safe {
		env = append(env, name+"="+value)
	}
	got := environment(t, env, nil)
	want := maps.Clone(safe)
	want["PATH"], want["HOME"] = "/usr/bin:/bin", "/some/home"
	if tmp := got["TMPDIR"]; !strings.Contains(tmp, privatePrefix) {
		t.Errorf("TMPDIR %q is not the launcher's own", tmp)
	}
	delete(got, "TMPDIR")
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := environment(t, secrets, nil); got["LANG"] != "C.UTF-8" {
		t.Errorf("without a language: %v", got)
	}

	dir := t.TempDir()
	got = environment(t, nil, func(p *Policy) {
		p.Dir = dir
		p.Env = map[string]string{"FOO": "a b=c\n", "LANG": "fr", "BOTH": "request"}
		p.HostEnv = map[string]string{"A2E_TASK_ID": "7", "BOTH": "host"}
	})
	for name, value := range map[string]string{"FOO": "a b=c", "LANG": "fr", "PWD": dir, "A2E_TASK_ID": "7", "BOTH": "host"} {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
}

func TestWallRefusedVariables(t *testing.T) {
	for _, name := range []string{"FOO", "foo", "_x", "X1", "LANG", "LC_ALL", "TZ", "TERM", "DEBUG", "CI", "HTTP_PROXY", "NODE_ENV", "GOOS", "GIT_AUTHOR_NAME", "PYTHONUNBUFFERED"} {
		if err := CheckEnv(name, "1"); err != nil {
			t.Errorf("control: %v", err)
		}
	}
	for _, name := range []string{
		"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "ld_preload", "Ld_Preload", "DYLD_INSERT_LIBRARIES", "GLIBC_TUNABLES", "GCONV_PATH",
		"PATH", "Path", "HOME", "SHELL", "PWD", "IFS", "ENV", "BASH_ENV", "BASH_FUNC_ls", "BASHOPTS", "SHELLOPTS", "PS4", "PROMPT_COMMAND", "CDPATH",
		"PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONBREAKPOINT", "PERL5OPT", "PERL5LIB", "PERL5DB",
		"RUBYOPT", "RUBYLIB", "NODE_OPTIONS", "NODE_PATH", "npm_config_script_shell", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH",
		"LUA_INIT", "PHPRC", "AWKPATH", "AWKLIBPATH", "GOFLAGS", "GOROOT", "GOCACHEPROG", "GOTOOLCHAIN", "GOENV", "CC", "CGO_LDFLAGS", "RUSTC_WRAPPER",
		"GIT_SSH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EDITOR", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_EXEC_PATH", "GIT_DIR",
		"PAGER", "LESSOPEN", "EDITOR", "VISUAL", "BROWSER", "MANPAGER", "SSH_ASKPASS", "SSH_AUTH_SOCK", "MAKEFLAGS", "MAKEFILES", "XDG_CONFIG_HOME",
		"OPENSSL_CONF", "OPENSSL_MODULES", "HOSTALIASES", "TERMINFO", "TMPDIR", "A2E_AUTH_TOKEN", "a2e_config", "TAR_OPTIONS", "RSYNC_RSH",
		"", "1X", "A B", "A=B", "A\x00B", "A\n", "Ä", "ＰＡＴＨ", "LD_PRELOAD ", " PATH", "A-B", "BASH_FUNC_ls%%", "LD_PRELOAD\x00", strings.Repeat("A", 300),
	} {
		var refused *EnvError
		if err := CheckEnv(name, "1"); !errors.As(err, &refused) {
			t.Errorf("%q is not refused: %v", name, err)
		}
	}
	l := newLauncher(t, Options{})
	var refused *EnvError
	for what, policy := range map[string]Policy{
		"name":       {Env: map[string]string{"LD_PRELOAD": "/x.so"}},
		"value":      {Env: map[string]string{"FOO": "a\x00LD_PRELOAD=/x.so"}},
		"host value": {HostEnv: map[string]string{"FOO": "a\x00b"}},
		"host name":  {HostEnv: map[string]string{"A=B": "x"}},
	} {
		policy.Path = program(t, "env")
		if _, err := l.Command(t.Context(), policy); !errors.As(err, &refused) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, opts := range map[string]Options{
		"relative home": {Home: "x"}, "relative PATH": {Path: []string{"bin"}}, "PATH with a separator": {Path: []string{"/a" + string(filepath.ListSeparator) + "/b"}},
		"the whole machine": {Workspace: "/"},
	} {
		if _, err := New(opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	l, err := New(Options{})
	must(t, err)
	home, _, err := l.env.home.get()
	must(t, err)
	if info, err := os.Stat(home); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("home: %v, %v", info, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(home); !os.IsNotExist(err) {
		t.Errorf("home after Close: %v", err)
	}
}
