//go:build linux

package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fault draws a fault.
func (d *draw) fault() step {
	n, pause := d.IntN(1000), time.Duration(1+d.IntN(60))*time.Millisecond
	if n%25 == 0 {
		pause *= 30
	}
	word := d.of("chaos\x00mcp", "chaos\x00plugin", "a2e\x00worker", "bash\x00-c", "")
	switch d.IntN(10) {
	case 0, 1:
		return step{
			what: fmt.Sprintf("child %d of %q is killed", n, word),
			do:   func(h *host) { h.signalChild(n, word, syscall.SIGKILL) },
		}
	case 2:
		return step{what: fmt.Sprintf("child %d of %q stands still for %s", n, word, pause), do: func(h *host) {
			pid := h.signalChild(n, word, syscall.SIGSTOP)
			time.Sleep(pause)
			if pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGCONT) // the process may have ended
			}
		}}
	case 3: // for the host this is like a jump of the clock
		return step{what: fmt.Sprintf("the host stands still for %s", pause), do: func(h *host) {
			_ = h.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(pause)
			_ = h.cmd.Process.Signal(syscall.SIGCONT)
		}}
	case 4:
		return step{what: fmt.Sprintf("the agent reads nothing for %s, and writes", pause), do: func(h *host) {
			h.gate.Lock()
			time.AfterFunc(pause, h.gate.Unlock)
		}}
	case 5:
		return step{what: "files cannot grow", do: func(h *host) { h.squeeze(unix.RLIMIT_FSIZE, uint64(n)*100, pause) }}
	case 6:
		return step{what: "no more descriptors", do: func(h *host) {
			h.squeeze(unix.RLIMIT_NOFILE,
				uint64(h.files()+n%4), pause)
		}}
	case 7:
		return step{
			what: fmt.Sprintf("the disk is full for %s, or the connections of the store end", pause),
			do: func(h *host) {
				if h.flood(pause); h.sim.Sever != nil {
					h.sim.Sever()
				}
			},
		}
	case 8:
		return step{what: fmt.Sprintf("files of the workspace change: %d", n), do: func(h *host) { h.sim.disturb(n) }}
	default:
		sig := []syscall.Signal{
			syscall.SIGPIPE, syscall.SIGWINCH, syscall.SIGUSR1, syscall.SIGURG, syscall.SIGCHLD,
			syscall.SIGALRM,
		}[n%6]
		return step{what: fmt.Sprintf("a signal: %s", sig), do: func(h *host) { _ = h.cmd.Process.Signal(sig) }}
	}
}

// squeeze lowers a limit of the host for a while.
func (h *host) squeeze(resource int, to uint64, pause time.Duration) {
	var was unix.Rlimit
	if unix.Prlimit(h.cmd.Process.Pid, resource, nil, &was) != nil {
		return // the host has ended
	}
	h.model.strained()
	low := was
	low.Cur = min(to, was.Max)
	_ = unix.Prlimit(h.cmd.Process.Pid, resource, &low, nil)
	time.Sleep(pause)
	_ = unix.Prlimit(h.cmd.Process.Pid, resource, &was, nil)
}

// mount mounts a small disk as state_dir, and reports whether it did. Only this thread and its child
// processes see the disk, which ends with the thread. Without the disk, tests only limit the size of files.
func (s *Sim) mount() bool {
	if os.Geteuid() != 0 {
		return false
	}
	runtime.LockOSThread() // never unlocked
	state := filepath.Join(s.dir, "state")
	if unix.Unshare(unix.CLONE_NEWNS) != nil || unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") != nil ||
		os.Mkdir(state, 0o700) != nil || unix.Mount("none", state, "tmpfs", 0, "size=128m,mode=700") != nil {
		return false
	}
	s.t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	return true
}

// flood fills the disk for a while.
func (h *host) flood(pause time.Duration) {
	if !h.sim.disk {
		return
	}
	h.sim.full.Lock()
	defer h.sim.full.Unlock()
	for _, m := range h.sim.models {
		m.strained()
	}
	file := fmt.Sprintf("/proc/%d/root%s/state/ballast-%s", h.cmd.Process.Pid, h.sim.dir, h.name)
	if ballast, err := os.Create(file); err == nil {
		for block := 1 << 20; block > 0; block /= 16 {
			for err = nil; err == nil; {
				_, err = ballast.Write(make([]byte, block))
			}
		}
		time.Sleep(pause)
		_ = ballast.Truncate(0) // also if the host has ended meanwhile
		_ = ballast.Close()
		_ = os.Remove(file)
	}
}

// signalChild sends a signal to one of the host's descendants whose command line has a word, and returns its pid.
func (h *host) signalChild(n int, word string, sig syscall.Signal) (pid int) {
	var pids []int
	for _, pid := range descendants(h.cmd.Process.Pid) {
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if len(words) > 0 && strings.Contains(string(words), word) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return 0
	}
	slices.Sort(pids)
	pid = pids[n%len(pids)]
	_ = syscall.Kill(pid, sig) // it may have ended
	return pid
}

// descendants returns the children of a process, their children, and so on.
func descendants(of int) (pids []int) {
	children := map[int][]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if err != nil || len(fields) < 2 {
			continue // the process has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
	}
	for todo := []int{of}; len(todo) > 0; todo = todo[1:] {
		pids = append(pids, children[todo[0]]...)
		todo = append(todo, children[todo[0]]...)
	}
	return pids
}

// disturb changes the workspace as programs of an agent could.
func (s *Sim) disturb(n int) {
	ws := filepath.Join(s.dir, "ws")
	path := filepath.Join(ws, fmt.Sprintf("f%d.txt", n%5))
	switch n / 5 % 6 {
	case 0:
		_ = os.RemoveAll(path)
	case 1:
		_ = os.Remove(path)
		_ = os.Symlink("../config.yaml", path)
	case 2:
		_ = os.Remove(path)
		_ = syscall.Mkfifo(path, 0o600)
	case 3:
		_ = os.Remove(path)
		_ = os.MkdirAll(filepath.Join(path, "a\nb"), 0o700)
	case 4:
		_ = os.WriteFile(filepath.Join(ws, "a2e.yaml"), []byte("plugins: {nonsense: ["), 0o600)
	default:
		_ = os.RemoveAll(path)
		_ = os.WriteFile(path, make([]byte, n*1000), 0o000)
	}
}

// hostile fills the workspace with files and folders that are difficult to handle.
func (s *Sim) hostile(ws string) error {
	deep := filepath.Join(ws, strings.Repeat("deep/", 100))
	many := filepath.Join(ws, "many")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(many, 0o700); err != nil {
		return err
	}
	for i := range 300 {
		if err := os.WriteFile(filepath.Join(many, fmt.Sprintf("%d\xff\n;", i)), []byte(strings.Repeat("a", 500)),
			0o600); err != nil {
			return err
		}
	}
	if err := os.Symlink("loop", filepath.Join(ws, "loop")); err != nil {
		return err
	}
	return syscall.Mkfifo(filepath.Join(ws, "pipe"), 0o600)
}

// files returns the number of the host's open files.
func (h *host) files() int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.cmd.Process.Pid)) // it may have ended
	return len(entries)
}

// inDir returns the processes whose working directory is in a folder.
func inDir(dir string) (left []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && (at == dir || strings.HasPrefix(at, dir+"/")) {
			words, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline")) // it may have ended
			left = append(left, filepath.Dir(link)+": "+strings.ReplaceAll(string(words), "\x00", " "))
		}
	}
	return left
}
