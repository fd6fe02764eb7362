package sandbox

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// script writes an executable script and returns its path.
func script(t *testing.T, elem ...string) string {
	t.Helper()
	path := filepath.Join(elem...)
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.OK(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o755))
	return path
}

// realTemp returns a temporary folder whose path contains no link.
func realTemp(t *testing.T) string {
	t.Helper()
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	return dir
}

func TestAllowList(t *testing.T) {
	base := realTemp(t)
	bin, work := filepath.Join(base, "bin"), filepath.Join(base, "work")
	tool := script(t, bin, "tool")
	script(t, work, "inside")
	script(t, bin, "other")
	must.OK(t, errors.Join(
		os.Symlink(tool, filepath.Join(bin, "linked")),
		os.Symlink(filepath.Join(work, "inside"), filepath.Join(bin, "into")),
		os.WriteFile(filepath.Join(bin, "plain"), nil, 0o644),
		os.Mkdir(filepath.Join(bin, "folder"), 0o755),
	))
	names := []string{"tool", "linked", "inside", "into", "plain", "folder", "nowhere", "tool"}
	a := must.Get(NewAllowList(names, []string{work, bin}, work, false))(t)
	assert.Slice(t, a.Names(), []string{"linked", "tool"}, "names")
	assert.Slice(t, a.Missing(), []string{"inside", "into", "plain", "folder", "nowhere"}, "missing")
	for _, name := range []string{"tool", "linked"} {
		path, err := a.Resolve("", name)
		assert.That(t, path == tool && err == nil, "control: %q, %v", path, err)
	}
	for _, name := range []string{
		"", " ", "other", "nowhere", "inside", "into", "plain", tool, "./tool", "../bin/tool", "tool ", " tool",
		"tool\n", "tool\x00", "TOOL", "Tool",
		"tool;id", "$(tool)", "`tool`", "tool|id", "tool&", "tооl", "ｔool", "tool\u200b", "tool/", "/tool", "bin/tool",
		`bin\tool`, "tool*", "~/tool", "-tool", ".",
	} {
		var denied *DeniedError
		path, err := a.Resolve("", name)
		assert.That(t, errors.As(err, &denied) && path == "" && strings.Contains(err.Error(), "linked, tool"),
			"%q: %q, %v", name, path, err)
	}
	for _, name := range []string{
		"", "a/b", "a/b c", " ", "a\tb", "/bin/sh", "../x", "a;b", "a\x00", "ä", "-x", ".x",
		"$x", "x\n",
	} {
		_, err := NewAllowList([]string{name}, []string{bin}, work, false)
		assert.That(t, err != nil, "%q may stand on a list", name)
	}
}

// TestWallAllowListSwapped: a program is refused if its file was changed after the list was made.
func TestWallAllowListSwapped(t *testing.T) {
	for name, swap := range map[string]func(tool, inside string) error{
		"gone": func(tool, _ string) error { return os.Remove(tool) },
		"a link": func(tool, inside string) error {
			return errors.Join(os.Remove(tool),
				os.Symlink(inside, tool))
		},
		"a folder": func(tool, _ string) error {
			return errors.Join(os.Remove(tool),
				os.Mkdir(tool, 0o755))
		},
		"no longer executable": func(tool, _ string) error { return os.Chmod(tool, 0o644) },
		"its folder now a link": func(tool, inside string) error {
			dir := filepath.Dir(tool)
			return errors.Join(os.Rename(dir, dir+".old"), os.Symlink(filepath.Dir(inside), dir))
		},
	} {
		base := realTemp(t)
		tool, work := script(t, base, "bin", "tool"), filepath.Join(base, "work")
		inside := script(t, work, "tool")
		a := must.Get(NewAllowList([]string{"tool"}, []string{filepath.Dir(tool)}, work, false))(t)
		if _, err := a.Resolve("", "tool"); err != nil { // a check that it works before the swap
			t.Fatal(err)
		}
		must.OK(t, swap(tool, inside))
		path, err := a.Resolve("", "tool")
		assert.That(t, err != nil, "%s: %s", name, path)
	}
}

func TestSafePath(t *testing.T) {
	base := realTemp(t)
	work := filepath.Join(base, "work")
	good, open, inside := filepath.Join(base, "good"), filepath.Join(base, "open"), filepath.Join(work, "bin")
	below := filepath.Join(open, "bin")
	for _, dir := range []string{good, below, inside} {
		must.OK(t, os.MkdirAll(dir, 0o755))
	}
	file := script(t, base, "file")
	link := filepath.Join(base, "link")
	must.OK(t, os.Chmod(open, 0o777), os.Symlink(inside, link))
	list := []string{
		"", ".", "bin", "./x", good, good + "/", open, below, inside, work, link, file,
		filepath.Join(base, "none"), filepath.Join(work, "../work/bin"),
	}
	got := SafePath(strings.Join(list, string(filepath.ListSeparator)), work)
	system := SafePath("", "")
	assert.That(t, len(system) != 0, "no system folders")
	want := append(system, good)
	assert.That(t, slices.Equal(got, want), "got %v, want %v", got, want)
	// Only the workspace excludes the folder.
	if got := SafePath(inside, ""); !slices.Contains(got, inside) {
		t.Errorf("control: %v", got)
	}
}

func TestLookPath(t *testing.T) {
	base := realTemp(t)
	bin, work := filepath.Join(base, "bin"), filepath.Join(base, "work")
	tool, inside := script(t, bin, "tool"), script(t, work, "inside")
	into, out := filepath.Join(bin, "into"), filepath.Join(work, "out")
	must.OK(t, os.Symlink(inside, into), os.Symlink(tool, out))
	for _, name := range []string{"tool", tool, bin + "/../bin/tool"} {
		got, err := LookPath(name, []string{bin}, work)
		assert.That(t, got == tool && err == nil, "%q: %q, %v", name, got, err)
	}
	for _, name := range []string{
		inside, into, "into", out, "./tool", "bin/tool", "", "tool\x00", bin,
		filepath.Join(bin, "none"),
	} {
		got, err := LookPath(name, []string{bin}, work)
		assert.That(t, err != nil, "%q: %q", name, got)
	}
}

// TestAllowListOfTheWholeMachine: a user who started the host in the root folder is told to set the workspace.
func TestAllowListOfTheWholeMachine(t *testing.T) {
	list := must.Get(NewAllowList([]string{"sh"}, SafePath(os.Getenv("PATH"), ""), "/", false))(t)
	_, err := list.Resolve("", "sh")
	assert.That(t, err != nil && strings.Contains(err.Error(), "set workspace"), "%v", err)
}

// environment runs env in a child of a host with the given environment, and returns the child's environment.
func environment(t *testing.T, hostEnv []string, change func(*Policy)) map[string]string {
	t.Helper()
	l := newLauncher(t, Options{Environ: hostEnv, Home: "/some/home", Path: []string{"/usr/bin", "/bin"}})
	var out strings.Builder
	policy := Policy{Path: program(t, "env"), Stdout: &out}
	if change != nil {
		change(&policy)
	}
	state, err := begin(t, l, policy).Wait()
	must.That(t, err == nil && state.Code == 0, "%v %v", state, err)
	got := map[string]string{}
	for _, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		name, value, _ := strings.Cut(line, "=")
		got[name] = value
	}
	return got
}

func TestEnvironmentIsScrubbed(t *testing.T) {
	secrets := []string{
		"A2E_AUTH_TOKEN=geheim", "A2E_CONFIG=/x", "AWS_SECRET_ACCESS_KEY=geheim", "GITHUB_TOKEN=geheim",
		"SSH_AUTH_SOCK=/s",
		"LD_PRELOAD=/x.so", "LD_LIBRARY_PATH=/x", "BASH_ENV=/x", "ENV=/x", "PYTHONPATH=/x", "NODE_OPTIONS=--require=/x",
		"IFS=x",
		"PATH=/evil", "HOME=/root", "XDG_CONFIG_HOME=/x", "HTTP_PROXY=http://u:p@h", "LCX=1", "LANG_=1", "=x", "broken",
		"TERMINFO=/x",
	}
	safe := map[string]string{
		"LANG": "de_DE.UTF-8", "LC_ALL": "C", "LC_TIME": "C", "TERM": "xterm", "TZ": "UTC",
		"A2E_AGENT": `{"agent_id":"a"}`, "A2E_SANDBOX": "1",
	}
	env := slices.Clone(secrets)
	for name, value := range safe {
		env = append(env, name+"="+value)
	}
	got := environment(t, env, nil)
	want := maps.Clone(safe)
	maps.Copy(want, withoutTerminal()) // TERM too, because the host's terminal is not the child's
	want["PATH"], want["HOME"] = "/usr/bin:/bin", "/some/home"
	assert.Contains(t, got["TMPDIR"], privatePrefix, "TMPDIR … is not the launcher's own")
	delete(got, "TMPDIR")
	assert.That(t, maps.Equal(got, want), "got %v, want %v", got, want)
	if got := environment(t, secrets, nil); got["LANG"] != "C.UTF-8" {
		t.Errorf("without a language: %v", got)
	}

	dir := t.TempDir()
	got = environment(t, nil, func(p *Policy) {
		p.Dir = dir
		p.Env = map[string]string{"FOO": "a b=c\n", "LANG": "fr", "BOTH": "request", "TERM": "xterm"}
		p.HostEnv = map[string]string{"A2E_TASK_ID": "7", "BOTH": "host", "EDITOR": "ed"}
	})
	for name, value := range map[string]string{
		"FOO": "a b=c", "LANG": "fr", "PWD": dir, "A2E_TASK_ID": "7", "BOTH": "host",
		"TERM": "xterm", "EDITOR": "ed", "PAGER": "cat",
	} {
		assert.Equal(t, got[name], value, "%s", name)
	}
}

// TestEditorsFailAtOnce: if a program without a terminal starts an editor, the editor fails at once with words that
// say what to do. Commands that need no editor, or that name another one, still work.
func TestEditorsFailAtOnce(t *testing.T) {
	l := newLauncher(t, Options{Workspace: t.TempDir()})
	run := func(script string) (State, string) {
		var out strings.Builder
		script = "mkdir $TMPDIR/repo; cd $TMPDIR/repo; " + script + "; end=$?; rm -r $TMPDIR/repo; exit $end"
		args := []string{"sh", "-c", script}
		state, err := begin(t, l, Policy{Path: program(t, "sh"), Args: args, Stdout: &out, Stderr: &out}).Wait()
		must.OK(t, err)
		return state, out.String()
	}
	const commit = `git init -q . && git config user.name a && git config user.email a@example.org && git commit `
	for name, script := range map[string]string{
		"by a shell": `sh -c "$EDITOR file"`,
		"by words":   `$VISUAL file`,
		"in a file":  `printf '$EDITOR file\n' > run.sh; sh run.sh`,
		"git commit": commit + `--allow-empty`,
		"git rebase": commit + `-q --allow-empty -m kept && git rebase -i --root`,
	} {
		t.Run(name, func(t *testing.T) {
			state, out := run(script)
			assert.That(t, state.Code != 0, "%+v: %s", state, out)
			assert.Contains(t, out, "there-is-no-terminal-to-edit-in:give-the-text-as-an-argument")
		})
	}
	state, out := run(commit + `-q --allow-empty -m kept &&
		GIT_EDITOR=true git commit -q --allow-empty --amend && git log --format=%s`)
	assert.That(t, state.Code == 0 && out == "kept\n", "%+v: %s", state, out)
}

func TestWallRefusedVariables(t *testing.T) {
	for _, name := range []string{
		"FOO", "foo", "_x", "X1", "LANG", "LC_ALL", "TZ", "TERM", "DEBUG", "CI", "HTTP_PROXY",
		"NODE_ENV", "GOOS", "GIT_AUTHOR_NAME", "PYTHONUNBUFFERED",
	} {
		assert.OK(t, CheckEnv(name, "1"))
	}
	for _, name := range []string{
		"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "ld_preload", "Ld_Preload", "DYLD_INSERT_LIBRARIES",
		"GLIBC_TUNABLES", "GCONV_PATH",
		"PATH", "Path", "HOME", "SHELL", "PWD", "IFS", "ENV", "BASH_ENV", "BASH_FUNC_ls", "BASHOPTS", "SHELLOPTS",
		"PS4", "PROMPT_COMMAND", "CDPATH",
		"PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONBREAKPOINT", "PERL5OPT",
		"PERL5LIB", "PERL5DB",
		"RUBYOPT", "RUBYLIB", "NODE_OPTIONS", "NODE_PATH", "npm_config_script_shell", "JAVA_TOOL_OPTIONS",
		"_JAVA_OPTIONS", "CLASSPATH",
		"LUA_INIT", "PHPRC", "AWKPATH", "AWKLIBPATH", "GOFLAGS", "GOROOT", "GOCACHEPROG", "GOTOOLCHAIN", "GOENV", "CC",
		"CGO_LDFLAGS", "RUSTC_WRAPPER",
		"GIT_SSH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EDITOR", "GIT_CONFIG_COUNT",
		"GIT_CONFIG_KEY_0", "GIT_EXEC_PATH", "GIT_DIR",
		"PAGER", "LESSOPEN", "EDITOR", "VISUAL", "BROWSER", "MANPAGER", "SSH_ASKPASS", "SSH_AUTH_SOCK", "MAKEFLAGS",
		"MAKEFILES", "XDG_CONFIG_HOME",
		"OPENSSL_CONF", "OPENSSL_MODULES", "HOSTALIASES", "TERMINFO", "TMPDIR", "A2E_AUTH_TOKEN", "a2e_config",
		"TAR_OPTIONS", "RSYNC_RSH",
		"", "1X", "A B", "A=B", "A\x00B", "A\n", "Ä", "ＰＡＴＨ", "LD_PRELOAD ", " PATH", "A-B", "BASH_FUNC_ls%%",
		"LD_PRELOAD\x00", strings.Repeat("A", 300),
	} {
		var refused *EnvError
		err := CheckEnv(name, "1")
		assert.That(t, errors.As(err, &refused), "%q is not refused: %v", name, err)
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
		_, err := l.Command(t.Context(), policy)
		assert.That(t, errors.As(err, &refused), "%s: %v", what, err)
	}
}

func TestOptions(t *testing.T) {
	for name, opts := range map[string]Options{
		"relative home": {Home: "x"}, "relative PATH": {Path: []string{"bin"}},
		"PATH with a separator": {Path: []string{"/a" + string(filepath.ListSeparator) + "/b"}},
		"the whole machine":     {Workspace: "/"},
	} {
		_, err := New(opts)
		assert.That(t, err != nil, "%s: accepted", name)
	}
	poll.Eventually(t, "Close removes the home", func() bool { // on a busy machine Close may have no time for it
		l := must.Get(New(Options{}))(t)
		home, _, err := l.env.home.get()
		must.OK(t, err)
		if info, err := os.Stat(home); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("home: %v, %v", info, err)
		}
		must.OK(t, os.MkdirAll(filepath.Join(home, "a", "b"), 0o700))
		must.OK(t, os.Chmod(filepath.Join(home, "a"), 0o500))
		assert.OK(t, l.Close())
		_, err = os.Stat(home)
		return os.IsNotExist(err)
	})
}

func TestOpenWorkdir(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "sub", "deep"), 0o755),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		os.Symlink("sub/deep", filepath.Join(dir, "in")),
		os.Symlink(outside, filepath.Join(dir, "out")),
		os.Symlink("../"+filepath.Base(outside), filepath.Join(dir, "rel")),
	} {
		must.OK(t, err)
	}
	root := must.Get(os.OpenRoot(dir))(t)
	defer root.Close()
	for _, tc := range []struct {
		name string
		real string // the folder that is opened; "" = the name is refused
		abs  string
		says string
		deny bool
	}{
		{name: "", real: ".", abs: "."},
		{name: ".", real: ".", abs: "."},
		{name: "sub", real: "sub", abs: "sub"},
		{name: "sub/../sub/deep/", real: "sub/deep", abs: "sub/deep"},
		{name: "in", real: "sub/deep", abs: "in"},
		{name: "..", says: "leads out", deny: true},
		{name: "sub/../..", says: "leads out", deny: true},
		{name: dir, real: ".", abs: "."},
		{name: dir + "/sub/./deep/", real: "sub/deep", abs: "sub/deep"},
		{name: dir + "/in", real: "sub/deep", abs: "in"},
		{name: dir + "/out", says: "leads out", deny: true},
		{name: dir + "/../x", says: "outside", deny: true},
		{name: dir + "2", says: "outside", deny: true},
		{name: "/", says: "outside", deny: true},
		{name: "out", says: "leads out", deny: true},
		{name: "rel", says: "leads out", deny: true},
		{name: "missing", says: "does not exist"},
		{name: "file", says: "not a folder"},
		{name: "file/x", says: "not a folder"},
		{name: "a\x00b", says: "NUL"},
		{name: strings.Repeat("x", 5000), says: "more than 4096 bytes"},
	} {
		file, abs, err := OpenWorkdir(root, dir, tc.name)
		if tc.real == "" {
			refused, ok := errors.AsType[*WorkdirError](err)
			assert.That(t, ok && strings.Contains(err.Error(), tc.says) && refused.Denied == tc.deny &&
				len(err.Error()) <= 400, "%.40q: %v, want %q, denied %v", tc.name, err, tc.says, tc.deny)
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tc.name, err)
			continue
		}
		got, err1 := file.Stat()
		want, err2 := os.Stat(filepath.Join(dir, tc.real))
		if err := errors.Join(err1, err2, file.Close()); err != nil || !os.SameFile(got, want) ||
			abs != filepath.Join(dir, tc.abs) {
			t.Errorf("%q opened another folder, or is called %q; %v", tc.name, abs, err)
		}
	}
}
