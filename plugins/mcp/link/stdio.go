package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/sandbox"
)

// maxWrite is how much goes to a process in one write, if it comes in parts.
const maxWrite = 64 << 10

// maxBranches is how many JSON objects and arrays one message may have: one of two or three
// bytes becomes one of hundreds.
const maxBranches = 1 << 18

// process is a server that is a process of this machine. It is the carrier, and the SDK's
// connection.
type process struct {
	conn *conn
	proc *sandbox.Process
	ear  *ear
	home *sandbox.KeptHome // nil = one that goes with it

	out   *os.File // its stdout
	lines *lineReader
	mark  *jsonrpc.Request // comes next

	in      chan []byte   // lines for its stdin
	closing chan struct{} // closed: its input ends behind what is in in
	written chan struct{} // closed when the writer has ended
	closed  bool          // of closing; of the goroutine that ends the connection
}

// Connect implements mcp.Transport.
func (p *process) Connect(context.Context) (mcp.Connection, error) { return p, nil }

// SessionID implements mcp.Connection.
func (p *process) SessionID() string { return "" }

// Read implements mcp.Connection: the next message, past all that is none.
func (p *process) Read(context.Context) (jsonrpc.Message, error) {
	if mark := p.mark; mark != nil {
		p.mark = nil
		return mark, nil
	}
	for {
		line, err := p.lines.next()
		if err != nil && !errors.Is(err, errLong) {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				return nil, broken("the server closed its stdout")
			}
			return nil, broken("its stdout cannot be read: %w", err)
		}
		if err == nil {
			if line = bytes.TrimSpace(line); len(line) == 0 {
				continue
			}
		}
		var msg jsonrpc.Message
		if err == nil {
			msg, err = decode(line)
		}
		if err != nil {
			p.conn.skip(line, err)
			continue
		}
		p.conn.gate.hear()
		if req, ok := msg.(*jsonrpc.Request); ok {
			p.mark, err = p.conn.gate.admit(req.ID.Raw(), len(line))
			if errors.Is(err, errID) {
				p.conn.skip(line, err)
				continue
			}
			if err != nil {
				return nil, err
			}
			if req.Method == methodProgress {
				p.conn.gate.tell()
			}
		}
		return msg, nil
	}
}

// decode reads a message.
func decode(text []byte) (jsonrpc.Message, error) {
	switch {
	case len(text) > maxLine:
		return nil, errLong
	case len(text) == 0 || text[0] != '{':
		return nil, errors.New("it is no JSON object")
	case len(text) > maxBranches && countBranches(text) > maxBranches:
		return nil, fmt.Errorf("it has more than %d JSON objects and arrays", maxBranches)
	}
	return jsonrpc.DecodeMessage(text)
}

// countBranches counts the objects and arrays of a JSON text.
func countBranches(text []byte) (n int) {
	inText := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			inText = !inText
		case inText && c == '\\':
			i++
		case !inText && (c == '{' || c == '['):
			n++
		}
	}
	return n
}

// Write implements mcp.Connection. It returns when the line is on its way, at most
// the pipe's buffer and 64 lines ahead of what the process reads.
func (p *process) Write(ctx context.Context, msg jsonrpc.Message) error {
	if resp, ok := msg.(*jsonrpc.Response); ok && p.conn.gate.answer(resp.ID.Raw()) {
		return nil
	}
	line, err := jsonrpc.EncodeMessage(unwrap(msg))
	if err != nil {
		return err
	}
	select {
	case <-p.written:
		return broken("the server does not read its stdin")
	case <-p.closing:
		return broken("the connection is closed")
	default:
	}
	select {
	case p.in <- append(line, '\n'):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.written:
		return broken("the server does not read its stdin")
	case <-p.closing:
		return broken("the connection is closed")
	}
}

// write is the goroutine that writes: what comes while one write is under way goes out
// in the next. At the end it ends the input.
func (p *process) write(pipe *os.File) {
	defer close(p.written)
	defer pipe.Close()
	stop := context.AfterFunc(p.conn.life, func() { pipe.Close() }) // a process that is gone does not read
	defer stop()
	var buf []byte
	for {
		select {
		case line := <-p.in:
			buf = append(buf[:0], line...)
		case <-p.closing:
			if buf = p.waiting(buf[:0]); len(buf) == 0 {
				return
			}
		case <-p.conn.life.Done():
			return
		}
		if buf = p.waiting(buf); !p.put(pipe, buf) {
			return
		}
		if cap(buf) > 1<<20 {
			buf = nil
		}
	}
}

// waiting adds the lines that wait, as far as they fit.
func (p *process) waiting(buf []byte) []byte {
	for len(buf) < maxWrite {
		select {
		case line := <-p.in:
			buf = append(buf, line...)
		default:
			return buf
		}
	}
	return buf
}

// put writes; false = the process does not take it.
func (p *process) put(pipe *os.File, buf []byte) bool {
	if _, err := pipe.Write(buf); err != nil {
		p.conn.report(p.why(broken("the server closed its stdin")))
		return false
	}
	return true
}

// Close implements mcp.Connection. The SDK holds a lock while it calls it, so it only
// wakes a Read; the rest is the carrier's part.
func (p *process) Close() error {
	_ = p.out.Close() // it may be closed already
	return nil
}

// finish implements carrier: the end of its input, then SIGTERM, as MCP has it.
func (p *process) finish(ctx context.Context, _ *mcp.ClientSession) {
	if !p.closed {
		p.closed = true
		close(p.closing)
	}
	timer := time.NewTimer(termAfter)
	defer timer.Stop()
	select {
	case <-p.proc.Done():
		return
	case <-ctx.Done():
		return
	case <-timer.C:
		_ = p.proc.Signal(syscall.SIGTERM) // where there is no such signal it is killed soon
	}
	select {
	case <-p.proc.Done():
	case <-ctx.Done():
	}
}

// release implements carrier.
func (p *process) release() {
	<-p.proc.Done()
	_ = p.out.Close() // it may be closed already
	<-p.written
	if p.home == nil {
		return
	}
	if state, err := p.proc.Wait(); err == nil && state.Code > 0 && !p.conn.up.Load() && p.conn.link.ctx.Err() == nil {
		_ = p.home.SetReady(false) // what is installed there may be broken; it is looked at anew
	}
	p.home.Close()
}

// settled notes that the server works as it is in its home.
func (p *process) settled() {
	if p.home != nil && !p.home.Ready() {
		_ = p.home.SetReady(true) // else it is said to be installed once more
	}
}

// filled implements installer.
func (p *process) filled() int64 {
	if p.home == nil || !p.conn.link.cfg.Installs() {
		return 0
	}
	return p.home.Size()
}

// endWait is how long after its stdout the end of a process may come, to be what is said
// of both.
const endWait = 2 * time.Second

// why implements carrier: a process that ended says the most.
func (p *process) why(err error) error {
	if answer := new(jsonrpc.Error); errors.As(err, &answer) {
		return err // it was well enough to say so
	}
	timer := time.NewTimer(endWait)
	defer timer.Stop()
	select {
	case <-p.proc.Done():
		p.ear.end()
	case <-timer.C:
		return p.withWords(err)
	}
	if p.conn.life.Err() != nil {
		return err // it was killed
	}
	state, failed := p.proc.Wait()
	how := state.String()
	if failed != nil {
		how = failed.Error()
	}
	err = p.withWords(broken("the process of the server ended: %s", how))
	if hint := p.conn.link.hint(); hint != "" && !p.conn.up.Load() {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return err
}

// withWords adds the end of stderr to an error.
func (p *process) withWords(err error) error {
	if words := p.ear.last(); words != "" {
		return fmt.Errorf("%w; its stderr ends with: %s", err, words)
	}
	return err
}

// pid implements carrier.
func (p *process) pid() int { return p.proc.PID() }
