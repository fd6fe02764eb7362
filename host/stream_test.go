package host_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// source is a plugin whose proc/spawn requests open streams.
type source struct {
	spawn func(ctx context.Context, stream *host.Stream) error
	end   func(ctx context.Context, s *host.Session) // called at the end of a session; may be nil
	close func(ctx context.Context)

	mu     sync.Mutex
	events []string // guarded by mu; the calls of EndSession and Close
}

func (s *source) Info() host.PluginInfo {
	return host.PluginInfo{Name: "source", Capability: protocol.CapProc}
}

func (s *source) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeProcSpawnReq, func(ctx context.Context, _ *protocol.ProcSpawnRequest,
		_ host.Emitter,
	) (*protocol.ProcSpawnResponse, error) {
		return &protocol.ProcSpawnResponse{OK: true}, s.spawn(ctx, host.OpenStream(ctx))
	})}
}

func (s *source) Close(ctx context.Context) error {
	s.note("close")
	if s.close != nil {
		s.close(ctx)
	}
	return nil
}

func (s *source) EndSession(ctx context.Context, sess *host.Session) {
	s.note("end " + sess.AgentID)
	if s.end != nil {
		s.end(ctx, sess)
	}
}

func (s *source) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, what)
}

func (s *source) noted() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.events, ", ")
}

// send sends an event with a number and size bytes of text.
func send(stream *host.Stream, seq, size int) error {
	return stream.Send(protocol.TypeProcReadEvent, &protocol.ProcReadEvent{
		Event: protocol.Event{
			Kind: protocol.EventLog, Seq: seq,
			Data: map[string]any{"text": strings.Repeat("x", size)},
		}, StreamType: protocol.StreamStdout,
	})
}

// TestFeedFollowsItsAnswer: events that a handler sends before it returns come after its answer, in order, with the
// id of its request. The Pair checks all of this.
func TestFeedFollowsItsAnswer(t *testing.T) {
	const events = 50
	s := &source{}
	s.spawn = func(ctx context.Context, stream *host.Stream) error {
		assert.That(t, stream.Session() == host.SessionFrom(ctx) && stream.Session() != nil,
			"the stream has another session than its request")
		go func() {
			for i := range events {
				assert.OK(t, send(stream, i, 10))
			}
			stream.Close()
		}()
		time.Sleep(time.Millisecond) // the first Send comes before the answer
		return nil
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{s}})
	p.Handshake(protocol.CapProc)
	for range 3 {
		id := p.Go(protocol.TypeProcSpawnReq, `{}`)
		wantCode(t, p.Answer(id), "")
		p.Wait("the last event", func(m hosttest.Message) bool {
			return m.ReqID == id &&
				m.Get("/seq") == fmt.Sprint(events-1)
		})
	}
}

// TestFeedOfAFailedRequest: the stream of a request that failed is closed, so its events reach nobody.
func TestFeedOfAFailedRequest(t *testing.T) {
	result := make(chan error, 1)
	s := &source{spawn: func(_ context.Context, stream *host.Stream) error {
		go func() { result <- send(stream, 0, 10) }()
		return protocol.Errorf(protocol.CodeProcLimit, "no")
	}}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{s}})
	p.Handshake(protocol.CapProc)
	wantCode(t, p.Call(protocol.TypeProcSpawnReq, `{}`), protocol.CodeProcLimit)
	assert.Is(t, <-result, host.ErrStreamClosed, "Send")
	assert.Is(t, send(host.OpenStream(t.Context()), 0, 10), host.ErrStreamClosed, "outside of a request, Send")
}

// unread starts a host with one spawn and returns when the stream of the spawn waits for credit: nobody reads until
// out is opened. It is for a synctest bubble.
func unread(t *testing.T, s *source) (h *host.Host, in *io.PipeWriter, out *valve, ended chan error) {
	h = must.Get(host.New(host.Options{Plugins: []host.Plugin{s}}))(t)
	r, in := io.Pipe()
	out, ended = &valve{open: make(chan struct{})}, make(chan error, 1)
	go func() { ended <- h.Serve(r, out) }()
	io.WriteString(in, hosttest.Request(protocol.TypeHandshakeReq, "hs",
		`{"agent_caps":["proc"]}`)+"\n"+hosttest.Request(protocol.TypeProcSpawnReq, "one", `{}`)+"\n")
	time.Sleep(time.Second)
	return h, in, out, ended
}

// TestFeedIsFair: however fast a stream sends, another stream or an answer waits in the output behind at most the
// credit of that stream.
func TestFeedIsFair(t *testing.T) {
	const credit, size, flood = 256 << 10, 1000, 3000
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		sent := 0
		s := &source{spawn: func(_ context.Context, stream *host.Stream) error {
			go func() {
				for i := 0; i < flood && send(stream, i, size) == nil; i++ {
					mu.Lock()
					sent += size
					mu.Unlock()
				}
			}()
			return nil
		}}
		h := must.Get(host.New(host.Options{Plugins: []host.Plugin{s}}))(t)
		in, w := io.Pipe()
		out := &valve{open: make(chan struct{})}
		ended := make(chan error, 1)
		go func() { ended <- h.Serve(in, out) }()
		line := func(typ protocol.Type, id, fields string) { io.WriteString(w, hosttest.Request(typ, id, fields)+"\n") }
		line(protocol.TypeHandshakeReq, "hs", `{"agent_caps":["proc"]}`)
		line(protocol.TypeProcSpawnReq, "one", `{}`)
		time.Sleep(time.Second) // nobody reads, so the stream waits for credit
		mu.Lock()
		assert.That(t, sent <= credit+size && sent >= credit/2, "%d bytes of the stream wait in the output, the "+
			"credit is %d", sent, credit)
		mu.Unlock()
		io.WriteString(w, hosttest.Request(protocol.TypePing, "ping", ``)+"\n")
		time.Sleep(time.Second)
		close(out.open) // the reader reads again
		time.Sleep(time.Millisecond)
		w.Close()
		assert.OK(t, <-ended)
		text := out.got.String()
		at := strings.Index(text, `"req_id":"ping"`)
		assert.That(t, at >= 0 && at <= credit+10*size, "the pong stands at byte %d of %d", at, len(text))
	})
}

// TestSessionEndsInThePlugins: a second handshake, or the end of the host, first ends the session in the plugins. The
// last events of the session come before the answer.
func TestSessionEndsInThePlugins(t *testing.T) {
	var stream *host.Stream
	s := &source{}
	s.spawn = func(_ context.Context, f *host.Stream) error {
		stream = f
		return nil
	}
	s.end = func(_ context.Context, sess *host.Session) {
		if stream.Session() != sess {
			return
		}
		assert.OK(t, send(stream, 0, 10))
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{wrapped{s}}})
	hello := func(id string) {
		p.Send(hosttest.Request(protocol.TypeHandshakeReq, id, fmt.Sprintf(`{"agent_id":%q,"agent_caps":["proc"]}`,
			id)))
	}
	hello("a")
	id := p.Go(protocol.TypeProcSpawnReq, `{}`)
	p.Answer(id)
	hello("b")
	p.Answer("b")
	order := ""
	for _, m := range p.Messages() {
		switch {
		case m.ReqID == id && m.Type == protocol.TypeProcReadEvent:
			order += "event "
		case m.ReqID == "b":
			order += "handshake "
		}
	}
	if order != "event handshake " || s.noted() != "end a" {
		t.Errorf("came: %s; the plugin saw: %s", order, s.noted())
	}
	assert.Is(t, send(stream, 1, 10), host.ErrStreamClosed, "after its session, Send")
	p.CloseInput()
	assert.OK(t, p.WaitEnd())
	assert.Equal(t, s.noted(), "end a, end b, close", "the plugin saw")
}

// TestFeedIsReleased: a Send that waits returns when its stream is closed, and when the host ends.
func TestFeedIsReleased(t *testing.T) {
	for name, release := range map[string]func(*host.Stream, *host.Host){
		"Close":  func(f *host.Stream, _ *host.Host) { f.Close() },
		"output": func(_ *host.Stream, h *host.Host) { h.Interrupt() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opened := make(chan *host.Stream, 1)
				result := make(chan error, 1)
				s := &source{spawn: func(_ context.Context, f *host.Stream) error {
					opened <- f
					go func() {
						err := error(nil)
						for i := 0; err == nil; i++ {
							err = send(f, i, 1000)
						}
						result <- err
					}()
					return nil
				}}
				h, w, out, ended := unread(t, s)
				select {
				case err := <-result:
					t.Fatalf("it does not wait: %v", err)
				default:
				}
				release(<-opened, h)
				assert.Is(t, <-result, host.ErrStreamClosed, "Send")
				close(out.open)
				w.Close()
				<-ended
			})
		})
	}
}

// TestFeedOfASessionThatIsOver: a request that does not stop may run on after its session, but its streams are
// closed, also those that it opens later.
func TestFeedOfASessionThatIsOver(t *testing.T) {
	running, open, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var streams []*host.Stream
	s := &source{}
	s.spawn = func(ctx context.Context, stream *host.Stream) error {
		host.HandOff(ctx)
		close(running)
		<-open
		streams = append(streams, stream, host.OpenStream(ctx))
		close(over)
		return nil
	}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{s}})
	hello := func(id string) {
		p.Send(hosttest.Request(protocol.TypeHandshakeReq, id, fmt.Sprintf(`{"agent_id":%q,"agent_caps":["proc"]}`,
			id)))
		p.Answer(id)
	}
	hello("a")
	id := p.Go(protocol.TypeProcSpawnReq, `{}`)
	<-running
	p.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	wantCode(t, p.Answer(id), protocol.CodeCancelled)
	hello("b")
	close(open)
	<-over
	for i, stream := range streams {
		assert.Is(t, send(stream, i, 10), host.ErrStreamClosed, "stream %d: Send", i)
		assert.Equal(t, stream.Session().AgentID, "a", "stream %d is of the session of", i)
	}
}

// TestFeedIsTooLate: a request that was answered by the host cannot open a stream any more, and its streams are
// closed. A stream that is closed before the answer sends nothing either.
func TestFeedIsTooLate(t *testing.T) {
	for name, stop := range map[string]func(b *scene){
		"cancelled": func(b *scene) { b.line(protocol.TypeCancel, "c", `{"req_id":"one"}`) },
		"cut off":   func(b *scene) { b.Shutdown(0) },
		"closed":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate, result := make(chan struct{}), make(chan error, 2)
				s := &source{spawn: func(ctx context.Context, stream *host.Stream) error {
					if stop == nil {
						stream.Close()
						go func() {
							time.Sleep(time.Second) // the stream would have begun by now
							result <- send(stream, 0, 10)
						}()
						return nil
					}
					go func() { result <- send(stream, 0, 10) }()
					<-gate
					result <- send(host.OpenStream(ctx), 0, 10)
					return nil
				}}
				b := bubble(t, host.Options{Plugins: []host.Plugin{s}})
				b.line(protocol.TypeProcSpawnReq, "one", `{}`)
				time.Sleep(time.Second)
				if stop != nil {
					stop(b)
				}
				time.Sleep(5 * time.Second)
				close(gate)
				synctest.Wait()
				for want := range 2 {
					if want == 1 && stop == nil {
						break
					}
					select {
					case err := <-result:
						assert.Is(t, err, host.ErrStreamClosed, "Send")
					default:
						t.Error("a Send still waits")
					}
				}
				b.in.Close()
				b.end(t)
			})
		})
	}
}

// wrapped is a plugin around another one, as the plugins of a config are.
type wrapped struct{ host.Plugin }

func (w wrapped) Unwrap() host.Plugin { return w.Plugin }

// runner is a plugin that runs programs for others.
type runner struct{ *source }

func (runner) RunProc(context.Context, child.ProcRun) (*child.ProcResult, error) {
	return &child.ProcResult{ExitCode: 7}, nil
}

// TestFind: a plugin finds another one by the service that it offers, also through wrappers, and only within a
// request.
func TestFind(t *testing.T) {
	s := &source{spawn: func(ctx context.Context, _ *host.Stream) error {
		found, err := child.Runner(host.ServicesOf(ctx))
		if err != nil {
			return protocol.Errorf(protocol.CodeUnknownProc, "no runner")
		}
		result, err := found.RunProc(ctx, child.ProcRun{})
		assert.That(t, err == nil && result.ExitCode == 7, "%+v, %v", result, err)
		return nil
	}}
	for _, c := range []struct {
		plugins []host.Plugin
		code    protocol.ErrorCode
	}{
		{[]host.Plugin{s}, protocol.CodeUnknownProc},
		{[]host.Plugin{s, wrapped{wrapped{runner{s}}}}, ""},
	} {
		p := hosttest.New(t, host.Options{Plugins: c.plugins})
		p.Handshake(protocol.CapProc)
		wantCode(t, p.Call(protocol.TypeProcSpawnReq, `{}`), c.code)
	}
	_, err := child.Runner(host.ServicesOf(t.Context()))
	assert.That(t, err != nil, "found outside of a request")
}
