package sandbox

import (
	"bytes"
	"os"
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
	main      int // pid of the command, and of its process group
	namespace bool
	hunt      sync.Once
}

// obey sends the signals the host asks for, and kills the tree when the host
// ends the pipe, by asking for it or by dying.
func (t *tree) obey(control *os.File) {
	var buf [16]byte
	for {
		n, err := control.Read(buf[:])
		for _, sig := range buf[:n] {
			_ = unix.Kill(-t.main, syscall.Signal(sig)) // fails once the group is gone
		}
		if err != nil {
			if !t.namespace {
				// the whole group in one step: a shell that outlived its child for a
				// moment would end by itself, and look as if it had
				_ = unix.Kill(-t.main, unix.SIGKILL)
			}
			t.kill()
			return
		}
	}
}

// kill ends everything. Pid 1 leaves that to the kernel.
func (t *tree) kill() {
	if t.namespace {
		syscall.Exit(0)
	}
	t.hunt.Do(func() {
		go func() {
			for pause := huntPause; ; pause = min(2*pause, maxHuntPause) {
				killDescendants(os.Getpid())
				time.Sleep(pause)
			}
		}()
	})
}

// reap collects every process that ends, and gives the command's wait status
// when nothing but pid 1 is left to end.
func (t *tree) reap() unix.WaitStatus {
	var main unix.WaitStatus
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return main // ECHILD: every orphan came here, so none is left
		}
		if pid != t.main {
			continue
		}
		main = status
		if t.namespace {
			return main
		}
		if left, err := unix.Wait4(-1, &status, unix.WNOHANG, nil); err != nil && left <= 0 {
			return main
		}
		t.kill()
	}
}

// proc is one line of the process table.
type proc struct{ parent, start uint64 }

// killDescendants sends SIGKILL to all processes below root, through a pidfd
// that is checked to be the process that was seen, never a reused number.
func killDescendants(root int) {
	table := readTable()
	for pid, p := range table {
		if !descends(table, pid, uint64(root)) {
			continue
		}
		fd, err := unix.PidfdOpen(int(pid), 0)
		if err != nil {
			if now, ok := readProc(pid); err == unix.ENOSYS && ok && now.start == p.start {
				_ = unix.Kill(int(pid), unix.SIGKILL)
			}
			continue
		}
		if now, ok := readProc(pid); ok && now.start == p.start {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		_ = unix.Close(fd)
	}
}

// descends follows the parents up to root. The table may be torn, so the walk
// is bounded.
func descends(table map[uint64]proc, pid, root uint64) bool {
	for range len(table) {
		p, ok := table[pid]
		if !ok {
			return false
		}
		if p.parent == root {
			return true
		}
		pid = p.parent
	}
	return false
}

func readTable() map[uint64]proc {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what was read counts; the next round sees the rest
	table := make(map[uint64]proc, len(names))
	for _, name := range names {
		pid, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			continue
		}
		if p, ok := readProc(pid); ok {
			table[pid] = p
		}
	}
	return table
}

// readProc takes parent and start time from /proc/PID/stat, after the name,
// which may hold anything.
func readProc(pid uint64) (proc, bool) {
	data, err := os.ReadFile("/proc/" + strconv.FormatUint(pid, 10) + "/stat")
	if err != nil {
		return proc{}, false
	}
	const parentField, startField = 1, 19 // counted after the name
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) <= startField {
		return proc{}, false
	}
	parent, err1 := strconv.ParseUint(string(fields[parentField]), 10, 64)
	start, err2 := strconv.ParseUint(string(fields[startField]), 10, 64)
	return proc{parent, start}, err1 == nil && err2 == nil
}
