package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// inWalls runs a shell script through a launcher, and returns its output and error.
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

// wallTree returns a new folder with these files by path.
func wallTree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	for name, text := range files {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
	}
	must.OK(t, err)
	return dir
}

// TestWallHidden: a hidden folder is hidden even if a grant includes it. A part of it that is granted by itself stays
// open.
func TestWallHidden(t *testing.T) {
	tree := func(t *testing.T) string {
		return wallTree(t, map[string]string{
			"ws/deep/own/secret": "SECRET", "ws/deep/own/part/f": "PART",
			"ws/deep/f": "OPEN", "ws/f": "OPEN", "more/f": "OPEN",
		})
	}
	for _, c := range []struct {
		name, script string
		policy       func(dir string) Policy
		shows        string
	}{
		{"in the workspace", `cat deep/own/secret; ls deep/own; cat deep/f`, nil, "OPEN"},
		{
			"in a grant to read above", `cat deep/own/secret ../ws/deep/own/secret; cat ../more/f`,
			func(dir string) Policy { return Policy{Read: []string{dir}} }, "OPEN",
		},
		{
			"in a grant to change above", `cat deep/own/secret; mv deep away; cat away/own/secret; cat ../more/f`,
			func(dir string) Policy { return Policy{Write: []string{dir}} }, "OPEN",
		},
		{
			"in a grant to change between", `cat own/secret; mv own away; cat f`,
			func(dir string) Policy { return Policy{Write: []string{dir + "/ws/deep"}, Dir: dir + "/ws/deep"} },
			"OPEN",
		},
		{
			"read-only around", `cat deep/own/secret; mkdir deep/x; touch deep/own/x deep/x; cat deep/f`,
			func(dir string) Policy { return Policy{ReadOnly: []string{dir + "/ws"}} }, "OPEN",
		},
		{
			"a part of it granted", `cat deep/own/secret; ls deep/own; cat deep/own/part/f`,
			func(dir string) Policy { return Policy{Read: []string{dir + "/ws/deep/own/part"}} }, "PART",
		},
		{
			"granted as a whole", `cat deep/own/part/f`,
			func(dir string) Policy { return Policy{Write: []string{dir + "/ws/deep/own"}} }, "PART",
		},
		{
			"granted as a whole, and above", `cat deep/own/part/f`,
			func(dir string) Policy { return Policy{Write: []string{dir + "/ws/deep/own"}, Read: []string{dir}} },
			"PART",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := tree(t)
			var policy Policy
			if c.policy != nil {
				policy = c.policy(dir)
			}
			out := inWalls(t, Options{Workspace: dir + "/ws", Hidden: []string{dir + "/ws/deep/own"}}, policy, c.script)
			assert.That(t, !strings.Contains(out, "SECRET"), "it shows what is hidden: %s", out)
			assert.That(t, strings.Contains(out, c.shows) || strings.HasPrefix(out, "refused: "),
				"it does not show what is open: %s", out)
			for name, want := range map[string]string{"ws/deep/own/secret": "SECRET", "ws/deep/own/part/f": "PART"} {
				text, err := os.ReadFile(filepath.Join(dir, name))
				assert.Equal(t, string(text), want, "%s is %q, %v: %s", name, text, err, out)
			}
			_, err := os.Lstat(dir + "/ws/deep/x")
			assert.That(t, err != nil || c.name != "read-only around", "a read-only folder was changed: %s", out)
		})
	}
}

// TestWallWithoutMounts: without a mount namespace no child starts that could see hidden files, and the error says
// why. This does not apply to a host within the sandbox of another host, or to files that are only fixed.
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
		assert.That(t, (err != nil) == c.want && (err == nil || strings.Contains(err.Error(),
			"move them out of the workspace")),
			"%s: %v", c.name, err)
	}
	dir := wallTree(t, map[string]string{"ws/own/f": "x"})
	for name, c := range map[string]struct {
		opts Options
		firm bool
	}{
		"hidden in the workspace": {Options{Workspace: dir + "/ws", Hidden: []string{dir + "/ws/own"}}, true},
		"hidden elsewhere":        {Options{Workspace: dir + "/ws", Hidden: []string{dir + "/other"}}, false},
		"a firm file": {
			Options{Workspace: dir + "/ws", Fixed: []string{dir + "/ws/own/f"}, Firm: true},
			true,
		},
		"a fixed file": {Options{Workspace: dir + "/ws", Fixed: []string{dir + "/ws/own/f"}}, false},
		"within another sandbox": {Options{
			Workspace: dir + "/ws", Hidden: []string{dir + "/ws/own"}, Firm: true,
			Loose: true,
		}, false},
	} {
		l := must.Get(New(c.opts))(t)
		f, err := l.start.frame(&Policy{Path: program(t, "sh")})
		assert.That(t, err == nil && f.Firm == c.firm, "%s: firm %t, want %t, %v", name, f.Firm, c.firm, err)
		assert.OK(t, l.Close())
	}
}

// TestWallLinksOfChildrenGrantNothing: a link in a folder that children can change grants nothing outside of that
// folder.
func TestWallLinksOfChildrenGrantNothing(t *testing.T) {
	dir := wallTree(t, map[string]string{"private/more/secret": "SECRET", "ws/docs/f": "OPEN"})
	for name, to := range map[string]string{
		"out": dir + "/private", "up": "../private", "twice": "up",
		"inside": "docs",
	} {
		must.OK(t, os.Symlink(to, filepath.Join(dir, "ws", name)))
	}
	t.Run("of all children", func(t *testing.T) {
		out := inWalls(t, Options{Workspace: dir + "/ws", Read: []string{dir + "/ws/out", dir + "/ws/up/more"}},
			Policy{}, "cat "+dir+"/private/more/secret")
		assert.That(t, !strings.Contains(out, "SECRET"), "it shows %s", out)
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
			out := inWalls(t, Options{Workspace: dir + "/ws"}, policy, "cat "+dir+"/private/more/secret "+
				"out/more/secret up/more/secret twice/more/secret; echo x > up/planted; cat inside/f")
			assert.That(t, !strings.Contains(out, "SECRET") && strings.Contains(out, "OPEN"), "it shows %s", out)
			_, err := os.Lstat(dir + "/private/planted")
			assert.That(t, err != nil, "a file was put outside")
		})
	}
}

// TestWallWorkspaceReplaced: if another folder takes the place of the workspace, it is not granted, in whatever way
// it came there.
func TestWallWorkspaceReplaced(t *testing.T) {
	for name, swap := range map[string]func(dir string) error{
		"a link":         func(dir string) error { return os.Symlink(dir+"/private", dir+"/up/ws") },
		"another folder": func(dir string) error { return os.Rename(dir+"/private", dir+"/up/ws") },
		"nothing":        func(string) error { return nil },
		"a link above": func(dir string) error {
			return errors.Join(os.Mkdir(dir+"/up2", 0o755), os.Rename(dir+"/private", dir+"/up2/ws"),
				os.Remove(dir+"/up"), os.Symlink(dir+"/up2", dir+"/up"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := wallTree(t, map[string]string{"up/ws/f": "OPEN", "private/f": "SECRET"})
			open := must.Get(os.Open(dir + "/up/ws"))(t)
			defer open.Close()
			info := must.Get(open.Stat())(t)
			opts := Options{Workspace: dir + "/up/ws", WorkspaceInfo: info}
			must.Equal(t, inWalls(t, opts, Policy{}, "cat f"), "OPEN", "at first")
			must.OK(t, os.Rename(dir+"/up/ws", dir+"/old"), swap(dir))
			out := inWalls(t, opts, Policy{Dir: "/"},
				"cat "+dir+"/up/ws/f "+dir+"/private/f; echo x > "+dir+"/up/ws/planted")
			assert.That(t, !strings.Contains(out, "SECRET"), "it shows %s", out)
			for _, place := range []string{"/up/ws/planted", "/private/planted"} {
				_, err := os.Lstat(dir + place)
				assert.That(t, err != nil, "%s was put outside", place)
			}
		})
	}
}

// TestNoWallsNoGrants: if nothing has to be walled off, the grants are not copied.
func TestNoWallsNoGrants(t *testing.T) {
	dir := wallTree(t, map[string]string{"ws/f": "x", "own/f": "x"})
	v := newView(&Options{Workspace: dir + "/ws", Hidden: []string{dir + "/own"}, Fixed: []string{dir + "/own/f"}}, nil,
		t.TempDir(), t.TempDir())
	assert.That(t, &v.walled[0] == &v.grants[0] && len(v.walled) == len(v.grants), "the grants are copied though "+
		"nothing is walled off")
}

// filtered returns the answer of the seccomp filter to a system call, computed as the kernel does.
func filtered(t *testing.T, w *seccompFilter, arch, call uint32, args ...uint64) uint32 {
	t.Helper()
	w.ask = denial()
	raw := must.Get(w.program())(t)
	program, ok := bpf.Disassemble(raw)
	must.That(t, ok, "the filter cannot be read")
	vm := must.Get(bpf.NewVM(program))(t)
	data := make([]byte, 64) // struct seccomp_data, in the byte order that the VM expects
	binary.BigEndian.PutUint32(data[offsetNumber:], call)
	binary.BigEndian.PutUint32(data[offsetArch:], arch)
	for i, arg := range args {
		binary.BigEndian.PutUint32(data[offsetArgs+argSize*i:], uint32(arg))
		binary.BigEndian.PutUint32(data[offsetArgs+argSize*i+halfSize:], uint32(arg>>32))
	}
	answer := must.Get(vm.Run(data))(t)
	return uint32(answer)
}

// TestWallUnknownCalls: system calls of newer kernels do not exist for a child, and neither do calls of another ABI,
// whose numbers mean something else.
func TestWallUnknownCalls(t *testing.T) {
	const absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	own := auditArch()
	for name, c := range map[string]struct{ arch, call uint32 }{
		"the next one": {own, newestCall + 1}, "a hundred later": {own, newestCall + 100},
		"the last number": {own, ^uint32(0)},
		"x32":             {own, 0x40000000 | unix.SYS_GETPID}, "another processor": {own ^ 1, unix.SYS_GETPID},
		"io_uring": {own, unix.SYS_IO_URING_SETUP},
	} {
		t.Run(name, func(t *testing.T) {
			for _, w := range []*seccompFilter{
				{ownIPC: true},
				{bare: true, among: true},
				{network: NetworkHost, ownIPC: true},
			} {
				assert.Equal(t, filtered(t, w, c.arch, c.call), absent, "%+v answers", w)
			}
		})
	}
	assert.Equal(t, filtered(t, &seccompFilter{ownIPC: true}, own, unix.SYS_GETPID), unix.SECCOMP_RET_ALLOW, "getpid")
}

// TestWallSocketKinds: a child can only make the kinds of sockets that its policy allows. Other kinds reach the
// hypervisor, the kernel's ciphers or buses, and are denied even with the network.
func TestWallSocketKinds(t *testing.T) {
	const denied = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	for _, network := range []Network{NetworkNone, NetworkHost} {
		for _, bare := range []bool{false, true} {
			t.Run(fmt.Sprintf("network %q, mount namespace %t", network, !bare), func(t *testing.T) {
				for family := range uint64(unix.AF_MAX) {
					want := family == unix.AF_UNIX && !bare || network == NetworkHost &&
						(family == unix.AF_INET || family == unix.AF_INET6 || family == unix.AF_NETLINK)
					filter := &seccompFilter{network: network, bare: bare, ownIPC: true}
					got := filtered(t, filter, auditArch(), unix.SYS_SOCKET, family, unix.SOCK_STREAM)
					assert.That(t, (got == unix.SECCOMP_RET_ALLOW) == want && (want || got == denied),
						"family %d: %#x, allowed should be %t", family, got, want)
				}
			})
		}
	}
}

// TestPage: every test that a README.md names exists, and so does every part of TestEscapes that one names.
func TestPage(t *testing.T) {
	tests, pages := make(map[string]bool), make(map[string]string)
	function := regexp.MustCompile(`(?m)^func (Test\w+)`)
	must.OK(t, filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "node_modules" || d.Name() == "venv" || d.Name() == ".git") {
			return fs.SkipDir
		}
		isPage := d.Name() == "README.md"
		if !isPage && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if isPage {
			pages[path] = string(text)
		}
		for _, m := range function.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
		return err
	}))
	all, named := escapes(), 0
	for name, page := range pages {
		for _, m := range regexp.MustCompile("`(Test\\w+)(?:/([^`]+))?`").FindAllStringSubmatch(page, -1) {
			named++
			part := m[2] == "" || slices.ContainsFunc(all, func(e escape) bool { return e.name == m[2] })
			if !tests[m[1]] || !part {
				t.Errorf("%s names %s, which is not there", name, m[0])
			}
		}
	}
	assert.That(t, named >= 40, "the pages name %d tests", named)
}

// inScript returns a command that runs a script in a workspace of its own.
func inScript(t *testing.T, script string) *one {
	t.Helper()
	dir := t.TempDir()
	return &one{Workspace: dir, Dir: dir, Path: program(t, "sh"), Args: []string{"sh", "-c", script}}
}

// TestWallNothingHolds: on a machine with neither namespaces nor Landlock no child starts unless the config says
// `sandbox: off`, because nothing would keep a child from reading all files.
func TestWallNothingHolds(t *testing.T) {
	for mode, want := range map[Mode]string{
		BestEffort: "nothing would keep a child from the files of this machine, which lacks: mount_namespace (",
		Required:   "the sandbox is required, but this machine lacks: ",
	} {
		t.Run(string(mode), func(t *testing.T) {
			o := inScript(t, "touch ran")
			o.Mode = mode
			out := inContainer(t, roleBare, o)
			assert.That(t, strings.Contains(out, want) && strings.Contains(out, "landlock (") && strings.Contains(out, "`sandbox: "),
				"%s", out)
			_, err := os.Stat(filepath.Join(o.Workspace, "ran"))
			assert.That(t, os.IsNotExist(err), "the command ran: %v", err)
		})
	}
	o := inScript(t, "touch ran")
	o.Mode = Off
	assert.Equal(t, inContainer(t, roleBare, o), "exit status 0\n", "switched off")
}

// TestPlainPrograms: in a plain container, the warden and the filter allow ordinary programs that agents run,
// including their changes of modes, owners and times.
func TestPlainPrograms(t *testing.T) {
	const who = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a; "
	for name, script := range map[string]string{
		"git": who + `git init -q r && cd r && echo x > f && git add f && git commit -qm m && chmod +x f && git commit -qam x &&
			cd .. && git clone -q r c && cd c && git pull -q && test -x f`,
		"tar":  `mkdir a && echo x > a/f && chmod 751 a/f && touch -d 2001-01-01 a/f && tar cf a.tar a && mkdir b && tar xf a.tar -C b && test "$(stat -c '%a %Y' b/a/f)" = "$(stat -c '%a %Y' a/f)"`,
		"cp":   `echo x > f && chmod 640 f && touch -d 2001-01-01 f && cp -p f g && cp -a f h && ln -s f l && cp -a l m && test "$(stat -c '%a %Y' g)" = "$(stat -c '%a %Y' f)"`,
		"make": `printf 'a: b\n\ttouch a\n' > Makefile && touch b && make -s && make -q`,
		"python3": `python3 -c '
import os, shutil, socket, tempfile, zipfile
a, b = socket.socketpair()
f = tempfile.TemporaryFile(dir="."); os.fchmod(f.fileno(), 0o600)
open("x", "w").close(); os.chmod("x", 0o500); shutil.copy2("x", "y"); os.symlink("x", "z")
os.utime("z", (1, 1), follow_symlinks=False); os.chmod("/proc/self/fd/%d" % os.open("x", os.O_RDONLY), 0o640)
d = os.open(".", os.O_RDONLY); os.chmod("y", 0o600, dir_fd=d); os.utime("y", ns=(1, 2), dir_fd=d)
assert os.stat("x").st_mode & 0o777 == 0o640 and os.stat("y").st_mtime_ns == 2 and os.lstat("z").st_mtime == 1
'`,
		"npm":                       `mkdir n && cd n && npm init -y >&2 && npm pack >&2 && npm install ./n-1.0.0.tgz --offline --prefix ../m >&2`,
		"node":                      `node -e 'fs = require("fs"); fs.writeFileSync("f", ""); fs.chmodSync("f", 0o700); fs.utimesSync("f", 1, 1); require("child_process").execSync("test -x f")'`,
		"forks of a trapping shell": `trap : CHLD; i=0; while [ $i -lt 300 ]; do true & i=$((i+1)); done; wait; test $i = 300`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needed, _, _ := strings.Cut(name, " ")
			if _, err := LookPath(needed, SafePath(os.Getenv("PATH"), ""), ""); err != nil && needed != "forks" {
				t.Logf("%s is not here", needed)
				return
			}
			out := inPlain(t, inScript(t, script))
			assert.That(t, strings.HasSuffix(out, "exit status 0\n"), "%s", out)
		})
	}
}
