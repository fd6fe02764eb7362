package run

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/child"
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

	mu      sync.Mutex // each stream has a goroutine; guards the fields below
	printed int64
	lines   int64
	events  int
	logs    child.Limiter
	missed  int // lines that were not passed on
	result  jsontext.Value
	summary string
	last    jsontext.Value // the last object that is neither an event nor a result
	tooLong bool           // an object was longer than max
	text    []byte         // lines of stdout that are no objects
	textCut bool
	stderr  child.Tail
}

func newOutput(max int, emit host.Emitter, event EventFunc, stop context.CancelCauseFunc) *output {
	return &output{max: max, emit: emit, event: event, stop: stop, logs: child.Limiter{Burst: logBurst, PerSecond: logPerSecond}, stderr: child.Tail{Size: keptStderr}}
}

// streams returns what takes stdout and stderr.
func (o *output) streams() (stdout, stderr counted) {
	long := o.max + lineSlack
	return counted{o, &child.Splitter{Max: long, Head: long, Line: func(line []byte) { o.hearStdout(line, true) }, Long: func(head []byte) { o.hearStdout(head, false) }}},
		counted{o, &child.Splitter{Max: maxLogLine, Head: maxLogLine, Line: o.hearStderr, Long: o.hearStderr}}
}

// counted is a stream whose bytes count for the bound on all.
type counted struct {
	*output
	cutter *child.Splitter
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
	o.mu.Lock()
	room := min(len(line), o.max-len(o.text))
	o.text = append(o.text, line[:room]...)
	o.textCut = o.textCut || room < len(line) || !whole
	if len(o.text) < o.max {
		o.text = append(o.text, '\n')
	}
	told := o.tellsLocked()
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
		summary := obj.Text("summary")
		o.summary = protocol.Head(summary, maxSummary)
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
	switch known, err := child.Emit(usualLevels{o.emit}, protocol.EventKind(kind), data); {
	case err != nil:
		o.log(true, append([]byte("an event of kind "+kind+" with other data than it has: "), data...), "stdout")
	case !known:
		o.event(kind, jsontext.Value(data))
	}
}

// usualLevels keeps log events to the levels that there are.
type usualLevels struct{ host.Emitter }

// Log implements host.Emitter.
func (u usualLevels) Log(level, message, _ string) {
	if !slices.Contains([]string{"debug", "info", "warn", "warning", "error"}, level) {
		level = "info"
	}
	u.Emitter.Log(level, message, "")
}

// hearStderr takes one line.
func (o *output) hearStderr(line []byte) {
	o.mu.Lock()
	o.stderr.Add(line)
	told := o.tellsLocked()
	o.mu.Unlock()
	o.log(told, line, "stderr")
}

// tellsLocked reports whether one more line is passed on.
func (o *output) tellsLocked() bool {
	if !o.emit.Streaming() {
		return false
	}
	_, ok := o.logs.Allow(time.Now())
	if !ok {
		o.missed++
	}
	return ok
}

// log passes a line on.
func (o *output) log(told bool, line []byte, stream string) {
	if told {
		o.emit.Log("info", protocol.Head(plain(line), maxLogLine), stream)
	}
}

// words returns the end of stderr, at most size bytes.
func (o *output) words(size int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return protocol.Tail(o.stderr.String(), size)
}

// finish returns the result of what came to its end: how, and with which status.
func (o *output) finish(code int, how string) *Result {
	o.mu.Lock()
	missed := o.missed
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
		value, all := Quoted(strings.ToValidUTF8(strings.Trim(string(o.text), "\r\n"), "\uFFFD"), o.max)
		r.Data, r.Truncated = value, o.textCut || !all
	}
	return r
}

// isObject reports whether a text of several lines is one object.
func isObject(text []byte) bool {
	_, err := protocol.ParseObject(text)
	return err == nil
}

// plain makes text fit for JSON: bytes that are no UTF-8 show as the replacement
// character, and a line loses the end that other systems give it.
func plain(line []byte) string {
	return strings.ToValidUTF8(strings.TrimSuffix(string(line), "\r"), "\uFFFD")
}

// Quoted returns a text as a JSON string of at most max bytes, and whether that is all.
func Quoted(text string, max int) (value []byte, all bool) {
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
			return protocol.AppendString(nil, protocol.Head(text, i)), false
		}
	}
	return protocol.AppendString(nil, text), true
}
