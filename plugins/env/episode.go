package env

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"a2e/host"
	"a2e/protocol"
)

// episode is one run of an environment.
type episode struct {
	id      string
	seed    int64
	options protocol.Object // as the reset sent them
	created int64           // microseconds since 1970
	pushes  *pushes

	used  atomic.Int64 // time of the last request, in microseconds since 1970
	saved atomic.Int64 // the value of used in the store
	steps atomic.Int64 // taken
	over  atomic.Bool  // a push has ended it
	dirty atomic.Bool  // it has changes that are not saved
	kept  atomic.Bool  // the store may have it

	mu        sync.Mutex // guards the fields below, and is held for one step
	world     World
	saver     Saver  // the world, if it is one
	state     []byte // as the agent last saw it; replaced, never changed in place
	done      bool
	truncated bool
	failure   string  // why an error ended it; "" = none did
	reward    float64 // of the last step
	closed    bool
}

func (e *episode) setWorld(w World) {
	e.world = w
	e.saver, _ = w.(Saver)
}

// lookLocked reads the state. With live it first asks a world that changes by itself to update.
func (e *episode) lookLocked(ctx context.Context, live bool) error {
	if o, ok := e.world.(Observer); ok && live {
		if err := o.Observe(ctx); err != nil {
			return err
		}
	}
	state, err := e.world.AppendState(ctx, make([]byte, 0, len(e.state)+4))
	if err == nil {
		e.state = state
	}
	return err
}

// seenLocked returns the observation of the episode.
func (e *episode) seenLocked(at int64) observation {
	return observation{
		episode: e.id, step: e.steps.Load(), state: e.state, done: e.done || e.over.Load(), truncated: e.truncated,
		reward: e.reward, at: at,
	}
}

// openLocked returns an error if the episode takes no more steps.
func (e *episode) openLocked() error {
	switch {
	case e.closed:
		return unknownEpisode(e.id)
	case e.failure != "":
		return protocol.Errorf(protocol.CodeEpisodeDone, "the episode %s was ended by an error: %s; start another "+
			"with env/reset/req", e.id, e.failure)
	case e.truncated && !e.done:
		return protocol.Errorf(protocol.CodeEpisodeDone, "the episode %s was truncated after %s; start another with "+
			"env/reset/req", e.id, protocol.Count(e.steps.Load(), "step"))
	case e.done || e.over.Load():
		return protocol.Errorf(protocol.CodeEpisodeDone, "the episode %s has ended after %s; start another with "+
			"env/reset/req", e.id, protocol.Count(e.steps.Load(), "step"))
	}
	return nil
}

// end closes the episode, which is no longer in any map. If it was saved, another host may continue it.
func (e *episode) end(ctx context.Context) error {
	if !e.lock(ctx) {
		return context.Cause(ctx)
	}
	defer e.mu.Unlock()
	return e.endLocked(ctx, true)
}

func (e *episode) endLocked(ctx context.Context, leave bool) error {
	if e.closed {
		return nil
	}
	e.closed = true
	e.pushes.close()
	if leave && !e.dirty.Load() {
		return e.leaveLocked(ctx)
	}
	return e.world.Close(ctx)
}

// leaveLocked frees what the world holds in this host only, if another host may continue the episode; else
// it closes the world.
func (e *episode) leaveLocked(ctx context.Context) error {
	if l, ok := e.world.(Leaver); ok && e.kept.Load() {
		return l.Leave(ctx)
	}
	return e.world.Close(ctx)
}

// lock takes mu, which a long step may hold; false = ctx ended first.
func (e *episode) lock(ctx context.Context) bool {
	for !e.mu.TryLock() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Millisecond):
		}
	}
	return true
}

// reset begins an episode.
func (p *Plugin) reset(ctx context.Context, req *protocol.EnvResetRequest, _ host.Emitter) (*observed, error) {
	if err := p.owns(req.EnvName); err != nil {
		return nil, err
	}
	if err := p.actions.checkOptions(ctx, req.Options); err != nil {
		return nil, err
	}
	if err := p.takeSlot(); err != nil {
		return nil, err
	}
	defer p.freeSlot()
	seed := rand.Int64N(maxSeed)
	if req.Seed != nil {
		seed = *req.Seed
	}
	obs, err := p.begin(ctx, seed, req.Options.Clone())
	return &observed{obs}, err
}

// maxSeed bounds the seeds that are chosen here, so that every JSON reader can represent them.
const maxSeed = 1 << 53

// begin begins an episode and returns its first observation.
func (p *Plugin) begin(ctx context.Context, seed int64, options protocol.Object) (obs observation, err error) {
	e := &episode{id: uuid.NewString(), options: options, created: p.micros(), seed: seed}
	if e.pushes = p.newPushes(e); !p.quick {
		host.HandOff(ctx)
		if sess := host.SessionFrom(ctx); sess == nil || sess.Pushes {
			e.pushes.feed = host.OpenStream(ctx)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	at, err := p.beginLocked(ctx, e, "the environment "+p.env.Name()+" did not start an episode", func(r Reset) (World,
		error,
	) {
		return p.env.Reset(ctx, r)
	})
	if err != nil {
		return obs, err
	}
	obs = e.seenLocked(at)
	obs.meta = map[string]any{"seed": e.seed}
	if record := p.keep.recordLocked(e); record != nil {
		p.keep.note(ctx, nil, record, "")
	}
	return obs, nil
}

// beginLocked makes the world of an episode, and adds the episode to the map so that requests find it. at
// is the time of that; failed begins the message of an error of world.
func (p *Plugin) beginLocked(ctx context.Context, e *episode, failed string, world func(Reset) (World,
	error),
) (at int64, err error) {
	w, err := world(Reset{EpisodeID: e.id, Seed: e.seed, Options: e.options, Push: e.pushes.add})
	if err != nil {
		e.pushes.close()
		return 0, explained(failed, err)
	}
	e.setWorld(w)
	if err = explained("the state of the episode cannot be seen", e.lookLocked(ctx, false)); err == nil {
		at = p.micros()
		e.used.Store(at)
		err = p.putIn(e)
	}
	if err != nil {
		e.pushes.close()
		_ = e.leaveLocked(context.WithoutCancel(ctx)) // the first error says more
		return 0, err
	}
	p.reaping.Do(func() { p.tend(p.reap) })
	if e.saver != nil {
		e.dirty.Store(true)
		p.keep.poke()
	}
	return at, nil
}

// takeSlot reserves a slot for an episode that is about to begin.
func (p *Plugin) takeSlot() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	most, allowed := p.opts.MaxEpisodes, "max_episodes allows"
	if p.opts.Env == "workspace" && most > maxWorkspaces {
		most, allowed = maxWorkspaces, "there may be of workspace"
	}
	if n := len(p.episodes) + p.opening; n >= most {
		return protocol.Errorf(protocol.CodeResetDenied, "%s open, which is all that %s; close some with env/close/req",
			protocol.Count(n, "episode"), allowed)
	}
	p.opening++
	return nil
}

func (p *Plugin) freeSlot() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opening--
}

// putIn adds an episode to the map, so that requests find it.
func (p *Plugin) putIn(e *episode) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return protocol.Errorf(protocol.CodeTimeout, "the host shut down before the episode could begin")
	}
	p.episodes[e.id] = e
	return nil
}

// close answers env/close/req. An error of the world does not keep the episode open.
func (p *Plugin) close(ctx context.Context, req *protocol.EnvCloseRequest, _ host.Emitter) (*protocol.EnvCloseResponse,
	error,
) {
	e, err := p.find(ctx, req.EpisodeID)
	if err != nil {
		return nil, err
	}
	p.detach(ctx)
	if err := p.endForGood(ctx, e); err != nil {
		return nil, err
	}
	return &protocol.EnvCloseResponse{Closed: true}, nil
}

// takeOut removes an episode from the map; false = it was not in it. idle says why it ends.
func (p *Plugin) takeOut(e *episode, idle bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.episodes[e.id] != e {
		return false
	}
	delete(p.episodes, e.id)
	p.rememberLocked(e.id, idle)
	return true
}

// endForGood ends an episode, for later hosts too. It waits for a running step; if ctx ends before the
// step, the episode stays open.
func (p *Plugin) endForGood(ctx context.Context, e *episode) error {
	if !e.lock(ctx) {
		return context.Cause(ctx)
	}
	defer e.mu.Unlock()
	if !p.takeOut(e, false) {
		return unknownEpisode(e.id)
	}
	p.endForGoodLocked(ctx, e)
	return nil
}

// endForGoodLocked ends an episode that takeOut has removed.
func (p *Plugin) endForGoodLocked(ctx context.Context, e *episode) {
	if err := e.endLocked(ctx, false); err != nil {
		p.Log.Warn().Err(err).Str("plugin", p.name).Str("episode", e.id).Msg("the episode did not close cleanly")
	}
	if e.kept.Load() {
		p.keep.forget(e.id)
		p.keep.note(ctx, nil, nil, e.id)
	}
}
