// Package record writes the traffic of a host's pipe to a file that can be viewed (`a2e inspect`)
// and played again (`a2e replay`).
//
//	record.go  the format; Encoder: lines become entries without secrets; Lines: the lines of such a
//	           file, however long or broken they are
//	process.go Process: a host, line by line
//	sink.go    Recorder: the file, written from the events of a host that never waits for it
//	tape.go    what a record has: steps, and what came before each; what answers what, in each protocol
//	replay.go  Play: the lines of the agent, each when it may be sent; the report
//	compare.go where two answers differ; what the host made up then and now
//
// A record is NDJSON. Its first line is a Header, and each other line is an entry:
//
//	{"a2e_record":1,"version":"v1.2.3","started":1767225600.5,"workspace":"/home/ada/shop"}
//	{"n":1,"ts":1767225600.612345,"dir":"in","msg":{"type":"ping","id":"1"}}
//
// An entry has its number n, from 1, and the time ts in seconds since 1970. It also has one of:
//
//	msg      the message, as compact JSON
//	text     a line that is no JSON, or the head of a long one; then also cut: true and size, in bytes
//	dropped  how many lines of that direction are missing here
//	full     the size in bytes at which the record ended while the host went on
//	event    what became of the host that `a2e inspect` runs (dir is host)
//
// Secrets are masked by their value: the secrets of the config, the values of variables whose names
// suggest a secret, and values that a message has under a key whose name suggests one, from that
// message on.
package record

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/guard/redact"
	"a2e/protocol"
)

// Dir is the direction of a line.
type Dir string

// The directions.
const (
	In   Dir = "in"   // to the host
	Out  Dir = "out"  // from the host
	Err  Dir = "err"  // from the host's stderr
	Host Dir = "host" // about the host: its start and its end
)

// Format is the version number of the format.
const Format = 1

const (
	headBytes = 4 << 10  // bytes that are kept of a line that is too long
	maxText   = 64 << 10 // longest line in bytes that is kept although it is not JSON
)

// Header is the first line of a record.
type Header struct {
	Format    int     `json:"a2e_record"`
	Version   string  `json:"version"`   // of the host
	Started   float64 `json:"started"`   // seconds since 1970
	Workspace string  `json:"workspace"` // absolute
}

// ErrNoRecord is the error for a file that is not a record.
var ErrNoRecord = errors.New(`not a record: its first line should begin with {"a2e_record":1`)

// ParseHeader reads the first line of a record.
func ParseHeader(line []byte) (h Header, err error) {
	if err := json.Unmarshal(line, &h); err != nil || h.Format == 0 {
		return h, ErrNoRecord
	}
	if h.Format != Format {
		return h, fmt.Errorf("the record has the format %d, this program reads %d: use the a2e that made it, %s",
			h.Format, Format, h.Version)
	}
	return h, nil
}

// Encoder creates entries. It must be used by one goroutine only.
type Encoder struct {
	secrets *redact.Set
	number  int64         // number of the last entry
	line    protocol.Line // scans lines
}

// NewEncoder returns an Encoder that masks the values in secrets, and the secrets in the variables of environ.
func NewEncoder(secrets *redact.Set, environ []string) *Encoder {
	e := &Encoder{secrets: redact.New(secrets)}
	e.secrets.AddEnviron(environ)
	return e
}

// Secrets returns the values that the Encoder masks.
func (e *Encoder) Secrets() *redact.Set { return e.secrets }

// Header appends the first line of a record.
func (e *Encoder) Header(dst []byte, h Header) ([]byte, error) {
	raw, err := json.Marshal(h)
	return append(append(dst, raw...), '\n'), err
}

// begin appends the beginning of an entry.
func (e *Encoder) begin(dst []byte, at time.Time, dir Dir) []byte {
	e.number++
	dst = strconv.AppendInt(append(dst, `{"n":`...), e.number, 10)
	dst = strconv.AppendFloat(append(dst, `,"ts":`...), float64(at.UnixMicro())/1e6, 'f', 6, 64)
	return append(append(append(dst, `,"dir":"`...), dir...), '"')
}

// Line appends the entry of a line. src, if not empty, says who wrote the line. Line changes the bytes of line.
func (e *Encoder) Line(dst []byte, at time.Time, dir Dir, src string, line []byte) []byte {
	// The secrets are looked for in strings in their shortest form.
	msg := jsontext.Value(bytes.TrimPrefix(line, []byte("\ufeff")))
	switch {
	case dir == Err:
		return append(e.text(e.begin(dst, at, dir), line), "}\n"...)
	case compact(msg) && e.line.Scan(msg) == nil: // almost every line
	case msg.Format(jsontext.AllowDuplicateNames(true)) == nil:
	case len(line) > maxText:
		return e.Long(dst, at, dir, line, int64(len(line)))
	default:
		return append(e.text(e.begin(dst, at, dir), redact.BeforeToken(line)), "}\n"...)
	}
	dst = e.begin(dst, at, dir)
	if src != "" {
		dst = append(append(append(dst, `,"src":"`...), src...), '"')
	}
	if dir == In {
		e.secrets.AddMessage(msg)
	}
	return append(append(append(dst, `,"msg":`...), e.secrets.Line(msg)...), "}\n"...)
}

// forget releases the line that was encoded last, and so its buffer.
func (e *Encoder) forget() { _ = e.line.Scan([]byte("{}")) }

// compact reports whether a valid JSON text has no spaces between its parts, and no escapes that could be shorter.
func compact(text []byte) bool {
	if bytes.Contains(text, []byte(`\u`)) || bytes.Contains(text, []byte(`\/`)) {
		return false
	}
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] <= ' ':
			return false
		case text[i] == '"':
			i += 1 + quoted(text[i+1:])
		}
	}
	return true
}

// quoted returns the length of a quoted string up to its closing quote.
func quoted(text []byte) (n int) {
	for {
		next := bytes.IndexByte(text[n:], '"')
		if next < 0 {
			return len(text)
		}
		n += next
		if before := text[:n]; (n-len(bytes.TrimRight(before, `\`)))%2 == 0 {
			return n
		}
		n++
	}
}

// Long appends the entry of a line that is too long. head is its beginning, and size its length in bytes.
func (e *Encoder) Long(dst []byte, at time.Time, dir Dir, head []byte, size int64) []byte {
	dst = e.text(e.begin(dst, at, dir), e.secrets.Head(redact.BeforeToken(head), headBytes))
	dst = strconv.AppendInt(append(dst, `,"cut":true,"size":`...), size, 10)
	return append(dst, "}\n"...)
}

// Dropped appends an entry in place of n lines that are missing.
func (e *Encoder) Dropped(dst []byte, at time.Time, dir Dir, n int64) []byte {
	dst = strconv.AppendInt(append(e.begin(dst, at, dir), `,"dropped":`...), n, 10)
	return append(dst, "}\n"...)
}

// Event appends an entry about the host. code is its exit code, or nil if it has not ended.
func (e *Encoder) Event(dst []byte, at time.Time, event string, code *int, why string) []byte {
	dst = append(append(append(e.begin(dst, at, Host), `,"event":"`...), event...), '"')
	if code != nil {
		dst = strconv.AppendInt(append(dst, `,"code":`...), int64(*code), 10)
	}
	if why != "" {
		dst = e.text(dst, []byte(why))
	}
	return append(dst, "}\n"...)
}

// full appends the entry that ends a record.
func (e *Encoder) full(dst []byte, at time.Time, size int64) []byte {
	dst = strconv.AppendInt(append(e.begin(dst, at, Host), `,"full":`...), size, 10)
	return append(dst, "}\n"...)
}

// text appends the member text. Bytes that are not UTF-8 become U+FFFD.
func (e *Encoder) text(dst, text []byte) []byte {
	dst, _ = jsontext.AppendQuote(append(dst, `,"text":`...),
		trimRune(e.secrets.Bytes(text))) // its error only means that there is U+FFFD
	return dst
}

// trimRune removes an incomplete character from the end of a text that was cut.
func trimRune(text []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if at := len(text) - i; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				return text[:at]
			}
			break
		}
	}
	return text
}

// MaxEntry is how many bytes of a line of a record are read at most.
const MaxEntry = 64 << 20

// Lines reads the lines of a record in bounded memory. It must be used by one goroutine only.
type Lines struct {
	src  *bufio.Reader
	max  int
	part []byte // of the line that has not ended, up to max bytes
	size int64  // size of that line in bytes
}

// NewLines returns the Lines of src, and cuts each line to max bytes.
func NewLines(src io.Reader, max int) *Lines {
	return &Lines{src: bufio.NewReaderSize(src, 256<<10), max: max}
}

// Next returns the next line, without its end, and its size. The line is valid until the next call.
// If size is larger than the line, the line is only the head. At the end of the input the error is
// io.EOF, and a line without an end is kept until more input follows; see Rest.
func (l *Lines) Next() (line []byte, size int64, err error) {
	for {
		piece, err := l.src.ReadSlice('\n')
		whole := err == nil
		if whole {
			piece = piece[:len(piece)-1]
			if l.size == 0 && len(piece) <= l.max {
				return piece, int64(len(piece)), nil
			}
		}
		l.size += int64(len(piece))
		l.part = append(l.part, piece[:max(0, min(len(piece), l.max-len(l.part)))]...)
		switch {
		case whole:
			line, size := l.Rest()
			return line, size, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, 0, err
		}
	}
}

// Rest returns the part of a line that has no end yet.
func (l *Lines) Rest() (line []byte, size int64) {
	line, size = l.part, l.size
	l.size = 0
	if l.part = l.part[:0]; cap(l.part) > keepBuffer {
		l.part = nil
	}
	return line, size
}

// Entry is one line of a record.
type Entry struct {
	N       int64          `json:"n"`
	TS      float64        `json:"ts"` // seconds since 1970
	Dir     Dir            `json:"dir"`
	Msg     jsontext.Value `json:"msg"`
	Text    *string        `json:"text"` // a line that is not JSON
	Cut     bool           `json:"cut"`  // Text is the head of a line
	Dropped int64          `json:"dropped"`
}

// Damage says what is missing in a record.
type Damage struct {
	Broken  int   // lines that are no entries, such as one that was cut off
	Dropped int64 // lines that were not recorded
}

// Read reads a record and passes each entry to take, which may keep it.
func Read(path string, take func(*Entry)) (h Header, d Damage, err error) {
	file, err := OpenFile(path)
	if err != nil {
		return h, d, err
	}
	defer file.Close()
	lines := NewLines(file, MaxEntry)
	line, _, err := lines.Next()
	if errors.Is(err, io.EOF) {
		line, _ = lines.Rest()
	}
	if h, err = ParseHeader(line); err != nil {
		return h, d, err
	}
	for {
		line, size, err := lines.Next()
		last := errors.Is(err, io.EOF)
		switch {
		case last:
			line, size = lines.Rest()
		case err != nil:
			return h, d, err
		}
		if len(line) > 0 {
			e := &Entry{}
			if size > int64(len(line)) || json.Unmarshal(line, e, jsontext.AllowDuplicateNames(true)) != nil ||
				e.Dir == "" {
				d.Broken++
			} else {
				d.Dropped += e.Dropped
				take(e)
			}
		}
		if last {
			return h, d, nil
		}
	}
}

// OpenFile opens a record. It must be a regular file, as reading from any other file could block forever.
func OpenFile(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}
