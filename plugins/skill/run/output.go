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
	"a2e/host/child"
	"a2e/host/child/spill"
	"a2e/protocol"
)

// What a script or module may print.
const (
	maxPrinted   = 32 << 20 // bytes of both streams together
	maxLines     = 500_000  // of both streams together
	maxEvents    = 10_000   // events with a kind
	maxKind      = 64       // bytes of a kind
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
	stderr  child.Tail

	all  *spill.Capture
	text *spill.Stream // lines of stdout that are no objects

	noText bool // some line of text was no UTF-8; guarded by mu
}

func newOutput(ctx context.Context, j *Job, emit host.Emitter, event EventFunc, stop context.CancelCauseFunc) *output {
	all := spill.NewCapture(ctx, j.Spill, j.Name, j.MaxOutputBytes-len(`""`))
	return &output{
		all: all, text: all.Stream(), max: j.MaxOutputBytes, emit: emit, event: event, stop: stop,
		logs: child.Limiter{Burst: logBurst, PerSecond: logPerSecond}, stderr: child.Tail{Size: keptStderr},
	}
}

// streams returns what takes stdout and stderr.
func (o *output) streams() (stdout, stderr counted) {
	const long = maxPrinted // what is cut is cut in its middle
	return counted{o, &child.Splitter{
			Max: long, Head: long, Line: func(line []byte) { o.hearStdout(line, true) },
			Long: func(head []byte) { o.hearStdout(head, false) },
		}},
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
	_, _ = o.text.Write(line) // it takes all
	_, _ = o.text.Write([]byte{'\n'})
	o.mu.Lock()
	o.noText = o.noText || !utf8.Valid(line)
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
	defer o.all.Drop()
	o.mu.Lock()
	missed := o.missed
	o.mu.Unlock()
	if missed > 0 {
		o.emit.Log("warn", fmt.Sprintf("dropped %s that came too fast", protocol.Count(missed, "more line")), "")
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
		r.Failed, r.Failure = true, fmt.Sprintf("it printed an object of more than %d bytes, which is the largest "+
			"result; it should write a file instead and name it", o.max)
		return r
	}
	r.Summary = o.summary
	switch {
	case o.result != nil:
		r.Data = o.result
	case o.last != nil:
		r.Data = o.last
	default:
		o.printedText(r)
	}
	return r
}

// printedText makes what was printed the result.
func (o *output) printedText(r *Result) {
	file, cut := o.all.Finish()
	text := o.text.Text()
	switch trimmed := strings.TrimSpace(text); {
	case trimmed == "":
	case cut:
		r.Data, r.Truncated, r.Summary = protocol.AppendString(nil, text), true, spill.Note(file)
	case !o.noText && isObject([]byte(trimmed)):
		r.Data = jsontext.Value(trimmed)
	default:
		r.Data = protocol.AppendString(nil, strings.Trim(text, "\r\n"))
	}
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
