package mcp

import (
	"context"
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
)

// firstLook is how soon after a list the watch looks again; each further look without a
// change comes after twice the time.
const firstLook = 250 * time.Millisecond

// watch tells the client when lists that it has seen have changed: plugins learn of new
// tools and skills while they run, and have no way to say so.
type watch struct {
	server         *server
	tools, prompts seenList
	poke           chan struct{} // the client has listed something
	goes           sync.WaitGroup
}

// seenList is a list that the client may have seen.
type seenList struct {
	changed string // the notification
	digest  atomic.Pointer[[sha256.Size]byte]
	poke    chan<- struct{}
}

func newWatch(s *server) *watch {
	poke := make(chan struct{}, 1)
	w := &watch{server: s, poke: poke}
	w.tools.changed, w.tools.poke = notifyToolsChanged, poke
	w.prompts.changed, w.prompts.poke = notifyPromptsChanged, poke
	return w
}

// saw notes what the client gets to see.
func (l *seenList) saw(all any) {
	l.digest.Store(digestOf(all))
	l.soon()
}

// soon has the watch look soon.
func (l *seenList) soon() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// digestOf gives the digest of a list; nil when it does not encode.
func digestOf(all any) *[sha256.Size]byte {
	raw, err := json.Marshal(all, json.Deterministic(true))
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(raw)
	return &sum
}

// start watches until ctx ends.
func (w *watch) start(ctx context.Context) { w.goes.Go(func() { w.run(ctx) }) }

func (w *watch) run(ctx context.Context) {
	select {
	case <-w.poke:
	case <-ctx.Done():
		return
	}
	most := w.server.opts.Refresh
	every := min(firstLook, most)
	for clock := time.NewTimer(every); ; clock.Reset(every) {
		select {
		case <-clock.C:
			every = min(2*every, most)
		case <-w.poke:
			every = min(firstLook, most)
			continue
		case <-ctx.Done():
			clock.Stop()
			return
		}
		w.look(ctx, &w.tools, func(ctx context.Context) (any, error) { return w.server.tools(ctx) })
		w.look(ctx, &w.prompts, func(ctx context.Context) (any, error) { return w.server.prompts(ctx) })
	}
}

// look tells of a list that is not what the client has seen, once.
func (w *watch) look(ctx context.Context, l *seenList, list func(context.Context) (any, error)) {
	seen := l.digest.Load()
	if seen == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	all, err := list(ctx)
	if err != nil {
		return
	}
	now := digestOf(all)
	if now == nil || *now == *seen || ctx.Err() != nil {
		return
	}
	if l.digest.CompareAndSwap(seen, now) {
		w.server.notifyChanged(l.changed)
	}
}
