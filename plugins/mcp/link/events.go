package link

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// lastEvent is what the SDK reads at the end of a connection: as it is no message, the
// SDK returns the connection up at once, in place of trying to resume the stream.
const lastEvent = "data: closed\n\n"

// minRetry is the least that a server may have the SDK wait before it resumes a stream, in
// milliseconds.
const minRetry = 100

// events filters a stream of server-sent events: what is no message is left out, and a
// server that gets too far ahead is not read.
type events struct {
	conn    *conn
	body    io.ReadCloser
	lines   *bufio.Scanner
	release func()
	closed  sync.Once

	call    any  // id of the request that the stream answers; nil = none, or not known
	resumed bool // it goes on with another one, which may be that of any request
	spent   bool // the answer was there: the SDK throws away what comes after it

	ready []byte // to be read next
	err   error  // comes behind it
}

func newEvents(c *conn, body io.ReadCloser, release func()) *events {
	e := &events{conn: c, body: body, lines: bufio.NewScanner(body), release: release}
	e.lines.Buffer(nil, maxLine)
	return e
}

// Read implements io.Reader.
func (e *events) Read(p []byte) (int, error) {
	for len(e.ready) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		e.ready, e.err = e.next()
		if e.err != nil && e.conn.life.Err() != nil {
			e.ready, e.err = []byte(lastEvent), io.EOF
		}
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// Close implements io.Closer.
func (e *events) Close() (err error) {
	e.closed.Do(func() {
		err = e.body.Close()
		e.release()
	})
	return err
}

// event is one of them.
type event struct {
	name, id, retry string
	data            []byte
	filled          bool // it has data, maybe empty
	size            int
}

// next returns the text of the next event that may pass, maybe nothing. An event without its
// end does not count, and one that is too long is the end of the stream, as for the SDK.
func (e *events) next() ([]byte, error) {
	var ev event
	for e.lines.Scan() {
		line := e.lines.Bytes()
		if len(line) == 0 {
			return e.pass(&ev)
		}
		if ev.size += len(line); ev.size > maxLine {
			return nil, broken("%w", errLong)
		}
		ev.field(line)
	}
	if err := e.lines.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

// field takes one line of an event.
func (ev *event) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "event":
		ev.name = string(value)
	case "id":
		ev.id = string(value)
	case "retry":
		ev.retry = string(value)
		if ms, err := strconv.ParseUint(ev.retry, 10, 32); err == nil { // the SDK comes back as soon as it is told, again and again
			ev.retry = strconv.FormatUint(max(ms, minRetry), 10)
		}
	case "data":
		if ev.filled {
			ev.data = append(ev.data, '\n')
		}
		ev.data, ev.filled = append(ev.data, value...), true
	}
}

// pass returns the text of an event, as far as it may pass.
func (e *events) pass(ev *event) ([]byte, error) {
	if e.spent {
		return nil, nil // a mark in it would never be answered
	}
	if e.conn.transport == SSE && ev.name == "endpoint" {
		return ev.text(ev.data), nil
	}
	data := bytes.TrimSpace(ev.data)
	if len(data) == 0 || ev.name != "" && ev.name != "message" {
		return e.rest(ev), nil
	}
	all, err := e.conn.admit(data)
	switch {
	case err != nil:
		e.conn.skip(data, err)
		return e.rest(ev), nil
	case len(all) == 0:
		return nil, errClosed
	}
	if answer, ok := all[0].(*jsonrpc.Response); ok {
		e.spent = e.resumed || e.call != nil && answer.ID.Raw() == e.call
	}
	text := ev.text(data)
	if len(all) == 1 {
		return text, nil
	}
	ping, err := jsonrpc.EncodeMessage(all[1])
	if err != nil {
		return nil, err
	}
	return append(text, "data: "+string(ping)+"\n\n"...), nil
}

// rest is what counts of an event without a message: where to resume.
func (e *events) rest(ev *event) []byte {
	if e.conn.transport == SSE {
		return nil // the SDK takes each event there for a message
	}
	return ev.text(nil)
}

// text spells an event.
func (ev *event) text(data []byte) []byte {
	var b strings.Builder
	for _, f := range [][2]string{{"event", ev.name}, {"id", ev.id}, {"retry", ev.retry}} {
		if f[1] != "" {
			b.WriteString(f[0] + ": " + f[1] + "\n")
		}
	}
	for line := range bytes.Lines(data) {
		b.WriteString("data: ")
		b.Write(bytes.TrimRight(line, "\n"))
		b.WriteByte('\n')
	}
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	return []byte(b.String())
}
