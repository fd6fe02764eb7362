package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"syscall"

	"github.com/google/uuid"

	"a2e/host/observe/event"
	"a2e/host/state/store"
	"a2e/protocol"
)

// answer answers a call with what its handler returned, unless it was answered before. out is a buffer to build the
// answer in; next is a buffer for the next answer. A second caller, such as the end of the host, waits for the
// first one.
func (h *Host) answer(c *call, out []byte, resp any, err error) (next []byte) {
	c.out.Lock()
	if c.answered {
		c.out.Unlock()
		return out
	}
	c.answered = true
	line, code := h.answerLine(c, out, resp, err)
	size := len(line)
	switch next = out; {
	case line != nil && c.work == nil:
		next = h.out.append(line)
	case line != nil: // the buffer is the dialect's own
		h.out.put(line)
	}
	streams := c.streams
	c.out.Unlock()
	for _, f := range streams {
		if code == "" {
			f.begin()
		} else {
			f.Close()
		}
	}
	switch {
	case c.work == nil && (h.opts.Events.Wants(event.Request) || c.span != nil):
		h.reportCall(c, size, code)
	case c.work != nil && c.work.Answered != nil:
		c.work.Answered()
	}
	if !c.byLeader() {
		h.out.flush()
	}
	return next
}

// answerError answers a call with an error, unless it was answered before.
func (h *Host) answerError(c *call, err error) { h.answer(c, nil, nil, err) }

// answerLine builds the line of an answer; nil = there is no answer. code is "" for a success.
func (h *Host) answerLine(c *call, out []byte, resp any, err error) (line []byte, code protocol.ErrorCode) {
	if err == nil {
		if line, err = h.successLine(c, out, resp); err == nil {
			if o, ok := resp.(interface{ ErrorCode() protocol.ErrorCode }); ok {
				code = o.ErrorCode()
			}
			return line, code
		}
		err = protocol.Errorf(protocol.CodeRuntimeError, "the answer to %s cannot be encoded: %w", c.dest.typ, err)
	}
	if c.work != nil {
		line, _ = h.workLine(c, nil, err)
		return line, protocol.CodeRuntimeError
	}
	e := *wireError(err)
	if e.CapabilityName == "" && c.dest != nil {
		e.CapabilityName = string(c.dest.capability)
	}
	line, err = h.message(nil, protocol.TypeError, c.reqID(), &e)
	if err != nil { // a detail that does not encode
		e.Detail = nil
		line, _ = h.message(nil, protocol.TypeError, c.reqID(), &e)
	}
	return line, e.Code
}

// successLine builds the line of a plugin's answer. The error says that the answer does not encode.
func (h *Host) successLine(c *call, out []byte, resp any) ([]byte, error) {
	if c.work != nil {
		return h.workLine(c, resp, nil)
	}
	return h.message(out[:0], c.responseType(), c.reqID(), resp)
}

// workLine returns the line with which a dialect answers its work.
func (h *Host) workLine(c *call, resp any, failure error) (line []byte, err error) {
	defer h.guardEncoding(c.dest.typ, &err)
	return c.work.Answer(resp, failure), nil
}

// guardEncoding turns a panic of a plugin's types into an error, like any other failure to encode.
func (h *Host) guardEncoding(t protocol.Type, err *error) {
	if v := recover(); v != nil {
		h.logPanic("encoding "+string(t), v)
		*err = errEncodePanic
	}
}

// responseType returns the type of the call's response, ready to stand in a line. The type of a catch-all's
// response follows from the type of the request.
func (c *call) responseType() protocol.Type {
	if c.dest.response != "" {
		return c.dest.response
	}
	quoted := protocol.AppendString(nil, foreignResponse(protocol.Type(c.line.Type)))
	return protocol.Type(quoted[1 : len(quoted)-1])
}

// message builds one whole line, newline included.
func (h *Host) message(dst []byte, t protocol.Type, reqID protocol.Value, body any) (msg []byte, err error) {
	defer h.guardEncoding(t, &err)
	id := h.ids.next()
	dst = protocol.AppendHeader(dst, t, id[:], h.opts.Now(), reqID)
	dst, err = protocol.AppendBody(dst, body)
	return append(dst, '\n'), err
}

var errEncodePanic = errors.New("the plugin panicked; the log has the details")

// byLeader reports whether the call runs on the goroutine that reads, which flushes
// the output before it waits for input.
func (c *call) byLeader() bool {
	t := c.reader.Load()
	return t != nil && t.state.Load()&leaderReplaced == 0
}

var errNoSession = protocol.Errorf(protocol.CodeUnauthorized, "handshake first: send handshake/req; before it only "+
	"ping and shutdown work")

// wireError turns any error into the body of an `error` message. store.ErrUnavailable becomes `store_unavailable`,
// a *protocol.Error keeps its code, an ended context becomes `timeout` or `cancelled`, and everything else becomes
// `runtime_error`, which is retryable. An error whose Lasting() is true is not retryable.
func wireError(err error) *protocol.Error {
	var own *protocol.Error
	var cause interface{ Lasting() bool }
	lasts := errors.As(err, &cause) && cause.Lasting()
	switch {
	case errors.Is(err, store.ErrUnavailable):
		return protocol.Errorf(protocol.CodeStoreUnavailable, "%w", err)
	case errors.As(err, &own):
		again := *own
		again.Retryable = !lasts && (own.Retryable || passing(err))
		return &again
	case errors.Is(err, context.DeadlineExceeded):
		return protocol.Errorf(protocol.CodeTimeout, "the time for the request was up: %w", err)
	case errors.Is(err, context.Canceled):
		return protocol.Errorf(protocol.CodeCancelled, "the request was stopped: %w", err)
	}
	e := protocol.Errorf(protocol.CodeRuntimeError, "%w", err)
	e.Retryable = e.Retryable && !lasts
	return e
}

// passing reports whether the machine lacked a resource that other programs free again.
func passing(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM, syscall.ETXTBSY},
		func(short error) bool { return errors.Is(err, short) })
}

func codeOf(err error) protocol.ErrorCode { return wireError(err).Code }

// idSource makes the ids of messages and sessions: UUIDs of version 4 as 32 hex
// digits.
type idSource struct {
	mu  sync.Mutex
	src io.Reader
	id  uuid.UUID // the last one made; a field, so that none is allocated
}

func newIDSource(src io.Reader) *idSource {
	if src == nil {
		var seed [32]byte
		_, _ = rand.Read(seed[:]) // never fails: the program would have ended
		src = mathrand.NewChaCha8(seed)
	}
	return &idSource{src: src}
}

// next returns a fresh id. If the source fails, ids may repeat.
func (s *idSource) next() (id [32]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.ReadFull(s.src, s.id[:])
	s.id[6] = s.id[6]&0x0f | 0x40 // version 4
	s.id[8] = s.id[8]&0x3f | 0x80 // variant of RFC 9562
	hex.Encode(id[:], s.id[:])
	return id
}

// text returns a fresh id as a string.
func (s *idSource) text() string {
	id := s.next()
	return string(id[:])
}
