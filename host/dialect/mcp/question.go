package mcp

import (
	"context"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
	wire "a2e/protocol/jsonrpc"
)

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

// answered hands the client's answer to whoever waits for it, if anybody does.
func (all *questions) answered(m message) {
	id, _ := protocol.Value(m.id).Str()
	all.mu.Lock()
	defer all.mu.Unlock()
	if q := all.open[id]; q != nil {
		delete(all.open, id)
		q.answer <- replyOf(m)
	}
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
	fail := &rpcError{Code: codeInternal, Message: "the client answered with an error that is none"}
	_ = json.Unmarshal(m.fail, &struct { // what is missing stays
		Code    *int64  `json:"code"`
		Message *string `json:"message"`
	}{&fail.Code, &fail.Message})
	return reply{err: fail}
}

func errGone() *rpcError {
	return &rpcError{Code: codeServer, Message: "the client has closed its side of the pipe"}
}
