package memory

import (
	"context"
	"encoding/binary"
	"math/rand/v2"

	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
)

// centreSample is how many stored vectors are drawn at random for a new centre, beside those to be coded.
const centreSample = 512

// seal puts the loose vectors of a space into segments of 256 vectors, up to maxSealed segments. First it
// dissolves old segments where more than half of the vectors in segments are gone (see unseal).
func seal(tx *store.Tx, space int64) error {
	if err := unseal(tx, space); err != nil {
		return err
	}
	ids, err := store.Column[int64](tx, "SELECT entry FROM memory_loose WHERE space = $1 ORDER BY entry LIMIT $2",
		space, segmentSize*maxSealed)
	if err != nil || len(ids) < segmentSize {
		return err
	}
	model, err := modelOf(tx)
	for err == nil && len(ids) >= segmentSize {
		err = sealOne(tx, space, ids[:segmentSize], model.Size)
		ids = ids[segmentSize:]
	}
	return err
}

// sealBehind seals the space in which a search found too many loose vectors, such as those of an import
// or of an older version. If the store refuses the write, searches go on with the newest loose vectors.
func (s *repository) sealBehind(ctx context.Context) {
	s.index.mu.Lock()
	space := s.index.behind
	s.index.behind = 0
	s.index.mu.Unlock()
	if space != 0 {
		_ = s.store.Write(ctx, func(tx *store.Tx) error { return seal(tx, space) })
	}
}

// sealOne makes one segment of the vectors of the entries ids; size is their number of dimensions.
func sealOne(tx *store.Tx, space int64, ids []int64, size int) error {
	if _, err := tx.Exec("DELETE FROM memory_loose WHERE space = $1 AND entry IN (SELECT CAST(value AS BIGINT) FROM "+
		"json_each($2))", space, store.JSON(ids)); err != nil {
		return err
	}
	all, err := vectorsOf(tx, ids, size)
	if err != nil || len(all) == 0 {
		return err
	}
	vectors := make([]embed.Vector, len(all))
	var entries []byte
	for i, l := range all {
		vectors[i] = l.vector
		entries = binary.LittleEndian.AppendUint64(entries, uint64(l.entry))
	}
	id, centre, err := centreOf(tx, vectors)
	if err != nil {
		return err
	}
	codes := embed.NewCoder(centre).Encode(vectors)
	_, err = tx.Exec("INSERT INTO memory_segments (space, centre, size, bytes, entries, codes) VALUES ($1, $2, $3, "+
		"$4, $5, $6)",
		space, id, len(all), len(entries)+len(codes), entries, []byte(codes))
	return err
}

// centreOf returns the centre by which new vectors are coded, and its id. It makes a new centre when the
// store has had four times as many vectors as at the last one. Existing segments keep their centre.
func centreOf(tx *store.Tx, vectors []embed.Vector) (id int64, centre []float32, err error) {
	var raw []byte
	var at, now int64
	if _, err := tx.Get("SELECT id, at, centre FROM memory_centres ORDER BY id DESC LIMIT 1", nil, &id, &at,
		&raw); err != nil {
		return 0, nil, err
	}
	if _, err := tx.Get("SELECT max(seq) FROM memory_vectors", nil, &now); err != nil {
		return 0, nil, err
	}
	size := len(vectors[0])
	if id > 0 && now < 4*at && len(raw) == 4*size {
		return id, floatsOf(raw), nil
	}
	sample := make([]int64, centreSample)
	for i := range sample {
		sample[i] = 1 + rand.Int64N(now)
	}
	found, err := store.Column[[]byte](tx, "SELECT vector FROM memory_vectors WHERE seq IN (SELECT CAST(value AS "+
		"BIGINT) FROM json_each($1)) ORDER BY seq", store.JSON(sample))
	if err != nil {
		return 0, nil, err
	}
	for _, raw := range found {
		if v := embed.VectorOf(raw, size); v != nil {
			vectors = append(vectors[:len(vectors):len(vectors)], v)
		}
	}
	centre = embed.Centre(vectors)
	background := embed.BackgroundOf(vectors)
	raw, _ = binary.Append(nil, binary.LittleEndian, centre) // fails only for other types
	id, err = tx.Insert("INSERT INTO memory_centres (at, centre, mean, spread) VALUES ($1, $2, $3, $4) RETURNING id",
		now, raw, background.Mean, background.Spread)
	return id, centre, err
}

func floatsOf(raw []byte) []float32 {
	out := make([]float32, len(raw)/4)
	_, _ = binary.Decode(raw, binary.LittleEndian, out) // fails only for other sizes
	return out
}

// unseal makes the vectors of the oldest segments of a space loose again while less than half of the
// entries in segments still exist.
func unseal(tx *store.Tx, space int64) error {
	var there, sealed int
	if _, err := tx.Get("SELECT entries, (SELECT coalesce(sum(size), 0) FROM memory_segments WHERE space = $1) FROM "+
		"memory_spaces WHERE id = $1", []any{space}, &there, &sealed); err != nil {
		return err
	}
	if there == 0 {
		_, err := tx.Exec("DELETE FROM memory_segments WHERE space = $1", space)
		return err
	}
	for n := 0; sealed > 2*there+segmentSize && n < maxSealed/8; n++ {
		var id int64
		var size int
		var raw []byte
		if _, err := tx.Get("SELECT id, size, entries FROM memory_segments WHERE space = $1 ORDER BY id LIMIT 1",
			[]any{space}, &id, &size, &raw); err != nil {
			return err
		}
		var ids []int64
		for ; len(raw) >= 8; raw = raw[8:] {
			ids = append(ids, int64(binary.LittleEndian.Uint64(raw)))
		}
		if _, err := tx.Exec("INSERT INTO memory_loose SELECT space, entry FROM memory_vectors WHERE space = $1 AND "+
			"entry IN (SELECT CAST(value AS BIGINT) FROM json_each($2)) ON CONFLICT DO NOTHING", space,
			store.JSON(ids)); err != nil {
			return err
		}
		if _, err := tx.Exec("DELETE FROM memory_segments WHERE id = $1", id); err != nil {
			return err
		}
		sealed -= size
	}
	return nil
}
