package mcp

import (
	"context"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"a2e/protocol"
)

// question is a request of this server to the client. The go-sdk has its own, with
// numbers for ids; these have texts. What the client says passes through as it is.
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

// question asks the client something and gives the result. It waits until ctx ends, and
// tells the client then. The error is a *rpcError, or that of ctx.
func (s *server) question(ctx context.Context, method string, params []byte) (jsontext.Value, error) {
	if rd, ok := ctx.Value(roundKey{}).(*round); ok {
		return s.questionIn(ctx, rd, method, params)
	}
	q := s.desk.question()
	defer s.desk.forget(q)
	s.send(questionLine(q.id, method, params))
	select {
	case r := <-q.answer:
		if r.err != nil {
			return nil, r.err
		}
		return r.result, nil
	case <-ctx.Done():
		params := protocol.AppendString([]byte(`{"requestId":`), q.id)
		s.send(noticeLine(notifyCancelled, append(params, '}')))
		return nil, context.Cause(ctx)
	}
}

// question notes a new one. Where the client says nothing any more, it has failed already.
func (d *desk) question() *question {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastOpen++
	q := &question{id: "a2e-" + strconv.Itoa(d.lastOpen), answer: make(chan reply, 1)}
	if d.draining {
		q.answer <- reply{err: errGone()}
		return q
	}
	d.open[q.id] = q
	return q
}

// forget ends the wait for an answer.
func (d *desk) forget(q *question) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, q.id)
}

// asks notes a request of the go-sdk to the client. One that comes when the client says
// nothing any more is answered here, and false is given.
func (d *desk) asks(id jsonrpc.ID) bool {
	n, _ := id.Raw().(int64)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		d.failLocked(n)
		return false
	}
	d.asked[n] = struct{}{}
	return true
}

// asksNot forgets a request of the go-sdk that it waits for no longer.
func (d *desk) asksNot(id jsontext.Value) {
	n, err := strconv.ParseInt(string(id), 10, 64)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.asked, n)
}

// answered hands the client's answer to whoever waits for it, if anybody does.
func (d *desk) answered(m message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if text, ok := protocol.Value(m.id).Str(); ok {
		if q := d.open[text]; q != nil {
			delete(d.open, text)
			q.answer <- replyOf(m)
		}
		return
	}
	n, err := strconv.ParseInt(string(m.id), 10, 64)
	if _, waits := d.asked[n]; err != nil || !waits {
		return
	}
	delete(d.asked, n)
	resp, r := response(n), replyOf(m)
	if resp.Result = []byte(r.result); r.err != nil {
		resp.Error = r.err
	}
	d.answers = append(d.answers, resp)
	d.wake()
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

// response makes an answer to a request of the go-sdk, which counts them from 1.
func response(n int64) *jsonrpc.Response {
	id, _ := jsonrpc.MakeID(float64(n)) // a number is always fine
	return &jsonrpc.Response{ID: id}
}

func errGone() *rpcError {
	return &rpcError{Code: codeServer, Message: "the client has closed its side of the pipe"}
}

func (d *desk) failLocked(n int64) {
	resp := response(n)
	resp.Error = errGone()
	d.answers = append(d.answers, resp)
	d.wake()
}

// failAllLocked answers what was asked of a client that says nothing any more.
func (d *desk) failAllLocked() {
	for n := range d.asked {
		d.failLocked(n)
	}
	for _, q := range d.open {
		q.answer <- reply{err: errGone()}
	}
	clear(d.asked)
	clear(d.open)
}

// questionLine is a request to the client.
func questionLine(id, method string, params []byte) []byte {
	line := protocol.AppendString([]byte(`{"jsonrpc":"2.0","id":`), id)
	line = protocol.AppendString(append(line, `,"method":`...), method)
	line = append(append(line, `,"params":`...), params...)
	return append(line, '}')
}
