package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// walled returns a launcher with a workspace of its own, and a secret file beside the workspace.
func walled(t *testing.T, opts Options) (l *Launcher, workspace, secret string) {
	t.Helper()
	base := t.TempDir()
	workspace, secret = filepath.Join(base, "workspace"), filepath.Join(base, "secret")
	must.OK(t, os.Mkdir(workspace, 0o700), os.WriteFile(secret, []byte("geheim"), 0o600))
	opts.Workspace = workspace
	return newLauncher(t, opts), workspace, secret
}

// TestEachLevelHolds: every level keeps children from files and from the network; the weakest one by Landlock and the
// filter alone.
func TestEachLevelHolds(t *testing.T) {
	for i, lv := range usable(t) {
		t.Run(string(lv.mechanism), func(t *testing.T) {
			if i > 0 {
				lv.sys.AmbientCaps = nil
			}
			l, workspace, secret := walled(t, Options{})
			l.start.levels = []level{lv}
			outside := filepath.Join(filepath.Dir(secret), "written")
			for name, act := range map[string]string{
				"read":    `cat "$1"`,
				"write":   `echo x > "$2"; exit 1`, // there may be a folder with this name
				"link":    `ln -s "$1" link && cat link`,
				"network": `exec python3 -c 'import socket; socket.socket()'`,
				"ptrace":  `exec python3 -c 'import ctypes, os, sys; l = ctypes.CDLL(None, use_errno=True); sys.exit(l.ptrace(0, 0, 0, 0) != 0)'`,
			} {
				out, state := try(t, l, workspace, act, secret, outside)
				assert.That(t, state.Code != 0 && !strings.Contains(out, "geheim"), "%s: %v, %q", name, state, out)
			}
			_, err := os.Stat(outside)
			assert.That(t, os.IsNotExist(err), "a file appeared outside: %v", err)
			out, state := try(t, l, workspace, `echo data > inside && cat inside && echo x > "$TMPDIR/x" && echo y > "$HOME/y" && ls /usr/bin >/dev/null`)
			assert.That(t, state.Code == 0 && out == "data\n", "what is granted: %v, %q", state, out)
		})
	}
}

// TestRequired: in the mode "required" a child that cannot be confined is refused, with the reason.
func TestRequired(t *testing.T) {
	l, workspace, _ := walled(t, Options{Mode: Required})
	fillReadOnly(t, workspace)
	if !plainContainer() {
		out, state := tryPolicy(t, l, Policy{Dir: workspace, ReadOnly: []string{workspace}}, "cat old; echo x > new")
		assert.That(t, state.Code != 0 && strings.HasPrefix(out, "old"), "with all mechanisms: %v, %q", state, out)
	}
	weak, workspace, _ := walled(t, Options{Mode: Required})
	all := levels(Required)
	weak.start.levels = all[len(all)-1:]
	for _, readOnly := range [][]string{nil, {workspace}} {
		policy, _, _ := shell(t, "touch ran")
		policy.Dir, policy.ReadOnly = workspace, readOnly
		_, err := weak.Command(t.Context(), policy)
		var missing *MissingError
		assert.That(t, errors.As(err, &missing) && strings.Contains(err.Error(), findPID) &&
			strings.Contains(err.Error(), "doctor"),
			"without namespaces: %v", err)
		if _, err := os.Stat(filepath.Join(workspace, "ran")); !os.IsNotExist(err) {
			t.Errorf("the command ran: %v", err)
		}
	}
}

// TestFindings: the findings of Probe are the same as those of a child that was started.
func TestFindings(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	got := l.Findings()
	assert.That(t, got == nil, "before the first child: %v", got)
	probed := must.Get(l.Probe(t.Context()))(t)
	try(t, l, workspace, "true")
	started := l.Findings()
	assert.That(t, slices.Equal(probed, started) && len(started) == len(mechanisms()), "probed %v, started with %v",
		probed, started)
	for _, f := range probed {
		assert.That(t, f.OK == (f.Reason == "") && f.Effect != "", "finding %+v", f)
	}
	if quick := Quick(BestEffort); len(quick) > len(missingRequired(probed)) {
		t.Errorf("Quick names %v, Probe %v", quick, missingRequired(probed))
	}

	weak, workspace, _ := walled(t, Options{})
	all := levels(BestEffort)
	weak.start.levels = all[len(all)-1:]
	try(t, weak, workspace, "true")
	var names []string
	for _, f := range missingRequired(weak.Findings()) {
		names = append(names, f.Name)
	}
	for _, want := range []string{findUser, findPID} {
		assert.That(t, slices.Contains(names, want), "as a subreaper, %v are missing; %s should be among them", names,
			want)
	}
	off := newLauncher(t, Options{Mode: Off})
	runShell(t, off, "true", nil)
	if off.Findings() != nil || Quick(Off) != nil {
		t.Errorf("switched off: %v, %v", off.Findings(), Quick(Off))
	}
}

// TestOff: without a sandbox nothing is confined, but trees of processes still end.
func TestOff(t *testing.T) {
	l, workspace, secret := walled(t, Options{Mode: Off})
	out, state := try(t, l, workspace, `cat "$1"`, secret)
	assert.That(t, state.Code == 0 && out == "geheim", "%v, %q", state, out)
	out, _ = try(t, l, workspace, "id -u")
	assert.Equal(t, strings.TrimSpace(out), strconv.Itoa(os.Geteuid()), "user %s", out)
}

// TestRead: folders that the config grants can be read but not written, also through links.
func TestRead(t *testing.T) {
	shared := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must.OK(t, os.WriteFile(filepath.Join(shared, "data"), []byte("shared"), 0o600), os.Symlink(shared, link))
	l, workspace, _ := walled(t, Options{Read: []string{link, filepath.Join(shared, "nothing here")}})
	out, state := try(t, l, workspace, `cat "$1/data" "$2/data"`, shared, link)
	assert.That(t, state.Code == 0 && out == "sharedshared", "read: %v, %q", state, out)
	out, state = try(t, l, workspace, `echo x > "$1/data"`, link)
	assert.That(t, state.Code != 0, "written: %v, %q", state, out)
}

// TestTemp: children share a temporary folder that is not the machine's.
func TestTemp(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	tmp := "/tmp"
	if plainContainer() {
		tmp = "$TMPDIR"
	}
	try(t, l, workspace, "echo kept > "+tmp+"/a2e-test-file")
	out, state := try(t, l, workspace, "cat "+tmp+"/a2e-test-file $TMPDIR/a2e-test-file")
	assert.That(t, state.Code == 0 && out == "kept\nkept\n", "%v, %q", state, out)
	_, err := os.Stat("/tmp/a2e-test-file")
	assert.That(t, os.IsNotExist(err), "in the machine's own: %v", err)
}

// TestTerminal: a command gets its terminal as the controlling terminal, which has a name.
func TestTerminal(t *testing.T) {
	host, child, err := pty.Open()
	must.OK(t, err)
	defer host.Close()
	l, workspace, _ := walled(t, Options{})
	policy, _, _ := shell(t, `tty; echo hello > /dev/tty; stty -echo; read answer; echo "got $answer"`)
	policy.Dir, policy.Terminal = workspace, true
	policy.Stdin, policy.Stdout, policy.Stderr = child, child, child
	p, err := l.Command(t.Context(), policy)
	child.Close()
	must.OK(t, err)
	must.Get(host.WriteString("word\n"))(t)
	var out strings.Builder
	buf := make([]byte, 1024)
	for {
		n, err := host.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			break // EIO: no process has the terminal open any more
		}
	}
	if state, err := p.Wait(); state.Code != 0 || err != nil {
		t.Errorf("%v, %v", state, err)
	}
	name := "/dev/console"
	if plainContainer() {
		name = child.Name()
	}
	for _, want := range []string{name + "\r\n", "hello\r\n", "got word\r\n"} {
		assert.Contains(t, out.String(), want, "… lacks")
	}
}

// TestNetwork: a child reaches the host's network if its policy says so.
func TestNetwork(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	policy, stdout, stderr := shell(t, `exec python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print("bound")'`)
	policy.Dir, policy.Network = workspace, NetworkHost
	state, err := begin(t, l, policy).Wait()
	assert.That(t, state.Code == 0 && err == nil && stdout.String() == "bound\n", "with the host's network: %v, %v, "+
		"%q, %q", state, err, stdout, stderr)
}

// TestProcessLimit: the number of processes in a tree is limited, even if the tree runs as root.
func TestProcessLimit(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	policy, stdout, _ := shell(t, `exec python3 -c '
import os, signal
n = 0
try:
    while n < 2000:
        if os.fork() == 0:
            signal.pause()
        n += 1
except BlockingIOError:
    pass
print(n)'`)
	policy.Dir, policy.Limits = workspace, Limits{Processes: 50}
	_, err := begin(t, l, policy).Wait()
	if plainContainer() && errors.Is(err, ErrProcesses) {
		return // the launcher has watched the tree and ended it
	}
	must.OK(t, err)
	limited := slices.ContainsFunc(l.Findings(), func(f Finding) bool { return f.Name == findProcesses && f.OK })
	got := strings.TrimSpace(stdout.String())
	assert.That(t, limited != (got == "2000"), "%s processes were started; the limit is there: %t", got, limited)
}

// TestStale: folders that a killed host left behind are removed, and no others.
func TestStale(t *testing.T) {
	temp := t.TempDir()
	left, held, fresh := filepath.Join(temp, privatePrefix+"left"), filepath.Join(temp, privatePrefix+"held"),
		filepath.Join(temp, privatePrefix+"fresh")
	for _, dir := range []string{left, held, fresh} {
		must.OK(t, os.MkdirAll(filepath.Join(dir, "home", "cache"), 0o700))
	}
	must.OK(t, os.Chmod(filepath.Join(left, "home", "cache"), 0o500))
	lock := must.Get(LockDir(held))(t)
	defer lock.Close()
	for _, dir := range []string{left, held} {
		old := time.Now().Add(-2 * staleAfter)
		must.OK(t, os.Chtimes(dir, old, old))
	}
	removeStale(t.Context(), temp)
	for dir, want := range map[string]bool{left: false, held: true, fresh: true} {
		_, err := os.Stat(dir)
		assert.Equal(t, (err == nil), want, "%s: %v", filepath.Base(dir), err)
	}
}

// TestCgroup: delegate turns on the controllers in a folder with plain files in place of the kernel's, and ownCgroup
// finds the cgroup of a process.
func TestCgroup(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"cgroup.controllers": "cpu memory pids\n", "cgroup.subtree_control": "cpu\n",
		"cgroup.procs": "1\n2\n",
	}
	for name, text := range files {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	c := &cgroups{dir: dir}
	must.OK(t, c.delegate(42))
	got, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	assert.That(t, strings.HasPrefix(string(got), "+memory +pids"), "controllers %q", got)
	must.OK(t, os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory"), 0o600))
	assert.Fails(t, c.delegate(42), "pids", "without pids")
	for name, tc := range map[string]struct{ mountinfo, cgroup, want string }{
		"unified": {
			"30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/user.slice/x\n",
			"/sys/fs/cgroup/user.slice/x",
		},
		"hybrid": {
			"30 1 0:26 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 none rw\n", "5:pids:/a\n0::/\n",
			"/sys/fs/cgroup/unified",
		},
		"subtree": {
			"30 1 0:26 /docker/1 /sys/fs/cgroup rw - cgroup2 none rw\n", "0::/docker/1/sub\n",
			"/sys/fs/cgroup/sub",
		},
		"v1 only": {"30 1 0:26 / /sys/fs/cgroup/pids rw - cgroup none rw\n", "5:pids:/a\n", ""},
		"outside": {"30 1 0:26 /docker/1 /sys/fs/cgroup rw - cgroup2 none rw\n", "0::/other\n", ""},
	} {
		got, err := ownCgroup(tc.mountinfo, tc.cgroup)
		assert.That(t, got == tc.want && (err == nil) == (tc.want != ""), "%s: %q, %v", name, got, err)
	}
}

// TestMemoryLimit: a tree that takes more memory than its limit is ended with an error that says so. Memory that its
// processes share counts once.
func TestMemoryLimit(t *testing.T) {
	all := usable(t)
	for _, lv := range []level{all[0], all[len(all)-1]} {
		t.Run(string(lv.mechanism), func(t *testing.T) {
			l, workspace, _ := walled(t, Options{})
			l.start.levels = []level{lv}
			run := func(limits Limits, script string) (State, error) {
				policy, _, _ := shell(t, "exec python3 -c '"+script+"'")
				policy.Dir, policy.Limits = workspace, limits
				p := must.Get(l.Command(context.Background(), policy))(t)
				return p.Wait()
			}
			const shared = `
import os, time
b = bytearray(os.urandom(1 << 20) * 100)
pids = [os.fork() for i in range(4)]
time.sleep(1)`
			state, err := run(Limits{MemoryBytes: 300 << 20}, shared)
			assert.That(t, state.Code == 0 && err == nil, "100 MB that five share: %v, %v", state, err)
			_, err = run(Limits{MemoryBytes: 300 << 20}, "import os, time; b = bytearray(os.urandom(1 << 20) * "+
				"400); time.sleep(1000)")
			assert.That(t, errors.Is(err, ErrMemory), "above the limit: %v", err)
			state, err = run(Limits{AddressBytes: 400 << 20},
				"import resource, time\n"+awaitBound+"b = bytearray(600 << 20)")
			assert.That(t, state.Code == 1 && err == nil, "above the address space: %v, %v", state, err)
		})
	}
}

// TestDirFileHasAName guards against a working directory that is in the host's mount namespace: in a command with its
// own namespace getcwd returns "(unreachable)" for it. Some C libraries and shells find the name in another way, or
// trust PWD; others fail.
func TestDirFileHasAName(t *testing.T) {
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	opened, err1 := os.Open(dir)
	self, err2 := os.Executable()
	must.OK(t, err1, err2)
	defer opened.Close()
	for _, lv := range levels(Off) {
		l := newLauncher(t, Options{Mode: Off})
		l.start.levels = []level{lv}
		var out bytes.Buffer
		p, err := l.Command(t.Context(), Policy{
			Path: self, Dir: dir, DirFile: opened, HostEnv: map[string]string{roleVar: roleWhere}, Stdout: &out,
			Stderr: &out,
		})
		if unavailable(err) {
			continue // this machine does not have the level
		} else if err != nil {
			t.Fatal(err)
		}
		if state, err := p.Wait(); err != nil || state.Code != 0 || out.String() != dir+"\n" {
			t.Errorf("%s: %v, %v, %q, want %q", lv.mechanism, state, err, &out, dir)
		}
	}
}

// TestBlindLauncher: a tree that its launcher can no longer watch is ended, with the reason.
func TestBlindLauncher(t *testing.T) {
	all := usable(t)
	for _, lv := range []level{all[0], all[len(all)-1]} {
		t.Run(string(lv.mechanism), func(t *testing.T) {
			l, workspace, _ := walled(t, Options{})
			l.start.levels = []level{lv}
			policy, _, _ := shell(t, `exec sleep "$1"`, mark.new())
			policy.Dir = workspace
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p, err := l.Command(ctx, policy)
			must.OK(t, err)
			c, ok := p.child.(*launched)
			must.That(t, ok, "a child of type %T", p.child)
			must.OK(t, unix.Prlimit(c.proc.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil))
			_, err = p.Wait()
			saysWhy := errors.Is(err, unix.EMFILE) && strings.Contains(err.Error(), "watch the memory") ||
				strings.Contains(fmt.Sprint(err), "eventfd failed") // Go's runtime, whose poller had just not begun
			assert.That(t, errors.Is(err, ErrLauncher) && saysWhy, "without descriptors: %v", err)
		})
	}
}

// TestMemoryOfOthers: a tree is not ended because other programs of the machine take memory that no process shows,
// even if the tree has files without a name itself.
func TestMemoryOfOthers(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	policy, stdout, stderr := shell(t, `exec python3 -c '
import os, socket, sys
fs = [os.memfd_create("x") for i in range(3)]
for f in fs:
    os.write(f, b"x" * (1 << 20))
pair = socket.socketpair()
open("ready", "w").close()
sys.stdin.read()
print("alive")'`)
	stdin, in, err := os.Pipe()
	must.OK(t, err)
	defer stdin.Close()
	defer in.Close()
	policy.Dir, policy.Limits, policy.Stdin = workspace, Limits{MemoryBytes: 150 << 20}, stdin
	p := begin(t, l, policy)
	fd := must.Get(unix.MemfdCreate("a2e-test", unix.MFD_CLOEXEC))(t)
	defer unix.Close(fd)
	must.OK(t, unix.Fallocate(fd, 0, 0, 250<<20))
	poll.Eventually(t, "the files are there", func() bool {
		_, err := os.Stat(filepath.Join(workspace, "ready"))
		return err == nil
	})
	awaitLooks(t, p)
	in.Close()
	if state, err := p.Wait(); state.Code != 0 || err != nil || stdout.String() != "alive\n" {
		t.Errorf("%v, %v, %q, %q", state, err, stdout, stderr)
	}
}

// TestFilterAllows: the filter allows calls that are similar to those that it refuses: changes of a program's own
// limits and schedule, and of those of its threads and children.
func TestFilterAllows(t *testing.T) {
	l, workspace, _ := walled(t, Options{})
	others := "[0, os.getpid(), child]"
	if plainContainer() {
		others = "[0]" // the filter cannot tell there which others are its own
	}
	out, state := try(t, l, workspace, `exec python3 -c '
import ctypes, os, resource, signal, socket, threading
libc = ctypes.CDLL(None, use_errno=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
assert resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE) == (100, 200)
assert len(resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)) == 2
child = os.fork()
if child == 0:
    signal.pause()
one = {min(os.sched_getaffinity(0))}
for pid in `+others+`:
    os.sched_setaffinity(pid, one)
    os.setpriority(os.PRIO_PROCESS, pid, max(5, os.getpriority(os.PRIO_PROCESS, pid)))
    os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
def pin():
    libc.pthread_self.restype = ctypes.c_void_p
    assert libc.pthread_setaffinity_np(ctypes.c_void_p(libc.pthread_self()), ctypes.c_size_t(8), ctypes.byref(ctypes.c_ulong(1 << min(one)))) == 0
    done.append(threading.get_native_id())
done = []
thread = threading.Thread(target=pin)
if len(`+others+`) > 1:
    thread.start()
    thread.join()
    assert done
os.setpriority(os.PRIO_PGRP, 0, max(6, os.getpriority(os.PRIO_PROCESS, 0)))
os.getpriority(os.PRIO_PROCESS, os.getppid()), os.sched_getaffinity(os.getppid())
socket.socketpair()
os.kill(child, 9)
os.waitpid(child, 0)
print("all")'`)
	assert.That(t, state.Code == 0 && out == "all\n", "%v, %s", state, out)
	for _, tool := range [][]string{
		{"nice", "-n", "3", "true"},
		{"taskset", "-c", "0", "true"},
		{"chrt", "--batch", "0", "true"},
		{"ionice", "-c", "3", "true"},
		{"prlimit", "--nofile=50", "true"},
	} {
		if _, err := LookPath(tool[0], SafePath(os.Getenv("PATH"), ""), ""); err != nil {
			t.Logf("%s is not here", tool[0])
			continue
		}
		out, state := try(t, l, workspace, strings.Join(tool, " "))
		assert.Equal(t, state.Code, 0, "%v: %v, %s", tool, state, out)
	}
}

// awaitLooks waits until the launcher of a tree has checked it several times: each check ends in a pause, which
// counts as a context switch of a thread.
func awaitLooks(t *testing.T, p *Process) {
	t.Helper()
	c, ok := p.child.(*launched)
	must.That(t, ok, "a child of type %T", p.child)
	switches := func() (n int64) {
		files := must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", c.proc.Pid)))(t)
		for _, file := range files {
			text, _ := os.ReadFile(file) // an error means that the thread has ended
			n += after(bytes.Fields(text), "voluntary_ctxt_switches:")
		}
		return n
	}
	before := switches()
	poll.Eventually(t, "the launcher looks", func() bool { return switches() >= before+4 })
}

// TestSpare: a launcher that was started before its command was known applies that command's own bounds and folder,
// and denies files that are granted to other commands only.
func TestSpare(t *testing.T) {
	l, workspace, secret := walled(t, Options{})
	for i := range 3 {
		dir := filepath.Join(workspace, strconv.Itoa(i))
		must.OK(t, os.Mkdir(dir, 0o700))
		got := runShell(t, l, `pwd; ulimit -n; until [ $(ulimit -v) != unlimited ]; do :; done; ulimit -v; cat `+secret+` 2>&1 | wc -l; grep -c 'Seccomp:.*2' /proc/$PPID/status`, func(p *Policy) {
			p.Dir, p.Limits = dir, Limits{OpenFiles: int64(100 + i), AddressBytes: int64(1+i) << 30}
		})
		assert.Equal(t, got, fmt.Sprintf("%s\n%d\n%d\n1\n1\n", dir, 100+i, (1+i)<<20))
		l.start.fills.Wait()
	}
}
