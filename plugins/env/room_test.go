package env

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/protocol"
)

// room is an environment that does all that an environment may do: it waits, pushes, fails and is saved.
type room struct {
	plugin *Plugin
	gate   chan struct{} // closed by the test to end all waits
	deny   bool          // refuse each reset
	places int           // most episodes at once; 0 = any number

	mu       sync.Mutex // guards the fields below
	worlds   map[string]*roomWorld
	closed   []string // ids of episodes
	left     []string
	waiting  int
	most     int // the most that waited at once
	finished bool
}

func newRoom(t testing.TB, opts Options, e host.Env) *room {
	t.Helper()
	r := &room{gate: make(chan struct{}), worlds: map[string]*roomWorld{}}
	if e.Now == nil {
		e.Now = time.Now
	}
	opts.setDefaults()
	r.plugin = newPlugin("myenv", r, opts, e)
	r.plugin.data = must.Get(newDataPlane(opts.Data, e))(t)
	return r
}

func (r *room) Name() string { return "room" }

func (r *room) Space(context.Context) (Space, error) {
	types := []string{"say", "wait", "push", "fail", "deny", "panic", "nan"}
	choice := map[string]any{"type": "string", "enum": types}
	return Space{
		Types: types,
		Action: map[string]any{
			"type": "object",
			"properties": map[string]any{
				"type": choice, "action_type": choice, "text": map[string]any{"type": "string", "maxLength": 10},
				"n":   map[string]any{"type": "integer", "minimum": 1},
				"end": map[string]any{"type": "boolean"},
				"payload": map[string]any{
					"type":       "object",
					"properties": map[string]any{"text": map[string]any{"type": "string"}},
				},
			},
			"additionalProperties": false,
		},
		State: map[string]any{"type": "object"},
	}, nil
}

func (r *room) Reset(_ context.Context, reset Reset) (World, error) {
	r.mu.Lock()
	full := r.places > 0 && len(r.worlds)-len(r.closed) >= r.places
	r.mu.Unlock()
	if r.deny || full {
		return nil, protocol.Errorf(protocol.CodeResetDenied, "the room is closed")
	}
	return r.add(reset, nil), nil
}

func (r *room) Restore(_ context.Context, reset Reset, saved jsontext.Value) (World, error) {
	var heard []string
	if err := json.Unmarshal(saved, &heard); err != nil {
		return nil, err
	}
	return r.add(reset, heard), nil
}

func (r *room) add(reset Reset, heard []string) *roomWorld {
	w := &roomWorld{
		room: r, id: reset.EpisodeID, push: reset.Push, heard: heard, options: string(reset.Options.Raw()),
		seed: reset.Seed,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.worlds[w.id] = w
	return w
}

func (r *room) Close(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = true
	return nil
}

func (r *room) count(what *[]string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(*what)
}

type roomWorld struct {
	room    *room
	id      string
	push    func(*protocol.EnvStatePush)
	heard   []string
	options string
	seed    int64
}

func (w *roomWorld) Step(ctx context.Context, a Action) (Outcome, error) {
	var args struct {
		Text string `json:"text"`
		N    int    `json:"n"`
		End  bool   `json:"end"`
	}
	if err := a.Payload.Decode(&args); err != nil {
		return Outcome{}, err
	}
	switch a.Type {
	case "say":
		w.heard = append(w.heard, args.Text)
	case "wait":
		return Outcome{}, w.wait(ctx)
	case "push":
		reward := 0.5
		for i := range max(args.N, 1) {
			w.push(&protocol.EnvStatePush{
				EventType: "noise", Reason: fmt.Sprint(i), Delta: map[string]any{"i": i},
				Reward: &reward, Terminal: args.End && i == max(args.N, 1)-1,
			})
		}
	case "fail":
		return Outcome{}, errors.New("the roof fell in")
	case "deny":
		return Outcome{}, protocol.Errorf(protocol.CodeUnknownAction, "not now")
	case "panic":
		panic("the room panics")
	case "nan":
		return Outcome{Reward: math.NaN()}, nil
	}
	return Outcome{Reward: float64(len(w.heard)), Info: map[string]any{"heard": len(w.heard)}}, nil
}

func (w *roomWorld) wait(ctx context.Context) error {
	r := w.room
	r.mu.Lock()
	r.waiting++
	r.most = max(r.most, r.waiting)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
	}()
	select {
	case <-r.gate:
		w.heard = append(w.heard, "waited")
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *roomWorld) AppendState(_ context.Context, dst []byte) ([]byte, error) {
	return protocol.AppendJSON(dst, map[string]any{
		"heard":   append([]string{}, w.heard...),
		"options": jsontext.Value(w.options), "seed": w.seed,
	})
}

func (w *roomWorld) Modes() []string { return []string{"text"} }

func (w *roomWorld) Render(context.Context, string) (jsontext.Value, error) {
	return textPicture("a room"), nil
}

func (w *roomWorld) Save() (jsontext.Value, error) {
	return json.Marshal(append([]string{}, w.heard...))
}

func (w *roomWorld) Close(context.Context) error {
	w.room.mu.Lock()
	defer w.room.mu.Unlock()
	w.room.closed = append(w.room.closed, w.id)
	return nil
}

func (w *roomWorld) Leave(context.Context) error {
	w.room.mu.Lock()
	defer w.room.mu.Unlock()
	w.room.left = append(w.room.left, w.id)
	return nil
}

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// beginPushing begins an episode of the room, and returns the ids of the reset and of the episode.
func (s *stage) beginPushing() (req, id string) {
	s.t.Helper()
	req = s.Go(protocol.TypeEnvResetReq, `{"env_name":"room"}`)
	return req, s.Answer(req).Get("/obs/episode_id")
}

// push waits for the push number n of an episode. All pushes of an episode have the req_id of its reset.
func (s *stage) push(reset string, n int) protocol.EnvStatePush {
	s.t.Helper()
	var push protocol.EnvStatePush
	s.Wait(fmt.Sprint("push ", n), func(m hosttest.Message) bool {
		return m.Type == protocol.TypeEnvStatePush && m.ReqID == reset && m.Get("/reason") == fmt.Sprint(n)
	}).Decode(s.t, &push)
	return push
}

// TestPushes: pushes of a world between two steps reach the agent in order, after the answer to the reset.
func TestPushes(t *testing.T) {
	r := newRoom(t, Options{}, host.Env{})
	s := newStage(t, r.plugin)
	req, id := s.beginPushing()
	s.step(id, "say")
	s.Call(protocol.TypeEnvStepReq, stepFields(id, `{"type":"push","n":3}`)) // pushes during the step
	for i := range 3 {
		p := s.push(req, i)
		assert.That(t, p.EpisodeID == id && p.StepID == 1 && p.EventType == "noise" && p.Delta["i"] == float64(i) &&
			*p.Reward == 0.5 && !p.Terminal, "push %d: %+v", i, p)
	}
	r.mu.Lock()
	w := r.worlds[id]
	r.mu.Unlock()
	w.push(&protocol.EnvStatePush{EventType: "clock", Reason: "3"}) // a push between two steps
	p := s.push(req, 3)
	assert.That(t, p.EventType == "clock" && p.StepID == 2 && p.Reward == nil, "a push between steps: %+v", p)
	s.Call(protocol.TypeEnvObserveReq, about(id)).Has(t, "/obs/done", "false")
	w.push(&protocol.EnvStatePush{EventType: "bell", Reason: "4", Terminal: true})
	w.push(&protocol.EnvStatePush{EventType: "late", Reason: "5"})
	if p := s.push(req, 4); !p.Terminal {
		t.Errorf("the last push: %+v", p)
	}
	s.Call(protocol.TypeEnvObserveReq, about(id)).Has(t, "/obs/done", "true")
	s.Refused(protocol.TypeEnvStepReq, stepFields(id, `{"type":"say"}`), protocol.CodeEpisodeDone)
	s.Close()
	for _, m := range s.Messages() {
		assert.That(t, m.Type != protocol.TypeEnvStatePush || m.Get("/reason") != "5", "a push after the end: %s",
			m.Line)
	}
}

// TestAFloodOfPushes: a world that sends pushes without end does not hold up requests. If pushes must be dropped, the
// oldest are dropped.
func TestAFloodOfPushes(t *testing.T) {
	r := newRoom(t, Options{}, host.Env{})
	s := newStage(t, r.plugin)
	req, id := s.beginPushing()
	s.Call(protocol.TypeEnvStepReq, stepFields(id,
		`{"type":"push","n":5000,"end":true}`)).Has(t, "/obs/done", "true")
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

// TestPushesThatNobodyGets: an agent gets no pushes if it did not ask for them, or if another session has begun since
// the reset. If a push ends the episode, the episode has ended all the same.
func TestPushesThatNobodyGets(t *testing.T) {
	for name, asks := range map[string]bool{"after the session": true, "not asked for": false} {
		t.Run(name, func(t *testing.T) {
			r := newRoom(t, Options{}, host.Env{})
			s := &stage{hosttest.New(t, host.Options{Plugins: []host.Plugin{r.plugin}}), t}
			caps := []protocol.Capability{protocol.CapEnv}
			if asks {
				caps = append(caps, protocol.FlagEnvPush)
			}
			s.Handshake(caps...)
			id := s.begin("room")
			if asks {
				s.Handshake(caps...)
			}
			r.worlds[id].push(&protocol.EnvStatePush{EventType: "noise", Reason: "lost"})
			s.step(id, "say")
			r.worlds[id].push(&protocol.EnvStatePush{EventType: "bell", Terminal: true})
			s.Refused(protocol.TypeEnvStepReq, stepFields(id, `{"type":"say"}`), protocol.CodeEpisodeDone)
			s.Close()
			for _, m := range s.Messages() {
				assert.That(t, m.Type != protocol.TypeEnvStatePush, "a push: %s", m.Line)
			}
		})
	}
}

// TestPushFlagIsKnown: the handshake knows the flag by which an agent asks for pushes.
func TestPushFlagIsKnown(t *testing.T) {
	s := &stage{hosttest.New(t, host.Options{Plugins: []host.Plugin{newRoom(t, Options{}, host.Env{}).plugin}}), t}
	s.Handshake(protocol.FlagEnvPush, "env_pull", protocol.CapEnv).Has(t, "/metadata/unknown_caps", `["env_pull"]`)
}
