package env

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

const (
	// recentExperiences is how many experiences stay in memory besides those not yet saved.
	recentExperiences = 10_000
	// recentBytes bounds all experiences in memory.
	recentBytes = 64 << 20
	// maxState is the longest state in an experience; a longer one is left out.
	maxState = 64 << 10
	// experienceSize is the memory of an experience besides its text, in bytes.
	experienceSize = 100
	// maxListed bounds one list, in bytes; the list has the newest experiences.
	maxListed = 8 << 20
)

// key identifies an experience. The time is part of it, as a step may be taken twice after a host was
// killed.
type key struct {
	episode  string
	step, at int64 // at: microseconds since 1970; no two of one plugin have the same
}

// experience is one step that was taken, as JSON.
type experience struct {
	key
	raw jsontext.Value
}

// size returns how many bytes the experience takes in memory.
func (x *experience) size() int { return experienceSize + len(x.raw) }

// MarshalJSON implements json.Marshaler.
func (x experience) MarshalJSON() ([]byte, error) { return x.raw, nil }

// UnmarshalJSON implements json.Unmarshaler.
func (x *experience) UnmarshalJSON(raw []byte) error {
	var head struct {
		EpisodeID string       `json:"episode_id"`
		Step      int64        `json:"step"`
		TS        store.Micros `json:"ts"`
	}
	err := json.Unmarshal(raw, &head)
	*x = experience{key{head.EpisodeID, head.Step, int64(head.TS)}, bytes.Clone(raw)}
	return err
}

// appendExperience appends the experience of the step as JSON.
func (m *move) appendExperience(dst []byte, env string, at int64) []byte {
	o := &m.seen
	dst = protocol.AppendString(append(dst, `{"env":`...), env)
	dst = protocol.AppendString(append(dst, `,"episode_id":`...), o.episode)
	dst = strconv.AppendInt(append(dst, `,"step":`...), o.step, 10)
	dst = appendPlain(append(dst, `,"action":`...), m.action.Whole.Raw())
	dst = appendFitting(append(dst, `,"state":`...), m.before)
	dst = appendFitting(append(dst, `,"next_state":`...), o.state)
	dst = appendNumber(append(dst, `,"reward":`...), o.reward)
	dst = strconv.AppendBool(append(dst, `,"done":`...), o.done)
	dst = strconv.AppendBool(append(dst, `,"truncated":`...), o.truncated)
	return append(appendMicros(append(dst, `,"ts":`...), at), '}')
}

// appendPlain appends JSON without white space.
func appendPlain(dst, raw []byte) []byte {
	if bytes.ContainsAny(raw, " \t\r\n") {
		if out, err := protocol.AppendJSON(dst, jsontext.Value(raw)); err == nil {
			return out
		}
	}
	return append(dst, raw...)
}

// appendFitting appends a state, or only its size if it is too long for an experience.
func appendFitting(dst, state []byte) []byte {
	if len(state) <= maxState {
		return append(dst, state...)
	}
	return append(strconv.AppendInt(append(dst, `{"omitted_bytes":`...), int64(len(state)), 10), '}')
}

// recent is the experiences in memory, in the order in which they were made. The last ones are those that
// are not yet saved.
type recent struct {
	env  string
	most int  // how many there may be in memory
	kept bool // they are saved to the store

	mu    sync.Mutex // guards the fields below
	all   []experience
	first uint64 // number of the oldest one
	saved uint64 // experiences with lower numbers are saved, or never will be
	bytes int
	waits int   // bytes of those that are not yet saved
	at    int64 // time of the newest one
}

// init prepares it for a store that holds up to most experiences, or for no store.
func (r *recent) init(env string, most int, kept bool) {
	r.env, r.most, r.kept = env, min(most, recentExperiences), kept
	if kept {
		r.most = most
	}
}

// add adds the steps that were taken, and sets them in the moves. It reports whether so many are not yet
// saved that they should be saved before others are added.
func (r *recent) add(moves []move) (full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var buf []byte // one buffer for all, as one for each would cost as much as the step
	for i := range moves {
		m := &moves[i]
		if !m.taken {
			continue
		}
		if buf == nil {
			buf = make([]byte, 0, (len(moves)-i)*(256+2*min(len(m.seen.state), maxState)))
		}
		for n := len(r.all); n >= r.most || n >= recentExperiences && r.first < r.saved; n-- {
			r.dropLocked()
		}
		r.at = max(m.seen.at, r.at+1)
		start := len(buf)
		buf = m.appendExperience(buf, r.env, r.at)
		m.made = experience{key{m.seen.episode, m.seen.step, r.at}, buf[start:len(buf):len(buf)]}
		r.all = append(r.all, m.made)
		r.bytes += m.made.size()
		if r.kept {
			r.waits += m.made.size()
		} else {
			r.saved = r.first + uint64(len(r.all))
		}
		for r.bytes > recentBytes && len(r.all) > 1 {
			r.dropLocked()
		}
	}
	return r.waits > recentBytes/2
}

func (r *recent) dropLocked() {
	r.saveLocked(r.first + 1)
	r.bytes -= r.all[0].size()
	r.all[0] = experience{}
	r.all = r.all[1:]
	r.first++
}

// saveLocked notes that the experiences with numbers below next need not be saved any more.
func (r *recent) saveLocked(next uint64) {
	for ; r.saved < next; r.saved++ {
		r.waits -= r.all[r.saved-r.first].size()
	}
}

// unsaved returns up to n experiences that are not saved yet, and the number after the last of them.
func (r *recent) unsaved(n int) (some []experience, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	some = r.all[r.saved-r.first:]
	some = slices.Clone(some[:min(n, len(some))])
	return some, r.saved + uint64(len(some))
}

// save notes that the experiences with numbers below next are saved.
func (r *recent) save(next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.saveLocked(next)
}

// last returns up to limit experiences of an episode ("" = all), the newest first. whole reports whether
// these are all experiences of that episode.
func (r *recent) last(episode string, limit int) (found []experience, whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.all) - 1; i >= 0 && len(found) < limit; i-- {
		if x := r.all[i]; episode == "" || x.episode == episode {
			found = append(found, x)
			whole = episode != "" && x.step == 1
		}
	}
	return found, whole
}

// listing is the answer to env/exp/list/req: a protocol.EnvExpListResponse.
type listing struct {
	entries []experience // the oldest first, after cut
	limit   int
}

// AppendJSON implements protocol.Appender.
func (l *listing) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"episodes":[`...)
	for i := range l.entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, l.entries[i].raw...)
	}
	return append(dst, ']', '}'), nil
}

// DecodeLine implements protocol.LineDecoder, for the list of a plugin that passes messages on.
func (l *listing) DecodeLine(obj protocol.Object) error {
	var resp struct {
		Episodes []jsontext.Value `json:"episodes"`
	}
	if err := obj.Decode(&resp); err != nil {
		return err
	}
	l.limit, l.entries = math.MaxInt, make([]experience, len(resp.Episodes))
	for i, raw := range resp.Episodes {
		if err := l.entries[i].UnmarshalJSON(raw); err != nil {
			return protocol.Wrong("/episodes", "has an entry that is not an experience")
		}
	}
	return nil
}

// RawExperiences makes the route of env/exp/list for a plugin that passes messages on.
func RawExperiences(t protocol.Type, fn func(context.Context, protocol.Object, host.Emitter) (jsontext.Value,
	error),
) host.Route {
	return host.RawList(t, fn, mergeExperiences)
}

// mergeExperiences adds the experiences of another plugin.
func mergeExperiences(dst, src *listing) {
	dst.entries, dst.limit = append(dst.entries, src.entries...), min(dst.limit, src.limit)
	dst.cut()
}

// cut sorts the entries by time and keeps the newest.
func (l *listing) cut() {
	slices.SortStableFunc(l.entries, func(a, b experience) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.step, b.step))
	})
	first, size := len(l.entries), 0
	for first > 0 && len(l.entries)-first < l.limit && size+len(l.entries[first-1].raw) <= maxListed {
		first--
		size += len(l.entries[first].raw)
	}
	l.entries = l.entries[first:]
}

// experiences lists the last steps: those in memory, and older ones from the store.
func (p *Plugin) experiences(ctx context.Context, req *protocol.EnvExpListRequest, _ host.Emitter) (*listing, error) {
	if req.Limit < 0 {
		return nil, protocol.Wrong("/limit", "should be 0 or more")
	}
	l := &listing{limit: req.Limit}
	var whole bool
	l.entries, whole = p.recent.last(req.EpisodeID, req.Limit)
	if p.Store != nil && req.Limit > 0 && !whole && (req.EpisodeID == "" || len(l.entries) < req.Limit) {
		host.HandOff(ctx)
		if err := p.older(ctx, req.EpisodeID, l); err != nil {
			return nil, err
		}
	}
	l.cut()
	return l, nil
}

var errEnough = errors.New("enough")

// older adds experiences from the store that are not in the list yet.
func (p *Plugin) older(ctx context.Context, episode string, l *listing) error {
	s, err := p.keep.opened(ctx)
	if err != nil {
		return err
	}
	seen := make(map[key]bool, len(l.entries))
	for i := range l.entries {
		seen[l.entries[i].key] = true
	}
	size := 0
	take := func(all []experience) {
		for _, x := range all {
			size += len(x.raw)
			if !seen[x.key] && (episode == "" || x.episode == episode) {
				seen[x.key] = true
				l.entries = append(l.entries, x)
			}
		}
	}
	_ = p.keep.takeLeft(ctx, s) // after an error its lines are read below
	err = s.Read(ctx, func(tx *store.Tx) error {
		j, err := readJournals(tx, p.keep.number.Load())
		if err != nil {
			return err
		}
		take(j.experiences[p.name])
		return eachChunk(tx, "WHERE plugin = $1 AND ($2 = '' OR replace(episodes, $2, '') <> episodes) ORDER BY at "+
			"DESC, number DESC", []any{p.name, episode}, func(c *chunk) error {
			if size > maxListed || l.newer(int64(c.At)) >= l.limit {
				return errEnough
			}
			take(c.Experiences)
			return nil
		})
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// newer counts the entries from the time at on; 0 = the list is not full yet.
func (l *listing) newer(at int64) (n int) {
	if len(l.entries) < l.limit {
		return 0
	}
	for i := range l.entries {
		if l.entries[i].at >= at {
			n++
		}
	}
	return n
}
