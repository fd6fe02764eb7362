package sandbox

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// How often the memory of a tree is measured: more often once the tree uses more than 1/busyShare of its limit.
const (
	idleWatch = 400 * time.Millisecond
	busyWatch = 50 * time.Millisecond
	busyShare = 8
)

// maxBlind is how many measurements in a row may fail, at intervals of busyWatch: the machine may lack
// resources for a moment.
const maxBlind = 10

// watch does the work that needs a thread without the command's seccomp filter.
func (t *tree) watch() {
	<-t.forked
	if t.addresses > 0 {
		t.bounded <- t.limitAddresses()
	}
	<-t.started
	t.watchMemory()
}

// bound waits until the watching thread has set the address space limit of the command.
func (t *tree) bound() error {
	close(t.forked)
	if t.addresses <= 0 {
		return nil
	}
	return <-t.bounded
}

// watchMemory ends a tree that exceeds its limit of memory or processes, or whose memory cannot be
// measured any more. A tree that grows fast can exceed the limit until the next measurement.
func (t *tree) watchMemory() {
	for blind := 0; t.memory > 0 || t.crowd.limit > 0; {
		used, err := t.used()
		if err == nil && used > t.memory { // again: if a process ended meanwhile, the others counted for more
			used, err = t.used()
		}
		wait := idleWatch
		if err != nil || t.memory > 0 && used > t.memory/busyShare {
			wait = busyWatch
		}
		if blind++; err == nil {
			blind = 0
		}
		switch {
		case blind >= maxBlind:
			t.end(*failure("watch the memory of the tree", err))
			return
		case err == nil && t.memory > 0 && used > t.memory:
			t.end(report{Kind: reportMemory, Value: uint32(used >> 20)})
			return
		case t.pause(wait):
			t.end(report{Kind: reportCrowd, Value: uint32(t.crowd.limit)})
			return
		}
	}
}

// end reports the reason and kills the tree.
func (t *tree) end(why report) {
	send(why)
	t.kill()
}

// limitAddresses sets the address space limit of each process of a tree that has just started. The
// launcher is a Go program and could not run with such a limit, so the command cannot inherit it.
// Processes that were forked meanwhile are found in the next round.
func (t *tree) limitAddresses() error {
	want := unix.Rlimit{Cur: uint64(t.addresses), Max: uint64(t.addresses)}
	for again := true; again; {
		again = false
		bound := func(pid string) error {
			n, err := strconv.Atoi(pid)
			if err != nil {
				return err
			}
			var old unix.Rlimit
			err = unix.Prlimit(n, unix.RLIMIT_AS, nil, &old)
			if err != nil || old.Max <= want.Max {
				return ifThere(err)
			}
			again = true
			return ifThere(unix.Prlimit(n, unix.RLIMIT_AS, &want, nil))
		}
		err := bound(strconv.Itoa(t.main))
		if err == nil {
			err = t.each(bound)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pause sleeps on this thread. The runtime's own sleep could need another thread, which the limits of
// the command might not allow.
func pause(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal ends it early, which does no harm
}

// used returns the memory of the tree in bytes. It begins with a cheap upper estimate, which is enough if it is within
// the limit: shared memory counts several times, and all nameless files of the machine count for the tree.
func (t *tree) used() (int64, error) {
	if t.memory <= 0 {
		return 0, nil
	}
	var rough int64
	err := t.each(func(pid string) error {
		m, err := t.memoryOf(pid)
		rough += m.resident + m.tables
		return err
	})
	if err != nil {
		return 0, err
	}
	h, err := t.sources.read()
	rough += h.queued
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

// memory is the memory of one process, in bytes.
type memory struct {
	dir      string // the folder in /proc that shows it
	resident int64
	tables   int64 // page tables, which can be large
}

// memoryOf measures one process. If its first thread has ended, that thread shows nothing, while other
// threads may still run.
func (t *tree) memoryOf(pid string) (memory, error) {
	m, err := t.memoryIn(pid)
	if err != nil || m.resident > 0 {
		return m, err
	}
	threads, err := t.names(pid + "/task")
	for _, thread := range threads {
		if m, err := t.memoryIn(pid + "/task/" + thread); err != nil || m.resident > 0 {
			return m, err
		}
	}
	return memory{dir: pid}, ifThere(err)
}

// tableShare is the ratio of address space to page tables: one page of tables maps 2 MiB.
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

// proportional is memory in bytes; memory that processes share is divided among them.
type proportional struct {
	own    int64
	shared int64 // in nameless files that several processes map and may write to
}

func (t *tree) addProportional(sum *proportional, pid string) error {
	m, err := t.memoryOf(pid)
	if err != nil {
		return err
	}
	fields, err := t.read(m.dir + "/smaps_rollup")
	if gone(err) { // the process may have just ended; the memory that it shared is counted with the other processes
		m, err = t.memoryOf(pid)
	}
	if err != nil && !forbidden(err) {
		return err
	}
	sum.own += m.tables
	if all := after(fields, "Pss:") << 10; all > 0 {
		shared := after(fields, "Pss_Shmem:") << 10
		sum.own += all - shared
		sum.shared += shared
	} else {
		sum.own += m.resident // the process forbids such looks
	}
	return nil
}

// sources report memory that no process shows as its own. System V IPC has its own accounts. For files
// without a name (memfd_create, shared mappings without a file) the machine reports only how much
// memory they use together, not who owns it; held searches for the owner when that matters.
type sources struct {
	err     error // why one of them cannot be read
	meminfo int   // /proc/meminfo
	ipc     []ipc // of the tree's own IPC namespace; nil = it has none
	device  string
	least   int64 // least memory, in bytes, of nameless files since the tree began
}

// ipc is one file of /proc/sysvipc. The sum of its columns, times unit, is memory in bytes.
type ipc struct {
	name    string
	columns []string
	unit    int64
	fd      int
}

// semaphoreBytes is the kernel's memory per System V semaphore.
const semaphoreBytes = 64

// sourceBytes is the result of sources, in bytes.
type sourceBytes struct {
	queued   int64 // in System V messages and semaphores
	segments int64 // in System V shared memory; a part of nameless
	nameless int64 // in files without a name, on the whole machine
	grown    int64 // growth of nameless since the tree began
}

// openSources opens the sources before the command runs, on the command's side, because these files
// show the namespace of the process that opens them.
func (t *tree) openSources(ownIPC bool) {
	s := &t.sources
	open := func(name string) (fd int) {
		fd, err := unix.Openat(t.proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil && s.err == nil && err != unix.ENOENT {
			s.err = fmt.Errorf("/proc/%s: %w", name, err)
		}
		return fd
	}
	s.meminfo, s.device = open("meminfo"), namelessDevice()
	for _, kind := range []ipc{
		{name: "shm", columns: []string{"rss", "swap"}, unit: 1},
		{name: "msg", columns: []string{"cbytes"}, unit: 1},
		{name: "sem", columns: []string{"nsems"}, unit: semaphoreBytes},
	} {
		if !ownIPC {
			break
		}
		if kind.fd = open("sysvipc/" + kind.name); kind.fd >= 0 { // otherwise the kernel has no System V IPC
			s.ipc = append(s.ipc, kind)
		}
	}
}

// begin records the nameless memory before the command runs.
func (s *sources) begin() {
	if s.err == nil {
		s.least, s.err = s.nameless()
	}
}

// namelessDevice returns the device of files without a name, as written in /proc/PID/maps, or "" if it is not known.
func namelessDevice() string {
	fd, err := unix.MemfdCreate("", unix.MFD_CLOEXEC)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &st) != nil {
		return ""
	}
	return deviceOf(&st)
}

func deviceOf(st *unix.Statx_t) string { return fmt.Sprintf("%02x:%02x", st.Dev_major, st.Dev_minor) }

// nameless returns the memory of all files without a name on the whole machine, including files of tmpfs.
func (s *sources) nameless() (int64, error) {
	if s.meminfo < 0 {
		return 0, nil // this machine does not report it
	}
	fields, err := words(s.meminfo)
	return after(fields, "Shmem:") << 10, err
}

func (s *sources) read() (h sourceBytes, err error) {
	if s.err != nil {
		return h, s.err
	}
	for _, kind := range s.ipc {
		n, err := kind.sum()
		if err != nil {
			return h, err
		}
		if kind.name == "shm" {
			h.segments += n
		} else {
			h.queued += n
		}
	}
	h.nameless, err = s.nameless()
	s.least = min(s.least, h.nameless)
	h.grown = h.nameless - s.least
	return h, err
}

// sum adds up the columns of all lines below the header, in bytes.
func (k *ipc) sum() (bytes int64, err error) {
	if _, err := unix.Seek(k.fd, 0, 0); err != nil {
		return 0, err
	}
	var columns []string
	lines := bufio.NewScanner(descriptor(k.fd))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if columns == nil {
			columns = fields
			continue
		}
		for i, field := range fields[:min(len(fields), len(columns))] {
			if slices.Contains(k.columns, columns[i]) {
				bytes += number([]byte(field)) * k.unit
			}
		}
	}
	return bytes, lines.Err()
}

// maxLooks is the maximum number of descriptors and mappings that one namelessSearch reads.
const maxLooks = 100_000

// namelessSearch finds the nameless files of a tree.
type namelessSearch struct {
	device string
	deep   bool                // also looks for files whose size cannot be seen
	files  map[uint64]int64    // sizes of open files, in bytes, by inode
	mapped map[uint64]struct{} // inodes of mapped files
	left   int                 // how many looks are left
	blind  bool                // the tree may hold more than was seen
}

// held returns the memory of the tree's nameless files, in bytes. An open file shows its size. The size of a file
// cannot be seen if it is only mapped, waits in the queue of a socket or belongs to a process that hides. With deep
// such files are searched, and if there is one, the growth of all nameless files of the machine counts for the tree.
func (t *tree) held(h sourceBytes, deep bool) (int64, error) {
	s := &namelessSearch{
		device: t.sources.device, deep: deep, files: make(map[uint64]int64), mapped: make(map[uint64]struct{}),
		left: maxLooks,
	}
	err := t.each(func(pid string) error { return t.searchProcess(s, pid) })
	known := h.segments
	for _, size := range s.files {
		known += size
	}
	for inode := range s.mapped {
		if _, open := s.files[inode]; !open {
			s.blind = true
		}
	}
	if s.blind || s.left <= 0 || s.device == "" {
		return max(known, h.grown), err
	}
	return known, err
}

func (t *tree) searchProcess(s *namelessSearch, pid string) error {
	threads, err := t.names(pid + "/task")
	if err != nil {
		return ifThere(err)
	}
	for _, thread := range threads { // each thread may have its own descriptors
		if err := s.look(t.searchFiles(s, pid+"/task/"+thread)); err != nil {
			return err
		}
	}
	if !s.deep {
		return nil
	}
	m, err := t.memoryOf(pid)
	if err != nil {
		return err
	}
	return s.look(t.searchMappings(s, m.dir))
}

// look handles the error of one look: a process that forbids the look may hide anything.
func (s *namelessSearch) look(err error) error {
	s.blind = s.blind || forbidden(err)
	if forbidden(err) {
		return nil
	}
	return ifThere(err)
}

func (t *tree) searchFiles(s *namelessSearch, dir string) error {
	names, err := t.names(dir + "/fd")
	if err != nil {
		return err
	}
	for _, name := range names {
		if s.left--; s.left <= 0 {
			return nil
		}
		var st unix.Statx_t
		// without a request to the file system, which may take long
		err := unix.Statx(t.proc, dir+"/fd/"+name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT,
			unix.STATX_TYPE|unix.STATX_INO|unix.STATX_BLOCKS, &st)
		switch {
		case err != nil:
			s.blind = s.blind || !gone(err)
		case s.deep && st.Mode&unix.S_IFMT == unix.S_IFSOCK:
			fields, err := t.read(dir + "/fdinfo/" + name)
			if err != nil && !gone(err) {
				return err
			}
			s.blind = s.blind || after(fields, "scm_fds:") > 0 // files wait in the socket
		case deviceOf(&st) == s.device:
			s.files[st.Ino] = int64(st.Blocks) * blockBytes
		}
	}
	return nil
}

// blockBytes is the unit of a file's blocks.
const blockBytes = 512

func (t *tree) searchMappings(s *namelessSearch, dir string) error {
	fd, err := unix.Openat(t.proc, dir+"/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const device, inode, path = 3, 4, 5
	lines := bufio.NewScanner(descriptor(fd))
	for lines.Scan() {
		if s.left--; s.left <= 0 {
			return nil
		}
		fields := bytes.Fields(lines.Bytes())
		if len(fields) <= inode || string(fields[device]) != s.device {
			continue
		}
		segment := len(fields) > path && bytes.HasPrefix(fields[path], []byte("/SYSV"))
		if !segment || len(t.sources.ipc) == 0 { // otherwise it is counted already
			s.mapped[uint64(number(fields[inode]))] = struct{}{}
		}
	}
	return lines.Err()
}
