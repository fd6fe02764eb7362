package env

import (
	"bytes"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

const (
	// recentExperiences is how many steps are kept in memory beyond those not yet saved.
	recentExperiences = 10_000
	// recentBytes bounds all that are in memory.
	recentBytes = 64 << 20
	// maxState is the longest state that an experience has; a longer one is left out.
	maxState = 64 << 10
	// experienceSize is what one takes in memory beside its texts, in bytes.
	experienceSize = 200
)

// experience is one step that was taken.
type experience struct {
	episode       string
	step          int64
	kind          string // the action, where that is its type alone
	action        []byte // as it came, in place of kind
	before, after []byte
	reward        float64
	done          bool
	truncated     bool
	at            int64 // microseconds since 1970; no two of one plugin have the same
}

func (x *experience) size() int { return experienceSize + len(x.action) + len(x.after) }

// key tells experiences apart: after a host that was killed a step may have been taken twice.
type key struct {
	episode  string
	step, at int64
}

// append writes the experience as JSON.
func (x *experience) append(dst []byte, env string) []byte {
	dst = append(dst, `{"env":`...)
	dst = protocol.AppendString(dst, env)
	dst = append(dst, `,"episode_id":`...)
	dst = protocol.AppendString(dst, x.episode)
	dst = append(dst, `,"step":`...)
	dst = strconv.AppendInt(dst, x.step, 10)
	dst = append(dst, `,"action":`...)
	if x.action != nil {
		dst = append(dst, x.action...)
	} else {
		dst = append(protocol.AppendString(append(dst, `{"type":`...), x.kind), '}')
	}
	dst = append(dst, `,"state":`...)
	dst = append(dst, x.before...)
	dst = append(dst, `,"next_state":`...)
	dst = append(dst, x.after...)
	dst = append(dst, `,"reward":`...)
	dst = appendNumber(dst, x.reward)
	dst = append(dst, `,"done":`...)
	dst = strconv.AppendBool(dst, x.done)
	dst = append(dst, `,"truncated":`...)
	dst = strconv.AppendBool(dst, x.truncated)
	dst = append(dst, `,"ts":`...)
	return append(appendMicros(dst, x.at), '}')
}

// recent is the experiences in memory, in the order they were made: a ring. Those that the
// store does not have yet are the last ones of it.
type recent struct {
	most int  // how many there may be
	kept bool // the store gets them

	mu          sync.Mutex // guards the fields below
	ring        []experience
	first, next uint64 // numbers of the oldest one, and of the one to come
	saved       uint64 // those below are in the store, or never will be
	bytes       int
	at          int64 // of the last one
}

// init makes it ready for a store that has up to max of them, or for none.
func (r *recent) init(max int, kept bool) {
	r.most, r.kept = min(max, recentExperiences), kept
	if kept {
		r.most = max
	}
}

// add takes a step in.
func (r *recent) add(m *move) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addLocked(m)
}

// addAll takes in the steps that were taken.
func (r *recent) addAll(moves []move) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range moves {
		if moves[i].taken {
			r.addLocked(&moves[i])
		}
	}
}

func (r *recent) addLocked(m *move) {
	r.makeRoomLocked()
	r.at = max(m.seen.at, r.at+1)
	x := &r.ring[r.next%uint64(len(r.ring))]
	*x = experience{
		episode: m.seen.episode, step: m.seen.step, kind: m.action.Type, before: fitting(m.before), after: fitting(m.seen.state),
		reward: m.seen.reward, done: m.seen.done, truncated: m.seen.truncated, at: r.at,
	}
	if x.kind == "" || !onlyType(m.action.Whole) {
		x.action = compact(m.action.Whole.Raw())
	}
	m.kept = *x
	r.next++
	if r.bytes += x.size(); !r.kept {
		r.saved = r.next
	}
	for r.bytes > recentBytes && r.next-r.first > 1 {
		r.dropLocked()
	}
}

// onlyType tells whether an action is {"type":…} and nothing else.
func onlyType(action protocol.Object) bool {
	n := 0
	for key := range action.All() {
		if n++; n > 1 || string(key) != "type" {
			return false
		}
	}
	return n == 1
}

// fitting gives a state as an experience has it.
func fitting(state []byte) []byte {
	if len(state) <= maxState {
		return state
	}
	return []byte(`{"omitted_bytes":` + strconv.Itoa(len(state)) + `}`)
}

// compact gives a copy of an object without white space.
func compact(raw []byte) []byte {
	out, err := protocol.AppendJSON(nil, jsontext.Value(raw))
	if err != nil {
		return bytes.Clone(raw)
	}
	return out
}

// makeRoomLocked makes place for one more: it drops the oldest or makes the ring larger.
func (r *recent) makeRoomLocked() {
	n := int(r.next - r.first)
	for ; n >= r.most || n >= recentExperiences && r.first < r.saved; n-- {
		r.dropLocked()
	}
	if n < len(r.ring) {
		return
	}
	larger := make([]experience, max(64, 2*len(r.ring)))
	for i := r.first; i < r.next; i++ {
		larger[i%uint64(len(larger))] = r.ring[i%uint64(len(r.ring))]
	}
	r.ring = larger
}

func (r *recent) dropLocked() {
	x := &r.ring[r.first%uint64(len(r.ring))]
	r.bytes -= x.size()
	*x = experience{}
	r.first++
	r.saved = max(r.saved, r.first)
}

// unsaved gives up to n experiences that the store does not have, and the number after the
// last of them.
func (r *recent) unsaved(n int) (some []experience, next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = min(r.next, r.saved+uint64(n))
	some = make([]experience, 0, next-r.saved)
	for i := r.saved; i < next; i++ {
		some = append(some, r.ring[i%uint64(len(r.ring))])
	}
	return some, next
}

// waiting counts those that the store does not have.
func (r *recent) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int(r.next - r.saved)
}

// save notes that the store has all those below next.
func (r *recent) save(next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.saved = max(r.saved, next)
}

// last gives up to limit experiences of an episode ("" = all), the newest first. whole
// tells whether these are all that were ever made of that episode.
func (r *recent) last(episode string, limit int) (found []experience, whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := r.next; i > r.first && len(found) < limit; i-- {
		if x := r.ring[(i-1)%uint64(len(r.ring))]; episode == "" || x.episode == episode {
			found = append(found, x)
			whole = episode != "" && x.step == 1
		}
	}
	return found, whole
}
