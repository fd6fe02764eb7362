package sandbox

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// proc is one line of the process table.
type proc struct{ parent, start, group uint64 }

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
