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

// A subreaper waits this long between two rounds of killing, longer each time.
const (
	huntPause    = time.Millisecond
	maxHuntPause = 50 * time.Millisecond
)

// tree is the launcher's view of the command and all its descendants.
type tree struct {
	namespace bool
	forked    chan struct{} // closed when the command is there, and what it may use is known
	bounded   chan error    // then says how that went
	started   chan struct{} // closed when the host knows that the command runs
	proc      int           // /proc, as the command sees it
	memory    int64         // bound of the tree in bytes; 0 = the kernel's concern, or none
	addresses int64         // bound of the address space of each process, in bytes; 0 = none
	crowd     crowd         // bound of its processes, where the kernel has none
	sources   sources       // of what no process shows
	hunt      sync.Once

	mu   sync.Mutex
	main int // pid of the command, and of its process group; 0 once reaped; guarded by mu
}

// await begins to obey and to watch, on threads that are there when it returns:
// under the limits of the command new ones might not be had. Nor are these under
// its filter. No thread of this process has a number above last, as of now.
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

// obey sends the signals the host asks for, and kills the tree when the host
// ends the pipe, by asking for it or by dying.
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

// signal reaches every process of the tree.
func (t *tree) signal(sig syscall.Signal) {
	if t.namespace {
		_ = unix.Kill(-1, sig) // all but pid 1; fails once none is left
		return
	}
	t.signalGroup(sig)
	signalDescendants(os.Getpid(), sig, t.group())
}

// signalGroup reaches the command's group in one step. It holds the lock, so
// that the group's number cannot have been reused.
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

// kill ends everything. Pid 1 leaves that to the kernel.
func (t *tree) kill() {
	if t.namespace {
		syscall.Exit(0)
	}
	// The whole group in one step: a shell that outlived its child for a moment
	// would end by itself, and look as if it had.
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

// reap collects every process that ends, and returns the command's wait status
// when nothing is left of the tree.
func (t *tree) reap() unix.WaitStatus {
	command, main := t.main, unix.WaitStatus(0)
	for {
		var ended unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &ended, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return main // ECHILD: every orphan came here, so none is left
		}
		pid, status := t.collect()
		if pid != command {
			continue
		}
		main = status
		if t.namespace {
			_ = unix.Kill(-1, unix.SIGKILL) // who is killed cannot fork any more
			continue
		}
		if left, err := unix.Wait4(-1, &status, unix.WNOHANG, nil); err != nil && left <= 0 {
			return main
		}
		t.kill()
	}
}

// collect reaps one process that has ended. A group whose leader is reaped gets
// no signal any more: its number may go to another.
func (t *tree) collect() (pid int, status unix.WaitStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if err == nil && pid == t.main {
		t.main = 0
	}
	return pid, status
}

// signalDescendants sends a signal to all processes below root but those of one
// group.
func signalDescendants(root int, sig syscall.Signal, but int) {
	table, _ := readTable() // what was read counts; the next round sees the rest
	for pid, p := range table {
		if descends(table, pid, uint64(root)) && (but == 0 || p.group != uint64(but)) {
			p.signal(pid, sig)
		}
	}
}

// endDescendants kills all processes below root, a child of this process. Who was sent
// SIGKILL forks no more, so that all are ended when two rounds find nobody else. It gives up
// where the table cannot be read.
func endDescendants(root *os.Process) {
	struck := map[uint64]proc{}
	for quiet, failed, pause := 0, 0, huntPause; quiet < 2 && failed < 100; pause = min(2*pause, maxHuntPause) {
		table, err := readTable()
		if root.Signal(syscall.Signal(0)) != nil {
			return // reaped, so that its number may be another's
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

// crowd bounds the processes and threads of a tree where the kernel cannot: nothing binds
// root but the numbers of a PID namespace and a cgroup. A tree that has more is ended; for
// a moment it may. To have seccomp ask before each fork is no way: a signal would interrupt
// that, and no program awaits such a thing of fork.
type crowd struct {
	load    int   // /proc/loadavg
	limit   int64 // 0 = the kernel's concern, or no bound
	room    int64 // how many more the tree may have had when it was counted
	machine int64 // all tasks of the machine then
}

// crowdWatch is how often the tasks of the machine are looked at. It costs one short read.
const crowdWatch = 10 * time.Millisecond

// pause waits, and looks at the number of processes meanwhile. It reports whether the tree
// has more than it may.
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
	return t.count() // others may have ended meanwhile
}

// count reports whether the tree has more tasks than it may.
func (t *tree) count() (crowded bool) {
	c := &t.crowd
	c.machine = c.machineTasks()
	n, err := t.tasks()
	c.room = c.limit - n
	return err == nil && c.room < 0 // what cannot be seen ends it soon: watchMemory
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

// machineTasks is the number of all tasks that /proc tells of.
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

// signal reaches a process through a pidfd that is checked to be the process that was
// seen, never a reused number.
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

// descendants lists the processes below root.
func descendants(root uint64) (pids []uint64, err error) {
	table, err := readTable()
	for pid := range table {
		if descends(table, pid, root) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// descends follows the parents up to root. The table may be torn, so the walk
// is bounded.
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

// readTable returns the process table. An error says that it may not be whole.
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

// gone reports whether a file of /proc could not be read because its process had
// ended.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// readProc takes parent and start time from /proc/PID/stat, after the name,
// which may hold anything.
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

// forbidden reports whether a process keeps others from looking at it.
func forbidden(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// each calls do for every process of the tree but the launcher, until one fails.
func (t *tree) each(do func(pid string) error) error {
	own := uint64(os.Getpid())
	var pids []uint64
	var err error
	switch {
	case !t.namespace:
		pids, err = descendants(own)
	case t.proc >= 0: // else this machine shows it nothing
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

// names lists a folder of /proc.
func (t *tree) names(dir string) ([]string, error) {
	fd, err := unix.Openat(t.proc, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), dir)
	defer file.Close()
	return file.Readdirnames(-1)
}

// read returns the words of one small file of /proc.
func (t *tree) read(name string) ([][]byte, error) {
	fd, err := unix.Openat(t.proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return words(fd)
}

// words reads the start of an open file.
func words(fd int) ([][]byte, error) {
	buf := make([]byte, 4096)
	n, err := unix.Pread(fd, buf, 0)
	if err != nil {
		return nil, err
	}
	return bytes.Fields(buf[:n]), nil
}

// after returns the number behind a name; 0 where there is none.
func after(fields [][]byte, name string) int64 {
	at := slices.IndexFunc(fields, func(f []byte) bool { return string(f) == name })
	if at < 0 || at+1 >= len(fields) {
		return 0
	}
	return number(fields[at+1])
}

// number reads what the kernel wrote; 0 where that is none.
func number(text []byte) int64 {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ifThere drops the errors about a process that has ended.
func ifThere(err error) error {
	if gone(err) {
		return nil
	}
	return err
}
