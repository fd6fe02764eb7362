package env

import (
	"context"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// What is answered is in a table before, as it came: one line for each request, many requests at once in one
// commit. The keeper brings what is in memory to the tables that are read, many steps at once, and then removes
// the lines. Those of hosts that were killed are read by all others, and brought to the tables by one of them.

const (
	journalTable = "env_journal"
	// strayAge is how long nothing was added to a journal that another host takes for one left behind. A living
	// host takes its own away within seconds; should one be slower, the same steps are written twice, and shown
	// once.
	strayAge = time.Minute
	// journalPatience bounds how long a step waits for its line.
	journalPatience = 5 * time.Second
)

// journalLine is what a line holds.
type journalLine struct {
	Plugin      string         `json:"plugin"`
	Experiences []experience   `json:"experiences"`
	Episodes    []savedEpisode `json:"episodes"`
	Closed      []string       `json:"closed"`
}

// note writes a line before its steps, beginnings of episodes or ends are answered. When
// that fails the log hears of it: they are saved later all the same if the host lives.
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
		err = k.journal.Append(ctx, s, k.line(moves, begun, closed))
	}
	if failed := err != nil; k.mute.Swap(failed) != failed && failed {
		k.plugin.Log.Error().Err(err).Str("plugin", k.plugin.name).Msg("steps cannot be kept before they are " +
			"answered; a kill of the host would lose the last ones")
	}
}

// line is a journalLine as JSON.
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

// appendItem appends an item of a list, if there is one.
func appendItem(dst, item []byte) []byte {
	if len(item) > 0 && dst[len(dst)-1] != '[' {
		dst = append(dst, ',')
	}
	return append(dst, item...)
}

// journals is what journals have that may not be in the tables yet.
type journals struct {
	episodes    map[string]*savedEpisode // as they stand at the end; nil = closed
	experiences map[string][]experience  // by plugin
}

// readJournals reads lines.
func readJournals(lines []*store.Line, err error) (*journals, error) {
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

// newest returns an episode as it stands: as a table has it, nil = not at all, or as these
// journals do.
func (j *journals) newest(id string, row *savedEpisode) *savedEpisode {
	if e, there := j.episodes[id]; there && (e == nil || row == nil || e.Steps > row.Steps) {
		return e
	}
	return row
}

// takeStrays brings to the tables what hosts have left that were killed. What may be a living host's
// is looked at again later.
func (k *keeper) takeStrays(ctx context.Context, s store.Store) error {
	young, err := k.journal.Adopt(ctx, s, int(strayAge.Seconds()), func(tx *store.Tx, line *store.Line) error {
		var l journalLine
		if err := json.Unmarshal(line.Body, &l); err != nil {
			return err
		}
		return k.take(tx, &l)
	})
	if young && !k.again.Swap(true) {
		time.AfterFunc(strayAge, func() { k.again.Store(false); k.poke() })
	}
	return err
}

// take brings a line to the tables.
func (k *keeper) take(tx *store.Tx, l *journalLine) error {
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
