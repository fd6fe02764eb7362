package mcp

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/dialect"
	"a2e/protocol"
	wire "a2e/protocol/jsonrpc"
)

// laneName is where a request waits: lists get their answer while calls take long.
type laneName int

const (
	laneLists laneName = iota
	laneCalls
	laneListen // what ends with the client, or when it is cancelled
	lanes
)

const (
	listsAtOnce     = 4
	listenAtOnce    = 16
	requestOverhead = 512 // bytes that a waiting request costs beyond its own
)

// request is one request of the client, until it is answered.
type request struct {
	origin
	key    string         // see jsonrpc.Key; the go-sdk has it as the id
	params jsontext.Value // as they came
	token  jsontext.Value // of its progress notifications; nil = it wants none
	lane   laneName
	meta   *modernMeta             // nil = its version begins with initialize
	next   atomic.Pointer[request] // that goes on with it; nil = none

	// guarded by pending.mu
	waits   bool // in its lane
	running bool
	cancel  context.CancelCauseFunc // of its handler; nil = it has none yet
	stopped error                   // why its handler is to stop

	mu       sync.Mutex // held while something of this request is sent
	answered bool       // guarded by mu
}

// current returns the request that goes on with it, or itself.
func (r *request) current() *request {
	for next := r.next.Load(); next != nil; next = r.next.Load() {
		r = next
	}
	return r
}

func (r *request) size() int { return len(r.id) + len(r.params) + requestOverhead }

// pending keeps the requests that are not answered yet.
type pending struct {
	room *dialect.Room // of those that wait
	open *dialect.Room // of all
	news dialect.Bell  // there may be something for next

	mu      sync.Mutex // guards the fields below
	waiting [lanes][]*request
	running [lanes]int
	places  [lanes]int
	byKey   map[string]*request
	closed  bool
}

func newPending(o Options) *pending {
	return &pending{
		room: dialect.NewRoom(o.MaxQueue, o.MaxQueueBytes), open: dialect.NewRoom(0, 0), news: dialect.NewBell(),
		places: [lanes]int{laneLists: listsAtOnce, laneCalls: o.MaxParallel, laneListen: listenAtOnce},
		byKey:  make(map[string]*request),
	}
}

// put takes a request in, to wait for its place.
func (p *pending) put(r *request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return errShutdown
	case p.byKey[r.key] != nil:
		return rpcErrorf(codeInvalidRequest, "a request with this id has no answer yet")
	case !p.room.Take(r.size()):
		count, _ := p.room.Use()
		return protocol.Errorf(protocol.CodeOverloaded, "%s waiting, which is all that the host takes; send it "+
			"again later", protocol.Count(count, "request"))
	}
	p.open.Take(0)
	p.waiting[r.lane] = append(p.waiting[r.lane], r)
	p.byKey[r.key], r.waits = r, true
	p.news.Ring()
	return nil
}

// take returns the next request that has a place from now on; nil when ctx has ended.
func (p *pending) take(ctx context.Context) *request {
	for {
		if r := p.ready(); r != nil {
			return r
		}
		select {
		case <-p.news:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *pending) ready() *request {
	p.mu.Lock()
	defer p.mu.Unlock()
	for lane := range p.waiting {
		if p.running[lane] == p.places[lane] {
			continue
		}
		if r, ok := dialect.Shift(&p.waiting[lane]); ok {
			p.room.Leave(r.size())
			r.waits, r.running = false, true
			p.running[lane]++
			return r
		}
	}
	return nil
}

// leaveLocked takes a request out of its lane.
func (p *pending) leaveLocked(r *request) {
	if !r.waits {
		return
	}
	at := slices.Index(p.waiting[r.lane], r)
	p.waiting[r.lane] = slices.Delete(p.waiting[r.lane], at, at+1)
	p.room.Leave(r.size())
	r.waits = false
}

// forget takes the id of a request back, whose answer is about to be sent: the client may use
// it again then. It reports whether the client took the request back, so that it gets none.
func (p *pending) forget(r *request) (cancelled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byKey, r.key)
	return errors.Is(r.stopped, errCancelled)
}

// release gives back the place of a request that was answered.
func (p *pending) release(r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(r)
	if r.running {
		p.running[r.lane]--
	}
	p.open.Leave(0)
	p.news.Ring()
}

// find returns the request that the go-sdk knows by an id; nil = it was answered.
func (p *pending) find(id any) *request {
	key, _ := id.(string)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byKey[key]
}

// cancel stops the request with a key, and returns it where it has no handler which would end
// it: the caller does.
func (p *pending) cancel(key string) (idle *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.byKey[key]
	if r == nil || r.method == methodInitialize { // which may not be cancelled
		return nil
	}
	p.stopLocked(r, errCancelled)
	if !r.waits {
		return nil
	}
	p.leaveLocked(r)
	return r
}

func (p *pending) stopLocked(r *request, cause error) {
	if r.stopped == nil {
		r.stopped = cause
	}
	if r.cancel != nil {
		r.cancel(cause)
	}
}

// attach notes what stops the handler of a request.
func (p *pending) attach(r *request, cancel context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.cancel = cancel
	if r.stopped != nil {
		cancel(r.stopped)
	}
}

// Load returns how many requests have no answer yet, and how many of those wait to begin.
func (s *server) Load() (open, waiting int) {
	open, _ = s.pending.open.Use()
	waiting, _ = s.pending.room.Use()
	return open, waiting
}

// drain says that the client says nothing any more. p.open is empty when all is answered.
func (p *pending) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.byKey {
		if r.lane == laneListen {
			p.stopLocked(r, errGone())
		}
	}
	p.open.Drain()
}

// close takes nothing in any more, and stops and returns all that is left, in order.
func (p *pending) close() (left []*request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, r := range p.byKey {
		p.stopLocked(r, errShutdown)
		left = append(left, r)
	}
	slices.SortFunc(left, func(a, b *request) int { return a.came.Compare(b.came) })
	return left
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
