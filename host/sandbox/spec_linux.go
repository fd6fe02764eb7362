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
	namespace bool // it is pid 1 of its own PID namespace
	hasDirFD  bool
	limits    Limits
	dir       string
	path      string
	argv      []string
	env       []string
}

// encode writes a length, then NUL-ended fields: none of them can hold a NUL.
func (s *spec) encode() []byte {
	buf := make([]byte, 4, 1024)
	num := func(n uint64) { buf = append(strconv.AppendUint(buf, n, 10), 0) }
	text := func(t string) { buf = append(append(buf, t...), 0) }
	flag := func(b bool) {
		if b {
			num(1)
		} else {
			num(0)
		}
	}
	flag(s.namespace)
	flag(s.hasDirFD)
	for _, n := range []uint64{s.limits.FileBytes, s.limits.OpenFiles, s.limits.CPUSeconds} {
		num(n)
	}
	text(s.dir)
	text(s.path)
	num(uint64(len(s.argv)))
	for _, arg := range s.argv {
		text(arg)
	}
	for _, entry := range s.env {
		text(entry)
	}
	binary.LittleEndian.PutUint32(buf, uint32(len(buf)-4))
	return buf
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
	s := &spec{namespace: d.num() == 1, hasDirFD: d.num() == 1}
	s.limits = Limits{FileBytes: d.num(), OpenFiles: d.num(), CPUSeconds: d.num()}
	s.dir, s.path = d.text(), d.text()
	for range d.num() {
		s.argv = append(s.argv, d.text())
		if d.err != nil {
			break
		}
	}
	for len(d.rest) > 0 && d.err == nil {
		s.env = append(s.env, d.text())
	}
	return s, d.err
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

func (d *fields) num() uint64 {
	n, err := strconv.ParseUint(d.text(), 10, 64)
	if err != nil && d.err == nil {
		d.err = err
	}
	return n
}

// The kinds of report a launcher sends.
const (
	reportStarted = 'S' // the command runs
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
	known := kind == reportStarted || kind == reportFailed || kind == reportExit
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
