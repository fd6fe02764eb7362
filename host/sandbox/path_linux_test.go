package sandbox

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// pathStage makes a small machine: a home with secrets and programs, a workspace and more. The names in it are
// relative to its base; the workspace is src/work.
func pathStage(t *testing.T) (base string) {
	t.Helper()
	base = realTemp(t)
	for _, name := range []string{
		"users/me/.ssh/id", "users/me/.ssh/bin/id", "users/me/documents/secret", "users/me/src/project/secret",
		"users/me/share/secret", "users/me/tools/secret",
		"users/me/.config/a2e/secret", "users/me/.config/bin/x", "users/me/.local/share/keyrings/secret",
		"users/me/.local/state/a2e/secret", "users/me/.cargo/credentials.toml",
		"users/me/.docker/config.json", "users/me/.bashrc", "users/me/.aws/cli/bin/secret",
		"users/other/.profile", "users/other/secret", "project/.env", "project/secret", "project2/.npmrc",
		"netrc/.netrc", "git/.git-credentials",
		"src/secret", "src/work/file", "src/work/bin/file", "open/secret", "open/below/secret",
		"app/src/secret", "app/lib/data",
		"users/me/.pyenv/versions/3.9/lib/data", "users/me/.nvm/versions/node/v1/lib/data", "users/me/lib/data",
		"users/me/go/pkg/data",
	} {
		file := filepath.Join(base, name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(secretText), 0o644))
	}
	for _, name := range []string{
		"users/me/tool", "users/me/bin/tool", "users/me/scripts/tool", "users/me/.local/bin/tool",
		"users/me/.cargo/bin/tool", "users/me/go/bin/tool",
		"users/me/.pyenv/shims/tool", "users/me/.nvm/versions/node/v1/bin/tool", "bin/tool", "app/bin/tool",
		"users/me/.local/share/uv/tools/x/bin/prog", "users/me/work/tool",
	} {
		script(t, base, name)
	}
	must.OK(t, errors.Join(os.Chmod(filepath.Join(base, "open"), 0o777), os.Symlink("users/me",
		filepath.Join(base, "link")),
		os.Symlink("../share/uv/tools/x/bin/prog", filepath.Join(base, "users/me/.local/bin/linked"))))
	t.Setenv("HOME", filepath.Join(base, "users/me"))
	t.Setenv("XDG_CONFIG_HOME", "")
	return base
}

// onPath runs a script in a child with a folder on its PATH, and returns the output.
func onPath(t *testing.T, base, entry, script string) string {
	t.Helper()
	work := filepath.Join(base, "src/work")
	l := homelyLauncher(t, Options{Workspace: work, Path: SafePath(entry, work)})
	out, _ := tryPolicy(t, l, Policy{Dir: work}, script)
	return out
}

// TestWallPath: a folder on the PATH does not let children see files beside the programs in it.
func TestWallPath(t *testing.T) {
	const home = "BASE/users/me"
	for _, try := range []struct{ entry, secret string }{
		{home, ".ssh/id"},
		{home, "documents/secret"},
		{home, ".config/a2e/secret"},
		{home, ".docker/config.json"},
		{home + "/", "documents/secret"},
		{home + "/.", "documents/secret"},
		{home + "/bin/..", "documents/secret"},
		{"BASE/link", "documents/secret"},
		{"BASE/link/.", ".ssh/id"},
		{"BASE/users", "documents/secret"},
		{"BASE/users", "../other/secret"},
		{"/", "documents/secret"},
		{home + "/bin", "src/project/secret"},
		{home + "/bin", "share/secret"},
		{home + "/bin", "tools/secret"},
		{home + "/bin", ".ssh/id"},
		{home + "/scripts", "src/project/secret"},
		{home + "/scripts", "documents/secret"},
		{home + "/.ssh", ".ssh/id"},
		{home + "/.ssh/bin", ".ssh/bin/id"},
		{
			home + "/.aws/cli/bin",
			".aws/cli/bin/secret",
		},
		{home + "/.config", ".config/a2e/secret"},
		{home + "/.config/bin", ".config/a2e/secret"},
		{home + "/.local/bin", ".local/share/keyrings/secret"},
		{home + "/.local/bin", ".local/state/a2e/secret"},
		{home + "/.local", ".local/share/keyrings/secret"},
		{home + "/.cargo/bin", ".cargo/credentials.toml"},
		{home + "/go/bin", ".ssh/id"},
		{"BASE/users/other", "../other/secret"},
		{"BASE/project", "../../project/secret"},
		{"BASE/project", "../../project/.env"},
		{"BASE/project2", "../../project2/.npmrc"},
		{"BASE/netrc", "../../netrc/.netrc"},
		{"BASE/git", "../../git/.git-credentials"},
		{"BASE/src", "../../src/secret"},
		{"BASE/bin", "../../src/secret"},
		{"BASE", "../../src/secret"},
		{"BASE/open", "../../open/secret"},
		{"BASE/open/below", "../../open/below/secret"},
	} {
		t.Run(try.entry+" for "+try.secret, func(t *testing.T) {
			base := pathStage(t)
			secret := filepath.Join(base, "users/me", try.secret)
			if text, err := os.ReadFile(secret); string(text) != secretText {
				t.Fatal(err) // a check that the file can be read outside
			}
			out := onPath(t, base, strings.ReplaceAll(try.entry, "BASE", base), "cat "+secret)
			assert.That(t, !strings.Contains(out, secretText), "a child read %s", secret)
		})
	}
}

// TestWallPathPrograms: a program that is started by its path does not let children see files beside it either.
func TestWallPathPrograms(t *testing.T) {
	for _, try := range []struct{ program, secret string }{
		{"users/me/tool", "users/me/documents/secret"},
		{"users/me/bin/tool", "users/me/src/project/secret"},
		{"users/me/bin/tool", "users/me/.ssh/id"},
		{"bin/tool", "src/secret"},
		{"users/me/.local/bin/tool", "users/me/.local/share/keyrings/secret"},
	} {
		t.Run(try.program+" for "+try.secret, func(t *testing.T) {
			base := pathStage(t)
			program := filepath.Join(base, try.program)
			must.OK(t, os.WriteFile(program, []byte("#!/bin/sh\necho started; cat "+filepath.Join(base, try.secret)),
				0o755))
			l := homelyLauncher(t, Options{Workspace: filepath.Join(base, "src/work")})
			var out strings.Builder
			p := begin(t, l, Policy{Path: program, Stdout: &out, Stderr: &out})
			_, err := p.Wait()
			assert.That(t, err == nil && strings.Contains(out.String(), "started") &&
				!strings.Contains(out.String(), secretText), "%v, %s", err, &out)
		})
	}
}

// TestPathPrograms: programs work in the places where people install them for themselves.
func TestPathPrograms(t *testing.T) {
	for entry, needs := range map[string]string{
		".local/bin": "", ".cargo/bin": "", "go/bin": "go/pkg/data", ".pyenv/shims": ".pyenv/versions/3.9/lib/data",
		".nvm/versions/node/v1/bin": ".nvm/versions/node/v1/lib/data", "bin": "lib/data", "work": "",
	} {
		t.Run(entry, func(t *testing.T) {
			base := pathStage(t)
			home := filepath.Join(base, "users/me")
			command := "tool && echo fine"
			if needs != "" {
				command += " && cat " + filepath.Join(home, needs)
			}
			out := onPath(t, base, filepath.Join(home, entry), command)
			assert.That(t, strings.Contains(out, "fine") && (needs == "" || strings.Contains(out, secretText)),
				"it does not work: %s", out)
		})
	}
	base := pathStage(t)
	dirs := SafePath(filepath.Join(base, "users/me/.local/bin"), "")
	path, err := LookPath("linked", dirs, "")
	assert.That(t, err == nil && path == filepath.Join(base, "users/me/.local/share/uv/tools/x/bin/prog"),
		"a tool of uv: %q, %v", path, err)
}

// TestSortPath: folders that are left out of the PATH are named with the reason.
func TestSortPath(t *testing.T) {
	base := pathStage(t)
	work := filepath.Join(base, "src/work")
	homes := "is or holds /home"
	if strings.HasPrefix(base, "/home/") {
		homes = "holds the workspace"
	}
	for entry, reason := range map[string]string{
		"bin": "is relative", ".": "is relative", "": "is relative", work: "lies in the workspace",
		work + "/bin": "lies in the workspace",
		base + "/src": "holds the workspace", base + "/open": "can be changed by others",
		base + "/users/me": "is or holds " + base + "/users/me",
		base + "/link":     "is or holds " + base + "/users/me", "/": "holds the workspace",
		base + "/users/other": "holds .profile", base + "/project": "holds .env",
		base + "/users/me/.ssh/bin": "lies in " + base + "/users/me/.ssh", "/home": homes, base + "/none": "",
		base + "/bin": "",
	} {
		_, left := SortPath(base+"/users/me/go/bin"+string(filepath.ListSeparator)+entry, work)
		switch {
		case reason == "" && len(left) > 0:
			t.Errorf("%s: %v", entry, left)
		case reason != "" && (len(left) != 1 || left[0].Dir != entry || !strings.HasPrefix(left[0].Reason, reason)):
			t.Errorf("%s: %v, want %q", entry, left, reason)
		}
	}
}

// TestWallPathBeside: files beside a workspace that lies in the folder of a program stay hidden.
func TestWallPathBeside(t *testing.T) {
	base := pathStage(t)
	work := filepath.Join(base, "app/src/work")
	must.OK(t, os.Mkdir(work, 0o755))
	for name, entry := range map[string]string{"PATH": filepath.Join(base, "app/bin"), "program": ""} {
		t.Run(name, func(t *testing.T) {
			l := homelyLauncher(t, Options{Workspace: work, Path: SafePath(entry, work)})
			var out strings.Builder
			program := filepath.Join(base, "app/bin/tool")
			must.OK(t, os.WriteFile(program, []byte("#!/bin/sh\ncat "+base+"/app/lib/data && echo fine; cat "+base+"/app/src/secret && echo seen"), 0o755))
			p := begin(t, l, Policy{Path: program, Dir: work, Stdout: &out})
			_, err := p.Wait()
			assert.That(t, err == nil && strings.Contains(out.String(), "fine") &&
				!strings.Contains(out.String(), "seen"), "%v, %s", err, &out)
		})
	}
}

// setIDAct is an attempt to make a file with the set-user-ID or set-group-ID bit. Each runs in a folder with an
// executable f, a folder d and an archive that has a file with the bits.
type setIDAct struct {
	name, act string
	arch      string // the only architecture that has it; "" = all
}

func setIDActs() []setIDAct {
	const raw = `
libc.syscall.restype = ctypes.c_long
def how(flags, mode): return ctypes.create_string_buffer(struct.pack("QQQ", flags, mode, 0)), 24
f = os.open("f", os.O_RDWR)
`
	return []setIDAct{
		{name: "chmod u+s", act: `os.chmod("f", 0o4755)`},
		{name: "chmod g+s", act: `os.chmod("f", 0o2755)`},
		{name: "chmod of a file in the home", act: `
h = os.environ["HOME"] + "/h"; open(h, "w"); os.chmod(h, 0o4755)
print("CAPABLE")`},
		{name: "chmod through proc", act: raw + `os.chmod("/proc/self/fd/%d" % f, 0o4755)`},
		{name: "chmod through a link", act: `os.symlink("f", "l"); os.chmod("l", 0o6755)`},
		{name: "the call chmod", arch: "amd64", act: `call("chmod", b"f", 0o4755)`},
		{name: "fchmod", act: raw + `os.fchmod(f, 0o4755)`},
		{name: "fchmod with bits above those of a mode", act: raw +
			`call("fchmod", f, 0x7F00004755 & ~0xFFFF | 0o4755)`},
		{name: "fchmodat", act: `os.chmod("f", 0o4755, dir_fd=os.open(".", os.O_RDONLY))`},
		{name: "fchmodat2", act: `call("fchmodat2", -100, b"f", 0o4755, 0)`},
		{
			name: "fchmodat2 of a descriptor without rights",
			act:  `call("fchmodat2", os.open("f", os.O_PATH), b"", 0o2755, 0x1000)`,
		},
		{name: "open", act: `os.umask(0); os.open("new", os.O_CREAT | os.O_WRONLY, 0o4755)`},
		{name: "the call open", arch: "amd64", act: `call("open", b"new", os.O_CREAT | os.O_WRONLY, 0o4755)`},
		{name: "the call creat", arch: "amd64", act: `call("creat", b"new", 0o4755)`},
		{name: "openat of a folder", act: `os.open("new", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o2755, dir_fd=os.open("d", os.O_RDONLY))`},
		{name: "openat2", act: raw + `call("openat2", -100, b"new", *how(os.O_CREAT | os.O_WRONLY, 0o4755))`},
		{name: "a file without a name", act: `
t = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o4755)
os.link("%d" % t, "new", src_dir_fd=os.open("/proc/self/fd", os.O_RDONLY), follow_symlinks=True)`},
		{name: "a file without a name by openat2", act: raw + `
t = call("openat2", -100, b".", *how(os.O_TMPFILE | os.O_RDWR, 0o4755))
os.link("%d" % t, "new", src_dir_fd=os.open("/proc/self/fd", os.O_RDONLY), follow_symlinks=True)`},
		{name: "mknod", act: `import stat; os.mknod("new", stat.S_IFREG | 0o4755)`},
		{name: "the call mknod", arch: "amd64", act: `call("mknod", b"new", 0o104755, 0)`},
		{name: "mknodat", act: `call("mknodat", -100, b"new", 0o102755, 0)`},
		{name: "the modes of another file", act: `import shutil; shutil.copymode("owned", "f")`},
		{name: "tar", act: `import subprocess; subprocess.run(["tar", "-xpf", "archive.tar"])`},
		{name: "install", act: `import subprocess; subprocess.run(["install", "-m", "4755", "f", "new"])`},
		{name: "cp -p", act: `import subprocess; subprocess.run(["cp", "-p", "owned", "new"])`},
		{name: "chmod of coreutils", act: `import subprocess; subprocess.run(["chmod", "ug+s", "f"])`},
		{name: "rights of a file", act: `
os.setxattr("f", "security.capability", struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0)); print("CAPABLE")`},
		{name: "other text in a file that has the bit", act: `open("owned", "r+").write("#!/bin/evil")`},
		{name: "another file in place of one that has the bit", act: `os.rename("f", "owned")`},
	}
}

// TestWallSetID: no child leaves a file behind that gives the host's rights to anybody who runs it, not even in a
// folder that only this child writes to.
func TestWallSetID(t *testing.T) {
	for _, network := range []Network{NetworkNone, NetworkHost} {
		for _, act := range setIDActs() {
			if act.arch != "" && act.arch != runtime.GOARCH {
				continue
			}
			t.Run(act.name+map[Network]string{NetworkHost: " with network"}[network], func(t *testing.T) {
				l, workspace, _ := walled(t, Options{})
				tryBit(t, l, workspace, act.act, network)
			})
		}
	}
	for _, lv := range usable(t) {
		t.Run("level "+string(lv.mechanism), func(t *testing.T) {
			l, workspace, _ := walled(t, Options{})
			l.start.levels = []level{lv}
			tryBit(t, l, workspace, `
for path, mode in (("f", 0o4755), ("d", 0o2755)):
    try:
        os.chmod(path, mode)
    except OSError:
        pass
os.open("new", os.O_CREAT, 0o4755)`, NetworkNone)
		})
	}
}

// plainContainer reports whether this machine refuses namespaces, as a plain container does.
var plainContainer = sync.OnceValue(func() bool {
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return cmd.Run() != nil
})

// usable returns the levels that work on this machine: all of them, if it has namespaces.
func usable(t *testing.T) []level {
	t.Helper()
	l, workspace, _ := walled(t, Options{})
	try(t, l, workspace, "true")
	all := levels(BestEffort)
	found := all[slices.IndexFunc(all, func(lv level) bool { return lv.mechanism == l.Mechanism() }):]
	must.That(t, plainContainer() || len(found) == len(all), "with namespaces, %d of %d levels are used", len(found),
		len(all))
	return found
}

// tryBit runs an act, and fails if a new file has the bit afterwards.
func tryBit(t *testing.T, l *Launcher, workspace, act string, network Network) {
	t.Helper()
	fillSetID(t, workspace)
	out := runAct(t, l, workspace, act, network)
	assert.That(t, !bytes.Contains(out, []byte("CAPABLE")), "a file was given rights: %s", out)
	must.OK(t, filepath.WalkDir(workspace, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 && (filepath.Base(path) != "owned" ||
			string(text) != "#!/bin/true") {
			t.Errorf("%s has mode %v and holds %q: %s", e.Name(), info.Mode(), text, out)
		}
		return err
	}))
}

// fillSetID makes the files for the acts. The owner's own file must keep its bit.
func fillSetID(t *testing.T, dir string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	must.OK(t, errors.Join(os.WriteFile(at("f"), []byte("#!/bin/sh"), 0o755), os.Mkdir(at("d"), 0o755),
		os.WriteFile(at("owned"), []byte("#!/bin/true"), 0o755),
		os.Chmod(at("owned"), 0o755|fs.ModeSetuid), os.WriteFile(at("archive.tar"), setIDArchive(t), 0o644)))
}

// runAct runs Python with the prelude of the escapes, and returns its output.
func runAct(t *testing.T, l *Launcher, dir, act string, network Network) []byte {
	t.Helper()
	numbers := map[string]int{
		"fchmod": unix.SYS_FCHMOD, "fchmodat2": unix.SYS_FCHMODAT2, "openat2": unix.SYS_OPENAT2,
		"mknodat": unix.SYS_MKNODAT,
		"fchown":  unix.SYS_FCHOWN, "utimensat": unix.SYS_UTIMENSAT,
		"chmod": 90, "open": 2, "creat": 85, "mknod": 133, // only on amd64
	}
	text := must.Get(json.Marshal(map[string]any{"nr": numbers}))(t)
	var out bytes.Buffer
	p := begin(t, l, Policy{
		Path: program(t, "python3"), Args: []string{"python3", "-I", "-S", "-c", prelude + act, string(text)}, Dir: dir,
		Stdout: &out, Stderr: &out, Network: network,
	})
	must.Get(p.Wait())(t)
	return out.Bytes()
}

// TestWallSetIDDevices: a child cannot change the owner, mode or times of the machine's devices, even if the host is
// root and owns them. The devices still work.
func TestWallSetIDDevices(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	out := runAct(t, l, workspace, `open("/dev/null", "w").write("x"); open("/dev/full").read(1); open("/dev/urandom", "rb").read(1); ok()`, NetworkNone)
	must.That(t, bytes.Contains(out, []byte("ESCAPED")), "devices do not work: %s", out)
	if slices.ContainsFunc(l.Findings(), func(f Finding) bool { return f.Name == findMount && !f.OK }) {
		return // the mounts of devices are under test
	}
	// each act sets what is already there, so that it does no harm if it works
	for name, act := range map[string]string{
		"chmod":                 `os.chmod(D, S.st_mode & 0o7777)`,
		"chmod by a descriptor": `os.fchmod(os.open(D, os.O_RDONLY), S.st_mode & 0o7777)`,
		"chmod through proc":    `os.chmod("/proc/self/fd/%d" % os.open(D, os.O_RDONLY), S.st_mode & 0o7777)`,
		"chown":                 `os.chown(D, os.getuid(), os.getgid())`,
		"times":                 `os.utime(D, ns=(S.st_atime_ns, S.st_mtime_ns))`,
		"times to now":          `call("utimensat", os.open(D, os.O_RDWR), None, None, 0)`,
		"attributes":            `os.setxattr(D, "security.a2e-test", b"", os.XATTR_REPLACE)`,
	} {
		for _, device := range []string{"null", "urandom"} {
			if os.Geteuid() != 0 && name == "times to now" {
				continue // anybody who can write to a device can set its times to now
			}
			t.Run(name+" of "+device, func(t *testing.T) {
				out := runAct(t, l, workspace, `D = "/dev/`+device+`"; S = os.stat(D); `+act+`; ok()`, NetworkNone)
				assert.That(t, !bytes.Contains(out, []byte("ESCAPED")), "it went well: %s", out)
			})
		}
	}
}

// TestSetIDOrdinary: the rules do not disturb ordinary work.
func TestSetIDOrdinary(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	shared := filepath.Join(workspace, "shared")
	must.OK(t, os.Mkdir(shared, 0o755), os.Chmod(shared, 0o755|fs.ModeSetgid))
	fillSetID(t, workspace)
	for name, script := range map[string]string{
		"chmod":                            `chmod 700 f && chmod a+x f && chmod 1777 d`,
		"a folder of a group":              `mkdir shared/sub && touch shared/sub/file && [ -g shared/sub ] && [ ! -g shared/sub/file ]`,
		"copies of folders":                `cp -a d d2 && cp -r shared shared2 && install -m 755 f i && mkdir -p -m 700 x/y`,
		"an archive":                       `tar -cf a.tar f d && mkdir out && tar -xpf a.tar -C out && [ -x out/f ]`,
		"a file of the owner with the bit": `cp owned copy && [ ! -u copy ] && mv owned moved && [ -u moved ] && mv moved owned`,
		"git":                              `git init -q g && cd g && touch f && git add f && git -c user.name=a -c user.email=a@b commit -qm m && git gc -q`,
		"a temporary file":                 `python3 -c 'import tempfile; tempfile.TemporaryFile().write(b"x"); tempfile.mkdtemp()'`,
	} {
		t.Run(name, func(t *testing.T) {
			out, state := tryPolicy(t, l, Policy{Dir: workspace}, script)
			assert.Equal(t, state.Code, 0, "%v: %s", state, out)
		})
	}
}

// setIDArchive returns a tar archive with a file that has both bits.
func setIDArchive(t *testing.T) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{
		Name: "unpacked", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 1, Uid: os.Getuid(),
		Gid: os.Getgid(),
	})
	if err == nil {
		_, err = w.Write([]byte("x"))
	}
	must.OK(t, err, w.Close())
	return archive.Bytes()
}
