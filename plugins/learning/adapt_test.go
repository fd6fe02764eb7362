package learning

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// TestAdapt: each strategy gives a larger weight to the better tool of a group, treats each kind apart, and does not
// change the weight of a component without rivals.
func TestAdapt(t *testing.T) {
	for _, strategy := range []protocol.AdaptStrategy{"ucb1", "epsilon_greedy", "softmax", "ppo", "thompson", ""} {
		t.Run(string(strategy), func(t *testing.T) {
			s := newStage(t, newFile(t), DefaultOptions())
			if weights, message := s.adapt("", string(strategy)); len(weights) != 0 ||
				!strings.Contains(message, "nothing was recorded") {
				t.Errorf("before any call: %v, %s", weights, message)
			}
			s.calls("good", 45, 5)
			s.calls("bad", 10, 40)
			s.work(work{Kind: host.KindSkill, Component: "alone", Fail: true, Times: 50})
			s.rate(turn("", "rated only", 1, 1, ""), turn("", "without confidence", 1, 0, ""))
			weights, message := s.adapt("", string(strategy))
			name := string(strategy)
			if name == "" {
				name = "thompson"
			}
			assert.That(t, strings.Contains(message, name) && strings.Contains(message, "2 of kind tool") &&
				strings.Contains(message, "1 in no group"), "the message is %q", message)
			if len(weights) != 4 || weights["rated only"] != 1 || !(weights["good"] > 1 && weights["bad"] < 1) ||
				!near(weights["good"]+weights["bad"], 2) || !near(weights["alone"], 1) {
				t.Errorf("the weights are %v", weights)
			}
			for _, r := range s.stats("") {
				want, ok := weights[r.Component]
				if !ok {
					want = 1
				}
				if r.Weight != want || s.plugin.Weight(r.Kind, r.Component) != want {
					t.Errorf("%s has %g in its record, %g for others, should be %g", r.Component, r.Weight,
						s.plugin.Weight(r.Kind, r.Component), want)
				}
			}
			assert.That(t, s.plugin.Weight(host.KindSkill, "good") == 1, "the weight of a tool is that of a skill "+
				"of its name")
		})
	}
}

// TestWorth: the worth of a component follows from its calls, rewards, experiences and feedback, from each alone and
// from all together. The scale of rewards spans all components that compete.
func TestWorth(t *testing.T) {
	reward := func(x float64) *float64 { return &x }
	told := func(id, name string, r float64) string {
		return fmt.Sprintf(`{"experience_id":%q,"action":{"component_name":%q},"reward":%g}`, id, name, r)
	}
	type given struct {
		work        []work
		experiences []string
		feedback    []string
	}
	calls := []work{{Component: "x", Times: 7}, {Component: "x", Times: 3, Fail: true}}
	for name, c := range map[string]struct {
		given
		want map[string]float64
	}{
		"calls": {given{work: calls}, map[string]float64{"x": 0.7}},
		"calls and no confidence": {
			given{work: calls, feedback: []string{turn("1", "x", 1, 0, "")}},
			map[string]float64{"x": 0.7},
		},
		"calls and feedback": {
			given{work: calls, feedback: []string{turn("1", "x", 1, 1, "")}},
			map[string]float64{"x": 0.75*0.7 + 0.25},
		},
		"feedback": {given{feedback: []string{
			turn("1", "x", 0.5, 1, ""),
			turn("2", "y", -1, 0.5, ""),
		}}, map[string]float64{"x": 0.75, "y": 0}},
		"no confidence alone": {given{feedback: []string{turn("1", "x", 0.5, 0, "")}}, map[string]float64{}},
		"experiences from 0 to 1": {given{experiences: []string{
			told("1", "x", 1), told("2", "x", 0.5),
			told("3", "y", 0.25),
		}}, map[string]float64{"x": 0.75, "y": 0.25}},
		"experiences, good and bad": {given{experiences: []string{
			told("1", "x", 1000), told("2", "y", -1000),
			told("3", "z", 0),
		}}, map[string]float64{"x": 1, "y": 0, "z": 0.5}},
		"penalties alone": {
			given{experiences: []string{told("1", "x", -8), told("2", "y", -2)}},
			map[string]float64{"x": 0, "y": 0.75},
		},
		"rewards of 0": {
			given{experiences: []string{told("1", "x", 0), told("2", "y", 0)}},
			map[string]float64{"x": 0.5, "y": 0.5},
		},
		"a reward beyond all numbers": {given{experiences: []string{
			told("1", "x", 1e300), told("2", "x", 3),
			told("3", "y", 1),
		}}, map[string]float64{"x": 1, "y": 1.0 / 3}},
		"steps": {
			given{work: []work{
				{Component: "x", Reward: reward(-1), Times: 3},
				{Component: "x", Reward: reward(3)},
				{Component: "y", Reward: reward(1)},
				{Component: "y", Fail: true},
			}},
			map[string]float64{"x": 0.25, "y": 0.25},
		},
		"all": {
			given{
				work: calls, experiences: []string{told("1", "x", 5), told("2", "x", 0)},
				feedback: []string{turn("1", "x", -1, 1, ""), turn("2", "x", -1, 1, "")},
			},
			map[string]float64{"x": (1 - 0.5*2/3) * 8 / 12},
		},
	} {
		s := newStage(t, newFile(t), DefaultOptions())
		for _, w := range c.work {
			w.Kind = kindModel // the kind of a component that is only named and is not known otherwise
			s.work(w)
		}
		if c.experiences != nil {
			s.ask(protocol.TypeLearnExperienceReq, `{"experiences":[`+strings.Join(c.experiences, ",")+`]}`,
				&struct{}{})
		}
		if c.feedback != nil {
			s.rate(c.feedback...)
		}
		s.adapt("", "softmax")
		got := map[string]float64{}
		for _, p := range s.history("") {
			if p.Worth != nil {
				got[p.Component] = *p.Worth
			}
		}
		assert.That(t, len(got) == len(c.want), "%s: %v", name, got)
		for component, want := range c.want {
			if !near(got[component], want) {
				t.Errorf("%s: %s is worth %g, should be %g", name, component, got[component], want)
			}
		}
	}
}

// TestAdaptOne: adapting one component changes its weight, and not the weights of its rivals.
func TestAdaptOne(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	s.calls("good", 50, 0)
	s.calls("bad", 0, 50)
	if weights, message := s.adapt("good", "ucb1"); len(weights) != 1 || !(weights["good"] > 1) {
		t.Errorf("%v, %s", weights, message)
	}
	r := s.one("bad")
	assert.That(t, r.Weight == 1, "the other one has %+v", r)
	if weights, message := s.adapt("who", "ucb1"); len(weights) != 0 || !strings.Contains(message, `"who"`) {
		t.Errorf("%v, %s", weights, message)
	}
}

// TestPPOStepsOncePerBatch: ppo uses each call once: its steps are bounded, and without new calls it makes no step.
func TestPPOStepsOncePerBatch(t *testing.T) {
	s := newStage(t, newFile(t), DefaultOptions())
	s.calls("good", 100, 0)
	s.calls("bad", 0, 100)
	first, _ := s.adapt("", "ppo")
	w := first["good"]
	assert.That(t, w > 1.05 && w <= 1.2+1e-9, "the first step went to %v", first)
	again, message := s.adapt("", "ppo")
	assert.That(t, again["good"] == first["good"] && again["bad"] == first["bad"] &&
		strings.Contains(message, "nothing new"), "without news the weights are %v: %s", again, message)
	s.calls("good", 0, 20) // now the other tool is better, though not in total
	s.calls("bad", 20, 0)
	back, _ := s.adapt("", "ppo")
	assert.That(t, back["good"] < first["good"] && back["bad"] > first["bad"], "after bad news the weights are %v",
		back)
	var rows []string
	for _, p := range s.history("") {
		assert.That(t, p.Worth != nil && *p.Worth >= 0 && *p.Worth <= 1 && p.Strategy == "ppo" &&
			time.Since(time.UnixMicro(int64(p.TS*1e6))) <= time.Hour, "a row is %+v", p)
		rows = append(rows, p.Kind+" "+p.Component)
	}
	assert.That(t, strings.Join(rows, ",") == "tool bad,tool good,tool bad,tool good", "the history has %v", rows)
}

// TestStrategyOfTheConfig: the strategy of the config and its parameters hold unless the request names others.
func TestStrategyOfTheConfig(t *testing.T) {
	opts := DefaultOptions()
	opts.Strategy, opts.EpsilonGreedy.Constant, opts.PPO.Clip, opts.PPO.Entropy, opts.Softmax.Scale = "epsilon_greedy",
		0.5, 0.01, 0, 1e-3
	s := newStage(t, newFile(t), opts)
	s.calls("good", 99, 1)
	s.calls("bad", 1, 99)
	var resp struct {
		Message string `json:"message"`
	}
	s.ask(protocol.TypeLearnAdaptReq, `{}`, &resp)
	if got := s.one("bad").Weight; !strings.Contains(resp.Message, "epsilon_greedy") || !near(got, 0.5) {
		t.Errorf("the weight is %g: %s", got, resp.Message)
	}
	s.ask(protocol.TypeLearnAdaptReq, `{"strategy":"softmax"}`, &resp)
	if got := s.one("bad").Weight; got > 1e-6 {
		t.Errorf("with a cold softmax the weight is %g", got)
	}
	weights, _ := s.adapt("", "epsilon_greedy")
	next, _ := s.adapt("", "ppo")
	ratio := next["bad"] / weights["bad"]
	assert.That(t, ratio >= 0.99-1e-9 && ratio <= 1 && next["bad"] != weights["bad"], "ppo with a clip of 0.01 went "+
		"from %v to %v", weights, next)
}

// TestWeightsOfOtherHosts: another host sees new weights at most a second later, without a read of the store for each
// call.
func TestWeightsOfOtherHosts(t *testing.T) {
	path := newFile(t)
	clock := time.Now()
	one := newStage(t, path, DefaultOptions())
	two := stageWith(t, path, DefaultOptions(), host.Env{Now: func() time.Time { return clock }})
	if w := two.plugin.Weight(host.KindTool, "good"); w != 1 {
		t.Errorf("at first the weight is %g", w)
	}
	one.calls("good", 50, 0)
	one.calls("bad", 0, 50)
	weights, _ := one.adapt("", "ucb1")
	if w := two.plugin.Weight(host.KindTool, "good"); w != 1 {
		t.Errorf("the store is asked each time: %g", w)
	}
	clock = clock.Add(weightsAge)
	if w := two.plugin.Weight(host.KindTool, "good"); w != weights["good"] || w == 1 {
		t.Errorf("a second later the weight is %g, should be %g", w, weights["good"])
	}
	weights, _ = one.adapt("", "softmax")
	two.one("good") // answers from the store
	clock = clock.Add(weightsAge)
	if w := two.plugin.Weight(host.KindTool, "bad"); w != weights["bad"] {
		t.Errorf("after another change the weight is %g, should be %g", w, weights["bad"])
	}
}

// customStage returns a host whose strategy `custom` is a script.
func customStage(t *testing.T, script string) *stage {
	t.Helper()
	opts := DefaultOptions()
	opts.Strategy, opts.CustomCommand, opts.CustomTimeout = "custom", []string{"sh", "-c", script}, 60
	return stageWith(t, newFile(t), opts, host.Env{Launcher: sandboxtest.For(t, sandbox.Options{})})
}

func TestCustomCommand(t *testing.T) {
	s := customStage(t, `read -r all; case "$all" in *'"component_name":"good"'*'"reward":1'*) echo '{"good":2.5,"bad":0}';; *) echo "got $all" >&2; exit 3;; esac`)
	weights, message := s.adapt("", "custom")
	assert.That(t, len(weights) == 0 && strings.Contains(message, "nothing was recorded"), "without calls: %v, %s",
		weights, message)
	s.calls("good", 3, 0)
	s.calls("bad", 0, 3)
	s.calls("other", 1, 0)
	var resp protocol.LearnAdaptResponse
	s.ask(protocol.TypeLearnAdaptReq, `{}`, &resp)
	if s.one("good").Weight != 2.5 || s.one("bad").Weight != 0 || s.one("other").Weight != 1 {
		t.Errorf("answered by %+v, the records are %+v", resp, s.stats(""))
	}
}

func TestCustomCommandThatFails(t *testing.T) {
	for name, c := range map[string]struct{ script, says string }{
		"ends badly":            {`echo why >&2; exit 3`, "exit status 3; on stderr it said: why"},
		"prints no JSON":        {`echo hello`, "one JSON object"},
		"prints nothing":        {``, "one JSON object"},
		"prints null":           {`echo null`, "one JSON object"},
		"prints a list":         {`echo '[1]'`, "one JSON object"},
		"prints two":            {`echo '{"x":1}{"x":2}'`, "one JSON object"},
		"prints texts":          {`echo '{"x":"1"}'`, "one JSON object"},
		"knows others":          {`echo '{"y":1}'`, `"y", which is not one of the components`},
		"gives a negative":      {`echo '{"x":-1}'`, "-1 is not a weight"},
		"gives too much":        {`echo '{"x":1e300}'`, "1e+300 is not a weight"},
		"prints without end":    {`while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done | head -c 5000000`, "more than the"},
		"takes no input at all": {`exec <&-; echo '{"x":-2}'`, "-2 is not a weight"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := customStage(t, c.script)
			s.calls("x", 1, 0)
			m := s.Call(protocol.TypeLearnAdaptReq, `{}`)
			assert.That(t, m.Code == protocol.CodeRuntimeError && strings.Contains(m.Get("/message"), c.says) &&
				strings.Contains(m.Get("/message"), "custom_command"), "answered by %.1000s", m.Line)
			w := s.one("x").Weight
			assert.That(t, w == 1, "the weight became %g", w)
		})
	}
}

func TestCustomCommandThatIsNotThere(t *testing.T) {
	opts := DefaultOptions()
	opts.CustomCommand = []string{"no-such-program"}
	s := stageWith(t, newFile(t), opts, host.Env{Launcher: sandboxtest.For(t, sandbox.Options{})})
	s.calls("x", 1, 0)
	s.Refused(protocol.TypeLearnAdaptReq, `{"strategy":"custom"}`, protocol.CodeRuntimeError, "no-such-program")
}

// TestCustomCommandThatHangs: a command that hangs ends by its time limit, or when the agent cancels.
func TestCustomCommandThatHangs(t *testing.T) {
	s := customStage(t, "exec sleep 600")
	s.calls("x", 1, 0)
	id := s.Go(protocol.TypeLearnAdaptReq, `{}`)
	s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	m := s.Answer(id)
	assert.That(t, m.Code == protocol.CodeCancelled, "answered by %s", m)
	s = customStage(t, "exec sleep 600")
	s.plugin.opts.CustomTimeout = 0.05
	s.calls("x", 1, 0)
	s.Refused(protocol.TypeLearnAdaptReq, `{}`, protocol.CodeRuntimeError, "50ms")
}

func BenchmarkCountCall(b *testing.B) {
	for name, reward := range map[string]*float64{"tool": nil, "env": new(0.5)} {
		b.Run(name, func(b *testing.B) {
			p := newPlugin(b, nil, DefaultOptions(), host.Env{})
			ids := make([]string, 1024)
			for i := range ids {
				ids[i] = fmt.Sprintf("%032x", i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				p.CountCall(host.CallOutcome{
					Kind: host.KindTool, Component: "echo", Correlation: ids[i%len(ids)],
					Success: true, Duration: time.Duration(i%1000) * time.Microsecond, Reward: reward,
				})
				i++
			}
		})
	}
}

// BenchmarkEcho measures a tool call of a host with and without a plugin that records the call.
func BenchmarkEcho(b *testing.B) {
	for name, counted := range map[string]bool{"alone": false, "counted": true} {
		b.Run(name, func(b *testing.B) {
			toolbox := must.Get(tools.New("toolbox", tools.Options{}, host.Env{Workspace: b.TempDir()}))(b)
			plugins := []host.Plugin{toolbox}
			if counted {
				plugins = append(plugins, newPlugin(b, openStore(b, newFile(b)), DefaultOptions(), host.Env{}))
			}
			h := must.Get(host.New(host.Options{Plugins: plugins}))(b)
			serveEcho(b, h)
		})
	}
}

// serveEcho lets a host answer at least b.N calls, which the host reads in blocks.
func serveEcho(b *testing.B, h *host.Host) {
	const many = 64
	var block strings.Builder
	for i := range many {
		block.WriteString(hosttest.Request(protocol.TypeToolCallReq, fmt.Sprintf("%032x", i),
			`{"tool_name":"echo","arguments":{"text":"`+strings.Repeat("x", 100)+`"}}`) + "\n")
	}
	in := &blocks{
		head: `{"type":"handshake/req","id":"h","agent_caps":["tools"]}` + "\n", block: block.String(),
		left: b.N/many + 1,
	}
	b.ReportAllocs()
	b.ResetTimer()
	must.OK(b, h.Serve(in, io.Discard))
}

// blocks is an input that sends a first line, and then the same block again and again.
type blocks struct {
	head, block string
	left        int
}

func (r *blocks) Read(p []byte) (int, error) {
	if r.head == "" {
		if r.left == 0 {
			return 0, io.EOF
		}
		r.left--
		r.head = r.block
	}
	n := copy(p, r.head)
	r.head = r.head[n:]
	return n, nil
}
