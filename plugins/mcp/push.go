package mcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/plugins/mcp/link"
	"a2e/protocol"
)

// The bounds of the notifications of one server that wait to be sent. If there are more, notifications of
// this server are dropped, the oldest log messages first. At most pushesInTime are sent in pushTime.
const (
	maxPushes    = 256
	maxPushBytes = 1 << 20
	pushesInTime = 100
	pushTime     = 100 * time.Millisecond
)

// notice is one notification on its way to the agent.
type notice struct {
	method string
	key    string // of waiting notices with the same method and key only one is kept, except log messages
	params jsontext.Value
}

// pusher sends the notifications of one server to the agent, in order.
type pusher struct {
	s    *server
	stop context.CancelFunc // ends run

	mu      sync.Mutex // guards the fields below
	waiting []notice
	bytes   int
	dropped int           // since the agent was last told
	lost    int64         // all that were dropped
	wake    chan struct{} // has room for one
}

func newPusher(s *server) *pusher {
	return &pusher{s: s, wake: make(chan struct{}, 1), stop: func() {}}
}

// add queues a notification and never waits.
func (p *pusher) add(method, key string, params any) {
	n := notice{method: method, key: key, params: jsontext.Value("{}")}
	if params != nil {
		raw, err := encode(params)
		if err != nil || raw.Kind() != '{' {
			return // nothing that could be passed on
		}
		n.params = raw
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.method != methodLog {
		for _, w := range p.waiting {
			if w.method == n.method && w.key == n.key {
				return
			}
		}
	}
	p.waiting = append(p.waiting, n)
	p.bytes += len(n.params)
	for len(p.waiting) > maxPushes || p.bytes > maxPushBytes && len(p.waiting) > 1 {
		p.dropLocked()
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// dropLocked drops the oldest log message, or the oldest notification if there is no log message.
func (p *pusher) dropLocked() {
	at := 0
	for i, w := range p.waiting {
		if w.method == methodLog {
			at = i
			break
		}
	}
	p.bytes -= len(p.waiting[at].params)
	p.waiting = append(p.waiting[:at], p.waiting[at+1:]...)
	p.dropped++
	p.lost++
}

// take removes and returns the next notification, or ok = false if there is none. If notifications were
// dropped, it returns a log message that says so.
func (p *pusher) take() (n notice, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropped > 0 {
		text := fmt.Sprintf("dropped %s of the MCP server: they came faster than they were read",
			protocol.Count(p.dropped, "notification"))
		p.dropped = 0
		params, _ := encode(map[string]any{"level": "warning", "logger": "a2e", "data": text})
		return notice{method: methodLog, params: params}, true
	}
	if len(p.waiting) == 0 {
		return n, false
	}
	n, p.waiting[0] = p.waiting[0], notice{}
	p.waiting = p.waiting[1:]
	p.bytes -= len(n.params)
	return n, true
}

// run sends notifications until ctx ends, at most pushesInTime in pushTime: an agent has more to read than
// the log of one server.
func (p *pusher) run(ctx context.Context) {
	begun, sent := time.Now(), 0
	for {
		select {
		case <-p.wake:
		case <-ctx.Done():
			return
		}
		for n, ok := p.take(); ok && ctx.Err() == nil; n, ok = p.take() {
			rest := pushTime - time.Since(begun)
			if sent++; sent > pushesInTime && rest > 0 && !link.Pause(ctx, rest) {
				return
			}
			if time.Since(begun) >= pushTime {
				begun, sent = time.Now(), 1
			}
			p.send(n)
		}
	}
}

// send sends a notification to those who subscribed to its resource, or to the agent if there are none.
func (p *pusher) send(n notice) {
	params, err := protocol.ParseObject(n.params)
	if err != nil {
		return
	}
	push := &protocol.MCPServerPush{ServerID: p.s.opts.ID, Method: n.method, Params: params}
	if n.method == methodUpdated {
		if feeds := p.s.feeds(n.key); len(feeds) > 0 {
			for _, f := range feeds {
				_ = f.Send(protocol.TypeMCPServerPush, push) // a session that is over needs no news
			}
			return
		}
	}
	if err := p.s.p.Services().Push(protocol.TypeMCPServerPush, push); err != nil &&
		!errors.Is(err, host.ErrStreamClosed) {
		p.s.p.env.Log.Warn().Err(err).Str("mcp_server", p.s.opts.ID).Msg("a notification could not be passed on")
	}
}

// droppedEver returns how many notifications were dropped in all.
func (p *pusher) droppedEver() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}
