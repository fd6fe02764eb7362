package httpd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"math"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	rpc "a2e/protocol/jsonrpc"
)

// The headers of MCP's streamable HTTP.
const (
	mcpSession = "Mcp-Session-Id"
	mcpVersion = "MCP-Protocol-Version"
)

// mcp serves MCP's streamable HTTP. The go-sdk manages the streams and their events, the host of the session does the
// rest.
func (s *Server) mcp(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, int64(s.opts.MaxLine))
	all, isBatch, err := messages(r)
	var first message
	if len(all) > 0 {
		first = all[0]
	}
	id := r.Header.Get(mcpSession)
	c := s.find(id, MCP)
	switch v := r.Header.Get(mcpVersion); {
	case v != "" && !slices.Contains(mcp.SupportedProtocolVersions(), v):
		fail(w, http.StatusBadRequest, first.ID,
			rpc.Refused("", "%s is %.32q, a version of MCP that is not served here; 2025-11-25 is", mcpVersion, v))
	case err != nil:
		failBody(w, first.ID, err)
	case id == "" && r.Method == http.MethodPost:
		s.beginMCP(w, r, first, isBatch)
	case id == "":
		fail(w, http.StatusBadRequest, nil,
			rpc.Refused("", "the header %s is missing; the answer to initialize has it", mcpSession))
	case c == nil:
		fail(w, http.StatusNotFound, first.ID,
			rpc.Refused("", "there is no such session, or it has ended; begin with initialize"))
	case r.Method == http.MethodDelete:
		c.end()
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodGet && !accepts(r, "text/event-stream"):
		fail(w, http.StatusNotAcceptable, nil,
			rpc.Invalid("a stream is text/event-stream; the header Accept must take that"))
	case r.Method == http.MethodPost && !isJSON(r):
		fail(w, http.StatusUnsupportedMediaType, first.ID,
			rpc.Invalid("a message is application/json; the header Content-Type must say so"))
	case r.Method == http.MethodPost:
		c.post(w, r, all, isBatch)
	default:
		defer c.listen()()
		c.streamable.ServeHTTP(w, r)
	}
}

// beginMCP begins a session with its first request.
func (s *Server) beginMCP(w http.ResponseWriter, r *http.Request, m message, isBatch bool) {
	switch {
	case !isBatch && m.fault != nil && m.fault.Code != rpc.CodeMethodNotFound:
		m.refuse(w)
		return
	case isBatch || m.Method != "initialize" || m.Notification:
		fail(w, http.StatusBadRequest, m.ID, rpc.Refused("",
			"a session begins with the request initialize; all others need the header %s of its answer", mcpSession))
		return
	case !isJSON(r) || !accepts(r, "application/json") || !accepts(r, "text/event-stream"):
		fail(w, http.StatusNotAcceptable, m.ID,
			rpc.Invalid("Content-Type must be application/json, and Accept both that and text/event-stream"))
		return
	}
	c, err := s.begin(MCP)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, m.ID, rpc.Refused("", "%s", err))
		return
	}
	c.post(w, r, []message{m}, false)
	if !c.greeted.Load() { // no client will use the session
		c.end()
	}
}

// post passes the messages of a POST to the go-sdk, which ends the response after the last answer. In a batch, each
// faulty request is sent to the go-sdk as a ping, which endFaulty answers with the fault.
func (c *session) post(w http.ResponseWriter, r *http.Request, all []message, isBatch bool) {
	if !isBatch && all[0].fault != nil {
		all[0].refuse(w)
		return
	}
	var parts [][]byte
	for _, m := range all {
		switch {
		case m.fault != nil:
			c.faults.Store(sdkID(m.ID), m.fault)
			defer c.faults.Delete(sdkID(m.ID)) // the ping may never reach hear
			parts = append(parts, rpc.AppendCall(nil, m.ID, "ping", nil))
		case !m.passedOver():
			parts = append(parts, m.raw)
		}
	}
	if len(parts) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	body := bytes.Join(parts, []byte{','})
	if isBatch {
		body = slices.Concat([]byte{'['}, body, []byte{']'})
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	defer c.listen()()
	late := &lateWriter{ResponseWriter: w, to: http.NewResponseController(w)}
	defer late.end()
	c.streamable.ServeHTTP(late, r)
}

// connectMCP puts the go-sdk's transport between HTTP and the host of the session.
func (c *session) connectMCP() {
	c.streamable = &mcp.StreamableServerTransport{SessionID: c.id, EventStore: &keptEvents{most: c.server.opts.Kept}}
	var err error
	if c.conn, err = c.streamable.Connect(c.hasty); err != nil { // fails only at a second Connect
		panic(err)
	}
	go c.guarded(func() error { return c.hear(c.conn) }) // ends with the host
}

// hear passes the messages of the client to the host.
func (c *session) hear(conn mcp.Connection) error {
	defer c.end()
	for {
		msg, err := conn.Read(c.hasty)
		if err != nil {
			return nil // the connection is closed
		}
		if c.endFaulty(conn, msg) {
			continue
		}
		line, err := jsonrpc.EncodeMessage(msg)
		for full := err == nil; full; full = err != nil { // tries until there is room: the message must be answered
			if err = c.put(c.hasty, append(line, '\n')); errors.Is(err, errEnded) || c.hasty.Err() != nil {
				return nil
			}
		}
		c.endCancelled(conn, msg)
	}
}

// endFaulty answers a faulty request with its fault; false = msg is not such a request.
func (c *session) endFaulty(conn mcp.Connection, msg jsonrpc.Message) bool {
	said, ok := msg.(*jsonrpc.Request)
	if !ok || !said.ID.IsValid() {
		return false
	}
	v, ok := c.faults.LoadAndDelete(said.ID.Raw())
	if ok {
		fault := v.(*rpc.Error)
		e := &jsonrpc.Error{Code: int64(fault.Code), Message: fault.Message}
		_ = conn.Write(c.hasty, &jsonrpc.Response{ID: said.ID, Error: e}) // fails if the client has gone
	}
	return ok
}

// endCancelled answers a request that the client cancels, because the host does not answer it any more. This ends its
// stream.
func (c *session) endCancelled(conn mcp.Connection, msg jsonrpc.Message) {
	var params struct {
		ID jsontext.Value `json:"requestId"`
	}
	said, ok := msg.(*jsonrpc.Request)
	if !ok || said.Method != "notifications/cancelled" || json.Unmarshal(said.Params, &params) != nil ||
		!exactID(params.ID) {
		return
	}
	var value any
	_ = json.Unmarshal(params.ID, &value) // if there is no id, value stays nil and id is not valid
	if id, err := jsonrpc.MakeID(value); err == nil && id.IsValid() {
		_ = conn.Write(c.hasty, &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{
			Code:    -32800,
			Message: "the request was cancelled",
		}}) // fails if it has an answer already
	}
}

// toClient is the output of the host of an MCP session. It passes each line to the client, and Write waits while the
// client is slow.
type toClient struct{ *session }

// Write implements io.Writer.
func (c toClient) Write(p []byte) (int, error) {
	c.guarded(func() error {
		for rest := p; len(rest) > 0; {
			line, after, whole := bytes.Cut(rest, []byte{'\n'})
			if rest = after; !whole || c.part != nil {
				c.part = append(c.part, line...)
				line = c.part
			}
			if whole {
				c.part = nil
				c.say(line)
			}
		}
		return nil
	})
	return len(p), nil
}

// say sends one line.
func (c *session) say(line []byte) {
	msg, err := jsonrpc.DecodeMessage(line)
	if err != nil {
		return
	}
	if resp, ok := msg.(*jsonrpc.Response); ok && resp.Error == nil {
		c.greeted.Store(true)
	}
	_ = c.conn.Write(context.Background(), msg) // a client that is not connected asks again, or has gone
}

func isJSON(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// accepts reports whether a client accepts a media type.
func accepts(r *http.Request, kind string) bool {
	for _, value := range r.Header.Values("Accept") {
		for one := range strings.SplitSeq(value, ",") {
			name, _, _ := strings.Cut(one, ";")
			name = strings.ToLower(strings.TrimSpace(name))
			if group, _, _ := strings.Cut(kind, "/"); name == kind || name == "*/*" || name == group+"/*" {
				return true
			}
		}
	}
	return false
}

// The memory that an event and a stream take beside the text, in bytes.
const (
	eventSize  = 50
	streamSize = 250
)

// keptEvents is the mcp.EventStore of one session. It keeps sent events for a client that connects again. The oldest
// events are dropped first. A stream belongs to one request, and is dropped with its last event.
type keptEvents struct {
	most int // bytes

	mu      sync.Mutex // guards the fields below
	bytes   int
	streams map[string]*keptStream
	order   []*keptStream // the stream of each event, the oldest event first
}

type keptStream struct {
	id     string
	first  int // number of the oldest event, or of the next one if there is none
	events [][]byte
}

// Open implements mcp.EventStore.
func (k *keptEvents) Open(_ context.Context, _, stream string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.openLocked(stream, 0)
	return nil
}

func (k *keptEvents) openLocked(id string, first int) *keptStream {
	if k.streams == nil {
		k.streams = map[string]*keptStream{}
	}
	s := k.streams[id]
	if s == nil {
		s = &keptStream{id: id, first: first}
		k.streams[id], k.bytes = s, k.bytes+streamSize
	}
	return s
}

// Append implements mcp.EventStore.
func (k *keptEvents) Append(_ context.Context, _, stream string, data []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.openLocked(stream, math.MaxInt32) // the event numbers of a dropped stream are not known
	s.events, k.order = append(s.events, data), append(k.order, s)
	k.bytes += eventSize + len(data)
	for k.bytes > k.most && len(k.order) > 1 {
		k.dropLocked()
	}
	return nil
}

func (k *keptEvents) dropLocked() {
	s := k.order[0]
	k.bytes -= eventSize + len(s.events[0])
	s.events[0], k.order[0] = nil, nil
	s.events, k.order = s.events[1:], k.order[1:]
	if s.first++; len(s.events) == 0 && s.id != "" { // the stream "" belongs to no request and goes on
		delete(k.streams, s.id)
		k.bytes -= streamSize
	}
}

// After implements mcp.EventStore. A client that names no event gets all kept events, which are then numbered from 0.
func (k *keptEvents) After(_ context.Context, _, stream string, index int) iter.Seq2[[]byte, error] {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.streams[stream]
	if s == nil {
		s = &keptStream{first: math.MaxInt32}
	}
	if index < 0 {
		s.first = 0
	}
	start := index + 1 - s.first
	if start < 0 || start > len(s.events) {
		return func(yield func([]byte, error) bool) { yield(nil, mcp.ErrEventsPurged) }
	}
	found := slices.Clone(s.events[start:])
	return func(yield func([]byte, error) bool) {
		for _, data := range found {
			if !yield(data, nil) {
				return
			}
		}
	}
}

// SessionClosed implements mcp.EventStore.
func (k *keptEvents) SessionClosed(context.Context, string) error { return nil }
