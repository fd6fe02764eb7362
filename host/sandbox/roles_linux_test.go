package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"a2e/host/hosttest/built"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/plain"
)

// marks makes numbers of seconds for sleep that no other process uses.
type marks struct{ next atomic.Int64 }

var mark marks

func (m *marks) new() string {
	return strconv.FormatInt(100_000_000+int64(os.Getpid())*10_000+m.next.Add(1), 10)
}

// sleepers returns the pids of the processes that sleep for exactly this number of seconds.
func sleepers(t *testing.T, seconds string) []int {
	t.Helper()
	files := must.Get(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	var pids []int
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !slices.Equal(strings.Split(string(data), "\x00"), []string{"sleep", seconds, ""}) {
			continue
		}
		pid := must.Get(strconv.Atoi(filepath.Base(filepath.Dir(file))))(t)
		pids = append(pids, pid)
	}
	return pids
}

// treeScript starts children, sessions of their own, and orphans of both kinds: treeSize processes that sleep for $1
// seconds.
const (
	treeScript = `
trap '' TERM HUP INT
for i in 1 2 3 4 5 6 7 8; do
	sleep "$1" &
	setsid sleep "$1" &
	(setsid sh -c 'sleep "$1" & sleep "$1"' sh "$1" &)
	(sh -c '(setsid sleep "$1" &); sleep "$1"' sh "$1" &)
done
sleep "$1" &
sleep "$1"`
	treeSize = 50
)

// The roles that the test binary can play, by the value of roleVar.
const (
	roleVar   = "SANDBOX_TEST_ROLE"
	homeVar   = "SANDBOX_TEST_HOME" // home of its children
	roleHost  = "host"              // starts the tree through a Launcher and waits until it is killed
	roleLoose = "loose"             // starts the tree without a Launcher
	rolePrint = "print"             // runs a script and passes on its output
	roleWhere = "where"             // prints the kernel's name of its working directory
	rolePlain = "plain"             // becomes another role, as in a plain container
	roleBare  = "bare"              // the same, on a kernel without Landlock
	roleOne   = "one"               // starts the command that its JSON argument describes through a Launcher
)

func play(role string, args []string) int {
	if err := playRole(role, args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func playRole(role string, args []string) error {
	if role == roleWhere {
		var path [4096]byte
		n, err := unix.Getcwd(path[:])
		fmt.Printf("%s\n", bytes.TrimRight(path[:n], "\x00"))
		return err
	}
	switch role {
	case rolePlain, roleBare:
		var absent []uint32
		if role == roleBare {
			absent = []uint32{unix.SYS_LANDLOCK_CREATE_RULESET}
		}
		env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, roleVar+"=") })
		return plain.Exec("/proc/self/exe", append([]string{"role"}, args[1:]...), append(env, roleVar+"="+args[0]),
			absent...)
	case roleOne:
		return playOne(args[0])
	}
	dirs := SafePath(os.Getenv("PATH"), "")
	sh, err := LookPath("sh", dirs, "")
	if err != nil {
		return err
	}
	if role == roleLoose {
		return exec.Command(sh, "-c", treeScript, "sh", args[1]).Run()
	}
	l, err := New(Options{Home: os.Getenv(homeVar), Workspace: filepath.Dir(os.Getenv(homeVar))})
	if err != nil {
		return err
	}
	defer l.Close()
	if args[0] != "" {
		l.start.levels = slices.DeleteFunc(levels(BestEffort),
			func(v level) bool { return string(v.mechanism) != args[0] })
	}
	script := treeScript
	if role == rolePrint {
		script = args[1]
	}
	p, err := l.Command(context.Background(), Policy{
		Path: sh, Args: []string{"sh", "-c", script, "sh", args[1]}, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		return err
	}
	state, err := p.Wait()
	if err == nil && state.Code != 0 {
		err = fmt.Errorf("%v", state)
	}
	return err
}

// one is a command that roleOne starts.
type one struct {
	Launcher  string
	Mode      Mode
	Workspace string
	Read      []string
	Path, Dir string
	Args      []string
	Network   Network
	Limits    Limits
}

func playOne(text string) error {
	var o one
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	l, err := New(Options{Launcher: o.Launcher, Mode: o.Mode, Workspace: o.Workspace, Read: o.Read})
	if err != nil {
		return err
	}
	defer l.Close()
	p, err := l.Command(context.Background(), Policy{
		Path: o.Path, Dir: o.Dir, Args: o.Args, Network: o.Network, Limits: o.Limits, Stdout: os.Stdout,
		Stderr: os.Stdout,
	})
	if err != nil {
		return err
	}
	state, err := p.Wait()
	fmt.Println(state)
	return err
}

// inPlain runs a command through a Launcher of a host in a plain container, and returns the output of both.
func inPlain(t *testing.T, o *one) string {
	t.Helper()
	return inContainer(t, rolePlain, o)
}

func inContainer(t *testing.T, role string, o *one) string {
	t.Helper()
	o.Launcher = built.Launcher(t)
	text := must.Get(json.Marshal(o))(t)
	host := asRole(t, role, roleOne, string(text))
	host.Stderr = nil
	out, err := host.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v", out, err)
	}
	return string(out)
}

// asRole returns a command that runs this test binary in a role.
func asRole(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "role"
	cmd.Env = append(os.Environ(), roleVar+"="+role, homeVar+"="+t.TempDir(), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	return cmd
}
