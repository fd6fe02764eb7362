package exec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
	"a2e/protocol/client"
)

// agent is a client of a host in memory, for tests with many calls.
type agent struct {
	*client.Client
	mu      sync.Mutex
	answers map[string]int // by req_id; guarded by mu
}

func newAgent(t testing.TB, plugins ...host.Plugin) *agent {
	t.Helper()
	h, err := host.New(host.Options{Plugins: plugins, MaxParallel: 16})
	if err != nil {
		t.Fatal(err)
	}
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
	t.Cleanup(func() {
		if err := errors.Join(a.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
	if _, err := a.Handshake(t.Context(), "ann", []protocol.Capability{protocol.CapTools}, ""); err != nil {
		t.Fatal(err)
	}
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

// call calls a tool with a text, and gives the text of its result.
func (a *agent) call(t testing.TB, tool, text string) (string, error) {
	var resp struct {
		Data struct {
			Data struct {
				Text string `json:"text"`
			} `json:"data"`
		} `json:"data"`
	}
	err := a.Call(t.Context(), protocol.TypeToolCallReq, map[string]any{"tool_name": tool, "arguments": map[string]any{"text": text}}, &resp)
	return resp.Data.Data.Text, err
}

// Thousands of calls of two plugins whose children are killed in between, and of the built-in
// tools beside them: each is answered once, those of the built-in tools all well.
func TestKillsInBetween(t *testing.T) {
	f := newField(t)
	again := func(p *Plugin) {
		p.times.firstDelay, p.times.maxDelay, p.times.open = time.Millisecond, 5*time.Millisecond, 5*time.Millisecond
	}
	a, b := f.plugin("a", "tools=say", Options{}, again), f.plugin("b", "tools=tell", Options{}, again)
	s := newAgent(t, ranked{a, 10}, builtin(t), b)
	for _, p := range []*Plugin{a, b} {
		hosttest.Eventually(t, "its tools", func() bool { return len(p.names.known(fieldTool)) > 0 })
	}
	calls := int64(hosttest.Soak(t, "A2E_SOAK_EXEC_CALLS", 2_000))
	tools := []string{"say", "echo", "tell"}
	var done atomic.Int64
	var well [3]atomic.Int64
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			for n := done.Add(1); n <= calls; n = done.Add(1) {
				kind := int(n) % 3
				text, err := s.call(t, tools[kind], fmt.Sprint(n))
				var own *protocol.Error
				switch {
				case err == nil && text == fmt.Sprint(n):
					well[kind].Add(1)
				case kind == 1, !errors.As(err, &own), own.Code != protocol.CodeRuntimeError, !own.Retryable:
					t.Errorf("call %d of %s: %q %v", n, tools[kind], text, err)
				}
			}
		})
	}
	kills := killInTurn(t, &done, calls, a, b)
	all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.answers {
		if n != 1 {
			t.Errorf("%s was answered %d times", id, n)
		}
	}
	if int64(len(s.answers)) != calls+1 || kills < calls/400 {
		t.Errorf("%d answers, %d kills", len(s.answers), kills)
	}
	t.Logf("%d kills; of %d calls each %d of a, %d of b and %d of the built-in tool went well", kills, calls/3, well[0].Load(), well[2].Load(), well[1].Load())
	for kind := range well {
		if n := well[kind].Load(); n < calls/30 {
			t.Errorf("only %d calls of %s went well", n, tools[kind])
		}
	}
}

// killInTurn kills the children of some plugins, one for each 200 calls.
func killInTurn(t *testing.T, done *atomic.Int64, calls int64, plugins ...*Plugin) (kills int64) {
	for done.Load() < calls {
		c := plugins[kills%int64(len(plugins))].current()
		if c == nil || kills*200 > done.Load() {
			time.Sleep(time.Millisecond)
			continue
		}
		process, err := os.FindProcess(c.PID())
		if err == nil {
			err = process.Kill()
		}
		if err != nil {
			t.Errorf("kill: %v", err)
		}
		kills++
		<-c.Done()
	}
	return kills
}

// Another a2e as the child: its tools, its processes, its memory, with all that comes
// before and after an answer.
func TestHostAsChild(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	f := newField(t)
	p := f.plugin("inner", "", Options{Command: []string{path, "serve"}})
	s := open(t, p)
	m := s.Call(protocol.TypeHandshakeReq, `{"agent_id":"ann","agent_caps":["tools","proc","memory","planning"]}`)
	for i := range 4 {
		s.must(m, fmt.Sprintf("/accepted_caps/%d/enabled", i), "true")
	}
	s.must(s.tool("echo", `{"text":"x"}`), "/data/data/text", "x")
	s.refused(s.tool("ehco", `{}`), protocol.CodeUnknownTool, "did you mean")
	s.must(s.tool("write_file", `{"path":"a.txt","content":"hi"}`), "/data/success", "true")
	if text, err := os.ReadFile(f.dir + "/a.txt"); err != nil || string(text) != "hi" {
		t.Errorf("%q %v", text, err)
	}
	id := s.Go(protocol.TypeProcSpawnReq, `{"cmd":["bash","-c","echo one; sleep 0.2; echo two"]}`)
	spawned := s.Answer(id)
	s.must(spawned, "/ok", "true")
	s.Wait("its output", func(m hosttest.Message) bool { return m.ReqID == id && m.Get("/data/text") == "two\n" })
	s.Wait("its end", func(m hosttest.Message) bool { return m.ReqID == id && m.Get("/data/code") == "0" })
	long := s.Call(protocol.TypeProcSpawnReq, `{"cmd":["sleep","1000"]}`)
	s.must(s.Call(protocol.TypeProcKillReq, fmt.Sprintf(`{"proc_id":%q}`, long.Get("/proc_id"))), "/ok", "true")
	created := s.Call(protocol.TypeMemoryInitReq, `{"namespace":"n"}`)
	s.must(created, "/success", "true")
	stored := s.Call(protocol.TypeMemoryStoreReq, fmt.Sprintf(`{"memory_id":%q,"entries":[{"key":{"k":1},"content":{"v":"x"},"tier":"working"}]}`, created.Get("/memory_id")))
	if stored.Type != protocol.TypeMemoryStoreResp || strings.Contains(stored.String(), `"stored":[]`) {
		t.Errorf("%s", stored)
	}
	// A new session of the agent is one of the child as well: the working memory is gone.
	s.Call(protocol.TypeHandshakeReq, `{"agent_id":"ann","agent_caps":["memory"]}`)
	again := s.Call(protocol.TypeMemoryInitReq, `{"namespace":"n"}`)
	got := s.Call(protocol.TypeMemoryRetrieveReq, fmt.Sprintf(`{"memory_id":%q,"tier":"working"}`, again.Get("/memory_id")))
	s.must(got, "/total", "0")
}
