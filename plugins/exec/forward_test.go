package exec

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/plugins/env"
	"a2e/protocol"
)

// TestAnswerAsItCame: the members of a child's answer are passed on unchanged, without its envelope.
func TestAnswerAsItCame(t *testing.T) {
	f := newField(t)
	m := newStage(t, f.plugin("x", "tools=say,who", Options{})).Call(protocol.TypeToolListReq, `{}`)
	s := newStage(t, f.plugin("x", "", Options{}))
	tail := `,"x-more":[1.50],"tools":[{"name":"say","description":"x","x-own":12345678901234567890},{"name":"who","description":"x","x-own":12345678901234567890}]}`
	assert.That(t, bytes.HasSuffix(m.Line, []byte(tail)), "%s\nshould end with\n%s", m, tail)
	s.tool("say", `{"text":"hi"}`).Has(t, "/data/data/text", "hi")
	m = s.tool("fail", `{}`)
	s.refused(m, protocol.CodeToolError, "no luck")
	m.Has(t, "/detail/big", "12345678901234567890", "/detail/list/0", "a", "/retryable", "true")
	s.tool("unsure", `{}`).Has(t, "/data/error", "it failed")
}

// TestCapabilitiesAreLearned: the plugin serves the capabilities and message types that the child names
// in its handshake.
func TestCapabilitiesAreLearned(t *testing.T) {
	f := newField(t)
	rows := `caps=[{"capability":"tools","enabled":true,"metadata":{"types":["tool/call/req","weather/ask/req","ping",7,"bad\"type"]}},{"capability":"memory","enabled":false},` +
		`{"capability":"proc","enabled":true,"metadata":{}},{"capability":"own","enabled":true,"metadata":{"types":["weather/watch/req"]}}]`
	p := f.plugin("x", rows, Options{})
	s := open(t, p)
	m := s.Handshake(protocol.CapTools, protocol.CapMemory, protocol.CapProc, protocol.CapEnv)
	for i, enabled := range []string{"true", "false", "true", "false"} {
		m.Has(t, fmt.Sprintf("/accepted_caps/%d/enabled", i), enabled)
	}
	m.Has(t, "/accepted_caps/0/metadata/type", "tools")
	m.Has(t, "/accepted_caps/0/metadata/custom_types", `["weather/ask/req","weather/watch/req"]`)
	s.refused(s.Call(protocol.TypeToolListReq, `{}`), protocol.CodeCapabilityMissing, "no loaded plugin serves "+
		"tool/list/req")
	s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
	s.Call("weather/ask/req", `{"text":"x"}`).Has(t, "/answer/text", "x")
	s.Call("weather/watch/req", `{}`).Has(t, "/ok", "true")
}

func TestEvents(t *testing.T) {
	f := newField(t)
	s := newStage(t, f.plugin("x", "", Options{}))
	id := s.Go(protocol.TypeToolCallReq, `{"tool_name":"flood","arguments":{"n":300},"streaming":true}`)
	s.Answer(id).Has(t, "/data/success", "true")
	events := eventsOf(s.Messages(), id)
	must.Equal(t, len(events), 300, "… events")
	for i, e := range events {
		e.Has(t, "/seq", fmt.Sprint(i), "/data/message", fmt.Sprint(i))
	}
	id = s.Go(protocol.TypeToolCallReq, `{"tool_name":"bad-events","arguments":{},"streaming":true}`)
	s.Answer(id).Has(t, "/data/success", "true")
	events = eventsOf(s.Messages(), id)
	must.Equal(t, len(events), 1, "events of no known kind are logs: %v", events)
	events[0].Has(t, "/kind", "log")
	events[0].Has(t, "/data/level", "info")
	events[0].Has(t, "/data/message", `weird: {"any":[1]}`)
	id = s.Go(protocol.TypeToolCallReq, `{"tool_name":"flood","arguments":{"n":3}}`)
	s.Answer(id).Has(t, "/data/success", "true")
	if events := eventsOf(s.Messages(), id); len(events) != 0 {
		t.Errorf("nobody asked for %v", events)
	}
}

// TestSharedByPriority: two plugins with children and the built-in plugin have one list of tools. Each
// call is passed to the plugin of highest priority that has the tool.
func TestSharedByPriority(t *testing.T) {
	f := newField(t)
	high := ranked{f.plugin("high", "me=high tools=say,who,high", Options{}), 10}
	low := ranked{f.plugin("low", "me=low tools=say,who,low,block", Options{}), -10}
	s := newStage(t, low, builtin(t), high)
	m := s.Call(protocol.TypeToolListReq, `{}`)
	var list protocol.ToolListResponse
	m.Decode(t, &list)
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	want := "block echo edit_file glob grep high http_get list_dir low read_file run_command say who write_file"
	assert.Equal(t, strings.Join(names, " "), want, "tools")
	s.tool("who", `{}`).Has(t, "/data/data/me", "high")
	s.tool("block", `{}`).Has(t, "/data/success", "true")
	s.tool("echo", `{"text":"built in"}`).Has(t, "/data/data/text", "built in")
	m = s.tool("nothing", `{}`)
	s.refused(m, protocol.CodeUnknownTool, `unknown tool "nothing"; there are: block, echo, edit_file`)
	m.Has(t, "/detail/known", `["`+strings.ReplaceAll(want, " ", `","`)+`"]`)
}

// TestCallAtStart: a call just after the start is passed to the child that lists the tool, even if the
// child lists its tools late. Other children that would accept any call do not get it.
func TestCallAtStart(t *testing.T) {
	const greedy = "lists=other me=greedy"
	for name, tc := range map[string]struct{ first, second string }{
		"the first lists late":  {greedy + " list-when=go", "tools=who me=owner"},
		"the second lists late": {greedy, "tools=who me=owner list-when=go"},
		"both list late":        {greedy + " list-when=go", "tools=who me=owner list-when=go"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newField(t)
			s := newStage(t, ranked{f.plugin("first", tc.first, Options{}), 10},
				f.plugin("second", tc.second, Options{}))
			given := s.Go(protocol.TypeToolCallReq, `{"tool_name":"who","arguments":{}}`)
			s.cancel(given)
			id := s.Go(protocol.TypeToolCallReq, `{"tool_name":"who","arguments":{}}`)
			f.write("go")
			s.Answer(id).Has(t, "/data/data/me", "owner")
		})
	}
}

// TestCallWithoutList: the host waits for the first list of a child's tools for a limited time. Until
// it has listed its tools, the child gets no call.
func TestCallWithoutList(t *testing.T) {
	f := newField(t)
	silent := f.plugin("silent", "list-when=never me=silent", Options{},
		func(p *Plugin) { p.times.listing = time.Millisecond })
	s := newStage(t, ranked{silent, 10}, f.plugin("second", "tools=who me=owner", Options{}), builtin(t))
	s.tool("who", `{}`).Has(t, "/data/data/me", "owner")
	s.tool("echo", `{"text":"built in"}`).Has(t, "/data/data/text", "built in")
	s.refused(s.tool("say", `{"text":"x"}`), protocol.CodeRuntimeError,
		`plugin "silent": the child has not listed its tools`)
}

// TestSlowChildHoldsUpNobody: a slow child of high priority delays only its own requests.
func TestSlowChildHoldsUpNobody(t *testing.T) {
	f := newField(t)
	p := f.plugin("slow", "tools=say,block parallel=1", Options{})
	s := newStage(t, ranked{p, 10}, builtin(t))
	hosttest.Eventually(t, "the child's tools", p.hasListed)
	s.Call(protocol.TypeToolListReq, `{}`)
	slow := s.Go(protocol.TypeToolCallReq, `{"tool_name":"block","arguments":{"text":"go"}}`)
	hosttest.Eventually(t, "a slow child", func() bool { return p.current().owes() > slowAfter })
	s.tool("echo", `{"text":"quick"}`).Has(t, "/data/data/text", "quick")
	s.refused(s.tool("nothing", `{}`), protocol.CodeUnknownTool, "there are: block, echo")
	list := s.Call(protocol.TypeToolListReq, `{}`).String()
	assert.That(t, strings.Contains(list, `"block"`) && strings.Contains(list, `"echo"`), "%s", list)
	assert.Equal(t, p.current().owed(), 1, "the child was asked, and waited for: it owes … answers")
	assert.Equal(t, len(s.Answers(slow)), 0, "the built-in tool waited for the child")
	f.write("go")
	s.Answer(slow).Has(t, "/data/success", "true")
	s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
}

// TestMaxParallel: a child gets no more requests at once than it has named, or than the config says.
func TestMaxParallel(t *testing.T) {
	for name, tc := range map[string]struct {
		role string
		opts Options
		want int
	}{
		"as the child says":  {"parallel=2", Options{}, 2},
		"as the config says": {"parallel=2", Options{MaxParallel: 5}, 5},
		"nonsense":           {"parallel=-3", Options{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newField(t)
			p := f.plugin("x", tc.role, tc.opts)
			s := newStage(t, p)
			var ids []string
			for range 8 {
				ids = append(ids, s.Go(protocol.TypeToolCallReq,
					`{"tool_name":"hold","arguments":{},"streaming":true}`))
			}
			held := func() (n int) {
				for _, id := range ids {
					n += len(eventsOf(s.Messages(), id))
				}
				return n
			}
			hosttest.Eventually(t, "held requests", func() bool { return held() == tc.want })
			assert.Equal(t, cap(p.current().places), tc.want, "… places")
			for _, id := range ids {
				s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
			}
			for _, id := range ids {
				s.refused(s.Answer(id), protocol.CodeCancelled, "")
			}
			n := held()
			assert.That(t, n >= tc.want, "%d were held", n)
			s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
		})
	}
}

// TestCancelAndLateAnswers: the child gets a cancel. If it does not answer the request, the host
// answers, and drops a later answer of the child.
func TestCancelAndLateAnswers(t *testing.T) {
	for _, role := range []string{"", "no-cancel"} {
		t.Run("child "+role, func(t *testing.T) {
			f := newField(t)
			p := f.plugin("x", role, Options{})
			s := newStage(t, p)
			id := s.hold()
			s.cancel(id)
			slow := s.Go(protocol.TypeToolCallReq, `{"tool_name":"hold","arguments":{},"streaming":true,"timeout":1}`)
			s.refused(s.Answer(slow), protocol.CodeTimeout, "1s")
			m := s.tool("release", `{}`)
			if role != "" {
				m.Has(t, "/data/data/held", "0") // the cancel has removed the unanswered request
			}
			s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
			hosttest.Eventually(t, "no request that the child owes",
				func() bool { return role != "" || p.current().owed() == 0 })
		})
	}
}

// TestOwnTimeout: a request without a time limit of the host has the plugin's.
func TestOwnTimeout(t *testing.T) {
	f := newField(t)
	s := newStage(t, f.plugin("x", `caps=[{"capability":"tools","metadata":{"custom_types":["weather/poll/req"]}}]`,
		Options{Timeout: 300e6}))
	m := s.Call("weather/poll/req", `{}`)
	s.refused(m, protocol.CodeTimeout, "did not answer weather/poll/req within 300ms")
	m.Has(t, "/retryable", "true")
}

// current returns the running child.
func (p *Plugin) current() *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child
}

// hasListed reports whether the child has listed its tools.
func (p *Plugin) hasListed() bool { return p.lists.tools.Load() != nil }

// owed returns the number of requests that the child has not answered.
func (c *peer) owed() (n int) {
	for _, r := range c.calls.Requests() {
		if r.ctx != nil {
			n++
		}
	}
	return n
}

// counted records calls.
type counted struct {
	host.Plugin
	mu      sync.Mutex
	records []host.CallOutcome // guarded by mu
}

func (c *counted) Unwrap() host.Plugin { return c.Plugin }

func (c *counted) CountCall(r host.CallOutcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records = append(c.records, r)
}

// TestRecords: each call of a tool is recorded once, with its result, and only if a plugin has the
// tool.
func TestRecords(t *testing.T) {
	f := newField(t)
	counter := &counted{Plugin: builtin(t)}
	s := newStage(t, ranked{f.plugin("x", "", Options{}), 10}, counter)
	s.tool("say", `{}`)
	s.tool("fail", `{}`)
	s.Call(protocol.TypeToolCallReq, `{"tool_name":"unsure","arguments":{},"correlation_id":"mine"}`)
	s.tool("nothing", `{}`)
	s.tool("echo", `{"text":"x"}`)
	id := s.hold()
	s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	s.Answer(id)
	counter.mu.Lock()
	defer counter.mu.Unlock()
	var got []string
	for _, r := range counter.records {
		got = append(got, fmt.Sprint(r.Kind, " ", r.Component, " ", r.Success, " ", r.Correlation))
	}
	want := "tool say true q2; tool fail false q3; tool unsure false mine; tool echo true q6"
	assert.Equal(t, strings.Join(got, "; "), want)
}

// TestOverrides: overrides of a tool also hold for tools of a child, and a call that exceeds its own
// limit has failed.
func TestOverrides(t *testing.T) {
	f := newField(t)
	counter := &counted{Plugin: builtin(t)}
	set := hosttest.Overrides{host.KindTool: {"say": {Deferred: new(true)}, "hold": {Timeout: 50 * time.Millisecond}}}
	s := newStage(t, f.plugin("x", "", Options{}), counter, set)
	list := s.Call(protocol.TypeToolListReq, `{}`).String()
	assert.That(t, !strings.Contains(list, `"say"`) && strings.Contains(list, `"who"`), "%s", list)
	s.refused(s.tool("hold", `{}`), protocol.CodeTimeout, "its own limit of 50ms")
	counter.mu.Lock()
	defer counter.mu.Unlock()
	assert.That(t, len(counter.records) == 1 && !counter.records[0].Success, "%+v", counter.records)
}

// TestExclusive: an exclusive plugin serves only the capabilities and types of its config.
func TestExclusive(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "", Options{
		Capabilities: []protocol.Capability{protocol.CapTools},
		Types:        []string{"weather/ask/req"},
	})
	p.env.Exclusive = true
	s := newStage(t, alone{p}, builtin(t), f.plugin("other",
		`caps=[{"capability":"memory","metadata":{"types":["weather/watch/req"]}}]`, Options{}))
	s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
	s.refused(s.tool("echo", `{"text":"x"}`), protocol.CodeUnknownTool, "")
	s.Call("weather/ask/req", `{"text":"y"}`).Has(t, "/answer/text", "y")
	s.Call("weather/watch/req", `{}`).Has(t, "/ok", "true")
}

// alone makes a plugin exclusive, as the config does.
type alone struct{ host.Plugin }

func (a alone) Info() host.PluginInfo {
	info := a.Plugin.Info()
	info.Exclusive, info.Priority = true, 5
	return info
}

func (a alone) Unwrap() host.Plugin { return a.Plugin }

// TestExperiencesOfAll: one list has the experiences of the child and of the environments in Go.
func TestExperiencesOfAll(t *testing.T) {
	for _, priority := range []int{-1, 1} {
		f := newField(t)
		own := must.Get(env.New("steps", env.Options{Env: "counter"}, host.Env{Workspace: f.dir}))(t)
		s := newStage(t, own, ranked{f.plugin("x", `caps=[{"capability":"env"}]`, Options{}), priority})
		reset := s.Call(protocol.TypeEnvResetReq, `{"env_name":"counter","seed":1}`)
		s.Call(protocol.TypeEnvStepReq, fmt.Sprintf(`{"episode_id":%q,"action":{"type":"inc"}}`,
			reset.Get("/obs/episode_id"))).Has(t, "/obs/step_num", "1")
		list := s.Call(protocol.TypeEnvExpListReq, `{"limit":10}`)
		assert.That(t, strings.Contains(list.String(), `"episode_id":"theirs"`) &&
			strings.Contains(list.String(), reset.Get("/obs/episode_id")), "%s", list)
	}
}

func eventsOf(all []hosttest.Message, id string) (events []hosttest.Message) {
	for _, m := range all {
		if m.ReqID == id && m.IsEvent() {
			events = append(events, m)
		}
	}
	return events
}

// BenchmarkOverhead calls the built-in echo and the same tool of a child in turn, one call at a time
// and 16 at once. x/builtin is the time of a call of the child in times of a built-in call.
func BenchmarkOverhead(b *testing.B) {
	for name, child := range map[string]struct {
		role    string
		example []string
		tool    string
	}{
		"host":   {role: "host", tool: "echo"},
		"python": {example: []string{"python3", "word_tools.py"}, tool: "word_count"},
		"node":   {example: []string{"node", "hash_tools.mjs"}, tool: "sha256"},
	} {
		for _, at := range []struct {
			name string
			once int
		}{{"alone", 1}, {"16", 16}} {
			b.Run(name+"/"+at.name, func(b *testing.B) {
				f := newField(b)
				opts := Options{}
				if child.example != nil {
					opts.Command = []string{child.example[0], f.example(child.example[1])}
				}
				near, far := newAgent(b, builtin(b)), newAgent(b, host.Plugin(f.plugin("x", child.role, opts)))
				var took [2]time.Duration
				for b.Loop() {
					for i, a := range []*agent{near, far} {
						start := time.Now()
						calls(b, a, []string{"echo", child.tool}[i], at.once)
						took[i] += time.Since(start)
					}
				}
				n := float64(b.N * at.once)
				b.ReportMetric(float64(took[0].Microseconds())/n, "µs-builtin")
				b.ReportMetric(float64(took[1].Microseconds())/n, "µs-child")
				b.ReportMetric(float64(took[1])/float64(took[0]), "x/builtin")
			})
		}
	}
}

// calls makes n calls at once and waits for them.
func calls(b *testing.B, a *agent, tool string, n int) {
	failed := make(chan error, n)
	for range n {
		go func() {
			_, err := a.call(b, tool, "some text")
			failed <- err
		}()
	}
	for range n {
		must.OK(b, <-failed)
	}
}
