package learning

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/store"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// machines is a plugin with tools of which only good succeeds; those that wait do so until the
// gate is closed.
type machines struct {
	*tools.Set
	begun chan string
	gate  chan struct{}
}

func newMachines(t *testing.T, names ...string) *machines {
	m := &machines{Set: tools.NewSet(tools.SetOptions{Name: "machines"}), begun: make(chan string, 16), gate: make(chan struct{})}
	var all []tools.Tool
	for _, name := range names {
		all = append(all, tools.Tool{Def: protocol.ToolDefinition{Name: name, Version: "1.0.0"}, Call: func(ctx context.Context, _ protocol.Object, _ host.Emitter) (*tools.Outcome, error) {
			if strings.HasPrefix(name, "wait") {
				m.begun <- name
				<-m.gate
			}
			return &tools.Outcome{Data: name, Failed: name != "good", Failure: "bad luck"}, nil
		}})
	}
	must.OK(t, m.Replace(all))
	return m
}

func (m *machines) Info() host.PluginInfo {
	return host.PluginInfo{Name: "machines", Capability: protocol.CapTools}
}

// play is a host on a store with a group of tools.
func play(t *testing.T, path string, opts Options, names ...string) (*hosttest.Pair, *machines) {
	m := newMachines(t, names...)
	h := hosttest.New(t, host.Options{Plugins: []host.Plugin{newPlugin(t, openStore(t, path), opts, host.Env{}), m}, Groups: host.Groups{"win": names}, MaxParallel: 16})
	h.Handshake(protocol.CapTools, protocol.CapLearning)
	return h, m
}

// pull calls the group and returns the tool that ran.
func pull(t *testing.T, h *hosttest.Pair) string {
	t.Helper()
	m := h.Call(protocol.TypeToolCallReq, `{"tool_name":"win","arguments":{}}`)
	if m.Get("/group") != "win" {
		t.Fatalf("answered by %s", m)
	}
	return m.Get("/data/tool_name")
}

// The host chooses the tools of a group that were never called first, and with each strategy
// comes to choose the one that succeeds, without learn/adapt in between. Another host on the
// store knows it at once.
func TestChoose(t *testing.T) {
	for _, strategy := range []string{"ppo", "ucb1", "epsilon_greedy", "softmax", "thompson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			opts := DefaultOptions()
			opts.Strategy = strategy
			path := newFile(t)
			h, _ := play(t, path, opts, "bad", "good", "worse")
			first := []string{pull(t, h), pull(t, h), pull(t, h)}
			if slices.Sort(first); !slices.Equal(first, []string{"bad", "good", "worse"}) {
				t.Errorf("the first calls were of %v", first)
			}
			won := map[string]int{}
			for i := range 400 {
				if name := pull(t, h); i >= 200 {
					won[name]++
				}
			}
			if won["good"] < 150 {
				t.Errorf("the last 200 calls were of %v", won)
			}
			h.Close()
			h, _ = play(t, path, opts, "bad", "good", "worse")
			clear(won)
			for range 10 {
				won[pull(t, h)]++
			}
			if won["good"] < 7 {
				t.Errorf("another host called %v", won)
			}
		})
	}
}

// Calls at once are of different tools, and feedback counts at the next choice.
func TestChooseAtOnce(t *testing.T) {
	opts := DefaultOptions()
	opts.Strategy, opts.EpsilonGreedy.Epsilon = "epsilon_greedy", 1e-9
	names := []string{"wait1", "wait2", "wait3"}
	h, m := play(t, newFile(t), opts, names...)
	var ids []string
	for range names {
		ids = append(ids, h.Go(protocol.TypeToolCallReq, `{"tool_name":"win","arguments":{}}`))
	}
	begun := []string{<-m.begun, <-m.begun, <-m.begun}
	if slices.Sort(begun); !slices.Equal(begun, names) {
		t.Errorf("calls at once were of %v", begun)
	}
	close(m.gate)
	rated := ""
	for _, id := range ids {
		rated = h.Answer(id).Get("/data/tool_name")
	}
	fields := batch(fmt.Sprintf(`{"correlation_id":%q,"rated_turn":null,"polarity":"positive","score":1}`, ids[len(ids)-1]))
	if m := h.Call(protocol.TypeLearnFeedbackReq, fields); m.Get("/recorded") != "1" {
		t.Fatalf("%s", m)
	}
	for range 5 {
		if name := pull(t, h); name != rated {
			t.Errorf("after good feedback for %s the call was of %s", rated, name)
		}
	}
}

// A weight that was learned among strangers, as by a version before groups, is taken back;
// one that was set stays.
func TestStrangersDoNotCompete(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	for _, tool := range []string{"echo", "http_get", "set"} {
		s.calls(tool, 5, 5)
	}
	must.OK(t, s.store.Write(t.Context(), func(tx *store.Tx) error {
		return errors.Join(writeWeight(tx, host.KindTool, "echo", &weightRow{Weight: 1.4, Strategy: "ucb1"}),
			writeWeight(tx, host.KindTool, "set", &weightRow{Weight: 3, Strategy: refinementStrategy}))
	}))
	weights, message := s.adapt("", "ucb1")
	if weights["echo"] != 1 || weights["http_get"] != 1 || weights["set"] != 3 || !strings.Contains(message, "3 in no group") || !strings.Contains(message, "neutral again") {
		t.Errorf("%v, %s", weights, message)
	}
	if again, message := s.adapt("", "ucb1"); again["echo"] != 1 || !strings.Contains(message, "stay as they are") {
		t.Errorf("again: %v, %s", again, message)
	}
}
