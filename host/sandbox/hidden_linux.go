package sandbox

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// sources tell of memory that no process shows as its own. System V IPC keeps its
// own accounts. Of the files without a name (memfd_create, shared mappings
// without a file) the machine tells how much memory they take together, and not
// whose it is: held looks for that once it matters.
type sources struct {
	err     error // why one of them cannot be read
	meminfo int   // /proc/meminfo
	ipc     []ipc // of the tree's own IPC namespace; nil = it has none
	device  string
	least   int64 // least memory, in bytes, of nameless files since the tree began
}

// ipc is one file of /proc/sysvipc: its columns add up to memory, in units.
type ipc struct {
	name    string
	columns []string
	unit    int64
	fd      int
}

// semaphoreBytes is what the kernel takes for each of a System V set.
const semaphoreBytes = 64

// hidden is what sources tell, in bytes.
type hidden struct {
	queued   int64 // in System V messages and semaphores
	segments int64 // in System V shared memory; a part of nameless
	nameless int64 // in files without a name, on the whole machine
	grown    int64 // how much of that has come since the tree began
}

// openSources opens them before the command runs, on its side: these files show
// the namespace of whoever opens them.
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
		if kind.fd = open("sysvipc/" + kind.name); kind.fd >= 0 { // else the kernel has no System V IPC
			s.ipc = append(s.ipc, kind)
		}
	}
	if s.err == nil {
		s.least, s.err = s.nameless()
	}
}

// namelessDevice is the device of files without a name, as /proc/PID/maps writes
// it; "" where it cannot be known.
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

// nameless gives the memory of all files without a name, of the whole machine;
// those of tmpfs are in it.
func (s *sources) nameless() (int64, error) {
	if s.meminfo < 0 {
		return 0, nil // this machine does not tell
	}
	fields, err := words(s.meminfo)
	return after(fields, "Shmem:") << 10, err
}

func (s *sources) read() (h hidden, err error) {
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

// sum adds up the columns of all lines below the one that names them.
func (k *ipc) sum() (bytes int64, err error) {
	if _, err := unix.Seek(k.fd, 0, 0); err != nil {
		return 0, err
	}
	var at []int
	lines := bufio.NewScanner(descriptor(k.fd))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if at == nil {
			at = indexes(fields, k.columns)
			continue
		}
		for _, i := range at {
			if i < len(fields) {
				bytes += number([]byte(fields[i])) * k.unit
			}
		}
	}
	return bytes, lines.Err()
}

// indexes tells where the wanted fields are; it is not nil.
func indexes(fields, wanted []string) []int {
	at := make([]int, 0, len(wanted))
	for i, field := range fields {
		for _, name := range wanted {
			if field == name {
				at = append(at, i)
			}
		}
	}
	return at
}

// maxLooks bounds how many descriptors and mappings one search goes through.
const maxLooks = 100_000

// search is for the nameless files of a tree.
type search struct {
	device string
	deep   bool                // what has no size that can be seen matters
	files  map[uint64]int64    // bytes of those that are open, by inode
	mapped map[uint64]struct{} // inodes of those that are mapped
	left   int                 // looks
	blind  bool                // the tree may hold more than can be seen
}

// held gives the memory of the tree's nameless files, in bytes. One that is open
// tells its size. One that is only mapped, waits in the queue of a socket or
// belongs to a process that hides may have any: with deep it is looked for, and
// where there is one, all that the machine's files have grown by is the tree's.
func (t *tree) held(h hidden, deep bool) (int64, error) {
	s := &search{device: t.sources.device, deep: deep, files: make(map[uint64]int64), mapped: make(map[uint64]struct{}), left: maxLooks}
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

func (t *tree) searchProcess(s *search, pid string) error {
	threads, err := t.names(pid + "/task")
	if err != nil {
		return ifThere(err)
	}
	for _, thread := range threads { // one may have descriptors of its own
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

// look takes the error of one look: a process that forbids it may hide anything.
func (s *search) look(err error) error {
	s.blind = s.blind || forbidden(err)
	if forbidden(err) {
		return nil
	}
	return ifThere(err)
}

func (t *tree) searchFiles(s *search, dir string) error {
	names, err := t.names(dir + "/fd")
	if err != nil {
		return err
	}
	for _, name := range names {
		if s.left--; s.left <= 0 {
			return nil
		}
		var st unix.Statx_t
		// the file systems of others shall not be asked, which may take long
		err := unix.Statx(t.proc, dir+"/fd/"+name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_BLOCKS, &st)
		switch {
		case err != nil:
			s.blind = s.blind || !gone(err)
		case s.deep && st.Mode&unix.S_IFMT == unix.S_IFSOCK:
			fields, err := t.read(dir + "/fdinfo/" + name)
			if err != nil && !gone(err) {
				return err
			}
			s.blind = s.blind || after(fields, "scm_fds:") > 0 // files wait in it
		case deviceOf(&st) == s.device:
			s.files[st.Ino] = int64(st.Blocks) * blockBytes
		}
	}
	return nil
}

// blockBytes is the unit of a file's blocks.
const blockBytes = 512

func (t *tree) searchMappings(s *search, dir string) error {
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
		if !segment || len(t.sources.ipc) == 0 { // else it is counted already
			s.mapped[uint64(number(fields[inode]))] = struct{}{}
		}
	}
	return lines.Err()
}
