package memory

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// maxTagFilter is how many tags one request names at most.
const maxTagFilter = 1_000

// filters gives the keys of a request in the form in which they are compared, and checks
// how many keys and tags there are.
func filters(keys []protocol.Object, tags []string) ([]string, error) {
	if len(keys) > maxBatch {
		return nil, violation("/keys", "has %d keys; send at most %d in one request", len(keys), maxBatch)
	}
	if len(tags) > maxTagFilter {
		return nil, violation("/tags", "has %d tags; send at most %d in one request", len(tags), maxTagFilter)
	}
	out := make([]string, len(keys))
	for i, key := range keys {
		c, err := canonical(jsontext.Value(key.Raw()))
		if err != nil {
			return nil, violation(fmt.Sprintf("/keys/%d", i), "%v", err)
		}
		out[i] = c
	}
	return out, nil
}

// forget deletes the entries that have one of the keys (if there are any) and one of the
// tags (if there are any).
func (p *Plugin) forget(ctx context.Context, req *protocol.MemoryForgetRequest, _ host.Emitter) (*protocol.MemoryForgetResponse, error) {
	n, err := p.find(ctx, req.MemoryID)
	if err != nil {
		return nil, err
	}
	want, err := tiersOf(req.Tier)
	if err != nil {
		return nil, err
	}
	keys, err := filters(req.Keys, req.Tags)
	if err != nil {
		return nil, err
	}
	resp := &protocol.MemoryForgetResponse{}
	if len(keys) == 0 && len(req.Tags) == 0 {
		return resp, nil
	}
	for _, tier := range want {
		deleted, err := p.forgetTier(ctx, n, tier, keys, req.Tags)
		if err != nil {
			return nil, err
		}
		resp.Deleted += deleted
	}
	return resp, nil
}

func (p *Plugin) forgetTier(ctx context.Context, n name, tier protocol.MemoryTier, keys, tags []string) (deleted int, err error) {
	s, err := p.shelfOf(ctx, tier, false)
	if err != nil || s == nil {
		return 0, err
	}
	now := p.now()
	err = s.store.Write(ctx, func(tx *store.Tx) error {
		deleted = 0
		owner, err := p.owner(tx, tier, host.SessionFrom(ctx))
		if err != nil {
			return err
		}
		space, err := spaceOf(tx, n.id, tier, owner)
		if err != nil || space == 0 {
			return err
		}
		ids, err := matching(tx, space, keys, tags)
		if err != nil {
			return err
		}
		_, changed, err := tx.Exec("DELETE FROM memory_entries WHERE id IN (SELECT value FROM json_each(?)) AND (expires_at IS NULL OR expires_at > ?)", listOf(ids), now) // what has expired is not there to be deleted
		deleted = int(changed)
		return err
	})
	return deleted, storeTrouble(err)
}

// matching gives the entries of a space that have one of the keys and one of the tags,
// where there are any.
func matching(tx *store.Tx, space int64, keys, tags []string) (ids []int64, err error) {
	query, args := "SELECT entry FROM memory_tags WHERE space = ? AND tag IN (SELECT value FROM json_each(?))", []any{space, listOf(tags)}
	if len(keys) > 0 {
		query, args = "SELECT id FROM memory_entries WHERE space = ?1 AND key IN (SELECT value FROM json_each(?2))", []any{space, listOf(keys)}
		if len(tags) > 0 {
			query += " AND id IN (SELECT entry FROM memory_tags WHERE space = ?1 AND tag IN (SELECT value FROM json_each(?3)))"
			args = append(args, listOf(tags))
		}
	}
	err = tx.Each(query, args, func(scan func(...any) error) error {
		var id int64
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	return ids, err
}
