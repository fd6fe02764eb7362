package host_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// patience is how long these tests wait for something that should happen at once.
const patience = time.Minute

// rawPipe is a host in memory whose lines may belong to any protocol.
type rawPipe struct {
	t    testing.TB
	host *host.Host
	in   *io.PipeWriter
	done chan struct{}

	mu    sync.Mutex // guards the fields below
	text  []byte
	stuck chan struct{} // writes of the host wait until it is closed; nil = they do not wait
}

func newRawPipe(t testing.TB, opts host.Options) *rawPipe {
	t.Helper()
	h := must.Get(host.New(opts))(t)
	in, w := io.Pipe()
	p := &rawPipe{t: t, host: h, in: w, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		assert.OK(t, h.Serve(in, p))
		in.CloseWithError(io.ErrClosedPipe)
	}()
	t.Cleanup(p.end)
	return p
}

func (p *rawPipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	stuck := p.stuck
	p.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = append(p.text, b...)
	return len(b), nil
}

// end closes the input and waits for the host.
func (p *rawPipe) end() {
	p.in.Close()
	p.ended()
}

func (p *rawPipe) ended() {
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("the host did not end; it said\n%s", p.said())
	}
}

func (p *rawPipe) send(lines ...string) { _, _ = io.WriteString(p.in, strings.Join(lines, "\n")+"\n") }

// said returns the lines that the host has written so far.
func (p *rawPipe) said() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Split(strings.TrimSuffix(string(p.text), "\n"), "\n")
}

// wait waits for a line that contains all these words, and returns it.
func (p *rawPipe) wait(words ...string) (found string) {
	p.t.Helper()
	p.until(fmt.Sprint(words), func() bool {
		for _, found = range p.said() {
			has := true
			for _, word := range words {
				has = has && strings.Contains(found, word)
			}
			if has {
				return true
			}
		}
		return false
	})
	return found
}

func (p *rawPipe) until(what string, holds func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("never: %s; the host said\n%s", what, strings.Join(p.said(), "\n"))
		}
	}
}

// parrot is a dialect whose lines have a key "parrot". It sends the value of that key back.
type parrot struct {
	take  func(d *parrot, word string) // called for each word instead of sending it back; nil = send it back
	drain func(ctx context.Context)
	ctx   context.Context
	out   host.Output

	drained atomic.Int32
}

func (d *parrot) Open(ctx context.Context, out host.Output) { d.ctx, d.out = ctx, out }

func (d *parrot) Mine(line *protocol.Line) bool {
	_, ok := line.Object().Get("parrot")
	return ok
}

func (d *parrot) Take(line *protocol.Line) *host.Work {
	word := line.Object().Text("parrot")
	if d.take != nil {
		d.take(d, word)
		return nil
	}
	d.say(word)
	return nil
}

func (d *parrot) say(word string) { d.out.Send([]byte(`{"said":"` + word + `"}`)) }

func (d *parrot) Broken(_ *protocol.Line, err *protocol.Error) { d.say("broken " + string(err.Code)) }

func (d *parrot) Drain(ctx context.Context) {
	d.drained.Add(1)
	if d.drain != nil {
		d.drain(ctx)
	}
}

const shake = `{"type":"handshake/req","id":"h","agent_id":"a","agent_caps":["tools","proc","mcp"]}`

// TestDialectLines: the host passes each line to the protocol that the line belongs to, and a broken line to the
// protocol of the last valid line.
func TestDialectLines(t *testing.T) {
	p := newRawPipe(t, host.Options{Dialects: []host.Dialect{&parrot{}}, Limits: host.Limits{LineBytes: 1000}})
	long := `{"parrot":"` + strings.Repeat("x", 2000) + `"}`
	for _, step := range []struct {
		line  string
		words []string
	}{
		{`{"broken`, []string{`"type":"error"`, `"parse_error"`}},
		{`{"parrot":"one"}`, []string{`{"said":"one"}`}},
		{`{"also broken`, []string{`{"said":"broken parse_error"}`}},
		{`[1,2]`, []string{`{"said":"broken invalid_message"}`}},
		{`{"type":"ping","id":"p1"}`, []string{`"pong"`, `"p1"`}},
		{`{"type":"unknown","id":"u1"}`, []string{`"type":"error"`, `"u1"`}},
		{`[1,2]`, []string{`"type":"error"`, `not an object`}},
		{long, []string{`"type":"error"`, `max_line_bytes`}},
		{`{"parrot":"two"}`, []string{`{"said":"two"}`}},
	} {
		p.send(step.line)
		p.wait(step.words...)
	}
	before := len(p.said())
	p.send(long, `{"of":"no protocol"}`, `[1,2]`, `{"parrot":"three"}`)
	p.wait("three")
	for i, line := range p.said()[before : before+3] {
		assert.Equal(t, line, `{"said":"broken invalid_message"}`, "line %d was answered by", i)
	}
}

// TestOnlyDialect: a host that serves only another protocol passes every line to its dialect, also A2E's.
func TestOnlyDialect(t *testing.T) {
	_, err := host.New(host.Options{Only: true})
	assert.That(t, err != nil, "a host without any protocol was made")
	p := newRawPipe(t, host.Options{
		Dialects: []host.Dialect{&parrot{}}, Only: true,
		Limits: host.Limits{LineBytes: 1000},
	})
	p.send(`{"type":"ping","id":"1"}`, `{"broken`, strings.Repeat("x", 2000), `{"parrot":"last"}`)
	p.wait("last")
	want := []string{
		`{"said":""}`, `{"said":"broken parse_error"}`, `{"said":"broken invalid_message"}`,
		`{"said":"last"}`,
	}
	got := p.said()
	assert.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "it said")
}

// TestDialectFaults: a dialect that panics or ends its goroutine does not affect later lines or the other protocols.
func TestDialectFaults(t *testing.T) {
	d := &parrot{take: func(d *parrot, word string) {
		switch word {
		case "panic":
			panic(word)
		case "goexit":
			runtime.Goexit()
		}
		d.say(word)
	}, drain: func(context.Context) { panic("at the end") }}
	p := newRawPipe(t, host.Options{Dialects: []host.Dialect{d}})
	for i, word := range []string{"panic", "goexit", "panic"} {
		p.send(fmt.Sprintf(`{"parrot":%q}`, word), fmt.Sprintf(`{"parrot":"after %d"}`, i),
			fmt.Sprintf(`{"type":"ping","id":"ping %d"}`, i))
		p.wait(fmt.Sprint("after ", i))
		p.wait(fmt.Sprint("ping ", i))
	}
	p.end()
	assert.Equal(t, d.drained.Load(), 1, "Drain was called … times")
}

// TestDialectThatWaits: a Take that waits, which is not allowed, delays only the lines of dialects, and these stay in
// order.
func TestDialectThatWaits(t *testing.T) {
	gate := make(chan struct{})
	d := &parrot{take: func(d *parrot, word string) {
		if word == "slow" {
			<-gate
		}
		d.say(word)
	}}
	p := newRawPipe(t, host.Options{Dialects: []host.Dialect{d}})
	p.send(`{"parrot":"slow"}`, `{"parrot":"quick"}`, `{"type":"ping","id":"p"}`)
	p.wait("pong")
	close(gate)
	p.wait("quick")
	said := p.said()
	assert.That(t, strings.Contains(said[1], "slow"), "it said %s", said)
}

// TestDialectAndFullOutput guards against a goroutine, and a copy of the input, for each line that a dialect answers
// at once while nobody reads the output.
func TestDialectAndFullOutput(t *testing.T) {
	const lines = 2000
	p := newRawPipe(t, host.Options{Dialects: []host.Dialect{&parrot{}}, Limits: host.Limits{OutputBuffer: 64 << 10}})
	p.send(`{"parrot":"begin"}`)
	p.wait("begin")
	stuck := make(chan struct{})
	p.mu.Lock()
	p.stuck = stuck
	p.mu.Unlock()
	before := runtime.NumGoroutine()
	word := strings.Repeat("w", 100)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		var all bytes.Buffer
		for i := range lines {
			fmt.Fprintf(&all, `{"parrot":"%d %s"}`+"\n", i, word)
			if i%3 == 0 {
				all.WriteString("{broken\n")
			}
		}
		_, _ = p.in.Write(all.Bytes())
	}()
	most := 0
	for deadline := time.Now().Add(100 * time.Millisecond); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		most = max(most, runtime.NumGoroutine()-before)
	}
	assert.That(t, most <= 20, "%d goroutines wait for one reader", most)
	p.mu.Lock()
	p.stuck = nil
	p.mu.Unlock()
	close(stuck)
	<-sent
	p.wait(fmt.Sprint(lines-1, " w"))
	assert.Equal(t, strings.Count(strings.Join(p.said(), "\n"), "broken parse_error"), (lines+2)/3,
		"… broken lines were answered")
}

// TestDialectDrain: at its end the host waits for its dialects, but not longer than the shutdown allows.
func TestDialectDrain(t *testing.T) {
	for name, c := range map[string]struct {
		last string // the line that ends the host; "" = the end of the input
		want string
	}{
		"end of input": {"", "answered"},
		"shutdown":     {`{"type":"shutdown","timeout":0}`, "cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			gate := make(chan struct{})
			d := &parrot{}
			d.drain = func(ctx context.Context) {
				select {
				case <-gate:
					d.say("answered")
				case <-ctx.Done():
					d.say("cut off")
				}
			}
			p := newRawPipe(t, host.Options{Dialects: []host.Dialect{d}})
			p.send(`{"parrot":"begin"}`)
			p.wait("begin")
			if c.last != "" {
				p.send(c.last)
			} else {
				p.in.Close()
				p.until("a drain", func() bool { return d.drained.Load() == 1 })
				close(gate)
			}
			p.ended()
			p.wait(c.want)
		})
	}
}

// TestDialectDrainComesLast guards against a Drain that is called before Take has returned: nobody would answer the
// request of that line.
func TestDialectDrainComesLast(t *testing.T) {
	gate := make(chan struct{})
	taken := make(chan struct{})
	d := &parrot{}
	d.take = func(d *parrot, word string) {
		close(taken)
		<-gate
		assert.That(t, d.drained.Load() <= 0, "Drain was called while a line was being taken in")
		d.say(word)
	}
	p := newRawPipe(t, host.Options{Dialects: []host.Dialect{d}})
	p.send(`{"parrot":"slow"}`)
	<-taken
	p.send(`{"type":"ping","id":"p"}`)
	p.wait("pong")
	p.in.Close()
	go func() {
		time.Sleep(20 * time.Millisecond) // by then the host has reached its end and waits
		close(gate)
	}()
	p.ended()
	p.wait("slow")
	assert.Equal(t, d.drained.Load(), 1, "Drain was not called")
}

// TestDialectLinesStayInOrder: lines reach a dialect in order, also if the dialect is slow with one and the host
// continues to read on another goroutine.
func TestDialectLinesStayInOrder(t *testing.T) {
	gate := make(chan struct{})
	taken := make(chan struct{})
	d := &parrot{}
	d.take = func(d *parrot, word string) {
		if word == "0" {
			close(taken)
			<-gate
		}
		d.say(word)
	}
	p := newRawPipe(t, host.Options{Dialects: []host.Dialect{d}})
	p.send(`{"parrot":"0"}`)
	<-taken
	for i := 1; i < 6; i++ {
		p.send(fmt.Sprintf(`{"parrot":"%d"}`, i))
	}
	p.send(`{"type":"ping","id":"p"}`)
	p.wait("pong") // the host has read all lines
	close(gate)
	p.in.Close()
	p.ended()
	var got []string
	for _, line := range p.said() {
		if !strings.Contains(line, "pong") {
			got = append(got, line)
		}
	}
	for i, line := range got {
		must.That(t, strings.Contains(line, fmt.Sprint(i)), "line %d is %s", i, line)
	}
	assert.Equal(t, len(got), 6, "… lines")
}

// watcher is a plugin that notes the sessions that end. It serves test/ask by asking the agent.
type watcher struct {
	mu    sync.Mutex
	ended []string
}

func (w *watcher) Info() host.PluginInfo {
	return host.PluginInfo{Name: "watcher", Capability: protocol.CapMCP, Also: []protocol.Capability{protocol.CapTest}}
}

func (w *watcher) Routes() []host.Route {
	return []host.Route{host.Handle("test/ask", func(ctx context.Context, _ *struct{},
		_ host.Emitter,
	) (*protocol.MCPSampleResponse, error) {
		resp := new(protocol.MCPSampleResponse)
		return resp, host.ServicesOf(ctx).Ask(ctx, protocol.TypeMCPSampleReq, &protocol.MCPSampleRequest{ServerID: "w"},
			resp)
	})}
}

func (w *watcher) EndSession(_ context.Context, s *host.Session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = append(w.ended, s.AgentID)
}

func (w *watcher) Close(context.Context) error { return nil }

// TestBeginSession: a session of a dialect exists beside the session of the handshake. The questions of plugins in it
// go to the dialect's own agent.
func TestBeginSession(t *testing.T) {
	w, d := &watcher{}, &parrot{}
	got := make(chan string, 1)
	d.take = func(d *parrot, word string) {
		go func() {
			var ask host.Asker
			if word != "mute" {
				ask = func(_ context.Context, typ protocol.Type, req, resp any) error {
					resp.(*protocol.MCPSampleResponse).Model = string(typ) + " for " +
						req.(*protocol.MCPSampleRequest).ServerID
					return nil
				}
			}
			ctx, sess, end := host.BeginSession(d.ctx, word, ask)
			assert.That(t, host.SessionFrom(ctx) == sess && sess.AgentID == word && sess.ID != "" && sess.Caps["mcp"] &&
				sess.Caps["test"] && !sess.Caps["tools"], "the session is %+v", sess)
			var resp protocol.MCPSampleResponse
			err := host.ServicesOf(ctx).Call(ctx, "test/ask", struct{}{}, &resp, nil)
			end()
			assert.Fails(t, ctx.Err(), "", "the session's context goes on after its end")
			got <- fmt.Sprint(resp.Model, err)
		}()
	}
	p := newRawPipe(t, host.Options{Plugins: []host.Plugin{w}, Dialects: []host.Dialect{d}})
	p.send(shake)
	p.wait("handshake/resp")
	for word, want := range map[string]string{"talks": "mcp/sample/req for w<nil>", "mute": "runtime_error: " +
		"mcp/sample/req cannot be asked"} {
		p.send(fmt.Sprintf(`{"parrot":%q}`, word))
		assert.Contains(t, <-got, want, "%s", word)
	}
	p.end()
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.That(t, fmt.Sprint(w.ended) == "[talks mute a]" || fmt.Sprint(w.ended) == "[mute talks a]", "ended: %v",
		w.ended)
}

// late is a plugin that learns only after its start which requests it serves.
type late struct {
	watcher
	ready chan struct{}
}

func (l *late) Ready(ctx context.Context) {
	select {
	case <-l.ready:
	case <-ctx.Done():
	}
}

// TestReadier: the host answers a handshake only when all plugins know what they serve. It answers pings before that.
func TestReadier(t *testing.T) {
	l := &late{ready: make(chan struct{})}
	p := newRawPipe(t, host.Options{Plugins: []host.Plugin{l}})
	p.send(shake, `{"type":"ping","id":"p"}`)
	p.wait("pong")
	said := strings.Join(p.said(), "\n")
	assert.That(t, !strings.Contains(said, "handshake"), "the handshake did not wait: %s", said)
	p.send(`{"type":"tool/list/req","id":"waits"}`, `{"type":"cancel","id":"c","req_id":"waits"}`)
	p.wait(`"cancelled"`, `"waits"`) // a request that waits behind a handshake can be cancelled
	close(l.ready)
	p.wait("handshake/resp")
	said = strings.Join(p.said(), " ")
	assert.That(t, !strings.Contains(said, "unauthorized"), "the cancel was refused: %s", said)
}
