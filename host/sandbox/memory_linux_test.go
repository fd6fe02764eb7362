package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"a2e/host/hosttest/poll"
)

// TestBlindLauncher ends a tree that is not seen any more, and says why.
func TestBlindLauncher(t *testing.T) {
	all := levels(BestEffort)
	for _, lv := range []level{all[0], all[len(all)-1]} {
		t.Run(string(lv.mechanism), func(t *testing.T) {
			l, workspace, _ := walled(t, Options{})
			l.start.levels = []level{lv}
			policy, _, _ := shell(t, `exec sleep "$1"`, mark.new())
			policy.Dir = workspace
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p, err := l.Command(ctx, policy)
			must(t, err)
			c, ok := p.child.(*launched)
			if !ok {
				t.Fatalf("a child of type %T", p.child)
			}
			must(t, unix.Prlimit(c.proc.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{}, nil))
			_, err = p.Wait()
			if !errors.Is(err, ErrLauncher) || !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "watch the memory") {
				t.Errorf("without descriptors: %v", err)
			}
		})
	}
}

// TestMemoryOfOthers lets a tree be while the machine's other programs take
// memory that no process shows, also when it has files without a name itself.
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
	must(t, err)
	defer stdin.Close()
	defer in.Close()
	policy.Dir, policy.Limits, policy.Stdin = workspace, Limits{MemoryBytes: 150 << 20}, stdin
	p := begin(t, l, policy)
	fd, err := unix.MemfdCreate("a2e-test", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Fallocate(fd, 0, 0, 250<<20))
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

// TestFilterAllows runs what stands close to that which is refused: a program's
// own limits and schedule, and those of its threads and children.
func TestFilterAllows(t *testing.T) {
	l, workspace, _ := walled(t, Options{Mode: Required})
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
for pid in 0, os.getpid(), child:
    os.sched_setaffinity(pid, one)
    os.setpriority(os.PRIO_PROCESS, pid, max(5, os.getpriority(os.PRIO_PROCESS, pid)))
    os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
def pin():
    libc.pthread_self.restype = ctypes.c_void_p
    assert libc.pthread_setaffinity_np(ctypes.c_void_p(libc.pthread_self()), ctypes.c_size_t(8), ctypes.byref(ctypes.c_ulong(1 << min(one)))) == 0
    done.append(threading.get_native_id())
done = []
thread = threading.Thread(target=pin)
thread.start()
thread.join()
assert done
os.setpriority(os.PRIO_PGRP, 0, max(6, os.getpriority(os.PRIO_PROCESS, 0)))
os.getpriority(os.PRIO_PROCESS, os.getppid()), os.sched_getaffinity(os.getppid())
socket.socketpair()
os.kill(child, 9)
os.waitpid(child, 0)
print("all")'`)
	if state.Code != 0 || out != "all\n" {
		t.Errorf("%v, %s", state, out)
	}
	for _, tool := range [][]string{
		{"nice", "-n", "3", "true"}, {"taskset", "-c", "0", "true"}, {"chrt", "--batch", "0", "true"}, {"ionice", "-c", "3", "true"},
		{"prlimit", "--nofile=50", "true"},
	} {
		if _, err := LookPath(tool[0], SafePath(os.Getenv("PATH"), ""), ""); err != nil {
			t.Logf("%s is not here", tool[0])
			continue
		}
		if out, state := try(t, l, workspace, strings.Join(tool, " ")); state.Code != 0 {
			t.Errorf("%v: %v, %s", tool, state, out)
		}
	}
}

// awaitLooks waits until the launcher of a tree has looked at it some times: each
// look ends in a pause, which shows as a switch of a thread.
func awaitLooks(t *testing.T, p *Process) {
	t.Helper()
	c, ok := p.child.(*launched)
	if !ok {
		t.Fatalf("a child of type %T", p.child)
	}
	switches := func() (n int64) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", c.proc.Pid))
		must(t, err)
		for _, file := range files {
			text, _ := os.ReadFile(file) // the thread may have ended
			n += after(bytes.Fields(text), "voluntary_ctxt_switches:")
		}
		return n
	}
	before := switches()
	poll.Eventually(t, "the launcher looks", func() bool { return switches() >= before+4 })
}
