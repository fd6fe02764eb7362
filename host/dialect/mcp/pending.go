package mcp

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
	wire "a2e/protocol/jsonrpc"
)

// request is one request of the client, until it is answered.
type request struct {
	origin
	served method
	key    string                  // of the id, see jsonrpc.Key
	params jsontext.Value          // as the client wrote them
	token  jsontext.Value          // for its progress notifications; nil = the client wants none
	meta   *modernMeta             // nil = its version begins with initialize
	work   *host.Work              // in the host's scheduler
	next   atomic.Pointer[request] // the request that continues its round; nil = none

	ctx     context.Context // of its handler, if it goes through the go-sdk
	encoded chan encoded    // receives the go-sdk's answer; has room for one

	cancelled atomic.Bool // the client cancelled it
	mu        sync.Mutex  // held while something of this request is sent
	answered  bool        // guarded by mu
}

// current returns the last request that continues the round of r, or r itself.
func (r *request) current() *request {
	for next := r.next.Load(); next != nil; next = r.next.Load() {
		r = next
	}
	return r
}

// pending has the requests that are not answered yet.
type pending struct {
	open sync.WaitGroup // counts the requests
	done func()         // open.Done, made once

	mu    sync.Mutex
	byKey map[string]*request // guarded by mu
}

func newPending() *pending {
	p := &pending{byKey: make(map[string]*request)}
	p.done = p.open.Done
	return p
}

// begin adds a request. The error says that its id is in use.
func (p *pending) begin(r *request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byKey[r.key] != nil {
		return rpcErrorf(codeInvalidRequest, "a request with this id has no answer yet")
	}
	p.open.Add(1)
	p.byKey[r.key] = r
	return nil
}

// end frees the id of a request just before its answer is sent, because the client may use the id again after that.
func (p *pending) end(r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byKey, r.key)
}

// find returns the request with a key, or nil if it is answered.
func (p *pending) find(key string) *request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byKey[key]
}

// all returns the requests of a method.
func (p *pending) all(method string) (found []*request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.byKey {
		if r.method == method {
			found = append(found, r)
		}
	}
	return found
}

// question is a request of this server to the client. The client's result is passed on unchanged.
type question struct {
	id     string
	method string         // only for a question that is asked in an answer; see round
	params jsontext.Value // likewise
	answer chan reply     // has room for one
}

// reply is the client's answer to a question.
type reply struct {
	result jsontext.Value
	err    *rpcError // set in place of result
}

// questions has the requests to the client that are not answered yet.
type questions struct {
	mu   sync.Mutex // guards the fields below
	gone bool       // the client will not answer any more
	open map[string]*question
	last int
}

// question asks the client and returns its result. It waits until ctx ends, and then cancels the request at the client.
// The error is an *rpcError or the cause of ctx.
func (s *server) question(ctx context.Context, method string, params []byte) (jsontext.Value, error) {
	if rd, ok := ctx.Value(roundKey{}).(*round); ok {
		return s.questionIn(ctx, rd, method, params)
	}
	q := s.questions.ask()
	if q == nil {
		return nil, errGone()
	}
	id := protocol.AppendString(nil, q.id)
	s.out.Send(wire.AppendCall(nil, id, method, params))
	select {
	case r := <-q.answer:
		if r.err != nil {
			return nil, r.err
		}
		return r.result, nil
	case <-ctx.Done():
		s.questions.forget(q)
		s.out.Send(wire.AppendCall(nil, nil, notifyCancelled, append(append([]byte(`{"requestId":`), id...), '}')))
		return nil, context.Cause(ctx)
	}
}

// ask adds a new question; nil = the client will not answer any more.
func (all *questions) ask() *question {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.gone {
		return nil
	}
	all.last++
	q := &question{id: "a2e-" + strconv.Itoa(all.last), answer: make(chan reply, 1)}
	all.open[q.id] = q
	return q
}

// forget removes a question whose answer is not wanted any more.
func (all *questions) forget(q *question) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.open, q.id)
}

// answered passes the client's answer to the question with this id, and reports whether there is one.
func (all *questions) answered(id jsontext.Value, r reply) bool {
	key, _ := protocol.Value(id).Str()
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.open[key]
	if q != nil {
		delete(all.open, key)
		q.answer <- r
	}
	return q != nil
}

// end fails all open questions, because the client will not answer any more.
func (all *questions) end() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.gone = true
	for _, q := range all.open {
		q.answer <- reply{err: errGone()}
	}
	clear(all.open)
}

// replyOf copies an answer of the client into memory of its own.
func replyOf(m message) reply {
	if m.result != nil {
		return reply{result: m.result.Clone()}
	}
	fail := &rpcError{Code: codeInternal, Message: "the client answered with a malformed error"}
	_ = json.Unmarshal(m.fail, &struct { // members that are missing keep the values above
		Code    *int64  `json:"code"`
		Message *string `json:"message"`
	}{&fail.Code, &fail.Message})
	return reply{err: fail}
}

func errGone() *rpcError {
	return &rpcError{Code: codeServer, Message: "the client has closed its side of the pipe"}
}
