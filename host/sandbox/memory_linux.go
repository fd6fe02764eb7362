package sandbox

import (
	"bytes"
	"errors"
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

// maxBlind is the number of looks in a row that may fail, busyWatch apart: the
// machine may be short of something for a moment.
const maxBlind = 10

// watch does what needs a thread without the command's filter.
func (t *tree) watch() {
	if t.addresses > 0 {
		<-t.forked
		t.bounded <- t.limitAddresses()
	}
	<-t.started
	t.watchMemory()
}

// bound has the watching thread bound the address space of the command.
func (t *tree) bound() error {
	if t.addresses <= 0 {
		return nil
	}
	close(t.forked)
	return <-t.bounded
}

// watchMemory ends a tree that takes more than its share, of memory or of processes, or
// whose memory cannot be seen any more. One that grows faster than it is looked at gets past
// the bound for a moment.
func (t *tree) watchMemory() {
	if t.memory <= 0 && t.crowd.limit <= 0 {
		return
	}
	for blind := 0; ; {
		used, err := t.used()
		wait := idleWatch
		switch {
		case err != nil:
			if blind++; blind >= maxBlind {
				send(*failure("watch the memory of the tree", err))
				t.kill()
				return
			}
			wait = busyWatch
		case t.memory > 0 && used > t.memory:
			send(report{kind: reportMemory, value: uint32(used >> 20)})
			t.kill()
			return
		case t.memory > 0 && used > t.memory/busyShare:
			wait = busyWatch
		}
		if err == nil {
			blind = 0
		}
		if t.pause(wait) {
			send(report{kind: reportCrowd, value: uint32(t.crowd.limit)})
			t.kill()
			return
		}
	}
}

// limitAddresses bounds the address space of each process of the tree that has
// just begun: the launcher itself, a Go program, could not live with such a bound
// until the command inherits it. Whoever was forked meanwhile is found in the
// next round.
func (t *tree) limitAddresses() error {
	want := unix.Rlimit{Cur: uint64(t.addresses), Max: uint64(t.addresses)}
	for again := true; again; {
		again = false
		bound := func(pid int) error {
			var old unix.Rlimit
			err := unix.Prlimit(pid, unix.RLIMIT_AS, nil, &old)
			if err != nil || old.Max <= want.Max {
				return ifThere(err)
			}
			again = true
			return ifThere(unix.Prlimit(pid, unix.RLIMIT_AS, &want, nil))
		}
		err := bound(t.main)
		if err == nil {
			err = t.each(func(pid string) error {
				n, err := strconv.Atoi(pid)
				return errors.Join(err, bound(n))
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ifThere drops the errors about a process that has ended.
func ifThere(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

// pause sleeps on this very thread: the runtime's own way could need another one,
// which the limits of the command might not allow.
func pause(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal cuts it short, which does no harm
}

// used gives the memory of the tree in bytes. A cheap look that finds no more
// than may be is enough: it counts twice what is shared, and takes all memory
// that the machine's programs share for the tree's.
func (t *tree) used() (int64, error) {
	if t.memory <= 0 {
		return 0, nil
	}
	var resident int64
	err := t.each(func(pid string) error {
		m, err := t.memoryOf(pid)
		resident += m.resident + m.tables
		return err
	})
	if err != nil {
		return 0, err
	}
	h, err := t.sources.read()
	rough := resident + h.queued
	if err != nil || rough+h.nameless <= t.memory {
		return rough + h.grown, err
	}
	held, err := t.held(h, rough+h.grown > t.memory)
	if err != nil || rough+held <= t.memory {
		return rough + held, err
	}
	var exact proportional
	err = t.each(func(pid string) error { return t.addProportional(&exact, pid) })
	return exact.own + h.queued + max(exact.shared, held), err
}

// memory is that of one process, in bytes.
type memory struct {
	dir      string // of /proc, which tells about it
	resident int64
	tables   int64 // page tables: they alone can be large
}

// memoryOf looks at one process. One whose first thread has ended shows nothing
// itself, while its other threads may go on.
func (t *tree) memoryOf(pid string) (memory, error) {
	m, err := t.memoryIn(pid)
	if err != nil || m.resident > 0 {
		return m, err
	}
	threads, err := t.names(pid + "/task")
	for _, thread := range threads {
		if thread == pid {
			continue
		}
		if m, err := t.memoryIn(pid + "/task/" + thread); err != nil || m.resident > 0 {
			return m, err
		}
	}
	return memory{dir: pid}, ifThere(err)
}

// tableShare is how much the tables may be of an address space, as one page of
// them is for 2 MiB.
const tableShare = 512

func (t *tree) memoryIn(dir string) (memory, error) {
	m := memory{dir: dir}
	fields, err := t.read(dir + "/statm")
	if err != nil || len(fields) < 2 {
		return m, ifThere(err)
	}
	page := int64(os.Getpagesize())
	m.resident = number(fields[1]) * page
	if addresses := number(fields[0]) * page; addresses/tableShare > t.memory/busyShare {
		fields, err := t.read(dir + "/status")
		if err != nil {
			return m, ifThere(err)
		}
		m.tables = after(fields, "VmPTE:") << 10
	}
	return m, nil
}

// proportional is memory in bytes, with what processes share divided among them.
type proportional struct {
	own    int64
	shared int64 // of files without a name: mapped for several processes to write to
}

func (t *tree) addProportional(sum *proportional, pid string) error {
	m, err := t.memoryOf(pid)
	if err != nil {
		return err
	}
	fields, err := t.read(m.dir + "/smaps_rollup")
	if err != nil && !gone(err) && !forbidden(err) {
		return err
	}
	sum.own += m.tables
	if all := after(fields, "Pss:") << 10; all > 0 {
		shared := after(fields, "Pss_Shmem:") << 10
		sum.own += all - shared
		sum.shared += shared
	} else {
		sum.own += m.resident // it hides from such looks
	}
	return nil
}

// forbidden tells whether a process keeps others from looking at it.
func forbidden(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// each calls do for every process of the tree but the launcher, until one fails.
func (t *tree) each(do func(pid string) error) error {
	own := os.Getpid()
	if !t.namespace {
		table, err := readTable()
		if err != nil {
			return err
		}
		for pid := range table {
			if !descends(table, pid, uint64(own)) {
				continue
			}
			if err := do(strconv.FormatUint(pid, 10)); err != nil {
				return err
			}
		}
		return nil
	}
	if t.proc < 0 {
		return nil // this machine shows it nothing
	}
	names, err := t.names(".")
	if err != nil {
		return err
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err != nil || pid == own {
			continue
		}
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
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

// read gives the words of one small file of /proc.
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

// after gives the number behind a name; 0 where there is none.
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
