package env

import (
	"context"

	"a2e/host"
	"a2e/protocol"
)

// maxExperiences is how many steps the record keeps; the oldest go first.
const maxExperiences = 10_000

// experience is one step that was taken.
type experience struct {
	episode, action string
	step            int
	before, after   map[string]any
	reward          float64
	done            bool
	at              float64 // seconds since 1970
}

// record is a ring of the last experiences.
type record struct {
	ring []experience
	next int // where the next one goes, once the ring is full
}

func (r *record) add(x experience) {
	if len(r.ring) < maxExperiences {
		r.ring = append(r.ring, x)
		return
	}
	r.ring[r.next] = x
	r.next = (r.next + 1) % len(r.ring)
}

// last gives up to limit experiences of an episode ("" = all), the newest last.
func (r *record) last(episode string, limit int) []experience {
	var found []experience
	for i := range r.ring {
		if x := r.ring[(r.next+i)%len(r.ring)]; episode == "" || x.episode == episode {
			found = append(found, x)
		}
	}
	return found[max(0, len(found)-limit):]
}

func (p *Plugin) experiences(_ context.Context, req *protocol.EnvExpListRequest, _ host.Emitter) (*protocol.EnvExpListResponse, error) {
	if req.Limit < 0 {
		return nil, protocol.Violation(protocol.FieldError{Path: "/limit", Message: "should be 0 or more"})
	}
	p.mu.Lock()
	found := p.record.last(req.EpisodeID, req.Limit)
	p.mu.Unlock()
	resp := &protocol.EnvExpListResponse{}
	for _, x := range found {
		resp.Episodes = append(resp.Episodes, map[string]any{
			"env": p.env.Name(), "episode_id": x.episode, "step": x.step, "action": map[string]any{"type": x.action},
			"state": x.before, "next_state": x.after, "reward": x.reward, "done": x.done, "ts": x.at,
		})
	}
	return resp, nil
}

// mergeExperiences adds those of another plugin.
func mergeExperiences(dst, src *protocol.EnvExpListResponse) {
	dst.Episodes = append(dst.Episodes, src.Episodes...)
}
