package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// timerKey finds the timer of a Call in its context.
type timerKey struct{}

// callTimer ends a Call that goes on for too long.
type callTimer struct {
	conn  *conn
	timer *time.Timer
	limit time.Duration
}

// Extend returns the Call that ctx belongs to its whole CallTimeout again: the server
// has shown that it is at work.
func Extend(ctx context.Context) {
	if t, ok := ctx.Value(timerKey{}).(*callTimer); ok && t.timer.Stop() {
		t.timer.Reset(t.limit)
	}
}

// maxSettle is how long AwaitProgress waits.
const maxSettle = time.Second

// AwaitProgress waits, within a Call whose answer has come, until the progress that the
// server told before it was taken in: the SDK gives the two to different goroutines.
func AwaitProgress(ctx context.Context) {
	if t, ok := ctx.Value(timerKey{}).(*callTimer); ok {
		ctx, cancel := context.WithTimeout(ctx, maxSettle)
		defer cancel()
		t.conn.gate.awaitTaken(ctx)
	}
}

// Call makes one request: f gets the session and a context that ends with ctx, with the
// connection, and after Config.CallTimeout. The error is a *protocol.Error, or the cause
// of ctx:
//
//	mcp_server_unavailable   there is no connection, and nothing was sent
//	mcp_transport_error      the connection was lost; the request may have been served
//	timeout                  there was no answer within CallTimeout
//	mcp_capability_missing   the server does not know the method
//	mcp_protocol_error       any other error that the server answered; detail: code, data, server_id
func (l *Link) Call(ctx context.Context, f func(ctx context.Context, session *mcp.ClientSession) error) error {
	c, err := l.connected(ctx)
	if err != nil {
		return err
	}
	host.HandOff(ctx)
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.calls, func() { cancel(context.Cause(c.calls)) })()
	t := &callTimer{conn: c, limit: l.cfg.CallTimeout}
	t.timer = time.AfterFunc(t.limit, func() { cancel(l.late(t.limit)) })
	defer t.timer.Stop()
	if c.running.Add(1) == 1 {
		c.gate.hear() // before it there was nothing to answer
	}
	defer c.running.Add(-1)
	if err := l.try(context.WithValue(inner, timerKey{}, t), c.session, f); err != nil {
		return l.explain(ctx, inner, c, err)
	}
	return nil
}

// late is the error of a request without an answer.
func (l *Link) late(limit time.Duration) error {
	return protocol.Errorf(protocol.CodeTimeout, "the MCP server %q did not answer within %s", l.cfg.ID, limit).With("server_id", l.cfg.ID)
}

// explain maps the error of a request.
func (l *Link) explain(outer, inner context.Context, c *conn, err error) error {
	var own *protocol.Error
	if errors.As(err, &own) {
		return own
	}
	if outer.Err() != nil {
		return context.Cause(outer)
	}
	if cause := context.Cause(inner); cause != nil && errors.As(cause, &own) {
		return own
	}
	rejected := isRejected(err) && c.transport != Stdio
	if rejected {
		c.ask()
	}
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok && !(rejected && answer.Code == codeRejected) {
		return l.answered(answer)
	}
	if inner.Err() == nil && !rejected && !isTransport(err) && !c.isOver() {
		return protocol.Errorf(protocol.CodeMCPProtocolError, "the MCP server %q gave an answer that does not fit: %s", l.cfg.ID, l.text(err)).
			With("server_id", l.cfg.ID)
	}
	if dial := new(net.OpError); errors.As(err, &dial) && dial.Op == "dial" {
		return protocol.Errorf(protocol.CodeMCPServerUnavailable, "the MCP server %q cannot be reached: %s", l.cfg.ID, l.text(err)).With("server_id", l.cfg.ID)
	}
	if !rejected || c.isOver() {
		limit := time.Second
		if c.transport == Stdio {
			limit += endWait
		}
		if why := c.wait(limit); why != nil {
			err = why
		}
	}
	return protocol.Errorf(protocol.CodeMCPTransportError, "the request to the MCP server %q was lost: %s; it may have been served", l.cfg.ID, l.text(err)).
		With("server_id", l.cfg.ID)
}

// text describes an error, without secrets and without what the layers below say of
// themselves.
func (l *Link) text(err error) string {
	if request, ok := errors.AsType[*url.Error](err); ok {
		return l.secrets.Text("the HTTP request failed: " + request.Err.Error())
	}
	return l.secrets.Text(strings.TrimPrefix(err.Error(), errBroken.Error()+": "))
}

// answered is the error that a server answered with.
func (l *Link) answered(answer *jsonrpc.Error) error {
	code := protocol.CodeMCPProtocolError
	if answer.Code == jsonrpc.CodeMethodNotFound {
		code = protocol.CodeMCPCapabilityMissing
	}
	text := l.secrets.Text(answer.Message)
	if text == "" {
		text = "no reason was given"
	}
	err := protocol.Errorf(code, "the MCP server %q answered with error %d: %s", l.cfg.ID, answer.Code, text).
		With("server_id", l.cfg.ID).With("code", answer.Code)
	if data := jsontext.Value(l.secrets.Text(string(answer.Data))); len(data) > 0 && len(data) <= maxErrorData && data.IsValid() {
		err.With("data", data)
	}
	return err
}

// maxErrorData is how much data of an error is passed on, in bytes.
const maxErrorData = 64 << 10

// codeRejected marks the SDK's own errors of requests that HTTP did not carry.
const codeRejected = -32005

// isRejected reports whether a request did not get through although its connection stands.
func isRejected(err error) bool { return errors.Is(err, &jsonrpc.Error{Code: codeRejected}) }

// isTransport reports whether an error is that of a connection, not that of an answer.
func isTransport(err error) bool {
	var address *url.Error
	var network net.Error
	for _, known := range []error{
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, os.ErrClosed, net.ErrClosed, mcp.ErrConnectionClosed, mcp.ErrSessionMissing, errBroken,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	// The SDK has no type for the stream of an answer that ended without it.
	return errors.As(err, &address) || errors.As(err, &network) || strings.Contains(err.Error(), "request terminated without response")
}

// errBroken is wrapped by the errors of a carrier.
var errBroken = errors.New("the connection is broken")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errBroken, fmt.Errorf(format, args...))
}
