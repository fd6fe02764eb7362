package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/observe/event"
	"a2e/protocol"
)

// tap is an output whose reader can pause or be slow. It is for a synctest bubble.
type tap struct {
	mu   sync.Mutex
	open chan struct{} // guarded by mu; closed while the reader reads
	slow time.Duration // guarded by mu; the time that each read takes
	got  bytes.Buffer  // guarded by mu
}

func newTap() *tap {
	t := &tap{open: make(chan struct{})}
	close(t.open)
	return t
}

func (t *tap) Write(b []byte) (int, error) {
	t.mu.Lock()
	open, slow := t.open, t.slow
	t.mu.Unlock()
	<-open
	time.Sleep(slow)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.got.Write(b)
}

// shut stops the reader until resume is called.
func (t *tap) shut() (resume func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	open := make(chan struct{})
	t.open = open
	return sync.OnceFunc(func() { close(open) })
}

func (t *tap) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.got.String()
}

// scene is a host in a synctest bubble, with its input and output for the test.
type scene struct {
	*host.Host
	in    *io.PipeWriter
	out   *tap
	ended chan error
}

// bubble starts a host with a session of the agent "a".
func bubble(t *testing.T, opts host.Options) *scene {
	t.Helper()
	h := must.Get(host.New(opts))(t)
	r, in := io.Pipe()
	b := &scene{h, in, newTap(), make(chan error, 1)}
	go func() {
		err := h.Serve(r, b.out)
		r.Close()
		b.ended <- err
	}()
	b.hello("a")
	time.Sleep(time.Second)
	return b
}

func (b *scene) line(typ protocol.Type, id, fields string) {
	_, _ = io.WriteString(b.in, hosttest.Request(typ, id, fields)+"\n") // an error means that the host has ended
}

func (b *scene) hello(agent string) {
	b.line(protocol.TypeHandshakeReq, agent, fmt.Sprintf(`{"agent_id":%q,"agent_caps":["proc","tools"]}`, agent))
}

// end waits until the host has ended, closes the input and returns how long the wait was.
func (b *scene) end(t *testing.T) time.Duration {
	t.Helper()
	begun := time.Now()
	assert.OK(t, <-b.ended)
	b.in.Close()
	return time.Since(begun)
}

// flood sends on a stream until the stream is closed, or until 20 MB are sent. It counts the bytes sent.
type flood struct {
	sent atomic.Int64
	err  chan error
}

func newFlood() *flood { return &flood{err: make(chan error, 1)} }

func (f *flood) run(stream *host.Stream) {
	const size, most = 1000, 20_000
	for i := range most {
		if err := send(stream, i, size); err != nil {
			f.err <- err
			return
		}
		f.sent.Add(size)
	}
	f.err <- errors.New("nothing has stopped the flood")
}

// closed fails unless the flood ended because its stream was closed.
func (f *flood) closed(t *testing.T) {
	t.Helper()
	assert.Is(t, <-f.err, host.ErrStreamClosed, "Send")
}

// TestSendWaitsForItsCreditOnly: while the stream has credit, Send returns without waiting for a peer that does not
// read, so a sender can call Close at once.
func TestSendWaitsForItsCreditOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := make(chan *host.Stream, 1)
		s := &source{spawn: func(_ context.Context, stream *host.Stream) error {
			opened <- stream
			return nil
		}}
		b := bubble(t, host.Options{Plugins: []host.Plugin{s}})
		b.line(protocol.TypeProcSpawnReq, "one", `{}`)
		time.Sleep(time.Second)
		resume := b.out.shut()
		stream, sent := <-opened, make(chan error, 1)
		go func() { sent <- send(stream, 0, 10) }()
		synctest.Wait()
		select {
		case err := <-sent:
			assert.OK(t, err)
		default:
			t.Error("Send waits until its message is written")
		}
		stream.Close()
		resume()
		b.in.Close()
		b.end(t)
		assert.Contains(t, b.out.text(), `"req_id":"one","kind"`, "what was sent before Close is lost")
	})
}

// TestWorkerIsNotTheFlusherOfOthers: a worker that writes its answer gets its slot back even if a stream sends
// without a pause meanwhile.
func TestWorkerIsNotTheFlusherOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loud, begin := newFlood(), make(chan struct{})
		s := &source{spawn: func(_ context.Context, stream *host.Stream) error {
			go func() {
				<-begin
				loud.run(stream)
			}()
			return nil
		}}
		l := newLab()
		b := bubble(t, host.Options{Plugins: []host.Plugin{s, l}, MaxParallel: 1})
		b.line(protocol.TypeProcSpawnReq, "one", `{}`)
		b.line(protocol.TypeToolCallReq, "worker", tool("block", `{"id":"worker"}`))
		b.line(protocol.TypeToolCallReq, "next", tool("block", `{"id":"next"}`))
		time.Sleep(time.Second) // the goroutine of the worker no longer reads the input
		<-l.begun
		resume := b.out.shut()
		b.out.mu.Lock()
		b.out.slow = time.Millisecond
		b.out.mu.Unlock()
		close(l.gate)
		synctest.Wait() // the worker is now writing its answer
		close(begin)
		synctest.Wait()
		resume()
		time.Sleep(100 * time.Millisecond)
		select {
		case <-l.begun:
		default:
			t.Error("the worker still writes what the stream sends")
		}
		b.Shutdown(0)
		b.end(t)
		loud.closed(t)
	})
}

// TestFloodAtTheEnd: while nobody reads, a stream stays within its credit at the end of the host, however long
// EndSession takes. A waiting Send is released in time, and Close has time of its own.
func TestFloodAtTheEnd(t *testing.T) {
	const credit, size = 256 << 10, 2000
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut_off_%t", cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var stream *host.Stream
				loud := newFlood()
				s := &source{spawn: func(_ context.Context, f *host.Stream) error {
					stream = f
					go loud.run(stream)
					return nil
				}}
				s.end = func(ctx context.Context, _ *host.Session) { <-ctx.Done() }
				s.close = func(ctx context.Context) {
					assert.Is(t, send(stream, 0, 1), host.ErrStreamClosed, "in Close, Send")
					assert.That(t, ctx.Err() == nil, "Close has no time")
				}
				l := newLab()
				b := bubble(t, host.Options{Plugins: []host.Plugin{s, l}})
				if cut {
					b.line(protocol.TypeToolCallReq, "cut", tool("block", `{}`))
				}
				resume := b.out.shut()
				b.line(protocol.TypeProcSpawnReq, "one", `{}`)
				time.Sleep(time.Second)
				b.Interrupt()
				took := b.end(t)
				assert.That(t, took <= 1500*time.Millisecond, "the end took %v", took)
				loud.closed(t)
				n := loud.sent.Load()
				assert.That(t, n <= credit+size && n >= credit/2, "%d bytes of the stream wait in the output, the "+
					"credit is %d", n, credit)
				resume()
			})
		})
	}
}

// TestCutOffWithoutReader: the host answers a request that it cuts off, and ends, without waiting for an agent that
// does not read.
func TestCutOffWithoutReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bubble(t, host.Options{Plugins: []host.Plugin{newLab()}})
		b.line(protocol.TypeToolCallReq, "cut", tool("block", `{}`))
		time.Sleep(time.Second)
		resume := b.out.shut() // no write is under way now
		b.Shutdown(0)
		select {
		case <-b.ended:
		case <-time.After(2 * time.Second):
			t.Error("the host waits for the agent")
			resume()
			<-b.ended
		}
		b.in.Close()
		resume()
	})
}

// TestLastEventsComeOut: the host writes all events that EndSession sends at the end, even if they exceed the credit
// and the agent reads slowly.
func TestLastEventsComeOut(t *testing.T) {
	const events, size = 1000, 1000
	synctest.Test(t, func(t *testing.T) {
		var stream *host.Stream
		s := &source{spawn: func(_ context.Context, f *host.Stream) error {
			stream = f
			return nil
		}}
		s.end = func(ctx context.Context, _ *host.Session) {
			for i := range events {
				if err := send(stream, i, size); err != nil {
					t.Errorf("event %d: %v", i, err)
					return
				}
			}
			<-ctx.Done() // EndSession uses all its time
		}
		s.close = func(context.Context) { time.Sleep(50 * time.Millisecond) }
		var log bytes.Buffer
		b := bubble(t, host.Options{Plugins: []host.Plugin{s}, Log: zerolog.New(&log).Level(zerolog.WarnLevel)})
		b.line(protocol.TypeProcSpawnReq, "one", `{}`)
		time.Sleep(time.Second)
		b.out.mu.Lock()
		b.out.slow = time.Millisecond
		b.out.mu.Unlock()
		b.line(protocol.TypeShutdown, "", `{"timeout":0}`)
		b.end(t)
		if text := b.out.text(); strings.Count(text, `"kind":"log"`) != events || !strings.HasSuffix(text, "\n") {
			t.Errorf("%d events came", strings.Count(text, `"kind":"log"`))
		}
		assert.That(t, log.Len() <= 0, "the log says %s", &log)
	})
}

// TestHandshakeIsCutOff: if the host ends while a handshake ends the old session, that session ends only once, and no
// new one begins.
func TestHandshakeIsCutOff(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			s := &source{end: func(ctx context.Context, _ *host.Session) { <-ctx.Done() }}
			b := bubble(t, host.Options{Plugins: []host.Plugin{s}})
			b.hello("b")
			synctest.Wait()
			b.Shutdown(0)
			b.end(t)
			assert.Equal(t, s.noted(), "end a, close", "the plugin saw")
		})
		if t.Failed() {
			return
		}
	}
}

// slowInfo is a plugin whose Info waits for release once after slow was set.
type slowInfo struct {
	*source
	slow    atomic.Bool
	release chan struct{}
}

func (s *slowInfo) Info() host.PluginInfo {
	if s.slow.CompareAndSwap(true, false) {
		<-s.release
	}
	return s.source.Info()
}

// atAudit is a function that is called for each request that was answered.
type atAudit func()

func (f atAudit) Take(event.Event) { f() }

// TestNoSessionBeginsAtTheEnd: a handshake that was cut off begins no session, because nobody could use it and the
// plugins would have to end it.
func TestNoSessionBeginsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowInfo{source: &source{}, release: make(chan struct{})}
		var shut atomic.Bool
		b := bubble(t, host.Options{Plugins: []host.Plugin{s}, Events: event.New(nil).With(atAudit(func() {
			if shut.Load() { // the cut-off handshake was answered; its handler still runs
				close(s.release)
				synctest.Wait()
			}
		}), event.Request)})
		s.slow.Store(true)
		b.hello("b")
		synctest.Wait()
		shut.Store(true)
		b.Shutdown(0)
		b.end(t)
		assert.Equal(t, s.noted(), "end a, close", "the plugin saw")
	})
}

// TestRefusedHandshakeEndsTheSession: a handshake that is refused ends the session before it, with its streams,
// exactly once.
func TestRefusedHandshakeEndsTheSession(t *testing.T) {
	var stream *host.Stream
	s := &source{spawn: func(_ context.Context, f *host.Stream) error {
		stream = f
		return nil
	}}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{s}})
	p.Handshake(protocol.CapProc)
	wantCode(t, p.Call(protocol.TypeProcSpawnReq, `{}`), "")
	p.Call(protocol.TypeHandshakeReq, `{"agent_caps":["mcp"]}`).Has(t, "/ok", "false")
	assert.Is(t, send(stream, 0, 10), host.ErrStreamClosed, "Send")
	wantCode(t, p.Call(protocol.TypeProcSpawnReq, `{}`), protocol.CodeUnauthorized)
	p.Close()
	assert.Equal(t, s.noted(), "end agent, close", "the plugin saw")
}

// starter is a runner that looks for itself among the host's services when it starts and when it closes.
type starter struct {
	runner
	found *[]string
}

func (s starter) look(ctx context.Context, when string) {
	_, err := child.Runner(host.ServicesOf(ctx))
	*s.found = append(*s.found, fmt.Sprintf("%s %t %t", when, err == nil, host.SessionFrom(ctx) == nil))
}

func (s starter) Start(ctx context.Context, _ *host.Services) error {
	s.look(ctx, "start")
	return nil
}

func (s starter) Close(ctx context.Context) error {
	s.look(ctx, "close")
	return nil
}

// TestContextOfAnEnd: with each context that the host passes to a plugin, the plugin finds the other plugins, whoever
// ends the session. The context of EndSession belongs to no request, not even to the handshake that ends the session.
func TestContextOfAnEnd(t *testing.T) {
	var found []string
	s := starter{runner{&source{}}, &found}
	s.end = func(ctx context.Context, sess *host.Session) {
		s.look(ctx, "end "+sess.AgentID)
		assert.That(t, host.OpenStream(ctx).Session() == nil, "a stream of no request has a session")
		done := make(chan struct{})
		host.Go(ctx, func() {
			defer close(done)
			panic("it belongs to no request")
		})
		<-done
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{wrapped{s}}})
	for _, id := range []string{"a", "b"} {
		p.Send(hosttest.Request(protocol.TypeHandshakeReq, id, fmt.Sprintf(`{"agent_id":%q,"agent_caps":["proc"]}`,
			id)))
		p.Answer(id).Has(t, "/ok", "true")
	}
	p.Close()
	want := "start true true, end a true true, end b true true, close true true"
	assert.Equal(t, strings.Join(found, ", "), want)
}
