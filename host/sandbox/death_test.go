//go:build linux

package sandbox

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// TestHostKilled: no process of a tree survives if its host is killed with SIGKILL.
func TestHostKilled(t *testing.T) {
	// a check that without a Launcher such a tree outlives its host
	seconds := mark.new()
	host := asRole(t, roleLoose, "", seconds)
	killHost(t, host, seconds)
	left := sleepers(t, seconds)
	for _, pid := range left {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	must.Equal(t, len(left), treeSize, "control: … of … survive")

	// the weaker levels are only the fallback, so fewer rounds are enough
	const strongest, others = 4, 2
	all := usable(t)
	for i, lv := range all {
		if i > 0 && lv.mechanism == all[0].mechanism {
			continue // the same level without its capabilities: nothing else would hold the tree
		}
		t.Run(string(lv.mechanism), func(t *testing.T) {
			rounds, longest := others, time.Duration(0)
			if i == 0 {
				rounds = strongest
			}
			for range rounds {
				seconds := mark.new()
				killHost(t, asRole(t, roleHost, string(lv.mechanism), seconds), seconds)
				killed := time.Now()
				poll.Eventually(t, "no survivor", func() bool { return len(sleepers(t, seconds)) == 0 })
				longest = max(longest, time.Since(killed))
			}
			t.Logf("%d hosts killed, each with %d processes; the last one was gone after %v at most", rounds, treeSize,
				longest)
		})
	}
}

// killHost starts a host, waits until its whole tree runs, and kills only the host.
func killHost(t *testing.T, host *exec.Cmd, seconds string) {
	t.Helper()
	must.OK(t, host.Start())
	poll.Eventually(t, "the tree runs", func() bool { return len(sleepers(t, seconds)) == treeSize })
	must.OK(t, host.Process.Kill())
	_ = host.Wait() // the error says that it was killed
}

// TestThreads guards against Pdeathsig, which fires when a thread ends while the host lives: children are started
// from goroutines whose threads end.
func TestThreads(t *testing.T) {
	l := newLauncher(t, Options{})
	seconds := mark.new()
	const many = 5
	started := make(chan *Process, many)
	for range many {
		go func() {
			runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
			policy, _, _ := shell(t, `sleep "$1"`, seconds)
			p, err := l.Command(context.WithoutCancel(t.Context()), policy)
			assert.OK(t, err)
			started <- p
		}()
	}
	var all []*Process
	for range many {
		all = append(all, <-started)
	}
	poll.Eventually(t, "all run", func() bool { return len(sleepers(t, seconds)) == many })
	runShell(t, l, "exit 0", nil) // they still run after the time of a whole start
	assert.Equal(t, len(sleepers(t, seconds)), many, "… of … still run")
	for _, p := range all {
		killed(t, p)
	}
}

// TestStormOfStarts: many starts at the same time, while the host forks in other ways too, leak no pipe end into
// another process, which would make a call wait.
func TestStormOfStarts(t *testing.T) {
	l := newLauncher(t, Options{})
	stop := make(chan struct{})
	forks := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				forks <- nil
				return
			default:
				err = exec.Command("/bin/sh", "-c", "ls -l /proc/self/fd >/dev/null").Run()
			}
		}
		forks <- err
	}()
	done := make(chan string)
	const many = 20
	for i := range many {
		go func() {
			policy, stdout, _ := shell(t, "cat; ls /proc/self/fd | wc -l")
			policy.Stdin = strings.NewReader(strconv.Itoa(i) + "\n")
			p, err := l.Command(t.Context(), policy)
			if err != nil {
				done <- err.Error()
				return
			}
			if _, err := p.Wait(); err != nil || stdout.String() != strconv.Itoa(i)+"\n4\n" {
				done <- "output " + stdout.String()
				return
			}
			done <- ""
		}()
	}
	for range many {
		assert.Equal(t, <-done, "")
	}
	close(stop)
	assert.OK(t, <-forks)
}

// TestFallsBack: a level that the machine refuses is skipped, and the next one is used.
func TestFallsBack(t *testing.T) {
	l := newLauncher(t, Options{})
	// There is no capability 63.
	refused := level{MechanismUserPIDNamespace, syscall.SysProcAttr{AmbientCaps: []uintptr{63}}}
	l.start.levels = []level{refused, refused, {mechanism: MechanismSubreaper}}
	if got := runShell(t, l, "echo fine", nil); got != "fine\n" || l.Mechanism() != MechanismSubreaper {
		t.Errorf("%q by %q", got, l.Mechanism())
	}

	l = newLauncher(t, Options{})
	l.start.levels = []level{refused}
	if _, err := l.Command(t.Context(), Policy{Path: "/bin/sh"}); err == nil || l.Mechanism() != "" {
		t.Errorf("nothing works: %v, %q", err, l.Mechanism())
	}
}

// TestIgnoredSignals: children do not inherit that the host's parent ignores signals.
func TestIgnoredSignals(t *testing.T) {
	host := asRole(t, rolePrint, "", "grep -E '^Sig(Ign|Blk)' /proc/self/status")
	host.Path = program(t, "sh")
	host.Args = append([]string{"sh", "-c", `trap '' HUP INT QUIT PIPE TERM; exec "$0" "$@"`, exePath(t)},
		host.Args[1:]...)
	out := must.Get(host.Output())(t)
	lines := strings.Fields(string(out))
	assert.That(t, len(lines) == 4 && strings.Trim(lines[1]+lines[3], "0") == "", "status %q", out)
	control := exec.Command(host.Path, "-c", `trap '' HUP; exec grep ^SigIgn /proc/self/status`)
	if out, err := control.Output(); err != nil || strings.Trim(strings.Fields(string(out))[1], "0") == "" {
		t.Errorf("control: %q, %v", out, err)
	}
}

func exePath(t *testing.T) string {
	exe := must.Get(os.Executable())(t)
	return exe
}

// TestUnprivileged: a host that is not root works, and its commands have no capabilities.
func TestUnprivileged(t *testing.T) {
	const nobody = 65534
	host := asRole(t, rolePrint, "", "id -u; grep -E '^Cap(Eff|Prm|Amb)' /proc/self/status; sleep 0 & exit 0")
	want := strconv.Itoa(os.Geteuid())
	if os.Geteuid() == 0 {
		host.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		host.Dir, host.Env = "/", append(host.Env, "TMPDIR=/tmp") // the user's own TMPDIR may be closed to others
		want = strconv.Itoa(nobody)
	}
	out := must.Get(host.StdoutPipe())(t)
	must.OK(t, host.Start())
	var lines []string
	for scan := bufio.NewScanner(out); scan.Scan(); {
		lines = append(lines, scan.Text())
	}
	err := host.Wait()
	must.That(t, err == nil && len(lines) == 4 && lines[0] == want, "%v, %q", err, lines)
	for _, line := range lines[1:] {
		_, value, _ := strings.Cut(line, "\t")
		assert.Equal(t, strings.Trim(value, "0"), "", "the command has a capability: %s", line)
	}
}

// TestPrivateProc: in a namespace a child sees only its own processes in /proc, with the right pids, so it cannot see
// the host's environment.
func TestPrivateProc(t *testing.T) {
	l := newLauncher(t, Options{})
	got := runShell(t, l, `[ "$(cut -d' ' -f1 /proc/$$/stat)" = $$ ] && echo fits; ls -d /proc/[0-9]* | wc -l`, nil)
	if l.Mechanism() == MechanismSubreaper {
		return // a subreaper has no namespace
	}
	count, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(got, "fits\n")))
	assert.That(t, err == nil && count <= 5, "output %q", got)
}
