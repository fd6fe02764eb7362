package env

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// openAt opens the store in a folder; the test closes it.
func openAt(t testing.TB, dir string) store.Store {
	t.Helper()
	return stores.Open(t, filepath.Join(dir, store.FileName), Part())
}

// hostAt runs a host on the store in a folder, and closes both after do.
func hostAt(t testing.TB, dir string, make func(host.Env) *Plugin, do func(*stage)) {
	t.Helper()
	s := openAt(t, dir)
	p := make(host.Env{Now: time.Now, Store: func(context.Context) (store.Store, error) { return s, nil }})
	st := newStage(t, p)
	do(st)
	st.Close()
	assert.OK(t, s.Close())
}

// TestEpisodesSurviveARestart: an episode goes on in the next host exactly where it was, with the same random numbers.
func TestEpisodesSurviveARestart(t *testing.T) {
	opts := Options{Env: "gridworld", Gridworld: GridworldOptions{Slippery: 0.5}}
	make := func(e host.Env) *Plugin { return pluginOf(t, opts, e) }
	moves := []string{"up", "down", "left", "right", "down", "right"}
	play := func(s *stage, id string, from, to int) (states []string) {
		for i := from; i < to; i++ {
			o := s.step(id, moves[i%len(moves)])
			states = append(states, fmt.Sprint(o.StepNum, o.State, *o.Reward, o.Done))
			must.That(t, !o.Done, "the seed ends too early for this test")
		}
		return states
	}
	var want, got []string
	hostAt(t, t.TempDir(), make, func(s *stage) {
		want = play(s, s.reset(`{"env_name":"gridworld","seed":11,"options":{"layout_seed":1}}`).EpisodeID, 0, 30)
	})
	dir := t.TempDir()
	var id, other string
	hostAt(t, dir, make, func(s *stage) {
		id, other = s.reset(`{"env_name":"gridworld","seed":11,"options":{"layout_seed":1}}`).EpisodeID,
			s.begin("gridworld")
		got = play(s, id, 0, 10)
	})
	for part := 1; part < 3; part++ {
		hostAt(t, dir, make, func(s *stage) {
			got = append(got, play(s, id, 10*part, 10*part+10)...)
			if exp := s.experiences(about(id)); len(exp) != 10*part+10 {
				t.Errorf("%d experiences after %d steps", len(exp), 10*part+10)
			} else {
				for i, x := range exp {
					assert.That(t, x["step"] == float64(i+1), "experience %d is of step %v", i, x["step"])
				}
			}
		})
	}
	assert.That(t, fmt.Sprint(got) == fmt.Sprint(want), "with restarts\n%v\nwithout\n%v", got, want)
	hostAt(t, dir, make, func(s *stage) { // a closed episode is gone, in this host and in the next one
		s.Call(protocol.TypeEnvCloseReq, about(id))
		s.Refused(protocol.TypeEnvObserveReq, about(id), protocol.CodeUnknownEpisode)
	})
	hostAt(t, dir, make, func(s *stage) {
		s.Refused(protocol.TypeEnvObserveReq, about(id), protocol.CodeUnknownEpisode)
		m := s.Call(protocol.TypeEnvBatchStepReq, batchFields(t, []string{other, other},
			[]string{`{"type":"up"}`, `{"type":"up"}`}))
		assert.That(t, m.Get("/results/1/obs/step_num") == "2", "a batch that takes an episode up: %s", m.Line)
	})
}

// TestEndedEpisodesSurviveToo: other facts of an episode survive, too: its end, its reward, its seed and its options. A
// host that ends leaves the worlds of open episodes without closing them.
func TestEndedEpisodesSurviveToo(t *testing.T) {
	dir := t.TempDir()
	var r *room
	make := func(e host.Env) *Plugin {
		r = newRoom(t, Options{MaxSteps: 4}, e)
		return r.plugin
	}
	var open, cut, ended, failed, closed string
	hostAt(t, dir, make, func(s *stage) {
		open = s.reset(`{"env_name":"room","seed":77,"options":{"a":[1]}}`).EpisodeID
		cut, ended, failed, closed = s.begin("room"), s.begin("room"), s.begin("room"), s.begin("room")
		s.step(open, "say")
		for range 4 {
			s.step(cut, "say")
		}
		s.Call(protocol.TypeEnvStepReq, stepFields(ended, `{"type":"push","end":true}`))
		s.Call(protocol.TypeEnvStepReq, stepFields(failed, `{"type":"fail"}`))
		s.Call(protocol.TypeEnvCloseReq, about(closed))
	})
	assert.That(t, fmt.Sprint(r.closed) == fmt.Sprint([]string{closed}) && len(r.left) == 4 && r.finished,
		"closed %v, left %v, finished %v", r.closed, r.left, r.finished)
	hostAt(t, dir, make, func(s *stage) {
		m := s.Call(protocol.TypeEnvObserveReq, about(open))
		assert.That(t, m.Get("/obs/reward") == "1" && m.Get("/obs/state/seed") == "77" &&
			m.Get("/obs/state/options/a/0") == "1" && m.Get("/obs/done") == "false", "the open one: %s", m.Line)
		s.Refused(protocol.TypeEnvStepReq, stepFields(cut, `{"type":"say"}`), protocol.CodeEpisodeDone, "truncated")
		s.Refused(protocol.TypeEnvStepReq, stepFields(ended, `{"type":"say"}`), protocol.CodeEpisodeDone, "has ended")
		s.Refused(protocol.TypeEnvStepReq, stepFields(failed, `{"type":"say"}`), protocol.CodeEpisodeDone,
			"the roof fell in")
		s.Refused(protocol.TypeEnvStepReq, stepFields(closed, `{"type":"say"}`), protocol.CodeUnknownEpisode)
	})
}

// TestOthersEpisodesAreLeftAlone: an episode belongs to one plugin: another plugin on the same store does not take it
// over.
func TestOthersEpisodesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	var id string
	hostAt(t, dir, func(e host.Env) *Plugin { return pluginOf(t, Options{}, e) },
		func(s *stage) { id = s.begin("counter") })
	hostAt(t, dir, func(e host.Env) *Plugin { return pluginOf(t, Options{Env: "gridworld"}, e) }, func(s *stage) {
		s.Refused(protocol.TypeEnvObserveReq, about(id), protocol.CodeUnknownEpisode)
	})
	hostAt(t, dir, func(e host.Env) *Plugin { return pluginOf(t, Options{MaxEpisodes: 1}, e) }, func(s *stage) {
		mine := s.begin("counter")
		s.Refused(protocol.TypeEnvObserveReq, about(id), protocol.CodeResetDenied, "max_episodes")
		s.Call(protocol.TypeEnvCloseReq, about(mine))
		o := s.step(id, "inc")
		assert.That(t, o.StepNum == 1, "%+v", o)
	})
}

// TestExperiencesOfMemoryAndStore: exp/list reads experiences from memory and from the store, without duplicates, in
// the order of the steps.
func TestExperiencesOfMemoryAndStore(t *testing.T) {
	dir := t.TempDir()
	make := func(e host.Env) *Plugin { return pluginOf(t, Options{}, e) }
	var ids []string
	const each = 150 // more experiences than one row of the store has
	for range 3 {
		hostAt(t, dir, make, func(s *stage) {
			ids = append(ids, s.begin("counter"), s.begin("counter"))
			for range each {
				s.Call(protocol.TypeEnvBatchStepReq, batchFields(t, ids[len(ids)-2:],
					[]string{`{"type":"noop"}`, `{"action_type":"noop", "payload":{"x":1}}`}))
			}
			var all []map[string]any // experiences of the longest list; the shorter ones must be its end
			for _, limit := range []int{1_000_000, 1, 7, each, 2*each + 5} {
				exp := s.experiences(fmt.Sprintf(`{"limit":%d}`, limit))
				if all == nil {
					all = exp
				}
				want := min(limit, len(ids)*each)
				assert.That(t, len(exp) == want && fmt.Sprint(exp) == fmt.Sprint(all[len(all)-want:]),
					"%d of %d, or others than the last", len(exp), want)
			}
			for i, x := range all {
				pair, step := i/(2*each), i%(2*each)
				must.That(t, x["episode_id"] == ids[2*pair+step%2] && x["step"] == float64(step/2+1),
					"experience %d is %v", i, x)
			}
			first := s.experiences(fmt.Sprintf(`{"episode_id":%q,"limit":10}`, ids[0]))
			assert.That(t, len(first) == 10 && first[9]["step"] == float64(each) && first[9]["episode_id"] == ids[0],
				"of the first episode: %v", first)
			second := s.experiences(fmt.Sprintf(`{"episode_id":%q,"limit":1}`, ids[1]))
			action := second[0]["action"].(map[string]any)
			assert.That(t, action["action_type"] == "noop" && action["payload"].(map[string]any)["x"] == 1.0,
				"an action is not as it came: %v", action)
			for _, none := range []string{`{"episode_id":"none"}`, `{"limit":0}`} {
				exp := s.experiences(none)
				assert.That(t, len(exp) == 0, "%s: %v", none, exp)
			}
			s.Refused(protocol.TypeEnvExpListReq, `{"limit":-1}`, protocol.CodeSchemaViolation, "/limit")
		})
	}
}

func TestStoredExperiencesAreBounded(t *testing.T) {
	dir := t.TempDir()
	make := func(e host.Env) *Plugin { return pluginOf(t, Options{MaxExperiences: 1000}, e) }
	for range 3 {
		hostAt(t, dir, make, func(s *stage) {
			id := s.begin("counter")
			for range 20 {
				s.Call(protocol.TypeEnvBatchStepReq, batchFields(t, slices.Repeat([]string{id}, 100),
					slices.Repeat([]string{`{"type":"noop"}`}, 100)))
			}
		})
	}
	s := openAt(t, dir)
	defer s.Close()
	var count int
	err := s.Read(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get("SELECT SUM(count) FROM env_experiences", nil, &count)
		return err
	})
	assert.That(t, err == nil && count <= 1000 && count >= 700, "%d of 1000, %v", count, err)
}

// TestIdleBetweenTwoHosts: an episode that was idle for too long between two hosts is not taken up. A look at the
// episode counts as use.
func TestIdleBetweenTwoHosts(t *testing.T) {
	dir := t.TempDir()
	at := time.Now()
	make := func(e host.Env) *Plugin {
		e.Now = func() time.Time { return at }
		return pluginOf(t, Options{IdleTimeout: 60}, e)
	}
	var id string
	hostAt(t, dir, make, func(s *stage) { id = s.begin("counter") })
	for _, tc := range []struct {
		typ  protocol.Type
		wait time.Duration
		code protocol.ErrorCode
	}{
		{protocol.TypeEnvStepReq, 59, ""},
		{protocol.TypeEnvObserveReq, 59, ""},
		{protocol.TypeEnvStepReq, 59, ""},
		{protocol.TypeEnvStepReq, 61, protocol.CodeUnknownEpisode},
		{protocol.TypeEnvStepReq, 0, protocol.CodeUnknownEpisode},
	} {
		at = at.Add(tc.wait * time.Second)
		hostAt(t, dir, make, func(s *stage) {
			m := s.Call(tc.typ, stepFields(id, `{"type":"inc"}`))
			assert.That(t, m.Code == tc.code, "after %d s it was answered %s", tc.wait, m.Line)
		})
	}
}

// savedSteps returns the number of steps of an episode in the store, or -1 if the episode is not there.
func savedSteps(t *testing.T, s store.Store, id string) int64 {
	t.Helper()
	steps := int64(-1)
	must.OK(t, s.Read(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get("SELECT steps FROM env_episodes WHERE id = $1", []any{id}, &steps)
		return err
	}))
	return steps
}

// TestSavedOnceTheStoreWorksAgain: steps that could not be saved are saved later.
func TestSavedOnceTheStoreWorksAgain(t *testing.T) {
	s := openAt(t, t.TempDir())
	defer s.Close()
	var works atomic.Bool
	p := pluginOf(t, Options{}, host.Env{Store: func(context.Context) (store.Store, error) {
		if !works.Load() {
			return nil, errors.New("the disk is gone")
		}
		return s, nil
	}})
	st := newStage(t, p)
	id := st.begin("counter")
	st.step(id, "inc")
	p.EndSession(t.Context(), nil)
	must.That(t, savedSteps(t, s, id) == -1, "it is saved without a store")
	works.Store(true)
	p.EndSession(t.Context(), nil)
	steps := savedSteps(t, s, id)
	assert.That(t, steps == 1, "%d steps are saved", steps)
}

// TestSavedLate: a late save of one host does not undo what another host has saved since.
func TestSavedLate(t *testing.T) {
	s := openAt(t, t.TempDir())
	defer s.Close()
	p := pluginOf(t, Options{}, host.Env{Store: func(context.Context) (store.Store, error) { return s, nil }})
	st := newStage(t, p)
	id := st.begin("counter")
	p.EndSession(t.Context(), nil)
	must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec("UPDATE env_episodes SET steps = 5 WHERE id = $1", id)
		return err
	}))
	st.step(id, "inc")
	p.EndSession(t.Context(), nil)
	assert.Equal(t, savedSteps(t, s, id), 5)
}

// TestAStoreThatFails: steps work without the store; only answers that need the store are errors.
func TestAStoreThatFails(t *testing.T) {
	broken := func(context.Context) (store.Store, error) { return nil, errors.New("the disk is gone") }
	s := newStage(t, pluginOf(t, Options{}, host.Env{Store: broken}))
	id := s.begin("counter")
	s.step(id, "inc")
	s.Refused(protocol.TypeEnvObserveReq, `{"episode_id":"x"}`, protocol.CodeUnknownEpisode, "the disk is gone")
	exp := s.experiences(about(id))
	assert.That(t, len(exp) == 1, "%d in memory", len(exp))
	s.Refused(protocol.TypeEnvExpListReq, `{}`, protocol.CodeRuntimeError, "the disk is gone")
}

// TestExportAndImport: an export is the same after an import into another store, even after a second import.
func TestExportAndImport(t *testing.T) {
	dir := t.TempDir()
	var id string
	make := func(e host.Env) *Plugin { return pluginOf(t, Options{Env: "gridworld"}, e) }
	hostAt(t, dir, make, func(s *stage) {
		id = s.begin("gridworld")
		s.step(id, "up")
		s.begin("gridworld")
	})
	from := openAt(t, dir)
	var first, second bytes.Buffer
	must.OK(t, from.Export(t.Context(), &first))
	must.OK(t, from.Close())
	dir = t.TempDir()
	to := openAt(t, dir)
	for range 2 {
		counts, err := to.Import(t.Context(), bytes.NewReader(first.Bytes()), store.Merge)
		assert.That(t, err == nil && counts[kindEpisode] == 2 && counts[kindExperiences] == 1, "%v, %v", counts, err)
	}
	must.OK(t, to.Export(t.Context(), &second))
	drop := func(b *bytes.Buffer) string {
		_, rest, _ := strings.Cut(b.String(), "\n")
		return rest
	}
	assert.That(t, drop(&first) == drop(&second) && strings.Contains(first.String(), id),
		"exported\n%s\nand after the import\n%s", first.String(), second.String())
	must.OK(t, to.Close())
	hostAt(t, dir, make, func(s *stage) {
		o := s.step(id, "up")
		assert.That(t, o.StepNum == 2, "%+v", o)
		exp := s.experiences(`{}`)
		assert.That(t, len(exp) == 2, "%d experiences", len(exp))
	})
}

func TestBrokenRecords(t *testing.T) {
	part := Part()
	s := stores.Memory(t, part)
	defer s.Close()
	episode := `{"episode_id":"e","plugin":"p","env":"counter","seed":1,"options":{},"created_at":1,"used_at":1,"steps":0,"done":false,"truncated":false,"reward":null,"failure":"","saved":0}`
	experiences := `{"id":"x","plugin":"p","at":1,"experiences":[{"episode_id":"e","step":1,"ts":1}]}`
	for _, tc := range []struct{ kind, good, from, to string }{
		{kindEpisode, episode, `"e"`, `""`},
		{kindEpisode, episode, `"steps":0`, `"steps":-1`},
		{kindEpisode, episode, `"used_at":1`, `"used_at":-1`},
		{kindEpisode, episode, `,"saved":0`, ``},
		{kindEpisode, episode, `{}`, `[]`},
		{kindEpisode, episode, `"seed"`, `"sead"`},
		{kindExperiences, experiences, `[{`, `[3,{`},
		{kindExperiences, experiences, `{"episode_id":"e","step":1,"ts":1}`, ``},
		{kindExperiences, experiences, `"at":1`, `"at":1e30`},
		{kindExperiences, experiences, `"ts":1`, `"ts":-1`},
	} {
		for _, record := range []string{tc.good, strings.Replace(tc.good, tc.from, tc.to, 1)} {
			err := s.Write(t.Context(), func(tx *store.Tx) error {
				return part.Import(t.Context(), tx, tc.kind, []byte(record))
			})
			assert.That(t, (err == nil) == (record == tc.good), "%s: %v", record, err)
		}
	}
	err := s.Write(t.Context(), func(tx *store.Tx) error { return part.Import(t.Context(), tx, "env.x", nil) })
	assert.That(t, err != nil, "a record of no kind was taken")
	assert.OK(t, s.Write(t.Context(), func(tx *store.Tx) error { return part.Clear(t.Context(), tx) }))
	var out bytes.Buffer
	err = s.Export(t.Context(), &out)
	assert.That(t, err == nil && !strings.Contains(out.String(), "env."), "after the clear: %s, %v", out.String(), err)
}

// countedStore counts the writes of a store.
type countedStore struct {
	store.Store
	writes atomic.Int64
}

func (c *countedStore) Write(ctx context.Context, fn func(*store.Tx) error) error {
	c.writes.Add(1)
	return c.Store.Write(ctx, fn)
}

// TestSavesAreFew: steps are saved at most once a second, however many there are.
func TestSavesAreFew(t *testing.T) {
	s := stores.Memory(t, Part())
	defer s.Close()
	c := &countedStore{Store: s}
	synctest.Test(t, func(t *testing.T) {
		p := pluginOf(t, Options{}, host.Env{Store: func(context.Context) (store.Store, error) { return c, nil }})
		st := &stage{hosttest.Start(t, host.Options{Plugins: []host.Plugin{p}}), t}
		st.Handshake(protocol.CapEnv)
		id := st.begin("counter")
		for range 100 {
			st.step(id, "noop")
			time.Sleep(50 * time.Millisecond) // 5 seconds in all
		}
		time.Sleep(2 * time.Second)
		before := c.writes.Load()
		if before < 4 || before > 14 { // one write each second, and as many that remove old episodes
			t.Errorf("%d writes in 5 seconds", before)
		}
		time.Sleep(time.Hour)
		n := c.writes.Load() - before
		assert.That(t, n == 0, "%d writes while nothing happened", n)
		st.Close()
	})
}

// TestNoExperienceIsDropped: experiences that would take too much memory are saved before the next steps, and are not
// dropped.
func TestNoExperienceIsDropped(t *testing.T) {
	s := stores.Memory(t, Part())
	defer s.Close()
	// The clock of synctest stands still during the steps, so no save by time comes in between.
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t, Options{}, host.Env{Store: func(context.Context) (store.Store, error) { return s, nil }})
		st := &stage{hosttest.Start(t, host.Options{Plugins: []host.Plugin{r.plugin}}), t}
		st.Handshake(protocol.CapEnv)
		first := st.begin("room")
		st.step(first, "say")
		id := st.reset(`{"env_name":"room","options":{"a":"` + strings.Repeat("x", maxState-5000) + `"}}`).EpisodeID
		for range recentBytes/2/(maxState-5000) + 10 {
			st.step(id, "say")
		}
		exp := st.experiences(about(first))
		assert.That(t, len(exp) == 1, "%d experiences of an episode of one step", len(exp))
		st.Close()
	})
}
