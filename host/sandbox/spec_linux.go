package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"golang.org/x/sys/unix"
)

// The descriptors that a launcher starts with: its own streams.
const (
	fdControl = 0 // a socket: the frame, the spec with the command's files, then one byte per signal; its end means: kill
	fdReport  = 1 // reports; 2 is the same pipe, for a panic's text
	fdFirst   = 3 // of those that are not the launcher's own
)

// The files that come with a spec, by their place.
const (
	stdioFiles = 3 // standard input, output and error of the command
	dirFile    = 3 // the working directory, where the host has it open
	maxFiles   = 4
)

// maxSpecBytes bounds what a launcher reads. The kernel's own bound on
// arguments and environment is far below.
const maxSpecBytes = 64 << 20

// frame is what a launcher makes around a command: the first thing it is told,
// maybe long before the command.
type frame struct {
	namespace     bool // it is pid 1 of its own PID namespace
	userNamespace bool
	hostIsRoot    bool
	firm          bool // nothing runs where the walls among the grants cannot be held
	mode          Mode
	network       Network
	processes     int64 // bound on their number
	grants        []grant
	home          string
	alone         bool     // its home is that of one command; the host's concern only
	console       string   // path of the command's terminal; "" = none
	missing       []string // "name\treason" of each mechanism that cannot be had

	// What the launcher finds out.
	ownRoot     bool
	wholeEtc    bool // Landlock must hide a part of /etc
	pidsLimited bool // something bounds the number of processes
}

// fits tells whether a launcher with this frame does for a command that wants
// another.
func (f *frame) fits(want *frame) bool {
	sameView := len(f.grants) == len(want.grants) && (len(f.grants) == 0 || &f.grants[0] == &want.grants[0])
	return sameView && f.mode == want.mode && f.network == want.network && f.processes == want.processes && f.console == want.console
}

// hold notes what holds the tree, and why it is not the strongest.
func (f *frame) hold(by Mechanism, refused error) {
	f.namespace, f.userNamespace = by != MechanismSubreaper, by == MechanismUserPIDNamespace
	if f.mode == Off {
		return
	}
	if !f.userNamespace {
		f.miss(findUser, refused)
	}
	if !f.namespace {
		f.miss(findPID, refused)
	}
}

// encode writes a length, then NUL-ended fields: none of them can hold a NUL.
func (f *frame) encode() []byte {
	e := encoder{buf: make([]byte, 4, 8<<10)}
	for _, b := range []bool{f.namespace, f.userNamespace, f.hostIsRoot, f.firm} {
		e.flag(b)
	}
	for _, text := range []string{string(f.mode), string(f.network), f.home, f.console} {
		e.text(text)
	}
	e.num(f.processes)
	e.num(int64(len(f.grants)))
	for _, g := range f.grants {
		e.text(string(g.access))
		e.text(g.source)
		e.text(g.target)
		e.num(int64(g.id.dev))
		e.num(int64(g.id.ino))
	}
	e.list(f.missing)
	return e.done()
}

// readFrame is the other side of encode.
func readFrame(r io.Reader) (*frame, error) {
	d, err := readFields(r)
	if err != nil {
		return nil, err
	}
	f := &frame{namespace: d.num() == 1, userNamespace: d.num() == 1, hostIsRoot: d.num() == 1, firm: d.num() == 1}
	f.mode, f.network = Mode(d.text()), Network(d.text())
	f.home, f.console = d.text(), d.text()
	f.processes = d.num()
	for n := d.num(); n > 0 && d.err == nil; n-- {
		f.grants = append(f.grants, grant{access(d.text()), d.text(), d.text(), fileID{uint64(d.num()), uint64(d.num())}})
	}
	f.missing = d.list()
	return f, d.err
}

// spec is the command that a launcher is told to run within its frame.
type spec struct {
	*frame
	probe    bool // set everything up, and run nothing
	terminal bool // file 0 becomes the controlling terminal
	grouped  bool // a cgroup bounds the tree
	limits   Limits
	dir      string
	path     string
	argv     []string
	env      []string

	files []int // what the launcher gets along with it
}

// encode is as for a frame.
func (s *spec) encode() []byte {
	e := encoder{buf: make([]byte, 4, 4<<10)}
	for _, b := range []bool{s.probe, s.terminal, s.grouped} {
		e.flag(b)
	}
	l := s.limits
	for _, n := range []int64{l.MemoryBytes, l.AddressBytes, l.FileBytes, l.OpenFiles, l.Processes, l.CPUSeconds} {
		e.num(n)
	}
	e.text(s.dir)
	e.text(s.path)
	e.list(s.argv)
	e.list(s.env)
	return e.done()
}

// readSpec is the other side of encode.
func readSpec(r io.Reader) (*spec, error) {
	d, err := readFields(r)
	if err != nil {
		return nil, err
	}
	s := &spec{probe: d.num() == 1, terminal: d.num() == 1, grouped: d.num() == 1}
	l := &s.limits
	for _, n := range []*int64{&l.MemoryBytes, &l.AddressBytes, &l.FileBytes, &l.OpenFiles, &l.Processes, &l.CPUSeconds} {
		*n = d.num()
	}
	s.dir, s.path, s.argv, s.env = d.text(), d.text(), d.list(), d.list()
	return s, d.err
}

// receiveSpec reads a spec and the files that came with it, which are closed on
// exec.
func receiveSpec(socket int) (*spec, error) {
	head := make([]byte, copyBytes)
	rights := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, m, err := 0, 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, m, _, _, err = unix.Recvmsg(socket, head, rights, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:m])
	if err != nil {
		return nil, err
	}
	var files []int
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, err
		}
		files = append(files, fds...)
	}
	s, err := readSpec(io.MultiReader(bytes.NewReader(head[:n]), descriptor(socket)))
	if err != nil {
		return nil, err
	}
	if len(files) != stdioFiles && len(files) != maxFiles {
		return nil, fmt.Errorf("%d files came with the spec", len(files))
	}
	s.files = files
	return s, nil
}

// descriptor reads from a file descriptor as it is.
type descriptor int

func (d descriptor) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(d), p)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// encoder appends fields to a buffer.
type encoder struct{ buf []byte }

func (e *encoder) text(t string) { e.buf = append(append(e.buf, t...), 0) }
func (e *encoder) num(n int64)   { e.buf = append(strconv.AppendInt(e.buf, n, 10), 0) }

func (e *encoder) flag(b bool) {
	if b {
		e.num(1)
	} else {
		e.num(0)
	}
}

// done gives the buffer with its length in front.
func (e *encoder) done() []byte {
	binary.LittleEndian.PutUint32(e.buf, uint32(len(e.buf)-4))
	return e.buf
}

func (e *encoder) list(texts []string) {
	e.num(int64(len(texts)))
	for _, t := range texts {
		e.text(t)
	}
}

// fields takes NUL-ended texts off a buffer.
type fields struct {
	rest []byte
	err  error
}

// readFields reads what one encoder wrote, and no byte more.
func readFields(r io.Reader) (*fields, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n == 0 || n > maxSpecBytes {
		return nil, fmt.Errorf("spec of %d bytes", n)
	}
	data := make([]byte, n)
	_, err := io.ReadFull(r, data)
	return &fields{rest: data}, err
}

func (d *fields) text() string {
	field, rest, ok := bytes.Cut(d.rest, []byte{0})
	if !ok {
		d.err = errors.New("spec ends too early")
		return ""
	}
	d.rest = rest
	return string(field)
}

func (d *fields) num() int64 {
	n, err := strconv.ParseInt(d.text(), 10, 64)
	if err != nil && d.err == nil {
		d.err = err
	}
	return n
}

func (d *fields) list() (texts []string) {
	for n := d.num(); n > 0 && d.err == nil; n-- {
		texts = append(texts, d.text())
	}
	return texts
}

// The kinds of report a launcher sends.
const (
	reportStarted = 'S' // the command runs: text lists the mechanisms that it goes without
	reportRefused = 'R' // mode Required refuses: text as above
	reportFailed  = 'F' // it could not be started: value is an errno, text what failed
	reportExit    = 'X' // it ended: value is its wait status
	reportCrowd   = 'P' // the tree had more processes than it may, and is ended: value is their bound
	reportMemory  = 'M' // the tree took more memory than it may, and is ended: value is how much, in MiB
)

// maxReportText bounds what is kept of a launcher's text.
const maxReportText = 4096

// report is one message of a launcher: a kind, a value, and a text.
type report struct {
	kind  byte
	value uint32
	text  string
}

func (r report) encode() []byte {
	buf := append(make([]byte, 0, 9+len(r.text)), r.kind)
	buf = binary.LittleEndian.AppendUint32(buf, r.value)
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(r.text)))
	return append(buf, r.text...)
}

// readReport reads one report. Anything else on the pipe is the last words of a
// launcher that panicked, and becomes the error.
func readReport(r io.Reader) (report, error) {
	var head [9]byte
	n, err := io.ReadFull(r, head[:])
	if n == 0 {
		return report{}, io.EOF
	}
	kind, size := head[0], binary.LittleEndian.Uint32(head[5:])
	known := bytes.IndexByte([]byte{reportStarted, reportRefused, reportFailed, reportExit, reportMemory, reportCrowd}, kind) >= 0
	if err != nil || !known || size > maxReportText {
		words := make([]byte, maxReportText)
		more, _ := io.ReadFull(r, words)
		return report{}, fmt.Errorf("launcher: %s", append(head[:n:n], words[:more]...))
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return report{}, io.ErrUnexpectedEOF
	}
	return report{kind: kind, value: binary.LittleEndian.Uint32(head[1:]), text: string(text)}, nil
}
