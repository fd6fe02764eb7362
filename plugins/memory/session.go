package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// repositoryOf returns the repository of a tier. For the working tier it returns nil if nothing was
// stored there yet, or makes the repository if make is true.
func (p *Plugin) repositoryOf(ctx context.Context, tier protocol.MemoryTier, make bool) (*repository, error) {
	if tier == protocol.TierWorking {
		return p.workingRepository(ctx, host.SessionFrom(ctx), make)
	}
	st, err := p.env.Store(ctx)
	if err != nil {
		return nil, err
	}
	return p.diskRepository(st), nil
}

// diskRepository returns the repository of the shared store.
func (p *Plugin) diskRepository(st store.Store) *repository {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.disk == nil {
		p.disk = newRepository(st)
	}
	return p.disk
}

// onDisk returns the repository of the shared store; nil = nothing has used it yet.
func (p *Plugin) onDisk() *repository {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.disk
}

// workingRepository returns the repository of a session's working tier, which is in memory.
func (p *Plugin) workingRepository(ctx context.Context, sess *host.Session, make bool) (*repository, error) {
	if sess == nil {
		return nil, errors.New("there is no session")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.working[sess.ID]
	if s == nil && make {
		st, err := store.OpenMemory(context.WithoutCancel(ctx), Part())
		if err != nil {
			return nil, err
		}
		s = newRepository(st)
		s.working = true
		p.working[sess.ID] = s
	}
	return s, nil
}

// owner returns the agent whose entries a tier holds. It is "" for the semantic tier, which all agents
// share, and the working tier, whose repository belongs to one session.
func (p *Plugin) owner(tx *store.Tx, tier protocol.MemoryTier, sess *host.Session) (string, error) {
	if tier != protocol.TierEpisodic || sess == nil {
		return "", nil
	}
	return memoryOf(tx, sess.AgentID)
}

// EndSession implements host.SessionEnder. It deletes the session's working tier, and ends the access
// of the session's child agents to the memory of their parent.
func (p *Plugin) EndSession(ctx context.Context, s *host.Session) {
	p.mu.Lock()
	repository, children := p.working[s.ID], p.sharing[s.ID]
	delete(p.working, s.ID)
	delete(p.sharing, s.ID)
	p.mu.Unlock()
	if len(children) > 0 {
		if err := p.env.Store.Write(ctx, func(tx *store.Tx) error {
			_, err := tx.Exec("DELETE FROM memory_agents WHERE agent IN (SELECT value FROM json_each($1))",
				store.JSON(children))
			return err
		}); err != nil {
			p.env.Log.Warn().Err(err).Msg("child agents of a session that ended keep their right to its agent's memory")
		}
	}
	if repository == nil {
		return
	}
	if err := repository.store.Close(); err != nil {
		p.env.Log.Warn().Err(err).Msg("the working tier of a session did not close cleanly")
	}
}

func (p *Plugin) dropWorking() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, s := range p.working {
		err = errors.Join(err, s.store.Close())
		delete(p.working, id)
	}
	return err
}

// memoryOf returns the agent whose episodic tier an agent uses: the agent itself, unless it is a
// child that shares its parent's.
func memoryOf(tx *store.Tx, agent string) (string, error) {
	uses := agent
	_, err := tx.Get("SELECT uses FROM memory_agents WHERE agent = $1", []any{agent}, &uses)
	return uses, err
}

func setUses(tx *store.Tx, agent, uses string) error {
	_, err := tx.Exec("INSERT INTO memory_agents VALUES ($1, $2) ON CONFLICT (agent) DO UPDATE SET uses = "+
		"excluded.uses", agent, uses)
	return err
}

// ScopeMemory implements agent.MemoryScoper. From now on the child agent sees the memory of
// the request's agent (shared), its own memory (isolated), or its own memory with copies of that
// agent's current episodic and working entries (snapshot). All agents share the semantic tier.
func (p *Plugin) ScopeMemory(ctx context.Context, child string, scope protocol.MemoryScope) error {
	sess := host.SessionFrom(ctx)
	if sess == nil {
		return fmt.Errorf("a child's memory is set within a request")
	}
	if child == "" || child == sess.AgentID {
		return protocol.Wrong("/agent_id", "a child agent needs an id of its own, not %q", child)
	}
	s, err := p.repositoryOf(ctx, protocol.TierEpisodic, true)
	if err != nil {
		return err
	}
	var working []owned
	if scope == protocol.MemorySnapshot {
		if working, err = p.workingEntries(ctx, sess); err != nil {
			return err
		}
	}
	err = s.store.Write(ctx, func(tx *store.Tx) error {
		parent, err := memoryOf(tx, sess.AgentID)
		if err != nil {
			return err
		}
		switch scope {
		case protocol.MemoryShared:
			return setUses(tx, child, parent)
		case protocol.MemoryIsolated:
			return setUses(tx, child, child)
		case protocol.MemorySnapshot:
			return p.copyMemory(tx, parent, child, working)
		}
		return protocol.Wrong("/memory_scope", "there is no scope %.64q; there are shared, isolated, snapshot", scope)
	})
	if err == nil && scope == protocol.MemoryShared {
		p.mu.Lock()
		p.sharing[sess.ID] = append(p.sharing[sess.ID], child)
		p.mu.Unlock()
	}
	return storeTrouble(err)
}

// owned is an entry with its memory, vector and history.
type owned struct {
	name   name
	row    *row
	vector embed.Vector
	past   []*row // former versions, the newest first
}

// copyMemory stores copies of the parent's episodic entries for the child, with their versions and
// history. A working entry replaces the episodic entry with the same key.
func (p *Plugin) copyMemory(tx *store.Tx, parent, child string, working []owned) error {
	if err := setUses(tx, child, child); err != nil {
		return err
	}
	all, err := entriesOf(tx, p.now(), protocol.TierEpisodic, parent)
	if err != nil {
		return err
	}
	all = append(all, working...)
	if len(all) > p.opts.EpisodicLimit {
		return protocol.Errorf(protocol.CodeMemoryFull, "the snapshot has %s; %s", protocol.Count(len(all), "entry"),
			p.limitText(protocol.TierEpisodic))
	}
	for _, o := range all {
		space, err := openSpace(tx, o.name, protocol.TierEpisodic, child)
		if err != nil {
			return err
		}
		e := o.row.entry
		e.Tier = protocol.TierEpisodic
		was, err := current(tx, space, e.canonical, 0)
		if err != nil {
			return err
		}
		if was != nil { // from an earlier snapshot, or the episodic entry of a working one
			if _, err := remove(tx, "id = $1", was.id); err != nil {
				return err
			}
		}
		if err := put(tx, space, &e, o.row.stored, o.vector, nil, p.opts.Versions); err != nil {
			return err
		}
		for _, r := range slices.Backward(o.past) {
			if err := putPast(tx, space, e.canonical, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Plugin) workingEntries(ctx context.Context, sess *host.Session) (all []owned, err error) {
	s, err := p.workingRepository(ctx, sess, false)
	if err != nil || s == nil {
		return nil, err
	}
	err = s.store.Read(ctx, func(tx *store.Tx) error {
		all, err = entriesOf(tx, p.now(), protocol.TierWorking, "")
		return err
	})
	return all, err
}

// entriesOf returns all entries of a tier of one owner that have not expired, the oldest first.
func entriesOf(tx *store.Tx, now float64, tier protocol.MemoryTier, owner string) (all []owned, err error) {
	model, err := modelOf(tx)
	if err != nil {
		return nil, err
	}
	err = tx.Each("SELECT n.memory_id, n.namespace, n.scope, v.vector, "+columns+fromEntries+"JOIN memory_names n "+
		"USING (memory_id) LEFT JOIN memory_vectors v ON v.entry = e.id WHERE s.tier = $1 AND s.owner = $2 ORDER BY "+
		"e.id",
		[]any{string(tier), owner}, func(scan func(...any) error) error {
			o := owned{row: new(row)}
			var vector []byte
			err := scan(append([]any{&o.name.id, &o.name.namespace, &o.name.scope, &vector}, o.row.columns()...)...)
			o.vector = embed.VectorOf(vector, model.Size)
			if err == nil && !o.row.expired(now) {
				all = append(all, o)
			}
			return err
		})
	for i := range all {
		if err != nil {
			break
		}
		r := all[i].row
		if r.canonical, err = canonical(r.Key); err == nil && r.version > 1 {
			all[i].past, err = past(tx, r.space, r.canonical, r)
		}
	}
	return all, err
}
