package sandbox

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// How often the memory of a tree is looked at: often once it has a good part of
// its share.
const (
	idleWatch = 400 * time.Millisecond
	busyWatch = 50 * time.Millisecond
	busyShare = 8
)

// watchMemory ends a tree that takes more than its share. One that fills memory
// faster than it is looked at gets past the bound for a moment.
func (t *tree) watchMemory() {
	if t.memory <= 0 {
		return
	}
	for {
		used := t.resident()
		if used > t.memory {
			used = t.proportional() // pages that forked processes share count once
		}
		switch {
		case used > t.memory:
			send(report{kind: reportMemory, value: uint32(used >> 20)})
			t.kill()
			return
		case used > t.memory/busyShare:
			pause(busyWatch)
		default:
			pause(idleWatch)
		}
	}
}

// limitAddresses bounds the address space of each process of the tree that has
// just begun: the launcher itself, a Go program, could not live with such a bound
// until the command inherits it. Whoever was forked meanwhile is found in the
// next round.
func (t *tree) limitAddresses(limit int64) {
	if limit <= 0 {
		return
	}
	want := unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)}
	for again := true; again; {
		again = false
		bound := func(pid int) {
			var old unix.Rlimit
			if unix.Prlimit(pid, unix.RLIMIT_AS, nil, &old) != nil || old.Max <= want.Max {
				return // it is gone, or has it
			}
			again = unix.Prlimit(pid, unix.RLIMIT_AS, &want, nil) == nil || again
		}
		bound(t.main)
		t.each(func(pid string) {
			if n, err := strconv.Atoi(pid); err == nil {
				bound(n)
			}
		})
	}
}

// pause sleeps on this very thread: the runtime's own way could need another one,
// which the limits of the command might not allow.
func pause(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal cuts it short, which does no harm
}

// resident adds up what all processes of the tree have in memory.
func (t *tree) resident() (bytes int64) {
	t.each(func(pid string) { bytes += t.residentOf(pid) })
	return bytes
}

func (t *tree) residentOf(pid string) int64 {
	fields := t.read(pid + "/statm")
	if len(fields) < 2 {
		return 0 // it is gone
	}
	n, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	return n * int64(os.Getpagesize())
}

// proportional is resident with shared pages divided among those that share them.
func (t *tree) proportional() (bytes int64) {
	t.each(func(pid string) {
		fields := t.read(pid + "/smaps_rollup")
		at := slices.IndexFunc(fields, func(f []byte) bool { return string(f) == "Pss:" })
		if at < 0 || at+1 >= len(fields) {
			bytes += t.residentOf(pid) // it hides from such looks
			return
		}
		n, _ := strconv.ParseInt(string(fields[at+1]), 10, 64)
		bytes += n << 10
	})
	return bytes
}

// each calls do for every process of the tree but the launcher.
func (t *tree) each(do func(pid string)) {
	own := os.Getpid()
	if !t.namespace {
		table := readTable()
		for pid := range table {
			if descends(table, pid, uint64(own)) {
				do(strconv.FormatUint(pid, 10))
			}
		}
		return
	}
	if t.proc < 0 {
		return
	}
	dir, err := unix.Openat(t.proc, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	file := os.NewFile(uintptr(dir), "proc")
	defer file.Close()
	names, _ := file.Readdirnames(-1) // what was read counts
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != own {
			do(name)
		}
	}
}

// read gives the words of one small file of /proc.
func (t *tree) read(name string) [][]byte {
	fd, err := unix.Openat(t.proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // the process is gone
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil
	}
	return bytes.Fields(buf[:n])
}
