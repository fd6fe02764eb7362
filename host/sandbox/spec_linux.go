package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// The descriptors of a launcher: its own streams are the two control pipes, the
// command's streams wait at 3 to 5.
const (
	fdControl = 0 // the spec, then one byte per signal; its end means: kill
	fdReport  = 1 // reports; 2 is the same pipe, for a panic's text
	fdStdio   = 3 // three of them
	fdDir     = 6 // the working directory, when spec.hasDirFD
)

// maxSpecBytes bounds what a launcher reads. The kernel's own bound on
// arguments and environment is far below.
const maxSpecBytes = 64 << 20

// spec is what a launcher is told to do.
type spec struct {
	namespace     bool // it is pid 1 of its own PID namespace
	userNamespace bool
	hostIsRoot    bool
	hasDirFD      bool
	terminal      bool
	probe         bool // set everything up, and run nothing
	pidsLimited   bool // something bounds the number of processes already
	mode          Mode
	network       Network
	limits        Limits
	grants        []grant
	workspace     string
	home          string
	dir           string
	path          string
	argv          []string
	env           []string

	missing []string // "name\treason" of each mechanism that cannot be had

	// What the launcher finds out.
	ownRoot  bool
	wholeEtc bool // Landlock must hide a part of /etc
}

// encode writes a length, then NUL-ended fields: none of them can hold a NUL.
func (s *spec) encode() []byte {
	e := encoder{buf: make([]byte, 4, 8<<10)}
	for _, b := range []bool{s.namespace, s.userNamespace, s.hostIsRoot, s.hasDirFD, s.terminal, s.probe, s.pidsLimited} {
		e.flag(b)
	}
	l := s.limits
	for _, n := range []int64{l.MemoryBytes, l.FileBytes, l.OpenFiles, l.Processes, l.CPUSeconds} {
		e.num(n)
	}
	for _, text := range []string{string(s.mode), string(s.network), s.workspace, s.home, s.dir, s.path} {
		e.text(text)
	}
	e.num(int64(len(s.grants)))
	for _, g := range s.grants {
		e.text(string(g.access))
		e.text(g.source)
		e.text(g.target)
	}
	e.list(s.argv)
	e.list(s.env)
	e.list(s.missing)
	binary.LittleEndian.PutUint32(e.buf, uint32(len(e.buf)-4))
	return e.buf
}

// readSpec is the other side of encode.
func readSpec(r io.Reader) (*spec, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n == 0 || n > maxSpecBytes {
		return nil, fmt.Errorf("spec of %d bytes", n)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, err
	}
	d := fields{rest: data}
	s := &spec{}
	for _, b := range []*bool{&s.namespace, &s.userNamespace, &s.hostIsRoot, &s.hasDirFD, &s.terminal, &s.probe, &s.pidsLimited} {
		*b = d.num() == 1
	}
	l := &s.limits
	for _, n := range []*int64{&l.MemoryBytes, &l.FileBytes, &l.OpenFiles, &l.Processes, &l.CPUSeconds} {
		*n = d.num()
	}
	s.mode, s.network = Mode(d.text()), Network(d.text())
	s.workspace, s.home, s.dir, s.path = d.text(), d.text(), d.text(), d.text()
	for n := d.num(); n > 0 && d.err == nil; n-- {
		s.grants = append(s.grants, grant{access(d.text()), d.text(), d.text()})
	}
	s.argv, s.env, s.missing = d.list(), d.list(), d.list()
	return s, d.err
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
	known := kind == reportStarted || kind == reportRefused || kind == reportFailed || kind == reportExit
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
