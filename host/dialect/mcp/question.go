package mcp

import (
	"context"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

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

// questions are the requests to the client without their answer. Those of the go-sdk have
// numbers for ids, those of this server texts.
type questions struct {
	conn *conn

	mu   sync.Mutex // guards the fields below
	gone bool       // the client says nothing any more
	own  map[string]*question
	sdk  map[int64]bool
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
		s.questions.over(id)
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
	all.own[q.id] = q
	return q
}

// begun notes a request of the go-sdk. One that comes when the client says nothing any more
// is answered here, and false is returned.
func (all *questions) begun(id jsonrpc.ID) bool {
	n, _ := id.Raw().(int64)
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.gone {
		all.feed(n, reply{err: errGone()})
		return false
	}
	all.sdk[n] = true
	return true
}

// over forgets a question that nobody waits for any longer.
func (all *questions) over(id jsontext.Value) {
	text, _ := protocol.Value(id).Str()
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.own, text)
	if n, err := strconv.ParseInt(string(id), 10, 64); err == nil {
		delete(all.sdk, n)
	}
}

// answered hands the client's answer to whoever waits for it, if anybody does.
func (all *questions) answered(m message) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if text, ok := protocol.Value(m.id).Str(); ok {
		if q := all.own[text]; q != nil {
			delete(all.own, text)
			q.answer <- replyOf(m)
		}
		return
	}
	if n, err := strconv.ParseInt(string(m.id), 10, 64); err == nil && all.sdk[n] {
		delete(all.sdk, n)
		all.feed(n, replyOf(m))
	}
}

// end fails what was asked of a client that says nothing any more.
func (all *questions) end() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.gone = true
	for n := range all.sdk {
		all.feed(n, reply{err: errGone()})
	}
	for _, q := range all.own {
		q.answer <- reply{err: errGone()}
	}
	clear(all.sdk)
	clear(all.own)
}

// feed gives the answer to one of its requests to the go-sdk.
func (all *questions) feed(n int64, r reply) {
	id, _ := jsonrpc.MakeID(float64(n)) // a number is always fine
	resp := &jsonrpc.Response{ID: id, Result: []byte(r.result)}
	if r.err != nil {
		resp.Error = r.err
	}
	all.conn.feed(resp)
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
