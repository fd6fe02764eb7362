package env

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/host/store"
	"a2e/protocol"
)

// The kinds of records in an export.
const (
	kindEpisode     = "env.episode"
	kindExperiences = "env.experiences"
)

// Part is what the plugins of this type keep in a store.
func Part() store.Part {
	return store.Part{Name: "env", Migrations: migrations(), Export: export, Import: importRecord, Clear: clearAll}
}

// episodeRecord is a saved episode in an export.
type episodeRecord struct {
	EpisodeID string          `json:"episode_id"`
	Plugin    string          `json:"plugin"`
	Env       string          `json:"env"`
	Seed      int64           `json:"seed"`
	Options   protocol.Object `json:"options"`
	CreatedAt float64         `json:"created_at"` // seconds since 1970
	UsedAt    float64         `json:"used_at"`
	Steps     int64           `json:"steps"`
	Done      bool            `json:"done"`
	Truncated bool            `json:"truncated"`
	Reward    float64         `json:"reward"`
	Failure   string          `json:"failure"`
	Saved     jsontext.Value  `json:"saved"`
}

// experiencesRecord is some experiences in an export.
type experiencesRecord struct {
	ID          string           `json:"id"`
	Plugin      string           `json:"plugin"`
	At          float64          `json:"at"` // of the last one
	Experiences []jsontext.Value `json:"experiences"`
}

func export(_ context.Context, tx *store.Tx, emit func(string, any) error) error {
	j, err := journals(tx)
	if err != nil {
		return err
	}
	err = tx.Each("SELECT "+episodeColumns+" FROM env_episodes ORDER BY created_at, id", nil, func(scan func(...any) error) error {
		s, err := scanEpisode(scan)
		if err != nil {
			return err
		}
		if newer, ok := j.episodes[s.id]; ok && newer.Steps > s.steps || j.closed[s.id] {
			return nil
		}
		delete(j.episodes, s.id)
		options, err := protocol.ParseObject([]byte(s.options))
		if err != nil {
			return fmt.Errorf("the options of episode %s: %w", s.id, err)
		}
		return emit(kindEpisode, episodeRecord{
			EpisodeID: s.id, Plugin: s.plugin, Env: s.env, Seed: s.seed, Options: options, CreatedAt: seconds(s.created), UsedAt: seconds(s.used),
			Steps: s.steps, Done: s.done, Truncated: s.truncated, Reward: s.reward, Failure: s.failure, Saved: s.saved,
		})
	})
	if err != nil {
		return err
	}
	err = tx.Each("SELECT "+chunkColumns+" FROM env_experiences ORDER BY plugin, at, number", nil, func(scan func(...any) error) error {
		c, err := scanChunk(scan)
		if err != nil {
			return err
		}
		r := experiencesRecord{ID: c.id, Plugin: c.plugin, At: seconds(c.at)}
		if r.Experiences, err = c.list(); err != nil {
			return fmt.Errorf("the experiences %s: %w", c.id, err)
		}
		return emit(kindExperiences, r)
	})
	if err != nil {
		return err
	}
	return j.emit(emit)
}

// journalState is what the files beside the store have that is not in it yet.
type journalState struct {
	episodes    map[string]episodeRecord // the last of each
	closed      map[string]bool
	experiences []experiencesRecord
}

func journals(tx *store.Tx) (*journalState, error) {
	j := &journalState{episodes: make(map[string]episodeRecord), closed: make(map[string]bool)}
	return j, eachJournal(tx, "", "", func(l *journalLine) error {
		for _, r := range l.Episodes {
			if r.Steps >= j.episodes[r.EpisodeID].Steps {
				j.episodes[r.EpisodeID] = r
			}
		}
		for _, id := range l.Closed {
			delete(j.episodes, id)
			j.closed[id] = true
		}
		if len(l.Experiences) > 0 {
			j.experiences = append(j.experiences, experiencesRecord{ID: uuid.NewString(), Plugin: l.Plugin, At: seconds(l.At), Experiences: l.Experiences})
		}
		return nil
	})
}

func (j *journalState) emit(emit func(string, any) error) error {
	for _, id := range slices.Sorted(maps.Keys(j.episodes)) {
		if err := emit(kindEpisode, j.episodes[id]); err != nil {
			return err
		}
	}
	for _, r := range j.experiences {
		if err := emit(kindExperiences, r); err != nil {
			return err
		}
	}
	return nil
}

func importRecord(_ context.Context, tx *store.Tx, kind string, raw jsontext.Value) error {
	switch kind {
	case kindEpisode:
		var r episodeRecord
		if err := json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err != nil {
			return err
		}
		return r.take(tx)
	case kindExperiences:
		var r experiencesRecord
		if err := json.Unmarshal(raw, &r, json.RejectUnknownMembers(true)); err != nil {
			return err
		}
		return r.take(tx)
	}
	return fmt.Errorf("there is no such record; there are %s and %s", kindEpisode, kindExperiences)
}

// take puts the episode into the store. What its world saved is looked at when it is
// taken up again.
func (r *episodeRecord) take(tx *store.Tx) error {
	s, err := r.row()
	if err != nil {
		return err
	}
	return s.put(tx)
}

// row is the record as the store has it.
func (r *episodeRecord) row() (*savedEpisode, error) {
	if err := isID(r.EpisodeID); err != nil {
		return nil, fmt.Errorf("episode_id: %w", err)
	}
	if r.Steps < 0 {
		return nil, fmt.Errorf("steps is %d; should be 0 or more", r.Steps)
	}
	s := &savedEpisode{
		id: r.EpisodeID, plugin: r.Plugin, env: r.Env, seed: r.Seed, options: string(r.Options.Raw()), steps: r.Steps,
		done: r.Done, truncated: r.Truncated, reward: r.Reward, failure: r.Failure, saved: r.Saved,
	}
	if len(r.Saved) == 0 {
		return nil, errors.New("saved is missing")
	}
	var err error
	if s.created, err = micros("created_at", r.CreatedAt); err != nil {
		return nil, err
	}
	s.used, err = micros("used_at", r.UsedAt)
	return s, err
}

// take puts the experiences into the store, in place of those of the same id.
func (r *experiencesRecord) take(tx *store.Tx) error {
	if err := isID(r.ID); err != nil {
		return fmt.Errorf("id: %w", err)
	}
	at, err := micros("at", r.At)
	if err != nil {
		return err
	}
	if len(r.Experiences) == 0 {
		return errors.New("experiences is empty")
	}
	c, err := chunkOf(r.Experiences)
	if err != nil {
		return err
	}
	c.id, c.plugin, c.at = r.ID, r.Plugin, at
	return c.put(tx)
}

// chunkOf makes a row of experiences, but for whose and of when they are.
func chunkOf(all []jsontext.Value) (*chunk, error) {
	c := &chunk{id: uuid.NewString(), count: len(all)}
	var p packer
	data := []byte{'['}
	for i, raw := range all {
		x, err := parseListed(raw)
		if err == nil {
			err = isID(x.episode)
		}
		if err != nil {
			return nil, fmt.Errorf("experience %d: %w", i, err)
		}
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, raw...)
		p.note(x.episode)
	}
	c.episodes, c.data = p.noted(), p.packed(append(data, ']'))
	return c, nil
}

func clearAll(_ context.Context, tx *store.Tx) error {
	if _, _, err := tx.Exec("DELETE FROM env_episodes"); err != nil {
		return err
	}
	_, _, err := tx.Exec("DELETE FROM env_experiences")
	if err == nil {
		tx.After(func() { forgetStrays(tx.Dir()) })
	}
	return err
}

// isID refuses what no host would have made as an id.
func isID(id string) error {
	if id == "" || len(id) > 64 || !utf8.ValidString(id) {
		return fmt.Errorf("%.80q is no id; should be 1 to 64 bytes", id)
	}
	return nil
}

// seconds gives a time of the store as an export has it.
func seconds(micros int64) float64 { return float64(micros) / 1e6 }

// micros gives a time of an export as the store has it.
func micros(name string, seconds float64) (int64, error) {
	const year10000 = 253402300800
	if !(seconds >= 0 && seconds < year10000) {
		return 0, fmt.Errorf("%s is %g; should be seconds since 1970", name, seconds)
	}
	return int64(math.Round(seconds * 1e6)), nil
}
