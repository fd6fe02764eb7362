package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"a2e/protocol/fleet"
)

// A worker that was announced looks every watchEvery whether it is still as it said: its tools,
// its servers, the repository. While a server is being connected for the first time, it looks
// every watchStart.
const (
	watchEvery = 2 * time.Second
	watchStart = 100 * time.Millisecond
)

// announce says what this worker is, unless it is still as it last said. Before and after a
// task it gets what git says of the workspace; without that git is asked if need be.
func (f *Front) announce(ctx context.Context, seen *view) (starting bool) {
	f.session() // waits for plugins that are not ready, for which the time below is too short
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	f.telling.Lock()
	defer f.telling.Unlock()
	f.mu.Lock()
	last, active := f.announced, f.active
	f.mu.Unlock()
	next, starting := f.describe(ctx, last)
	if f.ctx.Err() != nil {
		return false // it was told nothing any more
	}
	if seen == nil {
		seen = f.repo.lately(ctx)
	}
	next.Session.RepoState = seen.state()
	if last != nil && sameState(last, next) {
		return starting
	}
	next.Session.ActiveTasks, next.Session.SessionFresh = active, last == nil
	f.mu.Lock()
	f.announced = next
	f.mu.Unlock()
	f.watched.Do(func() { f.goes.Go(func() { f.watch(starting) }) })
	if f.opts.Announced != nil {
		f.opts.Announced(next, f.able)
	}
	f.send(f.encode(next))
	return starting
}

// sameState reports whether two announces say the same, but for the tasks under way.
func sameState(a, b *fleet.Announce) bool {
	x, y := a.Session.RepoState, b.Session.RepoState
	return a.Worker == b.Worker && maps.Equal(a.MCPHealth, b.MCPHealth) && slices.Equal(a.Capabilities.Tools, b.Capabilities.Tools) &&
		slices.Equal(a.Capabilities.Extensions, b.Capabilities.Extensions) && a.Session.ContextID == b.Session.ContextID &&
		(x == y || x != nil && y != nil && *x == *y)
}

// describe makes the announce, but for what it says of the session's state. What cannot be
// found out in time is as it was. A server may be starting, and soon known.
func (f *Front) describe(ctx context.Context, last *fleet.Announce) (a *fleet.Announce, starting bool) {
	a = &fleet.Announce{
		Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version, Worker: f.opts.Worker, Session: fleet.Session{ContextID: f.context},
	}
	x, err := f.executors(ctx)
	a.Capabilities.Tools, a.MCPHealth = append([]string{}, x.tools...), x.health
	if err != nil && last != nil {
		a.Capabilities.Tools, a.MCPHealth = last.Capabilities.Tools, last.MCPHealth
	} else {
		f.able = slices.Concat(x.tools, slices.Collect(maps.Keys(x.able)))
	}
	a.Capabilities.MCPServers, a.Capabilities.Extensions = slices.AppendSeq([]string{}, maps.Keys(a.MCPHealth)), f.extensions()
	slices.Sort(a.Capabilities.MCPServers)
	if all := f.workers(); len(all) > 0 {
		w := &a.Worker
		w.Model, w.ModelTier = cmp.Or(w.Model, all[0].Model), cmp.Or(w.ModelTier, all[0].ModelTier)
		w.ContextWindow = cmp.Or(w.ContextWindow, all[0].ContextWindow)
	}
	return a, len(x.connecting) > 0
}

// watch announces again what has changed.
func (f *Front) watch(starting bool) {
	clock := time.NewTimer(0)
	defer clock.Stop()
	<-clock.C
	for {
		if clock.Reset(f.pace.watch); starting {
			clock.Reset(min(f.pace.watch, watchStart))
		}
		select {
		case <-f.room.Empty():
			return
		case <-f.ctx.Done():
			return
		case <-clock.C:
		}
		starting = f.announce(f.ctx, nil)
	}
}
