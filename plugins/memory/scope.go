package memory

import (
	"context"
	"fmt"

	"a2e/host"
	"a2e/host/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// memoryOf gives the agent whose episodic tier an agent uses: its own, unless it is a
// child that shares.
func memoryOf(tx *store.Tx, agent string) (string, error) {
	uses := agent
	_, err := tx.Get("SELECT uses FROM memory_agents WHERE agent = ?", []any{agent}, &uses)
	return uses, err
}

func setUses(tx *store.Tx, agent, uses string) error {
	_, _, err := tx.Exec("INSERT OR REPLACE INTO memory_agents VALUES (?, ?)", agent, uses)
	return err
}

// ScopeMemory implements host.MemoryScoper: from now on the child agent sees the memory of
// the request's agent (shared), its own (isolated), or its own that begins with copies of
// what that agent has in its episodic and working tiers now (snapshot). The semantic tier is
// all agents'.
func (p *Plugin) ScopeMemory(ctx context.Context, child string, scope protocol.MemoryScope) error {
	sess := host.SessionFrom(ctx)
	if sess == nil {
		return fmt.Errorf("a child's memory is set within a request")
	}
	if child == "" || child == sess.AgentID {
		return violation("/agent_id", "a child agent needs an id of its own, not %q", child)
	}
	s, err := p.shelfOf(ctx, protocol.TierEpisodic, true)
	if err != nil {
		return err
	}
	var working []owned
	if scope == protocol.MemorySnapshot {
		if working, err = p.workingEntries(ctx, sess); err != nil {
			return err
		}
	}
	return storeTrouble(s.store.Write(ctx, func(tx *store.Tx) error {
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
		return violation("/memory_scope", "there is no scope %.64q; there are shared, isolated, snapshot", scope)
	}))
}

// owned is an entry with the memory that it is in.
type owned struct {
	name   name
	row    *row
	vector embed.Vector
}

// copyMemory gives the child copies of the parent's episodic entries, and of the working
// ones in their place.
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
		return protocol.Errorf(protocol.CodeMemoryFull, "the snapshot has %d entries; %s", len(all), p.limitText(protocol.TierEpisodic))
	}
	for _, o := range all {
		space, err := openSpace(tx, o.name, protocol.TierEpisodic, child)
		if err != nil {
			return err
		}
		e := o.row.entry
		e.Tier = protocol.TierEpisodic
		if e.canonical, err = canonical(e.Key); err != nil {
			return err
		}
		if err := put(tx, space, &e, o.row.times, o.vector); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plugin) workingEntries(ctx context.Context, sess *host.Session) (all []owned, err error) {
	s, err := p.workingShelf(ctx, sess, false)
	if err != nil || s == nil {
		return nil, err
	}
	err = s.store.Read(ctx, func(tx *store.Tx) error {
		all, err = entriesOf(tx, p.now(), protocol.TierWorking, "")
		return err
	})
	return all, err
}

// entriesOf gives all entries of a tier of one owner, oldest first.
func entriesOf(tx *store.Tx, now float64, tier protocol.MemoryTier, owner string) (all []owned, err error) {
	err = tx.Each("SELECT n.memory_id, n.namespace, n.scope, v.vector, "+columns+fromEntries+"JOIN memory_names n USING (memory_id) LEFT JOIN memory_vectors v ON v.entry = e.id WHERE s.tier = ? AND s.owner = ? ORDER BY e.id",
		[]any{string(tier), owner}, func(scan func(...any) error) error {
			var o owned
			var vector []byte
			o.row, err = readRow(func(dest ...any) error {
				return scan(append([]any{&o.name.id, &o.name.namespace, &o.name.scope, &vector}, dest...)...)
			})
			o.vector = bytesToVector(vector, 0)
			if err == nil && (o.row.expires == 0 || o.row.expires > now) {
				all = append(all, o)
			}
			return err
		})
	return all, err
}
