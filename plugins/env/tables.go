package env

import (
	"database/sql"

	"a2e/host/store"
)

// maxStoredBytes bounds the experiences of one plugin in the store.
const maxStoredBytes = 256 << 20

// migrations make the tables. Times are microseconds since 1970.
func migrations() []string {
	return []string{`
CREATE TABLE env_episodes (
	id         TEXT PRIMARY KEY,
	plugin     TEXT NOT NULL,
	env        TEXT NOT NULL,
	seed       INTEGER NOT NULL,
	created_at INTEGER NOT NULL,
	used_at    INTEGER NOT NULL,
	steps      INTEGER NOT NULL,
	done       INTEGER NOT NULL,
	truncated  INTEGER NOT NULL,
	reward     REAL, -- of the last step
	failure    TEXT NOT NULL,
	options    TEXT NOT NULL,
	saved      TEXT NOT NULL -- what the world gave
);
CREATE INDEX env_episodes_by_use ON env_episodes (plugin, used_at);
CREATE TABLE env_experiences (
	number   INTEGER PRIMARY KEY,
	id       TEXT NOT NULL UNIQUE,
	plugin   TEXT NOT NULL,
	at       INTEGER NOT NULL, -- of the last one in data
	count    INTEGER NOT NULL,
	size     INTEGER NOT NULL, -- bytes of episodes and data
	episodes TEXT NOT NULL, -- the ids that are in data
	data     BLOB NOT NULL -- a JSON array, as it is or as gzip
);
CREATE INDEX env_experiences_by_time ON env_experiences (plugin, at, count, size);`}
}

// savedEpisode is one row of env_episodes.
type savedEpisode struct {
	id, plugin, env, options, failure string
	seed, created, used, steps        int64
	done, truncated                   bool
	reward                            float64
	saved                             []byte // JSON
}

const episodeColumns = "id, plugin, env, seed, created_at, used_at, steps, done, truncated, reward, failure, options, saved"

// episode gives the episode of the row, without its world.
func (s *savedEpisode) episode() *episode {
	e := &episode{
		id: s.id, seed: s.seed, options: []byte(s.options), created: s.created,
		done: s.done, truncated: s.truncated, failure: s.failure, reward: s.reward,
	}
	e.steps.Store(s.steps)
	e.kept.Store(true)
	return e
}

func (s *savedEpisode) put(tx *store.Tx) error {
	_, _, err := tx.Exec(`INSERT INTO env_episodes (`+episodeColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET plugin = excluded.plugin, env = excluded.env, seed = excluded.seed, created_at = excluded.created_at,
		used_at = excluded.used_at, steps = excluded.steps, done = excluded.done, truncated = excluded.truncated,
		reward = excluded.reward, failure = excluded.failure, options = excluded.options, saved = excluded.saved`,
		s.id, s.plugin, s.env, s.seed, s.created, s.used, s.steps, s.done, s.truncated,
		s.reward, s.failure, s.options, string(s.saved))
	return err
}

func scanEpisode(scan func(...any) error) (*savedEpisode, error) {
	var s savedEpisode
	var reward sql.NullFloat64 // older hosts wrote NULL for none
	var saved string
	err := scan(&s.id, &s.plugin, &s.env, &s.seed, &s.created, &s.used, &s.steps, &s.done, &s.truncated, &reward, &s.failure, &s.options, &saved)
	s.reward, s.saved = reward.Float64, []byte(saved)
	return &s, err
}

// findEpisode gives nil when there is none.
func findEpisode(tx *store.Tx, id string) (found *savedEpisode, err error) {
	err = tx.Each("SELECT "+episodeColumns+" FROM env_episodes WHERE id = ?", []any{id}, func(scan func(...any) error) error {
		found, err = scanEpisode(scan)
		return err
	})
	return found, err
}

func deleteEpisode(tx *store.Tx, plugin, id string) error {
	_, _, err := tx.Exec("DELETE FROM env_episodes WHERE id = ? AND plugin = ?", id, plugin)
	return err
}

// trimEpisodes deletes those not used since a time, and the oldest beyond most.
func trimEpisodes(tx *store.Tx, plugin string, most int, unused int64) error {
	if _, _, err := tx.Exec("DELETE FROM env_episodes WHERE plugin = ? AND used_at < ?", plugin, unused); err != nil {
		return err
	}
	_, _, err := tx.Exec("DELETE FROM env_episodes WHERE id IN (SELECT id FROM env_episodes WHERE plugin = ? ORDER BY used_at DESC LIMIT -1 OFFSET ?)", plugin, most)
	return err
}

// chunk is one row of env_experiences: some that were made one after the other.
type chunk struct {
	id, plugin string
	at         int64
	count      int
	episodes   string // ids, with a blank after each
	data       []byte // as the row has it
}

func (c *chunk) put(tx *store.Tx) error {
	_, _, err := tx.Exec(`INSERT INTO env_experiences (id, plugin, at, count, size, episodes, data) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET plugin = excluded.plugin, at = excluded.at, count = excluded.count, size = excluded.size,
		episodes = excluded.episodes, data = excluded.data`,
		c.id, c.plugin, c.at, c.count, len(c.episodes)+len(c.data), c.episodes, c.data)
	return err
}

const chunkColumns = "id, plugin, at, count, episodes, data"

func scanChunk(scan func(...any) error) (*chunk, error) {
	var c chunk
	err := scan(&c.id, &c.plugin, &c.at, &c.count, &c.episodes, &c.data)
	return &c, err
}

// eachChunk goes over the rows of a plugin that name an episode ("" = all), the newest first.
func eachChunk(tx *store.Tx, plugin, episode string, do func(*chunk) error) error {
	return tx.Each("SELECT "+chunkColumns+" FROM env_experiences WHERE plugin = ? AND instr(episodes, ?) > 0 ORDER BY at DESC, number DESC",
		[]any{plugin, episode}, func(scan func(...any) error) error {
			c, err := scanChunk(scan)
			if err != nil {
				return err
			}
			return do(c)
		})
}

// trimExperiences deletes the oldest rows beyond most experiences, or too many bytes.
func trimExperiences(tx *store.Tx, plugin string, most int) error {
	var count, size int64
	if _, err := tx.Get("SELECT COALESCE(SUM(count), 0), COALESCE(SUM(size), 0) FROM env_experiences WHERE plugin = ?", []any{plugin}, &count, &size); err != nil {
		return err
	}
	for count > int64(most) || size > maxStoredBytes {
		var number, n, bytes int64
		there, err := tx.Get("SELECT number, count, size FROM env_experiences WHERE plugin = ? ORDER BY at, number LIMIT 1", []any{plugin}, &number, &n, &bytes)
		if err != nil || !there {
			return err
		}
		if _, _, err := tx.Exec("DELETE FROM env_experiences WHERE number = ?", number); err != nil {
			return err
		}
		count, size = count-n, size-bytes
	}
	return nil
}
