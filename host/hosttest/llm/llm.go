// Package llm is a model for tests: a real HTTP server on the loopback interface that answers
// chat completions like OpenAI's API, from a script, and records the requests.
//
//	s := llm.New(t, llm.Calls(llm.Call{Name: "write_file", Arguments: `{"path":"a","content":"b"}`}),
//		llm.Text("do", "ne"))
//
//	… workers: [{name: w, llm: {url: s.URL, model: test}}] …
//	s.Requests()[1].Messages
package llm

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"a2e/host/hosttest/poll"
)

// Reply is the answer to one request. Its parts are sent in this order: thoughts, text, calls,
// then a stall, an error or a cut, or the rest and the end.
type Reply struct {
	Thoughts []string // pieces of reasoning_content
	Text     []string // pieces of the answer
	Calls    []Call
	Refusal  string // the model declines
	Finish   string // finish_reason; "" = tool_calls or stop
	Input    int    // tokens in the usage; both 0 = no usage is sent
	Output   int

	Stall bool     // wait for Release, or until the client is gone, before Then and the end
	Then  []string // pieces of text after the stall
	Cut   bool     // break the connection after that, without an end
	Fault string   // send an error object in the stream after that

	Status     int    // such as 429 or 500, with Error as its message; 0 = 200
	RetryAfter string // the header
	Error      string

	Whole bool   // one JSON object, even if the request asks for a stream
	Raw   string // the whole body, instead of all other parts
}

// Call is a call of a tool.
type Call struct {
	ID        string // "" = call_1, call_2, … of the reply
	Name      string
	Arguments string // JSON, or another text for a test
	Pieces    int    // number of pieces of the arguments; 0 = 3
	NoIndex   bool   // the pieces have no index of their call
	Object    bool   // the arguments are sent as an object, not as a string
}

// Text returns a reply of text in pieces.
func Text(pieces ...string) Reply { return Reply{Text: pieces} }

// Calls returns a reply that calls tools.
func Calls(calls ...Call) Reply { return Reply{Calls: calls} }

// Fail returns a reply with an error status.
func Fail(status int, message string) Reply { return Reply{Status: status, Error: message} }

// Used returns the reply with tokens in its usage.
func (r Reply) Used(input, output int) Reply {
	r.Input, r.Output = input, output
	return r
}

// Request is a request to the server.
type Request struct {
	Header   http.Header
	Body     string // unchanged
	Model    string
	Effort   string // reasoning_effort
	Stream   bool
	Messages []Message
	Tools    []string // their names
}

// Message is one message of a request.
type Message struct {
	Role   string
	Text   string
	Images []string // data URLs
	Calls  []Call
	CallID string // of a tool's result
}

// Last returns the text of the last message of a role, or "" if there is none.
func (r *Request) Last(role string) string {
	for _, m := range slices.Backward(r.Messages) {
		if m.Role == role {
			return m.Text
		}
	}
	return ""
}

// Rounds returns the number of the assistant's messages after the last message of the user:
// 0 = the first request of the turn.
func (r *Request) Rounds() (n int) {
	for _, m := range slices.Backward(r.Messages) {
		switch m.Role {
		case "assistant":
			n++
		case "user":
			return n
		}
	}
	return n
}

// Server is the endpoint.
type Server struct {
	URL    string   // url for an endpoint
	Models []string // models that GET /models lists; do not change it after the first request

	// Refuse lists members of a request that the server refuses with 400, as some servers do.
	Refuse []string

	http    *httptest.Server
	release chan struct{}
	closed  chan struct{}

	mu       sync.Mutex
	script   []Reply              // guarded by mu
	answer   func(*Request) Reply // guarded by mu
	requests []Request            // guarded by mu
	stalled  int                  // guarded by mu
}

// New starts a server that ends with the test. It sends the replies in order, one for each request.
func New(t testing.TB, script ...Reply) *Server {
	t.Helper()
	s := &Server{
		Models: []string{"test"}, script: script, release: make(chan struct{}, 1000),
		closed: make(chan struct{}),
	}
	s.http = httptest.NewServer(s)
	s.URL = s.http.URL + "/v1"
	t.Cleanup(func() {
		close(s.closed)
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// Add appends replies to the script.
func (s *Server) Add(script ...Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = append(s.script, script...)
}

// Answer sets the function that makes the replies after the end of the script, for requests in
// unknown order.
func (s *Server) Answer(f func(*Request) Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// Requests returns the requests so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Await waits until the server has got n requests.
func (s *Server) Await(t testing.TB, n int) {
	t.Helper()
	poll.Eventually(t, fmt.Sprintf("request %d to the model", n), func() bool { return len(s.Requests()) >= n })
}

// AwaitStall waits until a reply stalls, when everything before the stall is sent.
func (s *Server) AwaitStall(t testing.TB) {
	t.Helper()
	poll.Eventually(t, "a reply that stalls", s.Stalls)
}

// Stalls reports whether a reply is stalled now.
func (s *Server) Stalls() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stalled > 0
}

// Release lets one stalled reply continue, now or when it stalls.
func (s *Server) Release() { s.release <- struct{}{} }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch {
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/models"):
		list := []map[string]any{}
		for _, m := range s.Models {
			list = append(list, map[string]any{"id": m, "object": "model"})
		}
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
		return
	case r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/chat/completions"):
		writeJSON(w, http.StatusNotFound, fault("there is only POST /chat/completions here"))
		return
	}
	req, members := read(r.Header, body)
	for _, name := range s.Refuse {
		if _, ok := members[name]; ok {
			writeJSON(w, http.StatusBadRequest, fault("unknown field: "+name))
			return
		}
	}
	reply := s.next(req)
	switch {
	case reply.Status != 0:
		if reply.RetryAfter != "" {
			w.Header().Set("Retry-After", reply.RetryAfter)
		}
		writeJSON(w, reply.Status, fault(reply.Error))
	case reply.Raw != "":
		if req.Stream && !reply.Whole {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		_, _ = io.WriteString(w, reply.Raw)
		s.end(r, &reply)
	case req.Stream && !reply.Whole:
		w.Header().Set("Content-Type", "text/event-stream")
		s.stream(w, r, &reply)
	default:
		s.end(r, &reply)
		writeJSON(w, http.StatusOK, reply.whole())
	}
}

// next records a request and returns its reply.
func (s *Server) next(r *Request) Reply {
	s.mu.Lock()
	s.requests = append(s.requests, *r)
	answer := s.answer
	if len(s.script) > 0 {
		first := s.script[0]
		s.script = s.script[1:]
		answer = func(*Request) Reply { return first }
	}
	s.mu.Unlock()
	if answer == nil {
		return Fail(http.StatusBadRequest, "the script of the test has no further reply")
	}
	return answer(r)
}

// end stalls or cuts a reply according to its fields.
func (s *Server) end(r *http.Request, reply *Reply) {
	if reply.Stall {
		s.mu.Lock()
		s.stalled++
		s.mu.Unlock()
		select {
		case <-s.release:
		case <-r.Context().Done():
		case <-s.closed:
		}
		s.mu.Lock()
		s.stalled--
		s.mu.Unlock()
	}
	if reply.Cut {
		panic(http.ErrAbortHandler)
	}
}

// stream sends a reply as events.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, reply *Reply) {
	send := func(v any) {
		text, _ := json.Marshal(v)
		fmt.Fprintf(w, "data: %s\n\n", text)
		_ = http.NewResponseController(w).Flush()
	}
	delta := func(d map[string]any) { send(chunk(d, nil)) }
	delta(map[string]any{"role": "assistant", "content": ""})
	for _, piece := range reply.Thoughts {
		delta(map[string]any{"reasoning_content": piece})
	}
	for _, piece := range reply.Text {
		delta(map[string]any{"content": piece})
	}
	for i, c := range reply.Calls {
		for _, piece := range c.pieces(i) {
			delta(map[string]any{"tool_calls": []any{piece}})
		}
	}
	if reply.Refusal != "" {
		delta(map[string]any{"refusal": reply.Refusal})
	}
	s.end(r, reply)
	for _, piece := range reply.Then {
		delta(map[string]any{"content": piece})
	}
	if reply.Fault != "" {
		send(fault(reply.Fault))
		return
	}
	send(chunk(map[string]any{}, reply.finish()))
	if usage := reply.usage(); usage != nil {
		send(map[string]any{"object": "chat.completion.chunk", "choices": []any{}, "usage": usage})
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}
