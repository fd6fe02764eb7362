package sandbox

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A subreaper waits this long between two rounds of killing, longer after each round.
const (
	huntPause    = time.Millisecond
	maxHuntPause = 50 * time.Millisecond
)

// tree is the launcher's view of the command and all its descendants.
type tree struct {
	namespace bool
	forked    chan struct{} // closed when the command exists and its limits are known
	bounded   chan error    // receives the result of limitAddresses
	started   chan struct{} // closed when the host knows that the command runs
	proc      int           // descriptor of /proc as the command sees it; -1 = none
	memory    int64         // limit of the tree in bytes; 0 = the kernel enforces it, or none
	addresses int64         // address space limit of each process, in bytes; 0 = none
	crowd     crowd         // limit of its processes, if the kernel enforces none
	sources   sources       // memory that no process shows as its own
	hunt      sync.Once

	mu   sync.Mutex
	main int // pid of the command and of its process group; 0 once it is reaped; guarded by mu
}

// await starts obey, watch and the warden on threads that exist when it returns: under the limits of
// the command no new threads might be possible. These threads are not under the command's filter. No
// thread of this process has a number above last at that time.
func (t *tree) await(w *warden) (last int) {
	last = unix.Gettid()
	all := []func(){t.obey, t.watch}
	if w != nil {
		all = append(all, w.serve)
	}
	for _, do := range all {
		ready := make(chan int)
		go func() {
			runtime.LockOSThread()
			ready <- unix.Gettid()
			do()
		}()
		last = max(last, <-ready)
	}
	return last
}

// obey sends the signals that the host asks for. It kills the tree when the host closes the control socket or dies.
func (t *tree) obey() {
	<-t.started
	var buf [16]byte
	for {
		n, err := descriptor(fdControl).Read(buf[:])
		for _, sig := range buf[:n] {
			t.signal(syscall.Signal(sig))
		}
		if err != nil {
			t.kill()
			return
		}
	}
}

// signal sends a signal to every process of the tree.
func (t *tree) signal(sig syscall.Signal) {
	if t.namespace {
		_ = unix.Kill(-1, sig) // all processes except pid 1; fails if there are none
		return
	}
	t.signalGroup(sig)
	signalDescendants(os.Getpid(), sig, t.group())
}

// signalGroup sends a signal to all processes of the command's group at once. It holds the lock, so
// that the group's number cannot be used by another group.
func (t *tree) signalGroup(sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.main != 0 {
		_ = unix.Kill(-t.main, sig) // fails once the group is gone
	}
}

func (t *tree) group() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.main
}

// kill ends the whole tree. Pid 1 only exits, and the kernel kills the rest.
func (t *tree) kill() {
	if t.namespace {
		syscall.Exit(0)
	}
	// The whole group is killed at once: a shell that outlived its child for a moment would end by itself,
	// and it would look as if it had not been killed.
	t.signalGroup(unix.SIGKILL)
	t.hunt.Do(func() {
		go func() {
			for pause := huntPause; ; pause = min(2*pause, maxHuntPause) {
				signalDescendants(os.Getpid(), unix.SIGKILL, 0)
				time.Sleep(pause)
			}
		}()
	})
}

// reap collects every process that ends. It returns the command's wait status when the tree is gone.
func (t *tree) reap() unix.WaitStatus {
	command, main := t.main, unix.WaitStatus(0)
	for {
		var ended unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &ended, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return main // ECHILD: all orphans are children of this process, so none is left
		}
		pid, status := t.collect()
		if pid != command {
			continue
		}
		main = status
		if t.namespace {
			_ = unix.Kill(-1, unix.SIGKILL) // a killed process cannot fork any more
			continue
		}
		if left, err := unix.Wait4(-1, &status, unix.WNOHANG, nil); err != nil && left <= 0 {
			return main
		}
		t.kill()
	}
}

// collect reaps one process that has ended. After that of the group leader, the group gets no signals
// any more, because its number may be used by another group.
func (t *tree) collect() (pid int, status unix.WaitStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if err == nil && pid == t.main {
		t.main = 0
	}
	return pid, status
}

// signalDescendants sends a signal to all processes below root, except to the processes of the group
// but; 0 = no exception.
func signalDescendants(root int, sig syscall.Signal, but int) {
	table, _ := readTable() // the next round sees what this one could not read
	for pid, p := range table {
		if descends(table, pid, uint64(root)) && (but == 0 || p.group != uint64(but)) {
			p.signal(pid, sig)
		}
	}
}

// endDescendants kills all processes below root, which is a child of this process. A killed process cannot fork any
// more, so all are dead when two rounds find no further process. It gives up if the table cannot be read.
func endDescendants(root *os.Process) {
	struck := map[uint64]proc{}
	for quiet, failed, pause := 0, 0, huntPause; quiet < 2 && failed < 100; pause = min(2*pause, maxHuntPause) {
		table, err := readTable()
		if root.Signal(syscall.Signal(0)) != nil {
			return // root was reaped, so its number may be used by another process
		}
		if quiet++; err != nil {
			quiet, failed = 0, failed+1
		}
		for pid, p := range table {
			if struck[pid].start != p.start && descends(table, pid, uint64(root.Pid)) {
				p.signal(pid, unix.SIGKILL)
				struck[pid], quiet = p, 0
			}
		}
		time.Sleep(pause)
	}
}

// crowd limits the processes and threads of a tree where the kernel cannot: only the numbers of a PID namespace and a
// cgroup bind root. A tree that has more is ended, shortly after it exceeds the limit. A seccomp question before each
// fork would not work: a signal would interrupt it, and no program expects that of fork.
type crowd struct {
	load    int   // /proc/loadavg
	limit   int64 // 0 = the kernel enforces the limit, or none
	room    int64 // how many more the tree could have had when it was counted
	machine int64 // all tasks of the machine at that time
}

// crowdWatch is the interval at which the tasks of the machine are counted. It costs one short read.
const crowdWatch = 10 * time.Millisecond

// pause waits and checks the number of processes meanwhile. It reports whether the tree has more
// processes than allowed.
func (t *tree) pause(d time.Duration) (crowded bool) {
	if t.crowd.limit <= 0 {
		pause(d)
		return false
	}
	for ; d > 0; d -= crowdWatch {
		pause(min(d, crowdWatch))
		if t.crowd.machineTasks()-t.crowd.machine > t.crowd.room && t.count() {
			return true
		}
	}
	return t.count() // other processes may have ended meanwhile
}

// count reports whether the tree has more tasks than allowed.
func (t *tree) count() (crowded bool) {
	c := &t.crowd
	c.machine = c.machineTasks()
	n, err := t.tasks()
	c.room = c.limit - n
	return err == nil && c.room < 0 // after an error watchMemory ends the tree soon
}

// tasks counts the processes and threads of the tree.
func (t *tree) tasks() (n int64, err error) {
	err = t.each(func(pid string) error {
		threads, err := t.names(pid + "/task")
		n += int64(len(threads))
		return ifThere(err)
	})
	return n, err
}

// machineTasks returns the number of all tasks that /proc shows.
func (c *crowd) machineTasks() int64 {
	fields, err := words(c.load)
	const tasks = 3 // "running/all"
	if err != nil || len(fields) <= tasks {
		return 0
	}
	_, all, _ := bytes.Cut(fields[tasks], []byte("/"))
	return number(all)
}

// proc is one line of the process table.
type proc struct{ parent, start, group uint64 }

// signal sends a signal to a process through a pidfd, and only if it is still the process that was
// seen: the number may be used by another one.
func (p proc) signal(pid uint64, sig syscall.Signal) {
	fd, err := unix.PidfdOpen(int(pid), 0)
	if err != nil {
		if now, readErr := readProc(pid); err == unix.ENOSYS && readErr == nil && now.start == p.start {
			_ = unix.Kill(int(pid), sig)
		}
		return
	}
	defer unix.Close(fd)
	if now, err := readProc(pid); err == nil && now.start == p.start {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// descendants returns the processes below root.
func descendants(root uint64) (pids []uint64, err error) {
	table, err := readTable()
	for pid := range table {
		if descends(table, pid, root) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// descends reports whether a process is below root. The table may be inconsistent, so the number of steps is limited.
func descends(table map[uint64]proc, pid, root uint64) bool {
	for range len(table) {
		p, ok := table[pid]
		if !ok || p.parent == root {
			return ok
		}
		pid = p.parent
	}
	return false
}

// readTable returns the process table. After an error it may be incomplete.
func readTable() (map[uint64]proc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, failed := dir.Readdirnames(-1)
	table := make(map[uint64]proc, len(names))
	for _, name := range names {
		pid, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			continue
		}
		switch p, err := readProc(pid); {
		case err == nil:
			table[pid] = p
		case failed == nil && !gone(err):
			failed = err
		}
	}
	return table, failed
}

// gone reports whether an error means that the process of a file in /proc has ended.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// readProc reads parent, group and start time from /proc/PID/stat. These stand after the name, which
// may contain any byte.
func readProc(pid uint64) (proc, error) {
	data, err := os.ReadFile("/proc/" + strconv.FormatUint(pid, 10) + "/stat")
	if err != nil {
		return proc{}, err
	}
	const parentField, groupField, startField = 1, 2, 19 // counted after the name
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) <= startField {
		return proc{}, errors.New("/proc/PID/stat has too few fields")
	}
	at := func(field int) uint64 { return uint64(number(fields[field])) }
	return proc{parent: at(parentField), group: at(groupField), start: at(startField)}, nil
}

// forbidden reports whether an error means that a process may not be inspected.
func forbidden(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// each calls do for every process of the tree except the launcher, until a call fails.
func (t *tree) each(do func(pid string) error) error {
	own := uint64(os.Getpid())
	var pids []uint64
	var err error
	switch {
	case !t.namespace:
		pids, err = descendants(own)
	case t.proc >= 0: // otherwise this machine does not show the tree
		var names []string
		names, err = t.names(".")
		for _, name := range names {
			if pid, err := strconv.ParseUint(name, 10, 64); err == nil && pid != own {
				pids = append(pids, pid)
			}
		}
	}
	for _, pid := range pids {
		if err == nil {
			err = do(strconv.FormatUint(pid, 10))
		}
	}
	return err
}

// names returns the names in a folder of /proc.
func (t *tree) names(dir string) ([]string, error) {
	fd, err := unix.Openat(t.proc, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), dir)
	defer file.Close()
	return file.Readdirnames(-1)
}

// read returns the words of a small file of /proc.
func (t *tree) read(name string) ([][]byte, error) {
	fd, err := unix.Openat(t.proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return words(fd)
}

// words returns the words in the first 4096 bytes of an open file.
func words(fd int) ([][]byte, error) {
	buf := make([]byte, 4096)
	n, err := unix.Pread(fd, buf, 0)
	if err != nil {
		return nil, err
	}
	return bytes.Fields(buf[:n]), nil
}

// after returns the number that follows a name, or 0 if the name is missing.
func after(fields [][]byte, name string) int64 {
	at := slices.IndexFunc(fields, func(f []byte) bool { return string(f) == name })
	if at < 0 || at+1 >= len(fields) {
		return 0
	}
	return number(fields[at+1])
}

// number parses a number of the kernel; it returns 0 for any other text.
func number(text []byte) int64 {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ifThere returns nil for errors that mean that the process has ended.
func ifThere(err error) error {
	if gone(err) {
		return nil
	}
	return err
}
