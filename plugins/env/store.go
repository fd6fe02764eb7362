package env

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/host/state/store"
	"a2e/protocol"
)

const (
	// maxStoredBytes bounds the stored experiences of one plugin.
	maxStoredBytes = 256 << 20
	// chunkCount and chunkBytes bound the experiences in one row, before it is compressed.
	chunkCount = 256
	chunkBytes = 64 << 10
	// packFrom is the length from which a row is compressed: experiences repeat each other, and a tenth of
	// the bytes is written in a tenth of the time.
	packFrom = 1 << 10
	// maxUnpacked bounds a decompressed row, in case somebody has tampered with the store.
	maxUnpacked = 64 << 20

	// The kinds of records in an export.
	kindEpisode     = "env.episode"
	kindExperiences = "env.experiences"
)

// The tables hold times as microseconds since 1970.
//
//go:embed sql/*.sql
var tables embed.FS

// Part describes what the plugins of this type keep in a store.
func Part() store.Part {
	kinds := store.Kinds{
		{Kind: kindEpisode, Import: store.ImportOf((*savedEpisode).take)},
		{Kind: kindExperiences, Import: store.ImportOf((*chunk).take)},
	}
	return store.Part{
		Name: "env", SQL: tables, Export: export, Import: kinds.Import,
		Clear: store.ClearTables("env_episodes", "env_experiences", "env_journals", "env_lines"),
	}
}

// savedEpisode is one row of env_episodes, and a record in exports and in journals.
type savedEpisode struct {
	ID        string          `json:"episode_id"`
	Plugin    string          `json:"plugin"`
	Env       string          `json:"env"`
	Seed      int64           `json:"seed"`
	Options   protocol.Object `json:"options"`
	Created   store.Micros    `json:"created_at"`
	Used      store.Micros    `json:"used_at"`
	Steps     int64           `json:"steps"`
	Done      bool            `json:"done"`
	Truncated bool            `json:"truncated"`
	Reward    float64         `json:"reward"` // of the last step
	Failure   string          `json:"failure"`
	World     jsontext.Value  `json:"saved"` // what the world saved
}

// AppendJSON implements protocol.Appender, for speed: every step encodes one.
func (s *savedEpisode) AppendJSON(dst []byte) ([]byte, error) {
	dst = protocol.AppendString(append(dst, `{"episode_id":`...), s.ID)
	dst = protocol.AppendString(append(dst, `,"plugin":`...), s.Plugin)
	dst = protocol.AppendString(append(dst, `,"env":`...), s.Env)
	dst = strconv.AppendInt(append(dst, `,"seed":`...), s.Seed, 10)
	dst = appendPlain(append(dst, `,"options":`...), s.Options.Raw())
	dst = appendMicros(append(dst, `,"created_at":`...), int64(s.Created))
	dst = appendMicros(append(dst, `,"used_at":`...), int64(s.Used))
	dst = strconv.AppendInt(append(dst, `,"steps":`...), s.Steps, 10)
	dst = strconv.AppendBool(append(dst, `,"done":`...), s.Done)
	dst = strconv.AppendBool(append(dst, `,"truncated":`...), s.Truncated)
	dst = appendNumber(append(dst, `,"reward":`...), s.Reward)
	dst = protocol.AppendString(append(dst, `,"failure":`...), s.Failure)
	return append(append(append(dst, `,"saved":`...), s.World...), '}'), nil
}

// take imports a record, or refuses one that no host would have saved. What the world saved is checked
// when the episode is restored.
func (s *savedEpisode) take(tx *store.Tx) error {
	if s.Steps < 0 {
		return fmt.Errorf("steps is %d; should be 0 or more", s.Steps)
	}
	if len(s.World) == 0 {
		return errors.New("saved is missing")
	}
	return errors.Join(checkID("episode_id", s.ID), s.put(tx, ""))
}

// The conditions of put: another host may have continued the episode, or closed it.
const (
	unlessBehind = " WHERE excluded.steps >= env_episodes.steps"
	ifFurther    = " WHERE excluded.steps > env_episodes.steps"
)

const episodeColumns = "id, plugin, env, seed, created_at, used_at, steps, done, truncated, reward, failure, " +
	"options, saved"

// put writes an episode. It replaces a row with the same id only if the condition holds.
func (s *savedEpisode) put(tx *store.Tx, condition string) error {
	_, err := tx.Exec(`INSERT INTO env_episodes (`+episodeColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9,
		$10, $11, $12, $13) ON CONFLICT (id) DO UPDATE SET
		plugin = excluded.plugin, env = excluded.env, seed = excluded.seed, created_at = excluded.created_at,
		used_at = excluded.used_at, steps = excluded.steps,
		done = excluded.done, truncated = excluded.truncated, reward = excluded.reward, failure = excluded.failure,
		options = excluded.options, saved = excluded.saved`+condition,
		s.ID, s.Plugin, s.Env, s.Seed, int64(s.Created), int64(s.Used), s.Steps, s.Done, s.Truncated,
		s.Reward, s.Failure, string(s.Options.Raw()), string(s.World))
	return err
}

// eachEpisode calls do for the episode with an id, or for all (""), the oldest first.
func eachEpisode(tx *store.Tx, id string, do func(*savedEpisode) error) error {
	query, args := "SELECT "+episodeColumns+" FROM env_episodes ORDER BY created_at, id", []any(nil)
	if id != "" {
		query, args = "SELECT "+episodeColumns+" FROM env_episodes WHERE id = $1", []any{id}
	}
	return tx.Each(query, args, func(scan func(...any) error) error {
		var s savedEpisode
		var reward sql.NullFloat64 // older hosts wrote NULL for no reward
		var options string
		err := scan(&s.ID, &s.Plugin, &s.Env, &s.Seed, &s.Created, &s.Used, &s.Steps, &s.Done, &s.Truncated, &reward,
			&s.Failure, &options, (*[]byte)(&s.World))
		if err != nil {
			return err
		}
		s.Reward = reward.Float64
		if s.Options, err = protocol.ParseObject([]byte(cmp.Or(options, "{}"))); err != nil {
			return fmt.Errorf("the options of episode %s: %w", s.ID, err)
		}
		return do(&s)
	})
}

// deleteEpisode leaves a row without a plugin for a while: journals of killed hosts may still have the
// episode, and the row wins over theirs, as it has more steps.
func deleteEpisode(tx *store.Tx, plugin, id string) error {
	now := time.Now()
	if _, err := tx.Exec("DELETE FROM env_episodes WHERE plugin = '' AND used_at < $1",
		now.Add(-2*journalLease).UnixMicro()); err != nil {
		return err
	}
	_, err := tx.Exec(`INSERT INTO env_episodes (`+episodeColumns+`) VALUES ($1, '', '', 0, 0, $2, $3, 1, 0, 0, '',
		'', '') ON CONFLICT (id) DO UPDATE SET
		plugin = '', used_at = excluded.used_at, steps = excluded.steps, options = '', saved = '' WHERE
			env_episodes.plugin = $4`, id, now.UnixMicro(), int64(math.MaxInt64), plugin)
	return err
}

// trimEpisodes deletes episodes not used since the time unused, and the oldest beyond most.
func trimEpisodes(tx *store.Tx, plugin string, most int, unused int64) error {
	if _, err := tx.Exec("DELETE FROM env_episodes WHERE plugin = $1 AND used_at < $2", plugin, unused); err != nil {
		return err
	}
	bound := store.Bound{Table: "env_episodes", Key: "id", Where: "plugin = $1", Newest: "used_at DESC", Most: most}
	return bound.Prune(tx, plugin)
}

// chunk is one row of env_experiences, and a record of an export: several experiences.
type chunk struct {
	ID          string       `json:"id"`
	Plugin      string       `json:"plugin"`
	At          store.Micros `json:"at"` // of the newest experience
	Experiences []experience `json:"experiences"`
}

// chunksOf puts experiences into rows. Those of one episode are put together, as they compress better. It
// sorts all.
func chunksOf(plugin string, all []experience) (rows []*chunk) {
	slices.SortFunc(all, func(a, b experience) int {
		return cmp.Or(strings.Compare(a.episode, b.episode), cmp.Compare(a.step, b.step))
	})
	for len(all) > 0 {
		c := &chunk{ID: uuid.NewString(), Plugin: plugin}
		n, size := 0, 0
		for ; n < min(chunkCount, len(all)) && size < chunkBytes; n++ {
			size += len(all[n].raw)
			c.At = max(c.At, store.Micros(all[n].at))
		}
		c.Experiences, all = all[:n], all[n:]
		rows = append(rows, c)
	}
	return rows
}

// put writes the row. zip is reset first, so it can be reused.
func (c *chunk) put(tx *store.Tx, zip *gzip.Writer) error {
	var ids strings.Builder
	data := []byte{'['}
	for i, x := range c.Experiences {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, x.raw...)
		if i == 0 || x.episode != c.Experiences[i-1].episode {
			ids.WriteString(x.episode + " ")
		}
	}
	if data = append(data, ']'); len(data) >= packFrom {
		var out bytes.Buffer
		zip.Reset(&out)
		_, _ = zip.Write(data) // a bytes.Buffer never fails
		_ = zip.Close()
		data = out.Bytes()
	}
	_, err := tx.Exec(`INSERT INTO env_experiences (id, plugin, at, count, size, episodes, data) VALUES ($1, $2, $3,
		$4, $5, $6, $7) ON CONFLICT (id) DO UPDATE SET
		plugin = excluded.plugin, at = excluded.at, count = excluded.count, size = excluded.size,
		episodes = excluded.episodes, data = excluded.data`,
		c.ID, c.Plugin, int64(c.At), len(c.Experiences), ids.Len()+len(data), ids.String(), data)
	return err
}

// newPacker makes the compressor of rows. It takes no memory before its first use.
func newPacker() *gzip.Writer {
	zip, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // the level is valid
	return zip
}

const chunkColumns = "SELECT id, plugin, at, data FROM env_experiences "

// eachChunk calls do for each row that the query selects.
func eachChunk(tx *store.Tx, query string, args []any, do func(*chunk) error) error {
	return tx.Each(chunkColumns+query, args, func(scan func(...any) error) error {
		var c chunk
		var data []byte
		err := scan(&c.ID, &c.Plugin, &c.At, &data)
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(data, []byte("[")) {
			data, err = unpack(data)
		}
		if err == nil {
			err = json.Unmarshal(data, &c.Experiences)
		}
		if err != nil {
			return fmt.Errorf("the experiences %s: %w", c.ID, err)
		}
		return do(&c)
	})
}

func unpack(data []byte) ([]byte, error) {
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(zip, maxUnpacked))
}

// trimExperiences deletes the oldest rows beyond most experiences, or beyond maxStoredBytes.
func trimExperiences(tx *store.Tx, plugin string, most int) error {
	rows := store.Bound{
		Table: "env_experiences", Key: "number", Where: "plugin = $1", Newest: "at DESC, number DESC",
		Most: most, Size: "count", Bytes: most,
	}
	err := rows.Prune(tx, plugin)
	rows.Size, rows.Bytes = "size", maxStoredBytes
	return cmp.Or(err, rows.Prune(tx, plugin))
}

func export(_ context.Context, tx *store.Tx, emit func(string, any) error) error {
	j, err := readJournals(tx, 0)
	if err != nil {
		return err
	}
	one := func(s *savedEpisode) error {
		if s == nil {
			return nil
		}
		raw, _ := s.AppendJSON(nil) // it never fails
		return emit(kindEpisode, jsontext.Value(raw))
	}
	err = eachEpisode(tx, "", func(s *savedEpisode) error {
		newest := j.newest(s.ID, s)
		delete(j.episodes, s.ID)
		if s.Plugin == "" { // the episode was closed
			return nil
		}
		return one(newest)
	})
	for _, id := range slices.Sorted(maps.Keys(j.episodes)) {
		if err == nil {
			err = one(j.episodes[id])
		}
	}
	if err != nil {
		return err
	}
	err = eachChunk(tx, "ORDER BY plugin, at, number", nil, func(c *chunk) error { return emit(kindExperiences, c) })
	for _, plugin := range slices.Sorted(maps.Keys(j.experiences)) {
		for _, c := range chunksOf(plugin, j.experiences[plugin]) {
			if err == nil {
				err = emit(kindExperiences, c)
			}
		}
	}
	return err
}

// take imports a record, and replaces one with the same id.
func (c *chunk) take(tx *store.Tx) error {
	if len(c.Experiences) == 0 {
		return errors.New("experiences is empty")
	}
	for _, x := range c.Experiences {
		if err := checkID("episode_id", x.episode); err != nil {
			return err
		}
	}
	return errors.Join(checkID("id", c.ID), c.put(tx, newPacker()))
}

// checkID refuses an id that no host would have made.
func checkID(name, id string) error {
	if id == "" || len(id) > 64 || !utf8.ValidString(id) {
		return fmt.Errorf("%s: %.80q is not an id; should be 1 to 64 bytes", name, id)
	}
	return nil
}
