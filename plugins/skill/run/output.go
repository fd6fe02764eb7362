package run

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// What a script or module may print.
const (
	maxPrinted   = 32 << 20 // bytes of both streams together
	maxLines     = 500_000  // of both streams together
	maxEvents    = 10_000   // events with a kind
	maxKind      = 64       // bytes of a kind
	lineSlack    = 64 << 10 // bytes of a line beside the result in it
	maxLogLine   = 16 << 10 // bytes of a line in a log event
	maxSummary   = 4 << 10
	keptStderr   = 16 << 10 // bytes of the end of stderr
	shownStderr  = 2 << 10  // of these in a Failure
	logBurst     = 1000     // log events at once,
	logPerSecond = 200      // and as many more with each second
)

// output takes what a script or module prints.
type output struct {
	max   int // bytes of JSON of a result
	emit  host.Emitter
	event EventFunc
	stop  context.CancelCauseFunc // ends what prints
	now   func() time.Time

	mu      sync.Mutex // each stream has a goroutine; guards the fields below
	printed int64
	lines   int64
	events  int
	logs    bucket
	result  jsontext.Value
	summary string
	last    jsontext.Value // the last object that is neither an event nor a result
	tooLong bool           // an object was longer than max
	text    []byte         // lines of stdout that are no objects
	textCut bool
	stderr  []byte // its end
}

func newOutput(max int, emit host.Emitter, event EventFunc, stop context.CancelCauseFunc) *output {
	return &output{max: max, emit: emit, event: event, stop: stop, now: time.Now, logs: bucket{left: logBurst}}
}

// streams gives what takes stdout and stderr.
func (o *output) streams() (stdout, stderr counted) {
	return counted{o, &splitter{max: o.max + lineSlack, line: o.hearStdout}}, counted{o, &splitter{max: maxLogLine, line: o.hearStderr}}
}

// counted is a stream whose bytes count for the bound on all.
type counted struct {
	*output
	cutter *splitter
}

// Write implements io.Writer. What comes after the bound is dropped: the end is near.
func (c counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.printed += int64(len(p))
	c.lines += int64(bytes.Count(p, []byte("\n")))
	over := c.printed > maxPrinted || c.lines > maxLines
	c.mu.Unlock()
	if over {
		c.stop(errorf("it was stopped: it printed more than %d MiB, or %d lines", maxPrinted>>20, maxLines))
		return len(p), nil
	}
	return c.cutter.Write(p)
}

// hearStdout takes one line.
func (o *output) hearStdout(line []byte, whole bool) {
	line = bytes.TrimRight(line, "\r")
	trimmed := bytes.TrimSpace(line)
	if len(trimmed) > 0 && trimmed[0] == '{' {
		if !whole {
			o.mu.Lock()
			o.tooLong = true
			o.mu.Unlock()
			return
		}
		if obj, err := protocol.ParseObject(trimmed); err == nil {
			o.object(obj)
			return
		}
	}
	now := o.now()
	o.mu.Lock()
	room := min(len(line), o.max-len(o.text))
	o.text = append(o.text, line[:room]...)
	o.textCut = o.textCut || room < len(line) || !whole
	if len(o.text) < o.max {
		o.text = append(o.text, '\n')
	}
	told := o.tellsLocked(now)
	o.mu.Unlock()
	o.log(told, line, "stdout")
}

// object takes a line that is an object.
func (o *output) object(obj protocol.Object) {
	kind, _ := obj.Get("kind")
	data, has := obj.Get("data")
	if name, ok := kind.Str(); ok && has && name != "" && len(name) <= maxKind {
		o.send(name, data)
		return
	}
	result, isResult := obj.Get("result")
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case isResult && len(result) > o.max, !isResult && len(obj.Raw()) > o.max:
		o.tooLong = true
	case isResult:
		o.result, o.tooLong = append(o.result[:0], result...), false
		text, _ := obj.Get("summary")
		summary, _ := text.Str()
		o.summary = head(summary, maxSummary)
	default:
		o.last = append(o.last[:0], obj.Raw()...)
	}
}

// send passes an event on. One whose data does not fit its kind is a line like others.
func (o *output) send(kind string, data protocol.Value) {
	o.mu.Lock()
	o.events++
	over := o.events > maxEvents
	o.mu.Unlock()
	if over {
		o.stop(errorf("it was stopped: it sent more than %d events", maxEvents))
		return
	}
	switch protocol.EventKind(kind) {
	case protocol.EventProgress, protocol.EventStatus, protocol.EventLog, protocol.EventArtifact:
		if obj, err := protocol.ParseObject(data); err != nil || !known(o.emit, protocol.EventKind(kind), obj) {
			o.log(true, append([]byte("an event of kind "+kind+" with other data than it has: "), data...), "stdout")
		}
	default:
		o.event(kind, jsontext.Value(data))
	}
}

// known passes on an event of one of the kinds that each agent knows.
func known(emit host.Emitter, kind protocol.EventKind, obj protocol.Object) bool {
	switch kind {
	case protocol.EventProgress:
		var p protocol.Progress
		if obj.Decode(&p) != nil {
			return false
		}
		emit.Progress(p.Pct, p.Message)
	case protocol.EventStatus:
		var s protocol.Status
		if obj.Decode(&s) != nil {
			return false
		}
		emit.Status(s.Message)
	case protocol.EventLog:
		var l protocol.Log
		if obj.Decode(&l) != nil {
			return false
		}
		if !slices.Contains([]string{"debug", "info", "warn", "warning", "error"}, l.Level) {
			l.Level = "info"
		}
		emit.Log(l.Level, l.Message, "")
	default:
		var a protocol.Artifact
		if obj.Decode(&a) != nil {
			return false
		}
		emit.Artifact(a.Name, a.Mime, a.Chunk, a.Final)
	}
	return true
}

// hearStderr takes one line.
func (o *output) hearStderr(line []byte, _ bool) {
	now := o.now()
	o.mu.Lock()
	o.stderr = append(append(o.stderr, line...), '\n')
	if over := len(o.stderr) - keptStderr; over > keptStderr {
		o.stderr = append(o.stderr[:0], o.stderr[over:]...)
	}
	told := o.tellsLocked(now)
	o.mu.Unlock()
	o.log(told, line, "stderr")
}

// tellsLocked tells whether one more line is passed on.
func (o *output) tellsLocked(now time.Time) bool { return o.emit.Streaming() && o.logs.take(now) }

// log passes a line on.
func (o *output) log(told bool, line []byte, stream string) {
	if told {
		o.emit.Log("info", head(plain(line), maxLogLine), stream)
	}
}

// bucket bounds how often something is done.
type bucket struct {
	left   float64
	filled time.Time
	missed int
}

func (b *bucket) take(now time.Time) bool {
	if !b.filled.IsZero() {
		b.left = min(b.left+now.Sub(b.filled).Seconds()*logPerSecond, logBurst)
	}
	b.filled = now
	if b.left < 1 {
		b.missed++
		return false
	}
	b.left--
	return true
}

// words gives the end of stderr, at most size bytes.
func (o *output) words(size int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return tail(strings.TrimSpace(strings.ToValidUTF8(string(o.stderr), "\uFFFD")), size)
}

// finish gives the result of what came to its end: how, and with which status.
func (o *output) finish(code int, how string) *Result {
	o.mu.Lock()
	missed := o.logs.missed
	o.mu.Unlock()
	if missed > 0 {
		o.emit.Log("warn", fmt.Sprintf("%d more lines were printed, too fast to be passed on", missed), "")
	}
	r := &Result{ExitCode: &code}
	if how != "" {
		r.Failed, r.Failure = true, how
		if words := o.words(shownStderr); words != "" {
			r.Failure += "; the end of its stderr: " + words
		}
		return r
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tooLong {
		r.Failed, r.Failure = true, fmt.Sprintf("it printed an object of more than %d bytes, which is the largest result; it should write a file instead and name it", o.max)
		return r
	}
	r.Summary = o.summary
	switch text := bytes.TrimSpace(o.text); {
	case o.result != nil:
		r.Data = o.result
	case o.last != nil:
		r.Data = o.last
	case len(text) == 0:
	case !o.textCut && isObject(text):
		r.Data = jsontext.Value(text)
	default:
		value, all := quoted(strings.ToValidUTF8(strings.Trim(string(o.text), "\r\n"), "\uFFFD"), o.max)
		r.Data, r.Truncated = value, o.textCut || !all
	}
	return r
}

// isObject tells whether a text of several lines is one object.
func isObject(text []byte) bool {
	_, err := protocol.ParseObject(text)
	return err == nil
}

// splitter cuts a stream into lines, in bounded memory.
type splitter struct {
	max  int                           // bytes of a line
	line func(line []byte, whole bool) // without its end, and only its beginning where it is not whole; valid until it returns
	part []byte                        // of the line that has no end yet
	cut  bool                          // that line was longer than max
}

// Write implements io.Writer for one goroutine.
func (s *splitter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		rest = after
		if ended && len(s.part) == 0 && !s.cut && len(line) <= s.max {
			s.line(line, true)
			continue
		}
		room := min(len(line), s.max-len(s.part))
		s.cut = s.cut || room < len(line)
		s.part = append(s.part, line[:room]...)
		if ended {
			s.flush()
		}
	}
	return len(p), nil
}

// end passes on a last line that has no end.
func (s *splitter) end() {
	if len(s.part) > 0 || s.cut {
		s.flush()
	}
}

func (s *splitter) flush() {
	s.line(s.part, !s.cut)
	s.part, s.cut = s.part[:0], false
}

// plain makes text fit for JSON: bytes that are no UTF-8 show as the replacement
// character, and a line loses the end that other systems give it.
func plain(line []byte) string {
	return strings.ToValidUTF8(strings.TrimSuffix(string(line), "\r"), "\uFFFD")
}

// head gives at most the first size bytes of a text, not ending inside a character.
func head(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}

// tail gives at most the last size bytes of a text, not beginning inside a character.
func tail(text string, size int) string {
	if len(text) <= size {
		return text
	}
	text = text[len(text)-size:]
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return text
}

// quoted gives a text as a JSON string of at most max bytes, and whether that is all.
func quoted(text string, max int) (value []byte, all bool) {
	size := len(`""`)
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"', c == '\\', c == '\n', c == '\r', c == '\t', c == '\b', c == '\f':
			size += 2
		case c < ' ':
			size += len(`\u0000`)
		default:
			size++
		}
		if size > max {
			return protocol.AppendString(nil, head(text, i)), false
		}
	}
	return protocol.AppendString(nil, text), true
}
