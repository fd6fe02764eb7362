package env

import (
	"fmt"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// push waits for the push number n of an episode, all of which have the req_id of its reset.
func (s *stage) push(reset string, n int) protocol.EnvStatePush {
	s.t.Helper()
	var push protocol.EnvStatePush
	s.Wait(fmt.Sprint("push ", n), func(m hosttest.Message) bool {
		return m.Type == protocol.TypeEnvStatePush && m.ReqID == reset && m.Get("/reason") == fmt.Sprint(n)
	}).Decode(s.t, &push)
	return push
}

// What a world says between steps reaches the agent, in order and after the reset's answer.
func TestPushes(t *testing.T) {
	r := newRoom(t, Options{}, Env{})
	s := newStage(t, r.plugin)
	req := s.Go(protocol.TypeEnvResetReq, `{"env_name":"room"}`)
	var resp protocol.EnvResetResponse
	s.Answer(req).Decode(t, &resp)
	id := resp.Obs.EpisodeID
	s.step(id, "say")
	s.Call(protocol.TypeEnvStepReq, stepFields(id, `{"type":"push","n":3}`)) // within the step
	for i := range 3 {
		if p := s.push(req, i); p.EpisodeID != id || p.StepID != 1 || p.EventType != "noise" || p.Delta["i"] != float64(i) || *p.Reward != 0.5 || p.Terminal {
			t.Errorf("push %d: %+v", i, p)
		}
	}
	r.mu.Lock()
	w := r.worlds[id]
	r.mu.Unlock()
	w.push(Push{Event: "clock", Reason: "3"}) // between steps
	if p := s.push(req, 3); p.EventType != "clock" || p.StepID != 2 || p.Reward != nil {
		t.Errorf("a push between steps: %+v", p)
	}
	if m := s.Call(protocol.TypeEnvObserveReq, fmt.Sprintf(`{"episode_id":%q}`, id)); m.Get("/obs/done") != "false" {
		t.Errorf("observe: %s", m.Line)
	}
	w.push(Push{Event: "bell", Reason: "4", Terminal: true})
	w.push(Push{Event: "late", Reason: "5"})
	if p := s.push(req, 4); !p.Terminal {
		t.Errorf("the last push: %+v", p)
	}
	if m := s.Call(protocol.TypeEnvObserveReq, fmt.Sprintf(`{"episode_id":%q}`, id)); m.Get("/obs/done") != "true" {
		t.Errorf("observe after the end: %s", m.Line)
	}
	s.refused(protocol.TypeEnvStepReq, stepFields(id, `{"type":"say"}`), protocol.CodeEpisodeDone)
	s.Close()
	for _, m := range s.Messages() {
		if m.Type == protocol.TypeEnvStatePush && m.Get("/reason") == "5" {
			t.Errorf("a push after the end: %s", m.Line)
		}
	}
}

// A world that pushes without end holds nobody up, and what is dropped is the oldest.
func TestAFloodOfPushes(t *testing.T) {
	r := newRoom(t, Options{}, Env{})
	s := newStage(t, r.plugin)
	req := s.Go(protocol.TypeEnvResetReq, `{"env_name":"room"}`)
	var resp protocol.EnvResetResponse
	s.Answer(req).Decode(t, &resp)
	if m := s.Call(protocol.TypeEnvStepReq, stepFields(resp.Obs.EpisodeID, `{"type":"push","n":5000,"end":true}`)); m.Get("/obs/done") != "true" {
		t.Errorf("the step that ends it: %s", m.Line)
	}
	if p := s.push(req, 4_999); !p.Terminal {
		t.Errorf("the last push: %+v", p)
	}
	last := -1
	for _, m := range s.Messages() {
		if m.Type != protocol.TypeEnvStatePush {
			continue
		}
		var p protocol.EnvStatePush
		m.Decode(t, &p)
		if n := int(p.Delta["i"].(float64)); n <= last {
			t.Errorf("push %d after %d", n, last)
		} else {
			last = n
		}
	}
}

// Pushes end with the session; the episode does not.
func TestPushesAfterTheSession(t *testing.T) {
	r := newRoom(t, Options{}, Env{})
	s := &stage{hosttest.New(t, host.Options{Plugins: []host.Plugin{r.plugin}}), t}
	s.Handshake(protocol.CapEnv)
	id := s.begin("room")
	s.Handshake(protocol.CapEnv)
	r.worlds[id].push(Push{Event: "noise", Reason: "lost"})
	s.step(id, "say")
	r.worlds[id].push(Push{Event: "bell", Terminal: true})
	s.refused(protocol.TypeEnvStepReq, stepFields(id, `{"type":"say"}`), protocol.CodeEpisodeDone)
	for _, m := range s.Messages() {
		if m.Type == protocol.TypeEnvStatePush {
			t.Errorf("a push into another session: %s", m.Line)
		}
	}
}
