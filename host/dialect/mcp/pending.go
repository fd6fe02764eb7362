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
	key    string                  // see jsonrpc.Key; the go-sdk has it as the id
	params jsontext.Value          // as they came
	token  jsontext.Value          // of its progress notifications; nil = it wants none
	meta   *modernMeta             // nil = its version begins with initialize
	work   *host.Work              // in the host's scheduler
	next   atomic.Pointer[request] // that goes on with it; nil = none

	ctx     context.Context // of its handler, where the go-sdk sees it
	encoded chan encoded    // gets the go-sdk's answer; it has room for one

	cancelled atomic.Bool // the client took it back
	mu        sync.Mutex  // held while something of this request is sent
	answered  bool        // guarded by mu
}

// current returns the request that goes on with it, or itself.
func (r *request) current() *request {
	for next := r.next.Load(); next != nil; next = r.next.Load() {
		r = next
	}
	return r
}

// pending finds the requests that are not answered yet.
type pending struct {
	open sync.WaitGroup // how many there are
	done func()         // open.Done, made once

	mu    sync.Mutex
	byKey map[string]*request // guarded by mu
}

func newPending() *pending {
	p := &pending{byKey: make(map[string]*request)}
	p.done = p.open.Done
	return p
}

// begin takes a request in.
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

// end takes the id of a request back, whose answer is about to be sent: the client may use it
// again then.
func (p *pending) end(r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byKey, r.key)
}

// find returns the request with a key; nil = it was answered.
func (p *pending) find(key string) *request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byKey[key]
}

// all lists the requests of a method.
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

// question is a request of this server to the client. What the client says passes through as
// it is.
type question struct {
	id     string
	method string         // of one that is asked in an answer; see round
	params jsontext.Value // likewise
	answer chan reply     // room for one
}

// reply is the client's answer to a question.
type reply struct {
	result jsontext.Value
	err    *rpcError // in place of result
}

// questions are the requests to the client without their answer.
type questions struct {
	mu   sync.Mutex // guards the fields below
	gone bool       // the client says nothing any more
	open map[string]*question
	last int
}

// question asks the client something and returns the result. It waits until ctx ends, and
// tells the client then. The error is a *rpcError, or that of ctx.
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

// ask notes a new question; nil = the client says nothing any more.
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

// forget ends the wait for an answer.
func (all *questions) forget(q *question) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.open, q.id)
}

// answered hands the client's answer to whoever waits for it, and reports whether anybody does.
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

// end fails what was asked of a client that says nothing any more.
func (all *questions) end() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.gone = true
	for _, q := range all.open {
		q.answer <- reply{err: errGone()}
	}
	clear(all.open)
}

// replyOf reads an answer of the client into memory of its own.
func replyOf(m message) reply {
	if m.result != nil {
		return reply{result: m.result.Clone()}
	}
	fail := &rpcError{Code: codeInternal, Message: "the client answered with a malformed error"}
	_ = json.Unmarshal(m.fail, &struct { // what is missing stays
		Code    *int64  `json:"code"`
		Message *string `json:"message"`
	}{&fail.Code, &fail.Message})
	return reply{err: fail}
}

func errGone() *rpcError {
	return &rpcError{Code: codeServer, Message: "the client has closed its side of the pipe"}
}
