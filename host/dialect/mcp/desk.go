package mcp

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
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
	key    string         // see jsonrpc.Key
	params jsontext.Value // nil once it was handed on
	kept   jsontext.Value // params of what is forwarded as it came
	task   jsontext.Value // what a call says of the task that it is to be; nil = it is none
	token  jsontext.Value // of its progress notifications; nil = it wants none
	lane   laneName
	number int64                   // what the go-sdk knows it by
	meta   *modernMeta             // nil = its version begins with initialize
	next   atomic.Pointer[request] // that goes on with it; nil = none

	// guarded by desk.mu
	waits   *list.Element // in its lane; nil once it runs
	running bool
	cancel  context.CancelCauseFunc // of its handler; nil = it has none yet
	stopped error                   // why its handler is to stop

	mu       sync.Mutex // held while something of this request is sent
	answered bool       // guarded by mu
}

// current is the request that goes on with it, or itself.
func (r *request) current() *request {
	for next := r.next.Load(); next != nil; next = r.next.Load() {
		r = next
	}
	return r
}

func (r *request) size() int { return len(r.id) + len(r.params) + requestOverhead }

// desk keeps the requests that are not answered yet, and what this server has asked the
// client.
type desk struct {
	maxWaiting, maxBytes int
	news                 chan struct{} // there may be something for next

	mu       sync.Mutex // guards the fields below
	waiting  [lanes]list.List
	running  [lanes]int
	places   [lanes]int
	bytes    int
	count    int // of those that wait
	byKey    map[string][]*request
	byNumber map[int64]*request
	last     int64                // number given
	answers  []rpcMessage         // of the client, for the go-sdk
	asked    map[int64]struct{}   // requests of the go-sdk without their answer
	open     map[string]*question // those of this server itself, by id
	lastOpen int
	draining bool // the client says nothing any more
	closed   bool
	empty    chan struct{} // closed when draining and nothing is left
}

func newDesk(o Options) *desk {
	return &desk{
		maxWaiting: o.MaxQueue, maxBytes: o.MaxQueueBytes,
		news:   make(chan struct{}, 1),
		places: [lanes]int{laneLists: listsAtOnce, laneCalls: o.MaxParallel, laneListen: listenAtOnce},
		byKey:  make(map[string][]*request), byNumber: make(map[int64]*request),
		asked: make(map[int64]struct{}), open: make(map[string]*question), empty: make(chan struct{}),
	}
}

// put takes a request in, to wait for its place.
func (d *desk) put(r *request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return errShutdown
	case d.count >= d.maxWaiting || d.bytes+r.size() > d.maxBytes:
		return protocol.Errorf(protocol.CodeOverloaded, "%d requests wait, which is all that the host takes; send it again later", d.count)
	}
	d.last++
	r.number = d.last
	r.waits = d.waiting[r.lane].PushBack(r)
	d.count++
	d.bytes += r.size()
	d.byKey[r.key] = append(d.byKey[r.key], r)
	d.byNumber[r.number] = r
	d.wake()
	return nil
}

// wake tells next that something has changed.
func (d *desk) wake() {
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// next gives what the go-sdk gets next: an answer of the client, or a request that has a
// place from now on; neither when closing is closed.
func (d *desk) next(closing <-chan struct{}) (rpcMessage, *request) {
	for {
		if msg, r := d.ready(); msg != nil || r != nil {
			return msg, r
		}
		select {
		case <-d.news:
		case <-closing:
			return nil, nil
		}
	}
}

func (d *desk) ready() (rpcMessage, *request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.answers) > 0 {
		msg := d.answers[0]
		d.answers = slices.Delete(d.answers, 0, 1)
		return msg, nil
	}
	for lane := range d.waiting {
		if front := d.waiting[lane].Front(); front != nil && d.running[lane] < d.places[lane] {
			r := front.Value.(*request)
			d.leaveLocked(r)
			r.running = true
			d.running[lane]++
			return nil, r
		}
	}
	return nil, nil
}

// leaveLocked takes a request out of its lane.
func (d *desk) leaveLocked(r *request) {
	d.waiting[r.lane].Remove(r.waits)
	r.waits = nil
	d.count--
	d.bytes -= r.size()
}

// release forgets a request that was answered.
func (d *desk) release(r *request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.waits != nil {
		d.leaveLocked(r)
	}
	if r.running {
		r.running = false
		d.running[r.lane]--
	}
	delete(d.byNumber, r.number)
	if d.byKey[r.key] = slices.DeleteFunc(d.byKey[r.key], func(other *request) bool { return other == r }); len(d.byKey[r.key]) == 0 {
		delete(d.byKey, r.key)
	}
	d.wake()
	d.checkEmptyLocked()
}

func (d *desk) checkEmptyLocked() {
	if d.draining && len(d.byNumber) == 0 && !isClosed(d.empty) {
		close(d.empty)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// find gives the request that the go-sdk knows by a number; nil = it was answered.
func (d *desk) find(number any) *request {
	n, _ := number.(int64)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byNumber[n]
}

// isCancelled reports whether the client took a request back, so that it gets no answer.
func (d *desk) isCancelled(r *request) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Is(r.stopped, errCancelled)
}

// cancel stops the requests with a key, and gives those that have no handler which
// would end them: the caller does.
func (d *desk) cancel(key string) (idle []*request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.byKey[key] {
		switch {
		case r.method == methodInitialize: // may not be cancelled
		case r.waits != nil:
			d.leaveLocked(r)
			d.stopLocked(r, errCancelled)
			idle = append(idle, r)
		default:
			d.stopLocked(r, errCancelled)
		}
	}
	return idle
}

func (d *desk) stopLocked(r *request, cause error) {
	if r.stopped == nil {
		r.stopped = cause
	}
	if r.cancel != nil {
		r.cancel(cause)
	}
}

// attach notes what stops the handler of a request.
func (d *desk) attach(r *request, cancel context.CancelCauseFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.cancel = cancel
	if r.stopped != nil {
		cancel(r.stopped)
	}
}

// drain says that the client says nothing any more; the channel is closed when all its
// requests are answered. What was asked of it has failed.
func (d *desk) drain() (empty <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.draining = true
	d.failAllLocked()
	for _, r := range d.byNumber {
		if r.lane == laneListen {
			d.stopLocked(r, errGone())
		}
	}
	d.checkEmptyLocked()
	return d.empty
}

// close takes nothing in any more, and stops and gives all that is left.
func (d *desk) close() (left []*request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, r := range d.byNumber {
		d.stopLocked(r, errShutdown)
		left = append(left, r)
	}
	slices.SortFunc(left, func(a, b *request) int { return int(a.number - b.number) })
	return left
}
