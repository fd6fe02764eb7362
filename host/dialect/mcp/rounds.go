package mcp

import (
	"context"
	"slices"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
)

// A modern client is asked in the answer to its request, which it sends again with what it
// says to that:
//
//	tools/call ─► handler asks ─► {inputRequests, requestState}   the handler waits
//	tools/call {inputResponses, requestState} ─► handler goes on ─► result, or it asks again
//
// maxRounds is how many handlers may wait so.
const maxRounds = 100

// round is a handler that may ask, over all requests that it is the work for.
type round struct {
	state  string // what the client names it by
	method string
	ctx    context.Context
	stop   context.CancelCauseFunc
	done   chan outcome
	news   chan struct{} // there may be questions

	mu   sync.Mutex // guards the fields below
	of   *request   // that is served now, or was last
	open []*question
}

// roundKey finds the round in a handler's context.
type roundKey struct{}

// retry is what the params of a request say of one that was answered by questions.
type retry struct {
	State string                    `json:"requestState"`
	Said  map[string]jsontext.Value `json:"inputResponses"`
}

// asksBack reports whether the answer to a method may be a question.
func asksBack(method string) bool {
	return slices.Contains([]string{methodCallTool, methodGetPrompt, methodReadResource}, method)
}

// inRounds serves a request whose handler may ask the client.
func (s *server) inRounds(ctx context.Context, r *request, handle func(context.Context) (mcp.Result, error)) (mcp.Result, error) {
	var again retry
	if err := json.Unmarshal(r.kept, &again); err != nil {
		return nil, rpcErrorf(codeInvalidParams, "inputResponses should be an object of answers, requestState the text that came with the questions")
	}
	var rd *round
	if again.State != "" {
		if rd = s.resume(r, again); rd == nil {
			return nil, rpcErrorf(codeInvalidParams, "requestState is none that this server waits for; send the request again without it")
		}
	} else {
		rd = s.newRound(r)
		s.start(context.WithValue(rd.ctx, roundKey{}, rd), r.method, rd.done, handle)
	}
	s.desk.attach(r, rd.stop)
	if res := s.ask(rd); res != nil {
		return res, nil
	}
	for {
		select {
		case <-rd.news:
			if res := s.ask(rd); res != nil {
				return res, nil
			}
			continue
		case out := <-rd.done:
			rd.stop(nil)
			return out.result, out.err
		case <-rd.ctx.Done():
		case <-ctx.Done():
			rd.stop(context.Cause(ctx))
		}
		out := s.wait(rd.ctx, rd.done)
		return out.result, out.err
	}
}

func (s *server) newRound(r *request) *round {
	rd := &round{state: uuid.NewString(), method: r.method, of: r, done: make(chan outcome, 1), news: make(chan struct{}, 1)}
	var cancel context.CancelFunc
	rd.ctx, cancel = context.WithTimeoutCause(s.session.ctx, s.opts.CallTimeout+grace, errLate)
	rd.ctx, rd.stop = context.WithCancelCause(rd.ctx)
	context.AfterFunc(rd.ctx, func() {
		cancel()
		s.unpark(rd)
	})
	return rd
}

// unpark takes a round from those that wait; false = it is none of them.
func (s *server) unpark(rd *round) bool {
	waits := s.rounds.CompareAndDelete(rd.state, rd)
	if waits {
		s.parked.Add(-1)
	}
	return waits
}

// resume finds the round that a request goes on with, and hands over what the client says;
// nil = there is none.
func (s *server) resume(r *request, again retry) *round {
	found, _ := s.rounds.Load(again.State)
	rd, _ := found.(*round)
	if rd == nil || rd.method != r.method || !s.unpark(rd) {
		return nil
	}
	rd.mu.Lock()
	defer rd.mu.Unlock()
	rd.of.next.Store(r)
	rd.of = r
	rd.open = slices.DeleteFunc(rd.open, func(q *question) bool {
		said, ok := again.Said[q.id]
		if ok {
			q.answer <- reply{result: said}
		}
		return ok
	})
	return rd
}

// inputRequired is a result that asks the client.
type inputRequired struct {
	mcp.ResultBase
	kind
	Requests map[string]inputRequest `json:"inputRequests"`
	State    string                  `json:"requestState"`
}

type inputRequest struct {
	Method string         `json:"method"`
	Params jsontext.Value `json:"params"`
}

// ask gives the questions of a round as a result, and parks it; nil = it has none.
func (s *server) ask(rd *round) mcp.Result {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	if len(rd.open) == 0 {
		return nil
	}
	res := &inputRequired{kind: kind{"input_required"}, Requests: make(map[string]inputRequest, len(rd.open)), State: rd.state}
	for _, q := range rd.open {
		res.Requests[q.id] = inputRequest{q.method, q.params}
	}
	s.parked.Add(1)
	s.rounds.Store(rd.state, rd)
	if rd.ctx.Err() != nil {
		s.unpark(rd)
	}
	return res
}

// question asks the client in an answer to the request that is served.
func (s *server) questionIn(ctx context.Context, rd *round, method string, params []byte) (jsontext.Value, error) {
	if s.parked.Load() >= maxRounds {
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%d requests wait for what the client says", maxRounds)
	}
	q := &question{id: uuid.NewString(), method: method, params: params, answer: make(chan reply, 1)}
	rd.mu.Lock()
	rd.open = append(rd.open, q)
	rd.mu.Unlock()
	select {
	case rd.news <- struct{}{}:
	default:
	}
	select {
	case r := <-q.answer:
		return r.result, nil
	case <-ctx.Done():
	case <-rd.ctx.Done():
	}
	rd.mu.Lock()
	rd.open = slices.DeleteFunc(rd.open, func(other *question) bool { return other == q })
	rd.mu.Unlock()
	if ctx.Err() == nil {
		return nil, context.Cause(rd.ctx)
	}
	return nil, context.Cause(ctx)
}
