package exec

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/client"
)

// TestMisbehaviour: whatever a child writes, only the request that it belongs to fails.
func TestMisbehaviour(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "junk", Options{}, func(p *Plugin) {
		p.env.MaxLineBytes = 64 << 10
		// the clock stands still, as the log takes a limited number of lines a second
		p.env.Now = func() time.Time { return time.Unix(1_000_000, 0) }
	})
	s := newStage(t, p)
	for _, tc := range []struct {
		tool string
		n    int
		code protocol.ErrorCode
		says string
	}{
		{"twice", 0, "", ""},
		{"stray", 0, "", ""},
		{"nan", 0, protocol.CodeRuntimeError, "tool/call/resp does not fit: the line is not valid JSON: "},
		{"nan", 0, protocol.CodeRuntimeError, "JSON has no NaN; a number must be finite"},
		{"shout", 100_000, "", ""},
		{"flood", 5_000, "", ""},
		{"huge", 200_000, protocol.CodeRuntimeError, "longer than 65536 bytes"},
		{"huge", 60_000, "", ""},
		{"wrong", 0, protocol.CodeRuntimeError, `answered with "env/step/resp", should be tool/call/resp`},
		{"half", 0, protocol.CodeRuntimeError, `tool/call/resp has no "data"`},
		{"bad-error", 0, protocol.CodeRuntimeError, "a malformed error"},
		{"unauthorized", 0, protocol.CodeRuntimeError, "handshake first"},
	} {
		t.Run(fmt.Sprint(tc.tool, tc.n), func(t *testing.T) {
			held := s.hold()
			m := s.tool(tc.tool, fmt.Sprintf(`{"n":%d}`, tc.n))
			assert.That(t, m.Code == tc.code && strings.Contains(m.Get("/message"), tc.says), "%.500s", m)
			s.tool("say", `{"text":"still here"}`).Has(t, "/data/data/text", "still here")
			s.cancel(held)
		})
	}
	assert.That(t, p.current().Skipped() >= 5_000, "%d lines skipped", p.current().Skipped())
	lines := strings.Count(f.log.String(), "\n")
	assert.That(t, lines <= 1000, "%d lines in the log", lines)
}

// TestRewardIsAFiniteNumber: a reward must be a finite number, as an agent cannot learn from any other.
func TestRewardIsAFiniteNumber(t *testing.T) {
	for reward, says := range map[string]string{
		"NaN": "JSON has no NaN", "1e999": "is 1e999; should be a finite number",
		`"NaN"`: `is "NaN"; should be a finite number`, "-2.5": "",
	} {
		s := newStage(t, newField(t).plugin("x", `caps=[{"capability":"env"}] reward=`+reward, Options{}))
		m := s.Call(protocol.TypeEnvStepReq, `{"episode_id":"e","action":{}}`)
		if says != "" {
			s.refused(m, protocol.CodeRuntimeError, says)
			continue
		}
		m.Has(t, "/obs/reward", reward)
	}
}

// TestDeath: a child that dies fails only its own requests, each with one answer, and is started again.
func TestDeath(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "tools=hold,die,say token=hunter2", Options{AuthToken: config.NewSecret("hunter2")})
	s := newStage(t, p, builtin(t))
	hosttest.Eventually(t, "the child's tools", p.hasListed)
	held := s.hold()
	m := s.tool("die", `{}`)
	s.refused(m, protocol.CodeRuntimeError, "the child ended: exit status 3; its stderr ends with: a last word, and "+
		"the token [redacted]")
	m.Has(t, "/retryable", "true")
	s.refused(s.Answer(held), protocol.CodeRuntimeError, "exit status 3")
	s.tool("echo", `{"text":"x"}`).Has(t, "/data/data/text", "x")
	hosttest.Eventually(t, "a new child", func() bool { return p.current() != nil })
	s.tool("say", `{"text":"back"}`).Has(t, "/data/data/text", "back")
	log := f.log.String()
	assert.That(t, !strings.Contains(log, "hunter2"), "the token is in the log: %s", log)
}

// TestFolderMadeAgain: if the workspace is removed and made again, the child works in the new folder.
func TestFolderMadeAgain(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "tools=read", Options{})
	s := newStage(t, p)
	hosttest.Eventually(t, "the child's tools", p.hasListed)
	for round := range 3 {
		text := fmt.Sprint("round ", round)
		must.OK(t, os.WriteFile(filepath.Join(f.dir, "file"), []byte(text), 0o600))
		s.tool("read", `{"text":"file"}`).Has(t, "/data/data/text", text)
		must.OK(t, os.RemoveAll(f.dir))
		must.OK(t, os.Mkdir(f.dir, 0o700))
	}
}

// TestDown: while a child is down, its requests fail at once, and those of other plugins do not.
func TestDown(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "tools=die,say", Options{MaxRestarts: 2}, func(p *Plugin) { p.times.open = time.Hour })
	s := newStage(t, ranked{p, 10}, builtin(t))
	hosttest.Eventually(t, "the child's tools", p.hasListed)
	hosttest.Eventually(t, "an open circuit", func() bool {
		s.refused(s.tool("die", `{}`), protocol.CodeRuntimeError, "exit status 3")
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.down.Paused()
	})
	m := s.tool("say", `{"text":"x"}`)
	s.refused(m, protocol.CodeRuntimeError, `plugin "x" is down: the child ended: exit status 3`)
	s.refused(m, protocol.CodeRuntimeError, "; it is started again in ")
	m.Has(t, "/retryable", "true")
	s.tool("echo", `{"text":"x"}`).Has(t, "/data/data/text", "x")
	s.refused(s.tool("nothing", `{}`), protocol.CodeRuntimeError, "is down") // the tool may be the child's
	list := s.Call(protocol.TypeToolListReq, `{}`).String()
	assert.That(t, !strings.Contains(list, `"say"`) && strings.Contains(list, `"echo"`), "%s", list)
}

// TestCannotStart: the host answers the handshake without a child that cannot start, and tries to start
// it again, less and less often.
func TestCannotStart(t *testing.T) {
	for name, tc := range map[string]struct {
		role string
		opts Options
		says string
	}{
		"dies": {"die-at-start", Options{}, "the child ended: exit status 4; its stderr ends with: it cannot run"},
		"mute": {"mute", Options{StartTimeout: 300 * time.Millisecond}, "it did not answer handshake/req " +
			"within 300ms"},
		"token": {
			"token=other",
			Options{AuthToken: config.NewSecret("hunter2")},
			`it refused the handshake: "auth_failed"`,
		},
		"not there": {"", Options{Command: []string{"no-such-program-here"}}, "no-such-program-here"},
		"no folder": {"", Options{Cwd: "nowhere"}, "nowhere"},
		"outside":   {"", Options{Cwd: ".."}, "cwd"},
		"no speech": {"", Options{Command: []string{"echo", "hello"}}, "the child ended: exit status 0"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newField(t)
			p := f.plugin("x", tc.role, tc.opts)
			s := open(t, p, builtin(t))
			s.Handshake(protocol.CapTools).Has(t, "/accepted_caps/0/metadata/name", "builtin")
			m := s.tool("say", `{}`)
			s.refused(m, protocol.CodeRuntimeError, tc.says)
			s.tool("echo", `{"text":"x"}`).Has(t, "/data/data/text", "x")
			hosttest.Eventually(t, "more starts", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.down.Failures >= 2 })
			assert.That(t, !strings.Contains(f.log.String(), "hunter2"), "the token is in the log")
		})
	}
}

// TestHung: a child that does not even answer pings is killed, and its requests fail.
func TestHung(t *testing.T) {
	f := newField(t)
	var now clock
	p := f.plugin("x", "", Options{}, now.rules)
	s := newStage(t, p)
	first := p.current()
	id := s.Go(protocol.TypeToolCallReq, `{"tool_name":"hang","arguments":{},"timeout":1000}`)
	hosttest.Eventually(t, "the request at the child", func() bool { return first.owed() == 1 })
	now.pass(t, time.Hour) // now the child is pinged
	now.pass(t, time.Hour)
	s.refused(s.Answer(id), protocol.CodeRuntimeError, "not even to a ping")
	s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
}

// TestBusyIsNotHung: a child that works on a request for long and does nothing else meanwhile is not
// killed.
func TestBusyIsNotHung(t *testing.T) {
	for _, role := range []string{"", "no-ping"} {
		f := newField(t)
		var now clock
		p := f.plugin("x", role, Options{}, now.rules)
		s := newStage(t, p)
		first := p.current()
		id := s.Go(protocol.TypeToolCallReq, `{"tool_name":"block","arguments":{"text":"go"},"timeout":1000}`)
		hosttest.Eventually(t, "the request at the child", func() bool { return first.owed() == 1 })
		now.pass(t, 500*time.Second)
		now.pass(t, 500*time.Second)
		f.write("go")
		s.Answer(id).Has(t, "/data/success", "true")
		s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x") // the child has answered the ping before this
		now.pass(t, time.Hour)
		s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
		assert.That(t, p.current() == first, "it was ended: %s", f.log)
	}
}

// TestEndlessJunk: a child that writes only junk is killed.
func TestEndlessJunk(t *testing.T) {
	f := newField(t)
	p := f.plugin("x", "", Options{Command: []string{"yes", strings.Repeat("junk", 1000)}})
	s := open(t, p)
	s.Handshake(protocol.CapTools).Has(t, "/ok", "false")
	hosttest.Eventually(t, "its end", func() bool { return strings.Contains(f.log.String(), "64 MiB in a row") })
}

// TestBadList: a list of tools that is not valid is left out; the lists of other plugins are not.
func TestBadList(t *testing.T) {
	f := newField(t)
	p := f.plugin("bad", "bad-list", Options{})
	s := newStage(t, ranked{p, 10}, builtin(t), f.plugin("good", "tools=fine", Options{}))
	m := s.Call(protocol.TypeToolListReq, `{}`)
	text := string(m.Line)
	assert.That(t, strings.Contains(text, `"fine"`) && strings.Contains(text, `"echo"`), "%s", m)
}

// TestFarewell: a child is told of the end of the host, and is killed if it stays.
func TestFarewell(t *testing.T) {
	for role, grace := range map[string]time.Duration{"note-shutdown": patience, "stays": 10 * time.Millisecond} {
		f := newField(t)
		p := f.plugin("x", role, Options{}, func(p *Plugin) { p.times.farewell = grace })
		s := newStage(t, p)
		s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
		c := p.current()
		assert.OK(t, p.Close(t.Context())) // the host would not wait as long as patience
		_, err := os.Stat(filepath.Join(f.dir, "shutdown"))
		assert.That(t, err == nil || grace != patience, "%v", err)
		select {
		case <-c.Done():
		default:
			t.Error("the child outlives the host")
		}
	}
}

func TestOptions(t *testing.T) {
	f := newField(t)
	for says, tc := range map[string]struct {
		opts      Options
		exclusive bool
	}{
		"command is missing":                 {opts: Options{}},
		"NUL character":                      {opts: Options{Command: []string{"a\x00"}}},
		"exclusive: true needs capabilities": {opts: Options{Command: []string{"a"}}, exclusive: true},
		`"tool"; there are skill, tools, too`: {opts: Options{
			Command:      []string{"a"},
			Capabilities: []protocol.Capability{"tool"},
		}},
		`types: "tool/call/req"`: {opts: Options{Command: []string{"a"}, Types: []string{"tool/call/req"}}},
		`types: "a b"`:           {opts: Options{Command: []string{"a"}, Types: []string{"a b"}}},
		"appears twice":          {opts: Options{Command: []string{"a"}, Types: []string{"a/req", "a/req"}}},
		"max_parallel":           {opts: Options{Command: []string{"a"}, MaxParallel: 5000}},
		"start_timeout":          {opts: Options{Command: []string{"a"}, StartTimeout: -1}},
	} {
		_, err := New("x", tc.opts, host.Env{Workspace: f.dir, Launcher: nil, Exclusive: tc.exclusive})
		assert.That(t, err != nil && strings.Contains(err.Error(), says) && strings.Contains(err.Error(), `plugin "x"`),
			"%v, should say %s", err, says)
	}
}

// TestPrintedMessages: messages of a child with a prefix, as the public Python SDK prints them, are
// read, and only once if the child also writes them without the prefix. An answer may lack its req_id.
func TestPrintedMessages(t *testing.T) {
	for _, role := range []string{"prints", "prints-too"} {
		f := newField(t)
		s := newStage(t, f.plugin("x", role, Options{}))
		s.tool("say", `{"text":"x"}`).Has(t, "/data/data/text", "x")
		id := s.Go(protocol.TypeToolCallReq, `{"tool_name":"flood","arguments":{"n":3},"streaming":true}`)
		s.Answer(id).Has(t, "/data/success", "true")
		events := eventsOf(s.Messages(), id)
		assert.Equal(t, len(events), 3, "%s: %v", role, events)
		s.tool("nameless", `{}`).Has(t, "/data/success", "true")
	}
}

// agent is a client of a host in memory, for tests with many calls.
type agent struct {
	*client.Client
	mu      sync.Mutex
	answers map[string]int // by req_id; guarded by mu
}

func newAgent(t testing.TB, plugins ...host.Plugin) *agent {
	t.Helper()
	h := must.Get(host.New(host.Options{Plugins: plugins, MaxParallel: 16}))(t)
	toHost, in := io.Pipe()
	out, fromHost := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := h.Serve(toHost, fromHost)
		fromHost.Close()
		ended <- err
	}()
	a := &agent{answers: make(map[string]int)}
	a.Client = client.Attach(out, in, client.Options{OnLine: a.count})
	t.Cleanup(func() { must.OK(t, a.Close(), <-ended) })
	must.Get(a.Handshake(t.Context(), "ann", []protocol.Capability{protocol.CapTools}, ""))(t)
	return a
}

func (a *agent) count(line []byte) {
	var l protocol.Line
	if err := l.Scan(line); err == nil && l.ReqID != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.answers[string(l.ReqID)]++
	}
}

// call calls a tool with a text, and returns the text of its result.
func (a *agent) call(t testing.TB, tool, text string) (string, error) {
	var resp struct {
		Data struct {
			Data struct {
				Text string `json:"text"`
			} `json:"data"`
		} `json:"data"`
	}
	err := a.Call(t.Context(), protocol.TypeToolCallReq, map[string]any{
		"tool_name": tool,
		"arguments": map[string]any{"text": text},
	}, &resp)
	return resp.Data.Data.Text, err
}

// TestHostAsChild: another a2e works as the child, with its tools, its processes and its memory, and
// with messages before and after an answer.
func TestHostAsChild(t *testing.T) {
	f := newField(t)
	p := f.plugin("inner", "", Options{Command: []string{hosttest.Program(t, "a2e"), "serve"}})
	s := open(t, p)
	m := s.Call(protocol.TypeHandshakeReq, `{"agent_id":"ann","agent_caps":["tools","proc","memory","planning"]}`)
	for i := range 4 {
		m.Has(t, fmt.Sprintf("/accepted_caps/%d/enabled", i), "true")
	}
	s.tool("echo", `{"text":"x"}`).Has(t, "/data/data/text", "x")
	s.refused(s.tool("ehco", `{}`), protocol.CodeUnknownTool, "did you mean")
	s.tool("write_file", `{"path":"a.txt","content":"hi"}`).Has(t, "/data/success", "true")
	text, err := os.ReadFile(f.dir + "/a.txt")
	assert.That(t, err == nil && string(text) == "hi", "%q %v", text, err)
	id := s.Go(protocol.TypeProcSpawnReq, `{"cmd":["bash","-c","echo one; sleep 0.2; echo two"]}`)
	spawned := s.Answer(id)
	spawned.Has(t, "/ok", "true")
	s.Wait("its output", func(m hosttest.Message) bool { return m.ReqID == id && m.Get("/data/text") == "two\n" })
	s.Wait("its end", func(m hosttest.Message) bool { return m.ReqID == id && m.Get("/data/code") == "0" })
	long := s.Call(protocol.TypeProcSpawnReq, `{"cmd":["sleep","1000"]}`)
	s.Call(protocol.TypeProcKillReq, fmt.Sprintf(`{"proc_id":%q}`, long.Get("/proc_id"))).Has(t, "/ok", "true")
	created := s.Call(protocol.TypeMemoryInitReq, `{"namespace":"n"}`)
	created.Has(t, "/success", "true")
	stored := s.Call(protocol.TypeMemoryStoreReq, fmt.Sprintf(`{"memory_id":%q,"entries":[{"key":{"k":1},"content":{"v":"x"},"tier":"working"}]}`, created.Get("/memory_id")))
	assert.That(t, stored.Type == protocol.TypeMemoryStoreResp && !strings.Contains(stored.String(), `"stored":[]`),
		"%s", stored)
	// A new session of the agent is also a new session of the child: the working memory is empty.
	s.Call(protocol.TypeHandshakeReq, `{"agent_id":"ann","agent_caps":["memory"]}`)
	again := s.Call(protocol.TypeMemoryInitReq, `{"namespace":"n"}`)
	got := s.Call(protocol.TypeMemoryRetrieveReq, fmt.Sprintf(`{"memory_id":%q,"tier":"working"}`,
		again.Get("/memory_id")))
	got.Has(t, "/total", "0")
}
