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

// Limits of the output of a script or module.
const (
	maxPrinted   = 32 << 20 // bytes of both streams together
	maxLines     = 500_000  // of both streams together
	maxEvents    = 10_000   // events with a kind
	maxKind      = 64       // bytes of a kind
	maxLogLine   = 16 << 10 // bytes of a line in a log event
	maxSummary   = 4 << 10
	keptStderr   = 16 << 10 // bytes of the end of stderr
	shownStderr  = 2 << 10  // bytes of stderr in a Failure
	logBurst     = 1000     // log events at once
	logPerSecond = 200      // further log events per second
)

// output reads the output of a script or module.
type output struct {
	max   int // bytes of JSON of a result
	emit  host.Emitter
	event EventFunc
	stop  context.CancelCauseFunc // stops the script or module

	mu      sync.Mutex // each stream has a goroutine; guards the fields below
	printed int64
	lines   int64
	events  int
	logs    child.Limiter
	missed  int // lines that were not sent as log events
	result  jsontext.Value
	summary string
	last    jsontext.Value // the last object that is neither an event nor a result
	tooLong bool           // an object was longer than max
	stderr  child.Tail

	all  *spill.Capture
	text *spill.Stream // lines of stdout that are not objects

	noText bool // a line of text was not UTF-8; guarded by mu
}

func newOutput(ctx context.Context, j *Job, emit host.Emitter, event EventFunc, stop context.CancelCauseFunc) *output {
	all := spill.NewCapture(ctx, j.Spill, j.Name, j.MaxOutputBytes-len(`""`))
	return &output{
		all: all, text: all.Stream(), max: j.MaxOutputBytes, emit: emit, event: event, stop: stop,
		logs: child.Limiter{Burst: logBurst, PerSecond: logPerSecond}, stderr: child.Tail{Size: keptStderr},
	}
}

// streams returns the writers for stdout and stderr.
func (o *output) streams() (stdout, stderr counted) {
	const long = maxPrinted // no line is cut before the limit of all output
	return counted{o, &child.Splitter{
			Max: long, Head: long, Line: func(line []byte) { o.hearStdout(line, true) },
			Long: func(head []byte) { o.hearStdout(head, false) },
		}},
		counted{o, &child.Splitter{Max: maxLogLine, Head: maxLogLine, Line: o.hearStderr, Long: o.hearStderr}}
}

// counted is a stream whose bytes count for the limit of both streams.
type counted struct {
	*output
	cutter *child.Splitter
}

// Write implements io.Writer. Over the limit it stops the program and drops the bytes.
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

// hearStdout handles one line of stdout; whole = false means that the line was cut.
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
	_, _ = o.text.Write(line) // never fails
	_, _ = o.text.Write([]byte{'\n'})
	o.mu.Lock()
	o.noText = o.noText || !utf8.Valid(line)
	told := o.tellsLocked()
	o.mu.Unlock()
	o.log(told, line, "stdout")
}

// object handles a line that is an object.
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

// send sends an event. An event whose data does not fit its kind is logged like other lines.
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

// usualLevels replaces unknown levels of log events by info.
type usualLevels struct{ host.Emitter }

// Log implements host.Emitter.
func (u usualLevels) Log(level, message, _ string) {
	if !slices.Contains([]string{"debug", "info", "warn", "warning", "error"}, level) {
		level = "info"
	}
	u.Emitter.Log(level, message, "")
}

// hearStderr handles one line of stderr.
func (o *output) hearStderr(line []byte) {
	o.mu.Lock()
	o.stderr.Add(line)
	told := o.tellsLocked()
	o.mu.Unlock()
	o.log(told, line, "stderr")
}

// tellsLocked reports whether one more line may be sent as a log event.
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

// log sends a line as a log event if told is true.
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

// finish returns the result of a program that ended by itself. code is its exit status; how says how it
// failed, "" = it did not.
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

// printedText sets the result to the text on stdout.
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

// isObject reports whether a text, also of several lines, is one JSON object.
func isObject(text []byte) bool {
	_, err := protocol.ParseObject(text)
	return err == nil
}

// plain returns a line as valid text: invalid UTF-8 becomes the replacement
// character, and a carriage return at the end is removed.
func plain(line []byte) string {
	return strings.ToValidUTF8(strings.TrimSuffix(string(line), "\r"), "\uFFFD")
}
