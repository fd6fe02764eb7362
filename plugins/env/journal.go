package env

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

// Before a request is answered, what it did is written to a table as it is: one line per request, many
// requests in one commit. Later the keeper writes the contents of memory to the tables that are read, many
// steps at once, and removes the lines. The lines of a killed host are moved to these tables by the next
// host that looks; the lines of other live hosts are read together with the tables.

const (
	// journalLease is how long a host on another machine keeps its lines after its last sign of life.
	journalLease = time.Minute
	// journalPatience is how long a step waits for its line.
	journalPatience = 5 * time.Second
)

func newJournals() *store.Journals {
	return &store.Journals{Table: "env_journals", Lines: "env_lines", Folder: formerFolder, Lease: journalLease}
}

// journalLine is the content of a line.
type journalLine struct {
	Plugin      string         `json:"plugin"`
	Experiences []experience   `json:"experiences"`
	Episodes    []savedEpisode `json:"episodes"`
	Closed      []string       `json:"closed"`
}

// note writes a line before the steps, the begin or the end of an episode are answered. A failure is
// logged; if the host lives on, everything is saved later all the same.
func (k *keeper) note(ctx context.Context, moves []move, begun []byte, closed string) {
	defer k.poke()
	if !k.plugin.durable() || k.mute.Load() && k.failing.Load() {
		return
	}
	host.AwaitSoon(ctx) // others may join its commit
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalPatience)
	defer cancel()
	s, err := k.opened(ctx)
	if err == nil && s.Dir() != "" {
		line, place := k.line(moves, begun, closed), k.places.Add(1)
		err = s.Write(ctx, func(tx *store.Tx) error { return k.append(tx, place, line) })
		k.lined.Store(true) // also after an error, as it may be written
	}
	if failed := err != nil; k.mute.Swap(failed) != failed && failed {
		k.plugin.Log.Error().Err(err).Str("plugin", k.plugin.name).Msg("steps cannot be kept before they are " +
			"answered; a kill of the host would lose the last ones")
	}
}

// append adds a line to the journal, and makes the journal at the first line.
func (k *keeper) append(tx *store.Tx, place int64, line []byte) error {
	err := k.journals.Append(tx, k.number.Load(), place, line)
	if !errors.Is(err, store.ErrLost) {
		return err
	}
	number, err := tx.Insert("INSERT INTO env_journals (owner, leased_until) VALUES ('', 0) RETURNING number")
	if err == nil {
		err = k.journals.Own(tx, number)
	}
	k.number.Store(number)
	return cmp.Or(err, k.journals.Append(tx, number, place, line))
}

// line returns a journalLine as JSON.
func (k *keeper) line(moves []move, begun []byte, closed string) []byte {
	size := 64 + len(begun)
	for i := range moves {
		size += len(moves[i].made.raw) + len(moves[i].record) + 2
	}
	dst := protocol.AppendString(append(make([]byte, 0, size), `{"plugin":`...), k.plugin.name)
	dst = append(dst, `,"experiences":[`...)
	for i := range moves {
		dst = appendItem(dst, moves[i].made.raw)
	}
	dst = append(dst, `],"episodes":[`...)
	for i := range moves {
		dst = appendItem(dst, moves[i].record)
	}
	dst = append(appendItem(dst, begun), ']')
	if closed != "" {
		dst = append(protocol.AppendString(append(dst, `,"closed":[`...), closed), ']')
	}
	return append(dst, '}')
}

// appendItem appends an item of a list, unless it is empty.
func appendItem(dst, item []byte) []byte {
	if len(item) > 0 && dst[len(dst)-1] != '[' {
		dst = append(dst, ',')
	}
	return append(dst, item...)
}

// journals is what journals have that may not be in the tables yet.
type journals struct {
	episodes    map[string]*savedEpisode // the last state; nil = closed
	experiences map[string][]experience  // by plugin
}

// readJournals reads the lines of all journals except one.
func readJournals(tx *store.Tx, but int64) (*journals, error) {
	lines, err := newJournals().Others(tx, but)
	j := &journals{make(map[string]*savedEpisode), make(map[string][]experience)}
	for _, line := range lines {
		var l journalLine
		if err == nil {
			err = json.Unmarshal(line.Body, &l)
		}
		j.experiences[l.Plugin] = append(j.experiences[l.Plugin], l.Experiences...)
		for i := range l.Episodes {
			e := &l.Episodes[i]
			if last, there := j.episodes[e.ID]; !there || last != nil && last.Steps <= e.Steps {
				j.episodes[e.ID] = e
			}
		}
		for _, id := range l.Closed {
			j.episodes[id] = nil
		}
	}
	return j, err
}

// newest returns the newer of the row of an episode (nil = none) and its state in the journals (nil =
// closed).
func (j *journals) newest(id string, row *savedEpisode) *savedEpisode {
	if e, there := j.episodes[id]; there && (e == nil || row == nil || e.Steps > row.Steps) {
		return e
	}
	return row
}

// takeLeft moves the lines of dead hosts to the tables.
func (k *keeper) takeLeft(ctx context.Context, s store.Store) (err error) {
	var left []int64
	err = s.Read(ctx, func(tx *store.Tx) (err error) {
		left, err = k.journals.Left(tx)
		return err
	})
	for _, number := range left {
		if err == nil {
			err = s.Write(ctx, func(tx *store.Tx) error { return k.takeOver(tx, number) })
		}
	}
	return err
}

func (k *keeper) takeOver(tx *store.Tx, number int64) error {
	lines, err := k.journals.Read(tx, number)
	for _, line := range lines {
		var l journalLine
		if err == nil {
			err = json.Unmarshal(line.Body, &l)
		}
		if err == nil {
			err = l.take(tx)
		}
	}
	return cmp.Or(err, k.journals.Remove(tx, number))
}

// take writes the content of a line to the tables.
func (l *journalLine) take(tx *store.Tx) error {
	for _, c := range chunksOf(l.Plugin, l.Experiences) {
		if err := c.put(tx, newPacker()); err != nil {
			return err
		}
	}
	for i := range l.Episodes {
		if err := l.Episodes[i].put(tx, ifFurther); err != nil {
			return err
		}
	}
	for _, id := range l.Closed {
		if err := deleteEpisode(tx, l.Plugin, id); err != nil {
			return err
		}
	}
	return nil
}
