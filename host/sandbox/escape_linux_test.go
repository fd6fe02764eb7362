package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// escape is an attempt to get out of the sandbox, as a Python program. It has worked if the program calls ok(), or,
// if there is a mark, if the text MARK is found outside.
type escape struct {
	name string
	act  string
	mark string // file in the outside folder that the act makes or changes; "temp" = grounds.Temp

	isolated bool   // outside it runs as root of its own namespaces, because it would harm the machine or needs root
	root     bool   // outside it works only for root
	alone    bool   // no other test may take memory meanwhile
	arch     string // the only architecture that has it; "" = all
	limits   Limits // the limits that stop it inside
	spaces   bool   // outside it works only on a machine with namespaces
	open     bool   // only namespaces stop it, see README.md: it works in a plain container
}

// grounds has the targets of the escapes: everything of the test that a child in the sandbox must not reach.
type grounds struct {
	Workspace string         `json:"ws"`
	Outside   string         `json:"out"`    // a folder beside the workspace
	Secret    string         `json:"secret"` // a file in the outside folder
	Temp      string         `json:"temp"`   // a file in the machine's temporary folder
	Etc       string         `json:"etc"`    // a file in /etc that is not granted
	ReadOnly  string         `json:"ro"`     // a file that is granted for reading
	Program   string         `json:"prog"`   // an executable outside
	User      int            `json:"uid"`
	Victim    int            `json:"pid"`  // pid of a process of the same user
	Host      int            `json:"host"` // pid of the process that starts the children
	TCP       int            `json:"tcp"`  // ports on loopback
	TCP6      int            `json:"tcp6"`
	UDP       int            `json:"udp"`
	Abstract  string         `json:"abs"`  // name of an abstract socket
	Unix      string         `json:"unix"` // paths of sockets in the outside folder
	Datagram  string         `json:"gram"`
	Marked    string         `json:"marked"` // a file with an extended attribute
	Memory    int            `json:"shm"`    // id of System V memory
	Queue     int            `json:"msg"`    // id of a System V message queue
	Calls     map[string]int `json:"nr"`     // numbers of system calls by name
}

const secretText = "geheim-4711"

// prelude is the beginning of each act. G is the grounds.
const prelude = `
import sys, os, json, ctypes, socket, errno, signal, time, struct
G = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    args = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    r = libc.syscall(ctypes.c_long(G["nr"][name]), *args)
    if r == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return r
def reaches(name, *args):
    # the call gets past the checks of rights, and fails on its nonsense
    try:
        call(name, *args)
    except OSError as e:
        if e.errno == errno.EPERM:
            raise
def meanwhile(seconds):
    # the launcher watches; outside there is none
    if os.getppid() != G["host"]:
        time.sleep(seconds)
def ok():
    print("ESCAPED", flush=True)
def secret(path):
    if "` + secretText + `" in open(path).read():
        ok()
`

// newGrounds makes the targets. The processes and sockets among them end with the test.
func newGrounds(t *testing.T) *grounds {
	t.Helper()
	base, err := os.MkdirTemp("", "g") // t.TempDir() is too long for the path of a socket
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, RemoveTree(context.Background(), base)) })
	g := &grounds{
		Workspace: filepath.Join(base, "ws"), Outside: filepath.Join(base, "out"), Host: os.Getpid(),
		User: os.Geteuid(), Calls: callNumbers(),
	}
	g.Secret, g.Program = filepath.Join(g.Outside, "secret"), filepath.Join(g.Outside, "program")
	granted := filepath.Join(base, "granted")
	g.ReadOnly, g.Unix, g.Datagram = filepath.Join(granted, "file"), filepath.Join(g.Outside, "s"),
		filepath.Join(g.Outside, "gram")
	must.OK(t, errors.Join(os.Mkdir(g.Workspace, 0o700), os.Mkdir(g.Outside, 0o700), os.Mkdir(granted, 0o700),
		os.WriteFile(g.Secret, []byte(secretText), 0o600), os.WriteFile(g.ReadOnly, []byte("granted"), 0o600)))
	g.Marked = filepath.Join(g.Outside, "marked")
	must.OK(t, errors.Join(os.Symlink("nowhere", filepath.Join(g.Outside, "dangling")),
		os.WriteFile(g.Marked, nil, 0o600), unix.Setxattr(g.Marked, "user.a2e", []byte("x"), 0)))
	data, err := os.ReadFile(program(t, "true"))
	if err == nil {
		err = os.WriteFile(g.Program, data, 0o700)
	}
	must.OK(t, err)
	temp := must.Get(os.CreateTemp("", "a2e-escape-"))(t)
	g.Temp = temp.Name()
	t.Cleanup(func() { os.Remove(g.Temp) })
	if _, err := temp.WriteString(secretText); err != nil || temp.Close() != nil {
		t.Fatal(err)
	}
	g.Etc = privateEtc(t)
	g.startVictim(t)
	g.listen(t)
	g.shareMemory(t)
	return g
}

// privateEtc returns a file in /etc that this user can read and children cannot.
func privateEtc(t *testing.T) string {
	for _, name := range []string{"machine-id", "fstab", "shadow", "issue", "login.defs"} {
		if file, err := os.Open("/etc/" + name); err == nil {
			file.Close()
			return "/etc/" + name
		}
	}
	t.Fatal("no file of /etc can be read")
	return ""
}

// startVictim starts the process that the escapes attack. Its pid must not also be a pid inside the sandbox: pids
// inside begin after the kernel's reserve of low numbers, as do pids outside once the numbers have wrapped around.
func (g *grounds) startVictim(t *testing.T) {
	const inside = pidReserve + 100
	for g.Victim < inside {
		victim := exec.Command(program(t, "sleep"), "1000")
		victim.Env = []string{"VICTIM=" + secretText}
		victim.Dir = g.Outside
		must.OK(t, victim.Start())
		g.Victim = victim.Process.Pid
		t.Cleanup(func() {
			_ = victim.Process.Kill()
			_ = victim.Wait() // the error says that it was killed
		})
	}
}

// shareMemory makes things that programs of a user share by System V IPC.
func (g *grounds) shareMemory(t *testing.T) {
	const size, private = 4096, 0o600
	id := must.Get(unix.SysvShmGet(unix.IPC_PRIVATE, size, unix.IPC_CREAT|private))(t)
	t.Cleanup(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	memory := must.Get(unix.SysvShmAttach(id, 0, 0))(t)
	copy(memory, secretText)
	must.OK(t, unix.SysvShmDetach(memory))
	queue, _, errno := unix.Syscall(unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|private, 0)
	must.Equal(t, errno, 0)
	t.Cleanup(func() { _, _, _ = unix.Syscall(unix.SYS_MSGCTL, queue, unix.IPC_RMID, 0) })
	g.Memory, g.Queue = id, int(queue)
}

// listen opens the sockets that no child inside may reach.
func (g *grounds) listen(t *testing.T) {
	g.Abstract = fmt.Sprintf("a2e-escape-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, s := range []struct {
		network, address string
		port             *int
	}{
		{"tcp4", "127.0.0.1:0", &g.TCP},
		{"tcp6", "[::1]:0", &g.TCP6},
		{"unix", g.Unix, nil},
		{"unix", "@" + g.Abstract, nil},
	} {
		l := must.Get(net.Listen(s.network, s.address))(t)
		t.Cleanup(func() { l.Close() })
		if s.port != nil {
			*s.port = l.Addr().(*net.TCPAddr).Port
		}
	}
	// a simple name server, which sends back each query
	conn := must.Get(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	gram := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: g.Datagram, Net: "unixgram"}))(t)
	t.Cleanup(func() { gram.Close() })
	g.UDP = conn.LocalAddr().(*net.UDPAddr).Port
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buf[:n], from) // the client may have gone
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
}

func callNumbers() map[string]int {
	all := map[string]int{
		"io_uring_setup": unix.SYS_IO_URING_SETUP, "bpf": unix.SYS_BPF, "add_key": unix.SYS_ADD_KEY,
		"keyctl":      unix.SYS_KEYCTL,
		"userfaultfd": unix.SYS_USERFAULTFD, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "ptrace": unix.SYS_PTRACE,
		"process_vm_readv": unix.SYS_PROCESS_VM_READV, "pidfd_open": unix.SYS_PIDFD_OPEN,
		"pidfd_getfd": unix.SYS_PIDFD_GETFD,
		"setns":       unix.SYS_SETNS, "unshare": unix.SYS_UNSHARE, "clone": unix.SYS_CLONE, "clone3": unix.SYS_CLONE3,
		"mount":   unix.SYS_MOUNT,
		"umount2": unix.SYS_UMOUNT2, "chroot": unix.SYS_CHROOT, "fsopen": unix.SYS_FSOPEN,
		"open_tree":   unix.SYS_OPEN_TREE,
		"sethostname": unix.SYS_SETHOSTNAME, "init_module": unix.SYS_INIT_MODULE, "kexec_load": unix.SYS_KEXEC_LOAD,
		"syslog":            unix.SYS_SYSLOG,
		"name_to_handle_at": unix.SYS_NAME_TO_HANDLE_AT, "kcmp": unix.SYS_KCMP, "swapon": unix.SYS_SWAPON,
		"acct":     unix.SYS_ACCT,
		"quotactl": unix.SYS_QUOTACTL, "fanotify_init": unix.SYS_FANOTIFY_INIT, "pivot_root": unix.SYS_PIVOT_ROOT,
		"prlimit64": unix.SYS_PRLIMIT64, "sched_setattr": unix.SYS_SCHED_SETATTR,
		"sched_setparam": unix.SYS_SCHED_SETPARAM,
		"ioprio_set":     unix.SYS_IOPRIO_SET, "ioprio_get": unix.SYS_IOPRIO_GET, "exit": unix.SYS_EXIT,
		"fchmodat": unix.SYS_FCHMODAT, "fchmodat2": unix.SYS_FCHMODAT2, "tkill": unix.SYS_TKILL,
		"tgkill": unix.SYS_TGKILL, "rt_sigqueueinfo": unix.SYS_RT_SIGQUEUEINFO, "mq_open": unix.SYS_MQ_OPEN,
		"mq_unlink": unix.SYS_MQ_UNLINK,
	}
	maps.Copy(all, archCallNumbers())
	return all
}

// worked reports whether an act has got out of the sandbox.
func (g *grounds) worked(e *escape, out string) bool {
	if e.mark == "" {
		return strings.Contains(out, "ESCAPED")
	}
	path := filepath.Join(g.Outside, e.mark)
	if e.mark == "temp" {
		path = g.Temp
	}
	data, err := os.ReadFile(path)
	return err == nil && strings.Contains(string(data), "MARK")
}

// argv returns the command that runs an act.
func (g *grounds) argv(t *testing.T, e *escape) []string {
	t.Helper()
	text := must.Get(json.Marshal(g))(t)
	return []string{"python3", "-I", "-S", "-c", prelude + e.act, string(text)}
}

// outside runs an act as an ordinary process, and returns its output and whether it worked.
func (g *grounds) outside(t *testing.T, e *escape) (string, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t, "python3"), g.argv(t, e)[1:]...)
	cmd.Dir = g.Workspace
	cmd.WaitDelay = time.Second
	if e.isolated {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWPID,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
	}
	out, err := cmd.CombinedOutput()
	return fmt.Sprintf("%s%v", out, err), g.worked(e, string(out))
}

// inside runs an act in the sandbox, and returns its output and whether it worked. plain uses only the parts of the
// sandbox that a plain container has.
func (g *grounds) inside(t *testing.T, e *escape, plain bool) (string, bool) {
	t.Helper()
	read := []string{filepath.Dir(g.ReadOnly)}
	if plain {
		out := inPlain(t, &one{
			Workspace: g.Workspace, Read: read, Path: program(t, "python3"), Args: g.argv(t, e),
			Dir: g.Workspace, Limits: e.limits,
		})
		return out, g.worked(e, out)
	}
	l := homelyLauncher(t, Options{Workspace: g.Workspace, Mode: Required, Read: read})
	var out bytes.Buffer
	p := begin(t, l, Policy{
		Path: program(t, "python3"), Args: g.argv(t, e), Dir: g.Workspace, Stdout: &out,
		Stderr: &out, Limits: e.limits,
	})
	state, err := p.Wait()
	return fmt.Sprintf("%s%v %v", &out, state, err), g.worked(e, out.String())
}

// noNamespaces reports whether this test itself runs in a plain container.
func noNamespaces(t *testing.T) bool {
	t.Helper()
	l := newLauncher(t, Options{})
	all := must.Get(l.Probe(t.Context()))(t)
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Name == findMount && !f.OK })
}

// TestEscapes: no escape works inside the sandbox. Each one is first shown to work outside.
func TestEscapes(t *testing.T) {
	all := escapes()
	assert.That(t, len(all) >= 60, "only %d escapes", len(all))
	plain := noNamespaces(t)
	if plain {
		all = slices.DeleteFunc(all, func(e escape) bool { return e.spaces })
	}
	tryEscapes(t, all, plain)
}

// TestWallPlainContainer: no escape works where there are no namespaces, as for a host in a plain container. Escapes
// that take memory are tried only in TestEscapes.
func TestWallPlainContainer(t *testing.T) {
	if noNamespaces(t) {
		t.Log("TestEscapes has done so")
		return
	}
	tryEscapes(t, slices.DeleteFunc(escapes(), func(e escape) bool { return e.alone }), true)
}

func tryEscapes(t *testing.T, all []escape, plain bool) {
	// a check that the same kinds of acts work for granted files
	control := escape{name: "control", act: `
open("mine", "w").write("x"); open(G["ro"]).read(); os.waitpid(os.posix_spawn("/usr/bin/env", ["true"], {}), 0)
os.chmod("mine", 0o751); os.utime("mine", (1, 2)); os.chown("mine", os.getuid(), os.getgid())
s = os.stat("mine"); assert s.st_mode & 0o777 == 0o751 and s.st_mtime == 2, s
ok()`}
	out, worked := newGrounds(t).inside(t, &control, plain)
	must.That(t, worked, "nothing works inside: %s", out)
	for _, e := range all {
		if e.arch != "" && e.arch != runtime.GOARCH || plain && (e.open || e.isolated) {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			if !e.alone { // those with alone run first, one after the other
				t.Parallel()
			}
			e.try(t, plain)
		})
	}
}

// shown has the names of the escapes that have worked outside; each has to be shown once.
var shown sync.Map

func (e *escape) try(t *testing.T, plain bool) {
	if _, done := shown.Load(e.name); !done && (!e.root || os.Geteuid() == 0) {
		out, worked := newGrounds(t).outside(t, e)
		must.That(t, worked, "it does not work outside either: %s", out)
		shown.Store(e.name, true)
	}
	g := newGrounds(t)
	out, worked := g.inside(t, e, plain)
	assert.That(t, !worked && !strings.Contains(out, secretText), "it got out: %s", out)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	t.Logf("stopped by: %s", strings.Join(lines[max(0, len(lines)-2):], " / "))
	assert.OK(t, syscall.Kill(g.Victim, 0))
	data, err := os.ReadFile(g.Secret)
	assert.Equal(t, string(data), secretText, "the secret is now %q, %v", data, err)
}
