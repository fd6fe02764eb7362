package link

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// timerKey is the context key of the timer of a Call.
type timerKey struct{}

// callTimer ends a Call that goes on for too long.
type callTimer struct {
	conn  *conn
	timer *time.Timer
	limit time.Duration
}

// Extend gives the Call that ctx belongs to its whole CallTimeout again: the server has shown that it is at
// work.
func Extend(ctx context.Context) {
	if t, ok := ctx.Value(timerKey{}).(*callTimer); ok && t.timer.Stop() {
		t.timer.Reset(t.limit)
	}
}

// maxSettle is how long AwaitProgress waits.
const maxSettle = time.Second

// AwaitProgress waits, within a Call whose answer has come, until the progress that the server reported
// before the answer was handled: the SDK passes the two to different goroutines.
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

// late returns the error of a request that got no answer in time.
func (l *Link) late(limit time.Duration) error {
	return protocol.Errorf(protocol.CodeTimeout, "the MCP server %q did not answer within %s", l.cfg.ID,
		limit).With("server_id", l.cfg.ID)
}

// explain turns the error of a request into the error of Call.
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
	answer, answered := errors.AsType[*jsonrpc.Error](err)
	switch {
	case !answered || rejected && answer.Code == codeRejected:
	case answer.Code == codeUnfit:
		return l.unfit(answer)
	case answer.Code == codeLost:
		return l.lostAnswer(answer)
	default:
		return l.answered(answer)
	}
	if inner.Err() == nil && !rejected && !isTransport(err) && !c.isOver() {
		return l.unfit(err)
	}
	if refused := new(refusal); errors.As(err, &refused) && refused.status < 500 {
		return l.failed(protocol.CodeMCPTransportError, "the MCP server %q refused the request: %s", err)
	}
	if dial := new(net.OpError); errors.As(err, &dial) && dial.Op == "dial" {
		return l.failed(protocol.CodeMCPServerUnavailable, "the MCP server %q cannot be reached: %s", err)
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
	return l.lostAnswer(err)
}

// lostAnswer returns the error of a request that was sent and gets no answer.
func (l *Link) lostAnswer(why error) error {
	const format = "the request to the MCP server %q was lost: %s; it may have been served"
	return l.failed(protocol.CodeMCPTransportError, format, why)
}

// unfit returns the error of a request whose answer cannot be used.
func (l *Link) unfit(why error) error {
	return l.failed(protocol.CodeMCPProtocolError, "the MCP server %q gave an answer that does not fit: %s", why)
}

// failed returns an error of a request. format takes the id of the server and the text of why.
func (l *Link) failed(code protocol.ErrorCode, format string, why error) error {
	return protocol.Errorf(code, format, l.cfg.ID, l.text(why)).With("server_id", l.cfg.ID)
}

// text returns the text of an error, without secrets and without words of the layers below.
func (l *Link) text(err error) string {
	if request, ok := errors.AsType[*url.Error](err); ok {
		return l.secrets.Text(plain("the HTTP request failed: " + request.Err.Error()))
	}
	if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return l.secrets.Text(mistyped(typed.Field, typed.Value, typed.Type.String()))
	}
	return l.secrets.Text(plain(strings.TrimPrefix(err.Error(), errBroken.Error()+": ")))
}

// plain returns the text of an error in the words of JSON. The decoders name types of Go: `json: cannot
// unmarshal number into Go struct field Tool.tools.name of type string` becomes "tools.name is of the
// type number; it should be a string".
func plain(text string) string {
	if before, rest, ok := strings.Cut(text, `unmarshaling "`); ok { // `unmarshaling "…" into a *mcp.PingParams: …`
		if _, after, ok := strings.Cut(rest, `" into a `); ok {
			_, why, _ := strings.Cut(after, ": ")
			return before + plain(why)
		}
	}
	text = strings.NewReplacer("jsontext: ", "", "json: ", "").Replace(text)
	before, rest, ok := strings.Cut(text, "cannot unmarshal ")
	value, rest, found := strings.Cut(rest, " into Go ")
	if !ok || !found {
		return text
	}
	field, want := "", rest
	if i := strings.LastIndex(rest, " of type "); i >= 0 {
		field, want = rest[:i], rest[i+len(" of type "):]
	}
	if field, ok = strings.CutPrefix(field, "struct field "); ok && strings.ContainsAny(field, "{[") {
		field = field[strings.LastIndexByte(field, '.'):] // of a type that is written out
	}
	_, field, _ = strings.Cut(field, ".")
	return before + mistyped(field, value, want)
}

// mistyped returns the text of an error: a value has another type than it should have. want is a type of
// Go.
func mistyped(field, value, want string) string {
	if head, err := strconv.Unquote(value); err == nil { // the SDK's decoder shows the value, the others name its type
		value = map[jsontext.Kind]string{
			'"': "string", '0': "number", 't': "boolean", 'f': "boolean", 'n': "null", '{': "object", '[': "array",
		}[jsontext.Value(head).Kind()]
	}
	for {
		first, rest, ok := strings.Cut(field, ".")
		if !ok || first != "" && first[0] >= 'a' {
			break
		}
		field = rest // first is a type; members of MCP begin with a small letter
	}
	value = strings.TrimPrefix(value, "JSON ")
	return fmt.Sprintf("%s is of the type %s; it should be %s", cmp.Or(field, "it"), value, jsonType(want))
}

// jsonType returns the JSON type for a type of Go.
func jsonType(goType string) string {
	switch goType = strings.TrimLeft(goType, "*"); {
	case goType == "string":
		return "a string"
	case goType == "bool":
		return "true or false"
	case strings.HasPrefix(goType, "int"), strings.HasPrefix(goType, "uint"):
		return "an integer"
	case strings.HasPrefix(goType, "float"):
		return "a number"
	case strings.HasPrefix(goType, "["):
		return "an array"
	}
	return "an object"
}

// spoken returns the error of an answer to the server, in the words of JSON (see plain).
func spoken(err error) error {
	if err == nil {
		return nil
	}
	said := &jsonrpc.Error{Message: plain(err.Error())}
	if typed, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		said.Message = mistyped(typed.Field, typed.Value, typed.Type.String())
	}
	if known, ok := errors.AsType[*jsonrpc.Error](err); ok {
		said.Code = known.Code
		if err == error(known) {
			said.Data = known.Data
		}
	}
	return said
}

// answered returns the error for an error that a server answered with.
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
	if data := jsontext.Value(l.secrets.Text(string(answer.Data))); len(data) > 0 && len(data) <= maxErrorData &&
		data.IsValid() {
		err.With("data", data)
	}
	return err
}

// maxErrorData is the largest data of an error that is passed on, in bytes.
const maxErrorData = 64 << 10

// codeRejected is the code of the SDK's own errors for requests that HTTP did not carry.
const codeRejected = -32005

// isRejected reports whether a request was not delivered although its connection still exists.
func isRejected(err error) bool { return errors.Is(err, &jsonrpc.Error{Code: codeRejected}) }

// isTransport reports whether an error is that of the connection and not of an answer.
func isTransport(err error) bool {
	var address *url.Error
	var network net.Error
	for _, known := range []error{
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, os.ErrClosed, net.ErrClosed, mcp.ErrConnectionClosed,
		mcp.ErrSessionMissing, errBroken,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	// The SDK has no type for the stream of an answer that ended without it.
	return errors.As(err, &address) || errors.As(err, &network) || strings.Contains(err.Error(),
		"request terminated without response")
}

// errBroken is wrapped by the errors of a carrier.
var errBroken = errors.New("the connection is broken")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errBroken, fmt.Errorf(format, args...))
}
