package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inScript is a command that runs a script in a workspace of its own.
func inScript(t *testing.T, script string) *one {
	t.Helper()
	dir := t.TempDir()
	return &one{Workspace: dir, Dir: dir, Path: program(t, "sh"), Args: []string{"sh", "-c", script}}
}

// TestWallNothingHolds: where there are neither namespaces nor Landlock no child starts
// unless the config says `sandbox: off`. It guards against children that read everything.
func TestWallNothingHolds(t *testing.T) {
	for mode, want := range map[Mode]string{
		BestEffort: "nothing would keep a child from the files of this machine, which lacks: mount_namespace (",
		Required:   "the sandbox is required, but this machine lacks: ",
	} {
		t.Run(string(mode), func(t *testing.T) {
			o := inScript(t, "touch ran")
			o.Mode = mode
			out := inContainer(t, roleBare, o)
			if !strings.Contains(out, want) || !strings.Contains(out, "landlock (") || !strings.Contains(out, "`sandbox: ") {
				t.Errorf("%s", out)
			}
			if _, err := os.Stat(filepath.Join(o.Workspace, "ran")); !os.IsNotExist(err) {
				t.Errorf("the command ran: %v", err)
			}
		})
	}
	o := inScript(t, "touch ran")
	o.Mode = Off
	if out := inContainer(t, roleBare, o); out != "exit status 0\n" {
		t.Errorf("switched off: %s", out)
	}
}

// TestPlainPrograms runs in a plain container what agents run, with all that changes modes,
// owners and times on the way: the warden and the filter must let it.
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
			if out := inPlain(t, inScript(t, script)); !strings.HasSuffix(out, "exit status 0\n") {
				t.Errorf("%s", out)
			}
		})
	}
}
