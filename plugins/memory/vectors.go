package memory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// modelOf returns the model that made the store's vectors; an empty name = no model yet.
func modelOf(tx *store.Tx) (m embed.Model, err error) {
	err = tx.Each("SELECT name, value FROM memory_meta", nil, func(scan func(...any) error) error {
		var key, value string
		err := scan(&key, &value)
		switch key {
		case "model":
			m.Name = value
		case "size":
			m.Size, err = strconv.Atoi(value)
		}
		return err
	})
	return m, err
}

// useModel records the model that makes the vectors from now on. It returns an error if the
// store has vectors of another model.
func useModel(tx *store.Tx, m embed.Model) error {
	there, err := modelOf(tx)
	if err != nil || there == m || m.Name == "" {
		return err
	}
	if err := sameModel(there, m); err != nil {
		return err
	}
	if there.Name == "" { // stored entries have no vectors, or those of an older version
		_, err1 := tx.Exec("DELETE FROM memory_vectors")
		_, err2 := tx.Exec("INSERT INTO memory_waiting SELECT id FROM memory_entries WHERE true ON CONFLICT DO NOTHING")
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
	}
	return setModel(tx, embed.Model{Name: m.Name, Size: max(m.Size, there.Size)})
}

func setModel(tx *store.Tx, m embed.Model) error {
	_, err := tx.Exec("INSERT INTO memory_meta VALUES ('model', $1), ('size', $2) ON CONFLICT (name) DO UPDATE SET "+
		"value = excluded.value", m.Name, strconv.Itoa(m.Size))
	return err
}

// sameModel returns an error if vectors of there and m would be mixed, as searches would then find
// arbitrary entries. A model without a name has no vectors.
func sameModel(there, m embed.Model) error {
	if there.Name == "" || m.Name == "" || there.Name == m.Name && (there.Size == m.Size || there.Size == 0 ||
		m.Size == 0) {
		return nil
	}
	return &protocol.Error{Code: protocol.CodeRuntimeError, Message: fmt.Sprintf(
		"the stored vectors are of the embedding model %s (%d dimensions), and this host is set to %s (%d): restore "+
			"the old embeddings setting, or run `a2e state reembed` once to recompute all vectors",
		there.Name, there.Size, m.Name, m.Size)}
}

// checkModel returns an error if the store has vectors of another model than the embedder's.
func (p *Plugin) checkModel(tx *store.Tx) error {
	there, err := modelOf(tx)
	if err != nil {
		return err
	}
	return sameModel(there, p.embedder.Model())
}

// embedTexts returns a vector for each text. If the embedder fails, all vectors are nil and note says
// why; then only words count.
func (p *Plugin) embedTexts(ctx context.Context, texts []string) (vectors []embed.Vector, note string) {
	vectors, err := p.embedder.Embed(ctx, texts)
	if err != nil {
		p.env.Log.Warn().Err(err).Msg("no vectors were made")
		return make([]embed.Vector, len(texts)), "the embeddings endpoint gave no vectors, so only words count: " +
			err.Error()
	}
	return vectors, ""
}

// detail returns the detail of an answer with a note about missing vectors, or nil without a note.
func detail(note string) map[string]any {
	if note == "" {
		return nil
	}
	return map[string]any{"embeddings": note}
}

// putVector stores the vector of an entry. An entry without one waits for it if the store has a model.
func putVector(tx *store.Tx, entry, space int64, v embed.Vector) error {
	if len(v) == 0 {
		_, err := tx.Exec("INSERT INTO memory_waiting SELECT CAST($1 AS BIGINT) WHERE EXISTS (SELECT 1 FROM "+
			"memory_meta WHERE name = 'model')", entry)
		return err
	}
	if _, err := tx.Exec("INSERT INTO memory_vectors (entry, space, sketch, vector) VALUES ($1, $2, $3, $4)", entry,
		space, []byte{}, v.Bytes()); err != nil {
		return err
	}
	_, err := tx.Exec("INSERT INTO memory_loose VALUES ($1, $2)", space, entry)
	return err
}

// maxBackfill is how many waiting entries one store request embeds in addition to its own.
const maxBackfill = 64

// catchUp makes some of the keys that older entries lack, and starts the merging of the word indexes.
func (p *Plugin) catchUp(ctx context.Context) {
	s := p.onDisk()
	if s == nil {
		return
	}
	if err := s.catchUp(ctx); err != nil && ctx.Err() == nil {
		p.env.Log.Warn().Err(err).Msg("older entries are not yet found by words like theirs")
	}
	p.tidying.start(s)
}

// backfill makes the vectors of entries that were stored while the endpoint was down.
func (p *Plugin) backfill(ctx context.Context) {
	s := p.onDisk()
	if s == nil {
		return
	}
	if _, err := embedWaiting(ctx, s.store, p.embedder, maxBackfill); err != nil && ctx.Err() == nil {
		p.env.Log.Warn().Err(err).Msg("entries without vectors still wait")
	}
}

// embedWaiting embeds up to limit waiting entries and returns their number.
func embedWaiting(ctx context.Context, st store.Store, by embed.Embedder, limit int) (int, error) {
	var found []*row
	err := st.Read(ctx, func(tx *store.Tx) (err error) {
		found, err = store.Rows(tx, "SELECT "+columns+" FROM memory_waiting w JOIN memory_entries e ON e.id = "+
			"w.entry JOIN memory_spaces s ON s.id = e.space ORDER BY w.entry LIMIT $1",
			[]any{limit}, (*row).columns)
		return err
	})
	if err != nil || len(found) == 0 {
		return 0, err
	}
	texts := make([]string, len(found))
	for i, r := range found {
		texts[i] = r.text()
	}
	vectors, err := by.Embed(ctx, texts)
	if err != nil {
		return 0, err
	}
	return len(found), st.Write(ctx, func(tx *store.Tx) error {
		if err := useModel(tx, by.Model()); err != nil {
			return err
		}
		for i, r := range found {
			gone, err := tx.Exec("DELETE FROM memory_waiting WHERE entry = $1", r.id)
			if err != nil {
				return err
			}
			if gone == 0 || len(vectors[i]) == 0 { // removed meanwhile, or nothing to embed
				continue
			}
			if err := putVector(tx, r.id, r.space, vectors[i]); err != nil {
				return err
			}
		}
		sealed := make(map[int64]bool)
		for _, r := range found {
			if !sealed[r.space] {
				sealed[r.space] = true
				if err := seal(tx, r.space); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Reembed makes the vectors of all entries again. If the store already has the model of by with the same
// known size, it makes only the vectors that still wait, after an earlier call that failed for example.
// progress may be nil.
func Reembed(ctx context.Context, st store.Store, by embed.Embedder, progress func(done, total int)) error {
	total := 0
	err := st.Write(ctx, func(tx *store.Tx) error {
		there, err := modelOf(tx)
		if err != nil {
			return err
		}
		if there != by.Model() || by.Model().Size == 0 {
			err = restart(tx, by.Model())
		}
		if err != nil {
			return err
		}
		_, err = tx.Get("SELECT count(*) FROM memory_waiting", nil, &total)
		return err
	})
	for done := 0; err == nil && done < total; {
		var n int
		n, err = embedWaiting(ctx, st, by, maxBackfill)
		if done += n; n == 0 {
			break
		}
		if progress != nil {
			progress(done, total)
		}
	}
	return err
}

// restart deletes all vectors. If m has a name, all entries then wait for vectors of m.
func restart(tx *store.Tx, m embed.Model) error {
	for _, q := range []string{
		"DELETE FROM memory_vectors", "DELETE FROM memory_loose", "DELETE FROM memory_segments",
		"DELETE FROM memory_centres",
		"DELETE FROM memory_waiting", "DELETE FROM memory_meta",
	} {
		if _, err := tx.Exec(q); err != nil {
			return err
		}
	}
	return useModel(tx, m)
}

// storeTrouble turns an error of the store into one for the agent: a full store becomes CodeMemoryFull.
func storeTrouble(err error) error {
	if _, known := errors.AsType[*protocol.Error](err); !known && errors.Is(err, store.ErrFull) {
		return protocol.Errorf(protocol.CodeMemoryFull, "the request was not done: %s", strings.TrimSpace(err.Error()))
	}
	return err
}

// Stored returns the model that made the vectors of a store; an empty name = no model yet. It returns an
// error if set, the model of the host's config, does not match it.
func Stored(ctx context.Context, s store.Store, set embed.Model) (there embed.Model, err error) {
	err = s.Read(ctx, func(tx *store.Tx) error {
		if there, err = modelOf(tx); err != nil {
			return err
		}
		return sameModel(there, set)
	})
	return there, err
}
