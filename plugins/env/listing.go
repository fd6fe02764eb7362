package env

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// maxListed bounds the bytes of one list; the newest are in it.
const maxListed = 8 << 20

// listed is one experience of a list.
type listed struct {
	key
	raw []byte
}

// listing answers env/exp/list/req: a protocol.EnvExpListResponse.
type listing struct {
	entries []listed // the oldest first
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

// cut brings the entries into order and keeps the newest.
func (l *listing) cut() {
	slices.SortStableFunc(l.entries, func(a, b listed) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.step, b.step))
	})
	first, size := len(l.entries), 0
	for first > 0 && len(l.entries)-first < l.limit && size+len(l.entries[first-1].raw) <= maxListed {
		first--
		size += len(l.entries[first].raw)
	}
	l.entries = l.entries[first:]
}

// DecodeLine implements protocol.LineDecoder, for the list of a plugin that passes messages
// on.
func (l *listing) DecodeLine(obj protocol.Object) error {
	var resp struct {
		Episodes []jsontext.Value `json:"episodes"`
	}
	if err := obj.Decode(&resp); err != nil {
		return err
	}
	l.limit = math.MaxInt
	for _, raw := range resp.Episodes {
		x, err := parseListed(raw)
		if err != nil {
			return protocol.Violation(protocol.FieldError{Path: "/episodes", Message: "has an entry that is no experience"})
		}
		l.entries = append(l.entries, x)
	}
	return nil
}

// RawExperiences makes the route of env/exp/list for a plugin that passes messages on.
func RawExperiences(t protocol.Type, fn func(context.Context, protocol.Object, host.Emitter) (jsontext.Value, error)) host.Route {
	return host.RawList(t, fn, mergeExperiences)
}

// mergeExperiences adds those of another plugin.
func mergeExperiences(dst, src *listing) {
	dst.entries, dst.limit = append(dst.entries, src.entries...), min(dst.limit, src.limit)
	dst.cut()
}

// experiences lists the last steps taken: those in memory, and older ones from the store.
func (p *Plugin) experiences(ctx context.Context, req *protocol.EnvExpListRequest, _ host.Emitter) (*listing, error) {
	if req.Limit < 0 {
		return nil, protocol.Violation(protocol.FieldError{Path: "/limit", Message: "should be 0 or more"})
	}
	l := &listing{limit: req.Limit}
	recent, whole := p.recent.last(req.EpisodeID, req.Limit)
	seen := make(map[key]bool, len(recent))
	name := p.env.Name()
	for i := range recent {
		x := &recent[i]
		k := key{x.episode, x.step, x.at}
		seen[k] = true
		l.entries = append(l.entries, listed{k, x.append(nil, name)})
	}
	if p.Store != nil && req.Limit > 0 && !whole && (req.EpisodeID == "" || len(recent) < req.Limit) {
		host.Detach(ctx)
		if err := p.older(ctx, req.EpisodeID, l, seen); err != nil {
			return nil, err
		}
	}
	l.cut()
	return l, nil
}

var errEnough = errors.New("enough")

// older adds experiences of the store, without those that were seen already.
func (p *Plugin) older(ctx context.Context, episode string, l *listing, seen map[key]bool) error {
	s, err := p.Store(ctx)
	if err != nil {
		return err
	}
	size := 0
	take := func(x listed) {
		size += len(x.raw)
		if !seen[x.key] && (episode == "" || x.episode == episode) {
			seen[x.key] = true
			l.entries = append(l.entries, x)
		}
	}
	err = s.Read(ctx, func(tx *store.Tx) error {
		if err := eachJournal(tx, p.name, p.keep.journal.owner, func(l *journalLine) error {
			return eachListed(l.Experiences, take)
		}); err != nil {
			return err
		}
		return eachChunk(tx, p.name, episode, func(c *chunk) error {
			if size > maxListed || l.newer(c.at) >= l.limit {
				return errEnough
			}
			return c.each(take)
		})
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// newer counts the entries from a time on.
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

// each goes over the experiences of a row.
func (c *chunk) each(do func(listed)) error {
	all, err := c.list()
	if err != nil {
		return err
	}
	return eachListed(all, do)
}

func eachListed(all []jsontext.Value, do func(listed)) error {
	for _, raw := range all {
		x, err := parseListed(raw)
		if err != nil {
			return err
		}
		do(x)
	}
	return nil
}

// parseListed reads what tells an experience from others.
func parseListed(raw jsontext.Value) (listed, error) {
	var head struct {
		EpisodeID string  `json:"episode_id"`
		Step      int64   `json:"step"`
		TS        float64 `json:"ts"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return listed{}, err
	}
	at, err := micros("ts", head.TS)
	return listed{key{head.EpisodeID, head.Step, at}, raw}, err
}
