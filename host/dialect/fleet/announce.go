package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"a2e/host"
	"a2e/protocol/fleet"
)

// watchEvery is how often a worker that was announced looks whether its MCP servers are
// still as it said; the tools are looked at before each task.
const watchEvery = 2 * time.Second

// announce says what this worker is, unless it is still as it last said. Before a task it
// gets what git says of the workspace; without that git is asked if need be.
func (f *Front) announce(ctx context.Context, seen *view) {
	f.session() // waits for plugins that are not ready, for which the time below is too short
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	f.telling.Lock()
	defer f.telling.Unlock()
	f.mu.Lock()
	last, active := f.announced, f.active
	f.mu.Unlock()
	next := f.describe(ctx, last)
	if f.ctx.Err() != nil {
		return // it was told nothing any more
	}
	if last != nil {
		next.Session.RepoState = last.Session.RepoState
		if sameState(last, next) && (seen == nil || last.Session.RepoState != nil && last.Session.RepoState.Branch == seen.branch) {
			return
		}
	}
	if seen == nil {
		seen = f.repo.look(ctx)
	}
	next.Session.RepoState = seen.state()
	next.Session.ActiveTasks, next.Session.SessionFresh = active, last == nil
	f.mu.Lock()
	f.announced = next
	f.mu.Unlock()
	f.watched.Do(func() { f.goes.Go(f.watch) })
	f.send(f.encode(next))
}

// sameState reports whether two announces say the same of health, tools and context.
func sameState(a, b *fleet.Announce) bool {
	return maps.Equal(a.MCPHealth, b.MCPHealth) && slices.Equal(a.Capabilities.Tools, b.Capabilities.Tools) &&
		slices.Equal(a.Capabilities.Extensions, b.Capabilities.Extensions) && a.Session.ContextID == b.Session.ContextID
}

// describe makes the announce, but for what it says of the session's state. What cannot be
// found out in time is as it was.
func (f *Front) describe(ctx context.Context, last *fleet.Announce) *fleet.Announce {
	a := &fleet.Announce{
		Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version, Worker: f.opts.Worker, Session: fleet.Session{ContextID: f.context},
	}
	tools, err := f.tools(ctx)
	if err != nil && last != nil {
		tools = last.Capabilities.Tools
	}
	known, err := f.servers(ctx)
	if a.MCPHealth = known.health; err != nil && last != nil {
		a.MCPHealth = last.MCPHealth
	}
	a.Capabilities = fleet.Capabilities{Tools: tools, MCPServers: slices.AppendSeq([]string{}, maps.Keys(a.MCPHealth)), Extensions: f.extensions()}
	slices.Sort(a.Capabilities.MCPServers)
	if pool := host.ServicesOf(f.ctx).Workers(); pool != nil {
		if all := pool.Workers(); len(all) > 0 {
			w := &a.Worker
			w.Model, w.ModelTier = cmp.Or(w.Model, all[0].Model), cmp.Or(w.ModelTier, all[0].ModelTier)
			w.ContextWindow = cmp.Or(w.ContextWindow, all[0].ContextWindow)
		}
	}
	return a
}

// watch announces again when the health of a server has changed, or what can be done with
// tasks.
func (f *Front) watch() {
	tick := time.NewTicker(f.pace.watch)
	defer tick.Stop()
	for {
		select {
		case <-f.room.Empty():
			return
		case <-f.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(f.ctx, checkTimeout)
		known, err := f.servers(ctx)
		cancel()
		f.mu.Lock()
		last := f.announced
		f.mu.Unlock()
		if err == nil && !(maps.Equal(last.MCPHealth, known.health) && slices.Equal(last.Capabilities.Extensions, f.extensions())) {
			f.announce(f.ctx, nil)
		}
	}
}
