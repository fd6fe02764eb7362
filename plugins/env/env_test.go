package env

import (
	"fmt"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

func newPlugin(t testing.TB) host.Plugin {
	t.Helper()
	p, err := New("myenv", Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// begin starts an episode over the wire and gives its id.
func begin(t testing.TB, p *hosttest.Pair) string {
	t.Helper()
	var resp protocol.EnvResetResponse
	p.Call(protocol.TypeEnvResetReq, `{"env_name":"counter"}`).Decode(t, &resp)
	return resp.Obs.EpisodeID
}

func TestContract(t *testing.T) {
	episode := func(fields string) func(testing.TB, *hosttest.Pair) string {
		return func(t testing.TB, p *hosttest.Pair) string { return fmt.Sprintf(fields, begin(t, p)) }
	}
	hosttest.Contract(t, newPlugin, []hosttest.Sample{
		{Type: protocol.TypeEnvResetReq, Fields: `{"env_name":"counter","seed":3,"options":{}}`},
		{Name: "by the plugin's name", Type: protocol.TypeEnvResetReq, Fields: `{"env_name":"myenv"}`},
		{Name: "unknown env", Type: protocol.TypeEnvResetReq, Fields: `{"env_name":"chess"}`, Code: protocol.CodeUnknownEnv},
		{Type: protocol.TypeEnvSpaceReq, Fields: `{"env_name":"counter"}`},
		{Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"type":"inc"}}`)},
		{Name: "the other spelling", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"action_type":"dec","payload":{}}}`)},
		{Name: "unknown action", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{"type":"jump"}}`), Code: protocol.CodeUnknownAction},
		{Name: "no action", Type: protocol.TypeEnvStepReq, Make: episode(`{"episode_id":%q,"action":{}}`), Code: protocol.CodeUnknownAction},
		{Name: "unknown episode", Type: protocol.TypeEnvStepReq, Fields: `{"episode_id":"x","action":{"type":"inc"}}`, Code: protocol.CodeUnknownEpisode},
		{Type: protocol.TypeEnvObserveReq, Make: episode(`{"episode_id":%q}`)},
		{Type: protocol.TypeEnvRenderReq, Make: episode(`{"episode_id":%q,"mode":"text"}`)},
		{Type: protocol.TypeEnvPlanReq, Make: episode(`{"episode_id":%q}`)},
		{Type: protocol.TypeEnvBatchStepReq, Make: episode(`{"episode_ids":[%[1]q,%[1]q],"actions":[{"type":"inc"},{"type":"inc"}]}`)},
		{Name: "uneven batch", Type: protocol.TypeEnvBatchStepReq, Make: episode(`{"episode_ids":[%q],"actions":[]}`), Code: protocol.CodeSchemaViolation},
		{Type: protocol.TypeEnvExpListReq, Fields: `{"limit":5}`},
		{Type: protocol.TypeEnvCloseReq, Make: episode(`{"episode_id":%q}`)},
	})
}

// plugin gives a plugin without a host around it.
func plugin(t *testing.T, opts Options) *Plugin {
	t.Helper()
	p, err := New("myenv", opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func action(t *testing.T, name string) protocol.Object {
	t.Helper()
	obj, err := protocol.ParseObject([]byte(fmt.Sprintf(`{"type":%q}`, name)))
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func TestCounterEndsAtFive(t *testing.T) {
	p := plugin(t, Options{})
	resp, err := p.reset(t.Context(), &protocol.EnvResetRequest{EnvName: "counter"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	id := resp.Obs.EpisodeID
	for i, tc := range []struct {
		action string
		count  int
		reward float64
		done   bool
	}{
		{"inc", 1, 0, false}, {"dec", 0, 0, false}, {"noop", 0, 0, false}, {"dec", -1, 0, false}, {"inc", 0, 0, false}, {"inc", 1, 0, false},
		{"inc", 2, 0, false}, {"inc", 3, 0, false}, {"inc", 4, 0, false}, {"inc", 5, 1, true},
	} {
		got, err := p.step(t.Context(), &protocol.EnvStepRequest{EpisodeID: id, Action: action(t, tc.action)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if o := got.Obs; o.State["count"] != tc.count || *o.Reward != tc.reward || o.Done != tc.done || o.StepNum != i+1 {
			t.Errorf("step %d, %s: %+v, want %+v", i+1, tc.action, o, tc)
		}
	}
	_, err = p.step(t.Context(), &protocol.EnvStepRequest{EpisodeID: id, Action: action(t, "inc")}, nil)
	if e, ok := err.(*protocol.Error); !ok || e.Code != protocol.CodeEpisodeDone {
		t.Errorf("a step after the end: %v", err)
	}
	exp, err := p.experiences(t.Context(), &protocol.EnvExpListRequest{EpisodeID: id, Limit: 2}, nil)
	if err != nil || len(exp.Episodes) != 2 || exp.Episodes[1]["reward"] != 1.0 || exp.Episodes[0]["step"] != 9 {
		t.Errorf("experiences %v, %v", exp, err)
	}
}

func TestEpisodesAreBounded(t *testing.T) {
	p := plugin(t, Options{MaxEpisodes: 2})
	var last string
	for range 2 {
		resp, err := p.reset(t.Context(), &protocol.EnvResetRequest{EnvName: "counter"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		last = resp.Obs.EpisodeID
	}
	_, err := p.reset(t.Context(), &protocol.EnvResetRequest{EnvName: "counter"}, nil)
	if e, ok := err.(*protocol.Error); !ok || e.Code != protocol.CodeResetDenied {
		t.Errorf("a third of two episodes: %v", err)
	}
	if _, err := p.close(t.Context(), &protocol.EnvCloseRequest{EpisodeID: last}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.reset(t.Context(), &protocol.EnvResetRequest{EnvName: "counter"}, nil); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
}

// A batch keeps the order of its request, also for an episode that stands in it twice.
func TestBatchKeepsOrder(t *testing.T) {
	p := plugin(t, Options{})
	req := &protocol.EnvBatchStepRequest{}
	for range 50 {
		resp, err := p.reset(t.Context(), &protocol.EnvResetRequest{EnvName: "counter"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.EpisodeIDs = append(req.EpisodeIDs, resp.Obs.EpisodeID, resp.Obs.EpisodeID)
		req.Actions = append(req.Actions, action(t, "inc"), action(t, "dec"))
	}
	resp, err := p.batchStep(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range resp.Results {
		if r.Obs.EpisodeID != req.EpisodeIDs[i] || r.Obs.StepNum != i%2+1 || r.Obs.State["count"] != 1-i%2 {
			t.Errorf("result %d: %+v", i, r.Obs)
		}
	}
}

func TestExperiencesAreBounded(t *testing.T) {
	var r record
	for i := range maxExperiences + 10 {
		r.add(experience{episode: "e", step: i})
	}
	got := r.last("", maxExperiences+10)
	if len(got) != maxExperiences || got[0].step != 10 || got[len(got)-1].step != maxExperiences+9 {
		t.Errorf("%d kept, from %d to %d", len(got), got[0].step, got[len(got)-1].step)
	}
}

// Steps of one episode at the same time are taken one after the other.
func TestConcurrentSteps(t *testing.T) {
	p := plugin(t, Options{})
	resp, err := p.reset(t.Context(), &protocol.EnvResetRequest{EnvName: "counter"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	noop := action(t, "noop")
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if _, err := p.step(t.Context(), &protocol.EnvStepRequest{EpisodeID: resp.Obs.EpisodeID, Action: noop}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	got, err := p.observe(t.Context(), &protocol.EnvObserveRequest{EpisodeID: resp.Obs.EpisodeID}, nil)
	if err != nil || got.Obs.StepNum != 100 {
		t.Errorf("%d steps of 100, %v", got.Obs.StepNum, err)
	}
	if raw, err := json.Marshal(got); err != nil || len(raw) == 0 {
		t.Error(err)
	}
}
