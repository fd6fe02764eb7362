package link

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/redact"
)

// The bounds of what a server's process prints.
const (
	maxLine      = 16 << 20 // bytes of one message
	maxStderr    = 2 << 10  // bytes of a line of stderr that are shown
	maxWords     = 8 << 10  // bytes of the end of stderr that are kept
	maxLastWords = 1 << 10  // and of those, shown in the error that says how it ended
	burstStderr  = 100      // lines of stderr that are shown at once
	perSecond    = 20       // and in each second after that
)

// errLong is that of a line with more than maxLine bytes, which was skipped.
var errLong = errors.New("a line of more than 16 MiB")

// lineReader reads lines of a bounded length.
type lineReader struct {
	in   *bufio.Reader
	long []byte // a line that did not fit into in's buffer
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(r, 64<<10)}
}

// next gives a line without its end; it is good until the next call. errLong is not the
// end; a line without an end at the end of the stream is one.
func (l *lineReader) next() ([]byte, error) {
	if cap(l.long) > 1<<20 {
		l.long = nil
	}
	l.long = l.long[:0]
	dropped := false
	for {
		part, err := l.in.ReadSlice('\n')
		if err == nil && len(l.long) == 0 && !dropped {
			return part[:len(part)-1], nil
		}
		if dropped = dropped || len(l.long)+len(part) > maxLine+1; dropped {
			l.long = l.long[:0]
		} else {
			l.long = append(l.long, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case dropped && (err == nil || errors.Is(err, io.EOF)):
			return nil, errLong
		case err == nil:
			return l.long[:len(l.long)-1], nil
		case len(l.long) > 0 && errors.Is(err, io.EOF):
			return l.long, nil
		default:
			return nil, err
		}
	}
}

// ear takes a process' stderr to the log.
type ear struct {
	log     zerolog.Logger
	secrets *redact.Set
	now     func() time.Time

	part   []byte // of the line that has no end yet
	ended  sync.Once
	left   int // lines that may be shown until refill
	refill time.Time
	unsaid int // lines that were not shown

	mu    sync.Mutex // guards the field below
	words []byte     // the last lines, as they came
}

func newEar(log zerolog.Logger, secrets *redact.Set, now func() time.Time) *ear {
	return &ear{log: log, secrets: secrets, now: now, left: burstStderr, refill: now().Add(time.Second)}
}

// Write implements io.Writer for one goroutine. It never fails.
func (e *ear) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		rest = after
		if room := maxStderr + e.secrets.Longest() - len(e.part); room > 0 {
			e.part = append(e.part, line[:min(room, len(line))]...)
		}
		if whole {
			e.say()
		}
	}
	return len(p), nil
}

// end shows a last line without an end, once nothing is written any more.
func (e *ear) end() { e.ended.Do(e.say) }

// say shows the line under way.
func (e *ear) say() {
	line := bytes.TrimRight(e.part, "\r \t")
	e.part = e.part[:0]
	if len(line) == 0 {
		return
	}
	shown := line
	if len(line) > maxStderr {
		shown = e.secrets.Head(line, maxStderr)
	}
	e.mu.Lock()
	e.words = append(append(e.words, shown...), '\n')
	if len(e.words) > 2*maxWords { // whole lines go, so that no part of a secret stays
		_, rest, _ := bytes.Cut(e.words[len(e.words)-maxWords:], []byte("\n"))
		e.words = append(e.words[:0], rest...)
	}
	e.mu.Unlock()
	if e.may() {
		e.log.Info().Bytes("stderr", e.secrets.Head(line, maxStderr)).Msg("the MCP server says")
	}
}

// may tells whether a line may be shown now.
func (e *ear) may() bool {
	if now := e.now(); !now.Before(e.refill) {
		if e.unsaid > 0 {
			e.log.Info().Int("lines", e.unsaid).Msg("so many lines of the MCP server's stderr were left out of the log")
		}
		e.unsaid, e.left, e.refill = 0, max(e.left, perSecond), now.Add(time.Second)
	}
	if e.left > 0 {
		e.left--
		return true
	}
	if e.unsaid++; e.unsaid == 1 {
		e.log.Warn().Msg("the MCP server writes too much to stderr; lines are left out of the log")
	}
	return false
}

// last gives the end of what was said.
func (e *ear) last() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := strings.ToValidUTF8(e.secrets.Text(strings.TrimSpace(string(e.words))), "\uFFFD")
	return strings.ToValidUTF8(text[max(0, len(text)-maxLastWords):], "")
}

// lastLine gives the last line of what was said.
func (e *ear) lastLine() string {
	text := e.last()
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// noise bounds how often something is logged.
type noise struct {
	mu     sync.Mutex // guards the fields below
	next   time.Time
	hidden int
}

// loud tells whether to log now, and how much was kept back since the last time.
func (n *noise) loud(now time.Time) (hidden int, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Before(n.next) {
		n.hidden++
		return 0, false
	}
	hidden, n.hidden, n.next = n.hidden, 0, now.Add(time.Second)
	return hidden, true
}
