package httpd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The headers of MCP's streamable HTTP.
const (
	mcpSession = "Mcp-Session-Id"
	mcpVersion = "MCP-Protocol-Version"
)

// mcp serves MCP's streamable HTTP: the go-sdk has the streams and their events, the host of the
// session the rest.
func (s *Server) mcp(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, int64(s.opts.MaxLine))
	if v := r.Header.Get(mcpVersion); v != "" && !isDate(v) {
		refuse(w, http.StatusBadRequest, fmt.Errorf("%s must be a version of MCP, such as 2025-11-25", mcpVersion))
		return
	}
	var body []byte
	if r.Method == http.MethodPost {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			refuseBody(w, err)
			return
		}
		all := messages(body)
		if slices.ContainsFunc(all, func(m message) bool { return !exactID(m.ID) }) {
			refuse(w, http.StatusBadRequest, errors.New("an id must be a string, or a whole number of at most 2^53"))
			return
		}
		if code, text := all[0].wrong(); len(all) == 1 && code != 0 && s.find(r.Header.Get(mcpSession), MCP) != nil {
			answer(w, http.StatusOK, map[string]any{"jsonrpc": "2.0", "id": all[0].ID, "error": map[string]any{"code": code, "message": text}})
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	id := r.Header.Get(mcpSession)
	if id == "" && r.Method == http.MethodPost {
		s.beginMCP(w, r, body)
		return
	}
	if id == "" {
		refuse(w, http.StatusBadRequest, fmt.Errorf("the header %s is missing; the answer to initialize has it", mcpSession))
		return
	}
	c := s.find(id, MCP)
	switch {
	case c == nil:
		refuse(w, http.StatusNotFound, errors.New("there is no such session, or it has ended; begin with initialize"))
	case r.Method == http.MethodDelete:
		c.end()
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodGet && !accepts(r, "text/event-stream"):
		refuse(w, http.StatusNotAcceptable, errors.New("a stream is text/event-stream; the header Accept must take that"))
	case r.Method == http.MethodPost && !isJSON(r):
		refuse(w, http.StatusUnsupportedMediaType, errors.New("a message is application/json; the header Content-Type must say so"))
	default:
		defer c.listen()()
		c.streamable.ServeHTTP(w, r)
	}
}

// beginMCP begins a session with its first request.
func (s *Server) beginMCP(w http.ResponseWriter, r *http.Request, body []byte) {
	first, _ := jsonrpc.DecodeMessage(body)
	if req, ok := first.(*jsonrpc.Request); !ok || req.Method != "initialize" {
		refuse(w, http.StatusBadRequest, fmt.Errorf("a session begins with the request initialize; all others need the header %s of its answer", mcpSession))
		return
	}
	if !isJSON(r) || !accepts(r, "application/json") || !accepts(r, "text/event-stream") {
		refuse(w, http.StatusNotAcceptable, errors.New("Content-Type must be application/json, and Accept both that and text/event-stream"))
		return
	}
	c, err := s.begin(MCP)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	defer c.listen()()
	c.streamable.ServeHTTP(w, r)
	if !c.greeted.Load() { // no client will use it
		c.end()
	}
}

// connectMCP has the go-sdk's transport stand between HTTP and the host of a session.
func (c *session) connectMCP() {
	c.streamable = &mcp.StreamableServerTransport{SessionID: c.id, EventStore: &keptEvents{most: c.server.opts.Kept}}
	conn, err := c.streamable.Connect(c.hasty)
	if err != nil { // it is connected once only
		panic(err)
	}
	go c.guarded(func() error { return c.hear(conn) }) // both end with the host
	go c.guarded(func() error { return c.say(conn) })
}

// hear takes in what the client says.
func (c *session) hear(conn mcp.Connection) error {
	defer c.end()
	for {
		msg, err := conn.Read(c.hasty)
		if err != nil {
			return nil // it is over
		}
		line, err := jsonrpc.EncodeMessage(msg)
		for full := err == nil; full; full = err != nil { // until there is room: what was taken in must be answered
			if err = c.put(c.hasty, append(line, '\n')); errors.Is(err, errEnded) || c.hasty.Err() != nil {
				return nil
			}
		}
		c.endCancelled(conn, msg)
	}
}

// endCancelled ends the stream of a request that the client takes back: the host answers it no more.
func (c *session) endCancelled(conn mcp.Connection, msg jsonrpc.Message) {
	var params struct {
		ID jsontext.Value `json:"requestId"`
	}
	said, ok := msg.(*jsonrpc.Request)
	if !ok || said.Method != "notifications/cancelled" || json.Unmarshal(said.Params, &params) != nil || !exactID(params.ID) {
		return
	}
	var value any
	_ = json.Unmarshal(params.ID, &value) // of no text there is no ID
	if id, err := jsonrpc.MakeID(value); err == nil && id.IsValid() {
		_ = conn.Write(c.hasty, &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: -32800, Message: "the request was cancelled"}}) // it may have an answer
	}
}

type message struct {
	ID     jsontext.Value `json:"id"`
	Method jsontext.Value `json:"method"`
	Params jsontext.Value `json:"params"`
}

// messages reads a body, of at least one.
func messages(body []byte) []message {
	all := make([]message, 1)
	if err := json.Unmarshal(body, &all[0]); err != nil {
		_ = json.Unmarshal(body, &all) // a batch, or nothing that the go-sdk takes
	}
	return append(all, make([]message, max(0, 1-len(all)))...)
}

// The methods that the go-sdk takes, with params and without.
const (
	methodsWith    = "initialize tools/call prompts/get resources/read resources/subscribe resources/unsubscribe completion/complete logging/setLevel subscriptions/listen"
	methodsWithout = "ping tools/list prompts/list resources/list resources/templates/list server/discover"
)

// wrong returns what is wrong with a request that the go-sdk would refuse in plain text; 0 = nothing.
func (m message) wrong() (code int, text string) {
	name, err := jsontext.AppendUnquote(nil, m.Method)
	switch {
	case err != nil || m.ID == nil || m.ID.Kind() == 'n':
		return 0, ""
	case slices.Contains(strings.Fields(methodsWith), string(name)):
		if m.Params == nil {
			return jsonrpc.CodeInvalidParams, string(name) + " needs params"
		}
	case !slices.Contains(strings.Fields(methodsWithout), string(name)):
		return jsonrpc.CodeMethodNotFound, fmt.Sprintf("unknown method %.64q", name)
	}
	return 0, ""
}

// exactID reports whether an id is kept as it is: the go-sdk makes numbers of 64 bits of
// them by way of floating point.
func exactID(id jsontext.Value) bool {
	n, err := strconv.ParseInt(string(id), 10, 64)
	return id.Kind() != '0' || err == nil && n <= 1<<53 && n >= -1<<53
}

// say has the client get what the host writes.
func (c *session) say(conn mcp.Connection) error {
	defer conn.Close()
	reader, last, _ := c.out.begin(0)
	for {
		lines, end := c.out.next(reader, last, func() bool { return false })
		for _, line := range lines {
			if msg, err := jsonrpc.DecodeMessage(line); err == nil {
				if resp, ok := msg.(*jsonrpc.Response); ok && resp.Error == nil {
					c.greeted.Store(true)
				}
				_ = conn.Write(context.Background(), msg) // a client that is not there asks again, or has gone
			}
		}
		if len(lines) == 0 || c.out.delivered(end) {
			c.gone()
			return nil
		}
		last = end
	}
}

func isJSON(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// accepts reports whether a client takes a media type.
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

// isDate reports whether a text is built as versions of MCP are.
func isDate(v string) bool {
	return len(v) == len("2025-11-25") && strings.Trim(v, "0123456789-") == ""
}

// What an event and a stream take in memory beside the text, in bytes.
const (
	eventSize  = 50
	streamSize = 250
)

// keptEvents is the mcp.EventStore of one session: what was sent, for a client that connects
// anew. The oldest events go first, and their streams with them: each request has one.
type keptEvents struct {
	most int // bytes

	mu      sync.Mutex // guards the fields below
	bytes   int
	streams map[string]*keptStream
	order   []*keptStream // of each event, the oldest first
}

type keptStream struct {
	id     string
	first  int // number of the oldest event, or of the next
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
	s := k.openLocked(stream, math.MaxInt32) // of one that has gone nobody knows the numbers
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
	if s.first++; len(s.events) == 0 && s.id != "" { // that one goes on
		delete(k.streams, s.id)
		k.bytes -= streamSize
	}
}

// After implements mcp.EventStore. A client that knows no event gets all that are kept, and
// from there on they are numbered anew.
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
