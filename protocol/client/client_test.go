package client_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/client"
)

func TestHandshake(t *testing.T) {
	c := attach(t, client.Options{}, func(h *fakeHost) {
		l := h.expect("handshake/req")
		want := `"agent_id":"tester","agent_caps":["tools","env"],"auth_token":"secret"}`
		assert.That(h.t, strings.HasPrefix(l.Raw, `{"a2e":"1.0","version":"1.0","type":"handshake/req","id":"1","ts":`) && strings.HasSuffix(l.Raw, want), "the client sent %s", l.Raw)
		h.write(`{"type":"handshake/resp","req_id":%q,"session_id":"s","accepted_caps":[{"capability":"tools"}]}`, l.ID)
		l = h.expect("handshake/req")
		assert.That(h.t, !strings.Contains(l.Raw, "null"), "null in %s", l.Raw)
		h.write(`{"type":"handshake/resp","req_id":%q,"ok":false,"reason":"auth_failed"}`, l.ID)
		h.rest()
	})
	resp, err := c.Handshake(t.Context(), "tester", []protocol.Capability{protocol.CapTools, protocol.CapEnv}, "secret")
	want := &protocol.HandshakeResponse{
		SessionID: "s", MaxParallel: 4, OK: true,
		AcceptedCaps: []protocol.CapabilityRow{{Capability: protocol.CapTools, Enabled: true}},
	}
	diff := cmp.Diff(want, resp)
	assert.That(t, diff == "" && err == nil, "%v\n%s", err, diff)
	resp, err = c.Handshake(t.Context(), "", nil, "")
	refused, ok := errors.AsType[*client.RefusedError](err)
	assert.That(t, ok && refused.Reason == protocol.ReasonAuthFailed && resp != nil && !resp.OK,
		"%v, %v; should be refused", resp, err)
	if uptime, err := c.Ping(t.Context()); err != nil || uptime != 1500*time.Millisecond {
		t.Errorf("ping: %v, %v", uptime, err)
	}
	assert.Equal(t, c.PID(), 0, "an attached host has no process id")
}

func TestCallAnswers(t *testing.T) {
	for _, tt := range []struct {
		name, answer, want string
	}{
		{"response", `{"type":"tool/call/resp","req_id":"1","data":{"success":true,"tool_name":"echo","data":{"n":9007199254740993},"duration_ms":3}}`, ""},
		{"error", `{"type":"error","req_id":"1","code":"unknown_tool","message":"no tool nope","detail":{"known":["echo"]}}`, "unknown_tool: no tool nope"},
		{
			"wrong type", `{"type":"pong","req_id":"1"}`,
			`client: request 1 was answered by "pong", should be "tool/call/resp"`,
		},
		{"wrong field", `{"type":"tool/call/resp","req_id":"1","data":7}`, "schema_violation: /data: is a JSON " +
			"number; should be object"},
		{"others first", `{"type":"tool/call/resp","req_id":"7"}` + "\n" + `{"type":"tool/list/resp"}` + "\n" +
			`{"jsonrpc":"2.0","id":1}` + "\r\n" +
			`{"type":"tool/call/resp","req_id":"1","data":{"success":true,"data":{"n":9007199254740993}}}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := attach(t, client.Options{}, func(h *fakeHost) {
				h.expect("tool/call/req")
				h.write("%s", tt.answer)
				h.rest()
			})
			var resp protocol.ToolCallResponse
			err := c.Call(t.Context(), protocol.TypeToolCallReq, map[string]any{
				"tool_name": "echo",
				"arguments": map[string]any{},
			}, &resp)
			if tt.want == "" {
				assert.That(t, err == nil && resp.Data.Success && string(resp.Data.Data) == `{"n":9007199254740993}`,
					"%+v, %v", resp, err)
				return
			}
			assert.Fails(t, err, tt.want, "the error")
			var answer *protocol.Error
			assert.That(t, tt.name != "error" || errors.As(err, &answer) && answer.Detail["known"] != nil,
				"%#v is not a whole *protocol.Error", err)
		})
	}
}

func TestRawAnswerAndOddRequests(t *testing.T) {
	c := attach(t, client.Options{}, func(h *fakeHost) {
		l := h.expect("custom/req")
		h.write(`{"type":"custom/resp","id":"x","req_id":%q,"seq":3,"n":1}`, l.ID)
		if l, _ := h.next(); l.Raw != `{"type":1}` {
			h.t.Errorf("a raw line came as %s", l.Raw)
		}
		h.rest()
	})
	var m client.Message
	must.OK(t, c.Call(t.Context(), "custom/req", nil, &m))
	n, _ := m.Field("n")
	assert.That(t, m.Type == "custom/resp" && m.ID == "x" && m.ReqID == "1" && m.Seq == 3 && string(n) == "1" &&
		bytes.HasPrefix(m.Raw, []byte(`{"type"`)), "%+v", m)
	assert.OK(t, c.WriteLine([]byte(`{"type":1}`)))
	for _, bad := range []struct {
		t    protocol.Type
		body any
	}{{"a\"b", nil}, {"ping", 7}, {"ping", func() {}}} {
		_, err := c.Send(bad.t, bad.body)
		assert.That(t, err != nil, "%q with %T was sent", bad.t, bad.body)
	}
	_, err := c.Ping(t.Context())
	assert.That(t, err == nil, "%v", err)
}

// TestManyCalls: each call gets its own answer, and each line is one write.
func TestManyCalls(t *testing.T) {
	const callers, each = 32, 40
	hostIn, clientOut := io.Pipe()
	clientIn, hostOut := io.Pipe()
	var served sync.WaitGroup
	served.Go(func() {
		defer hostOut.Close()
		h := &fakeHost{t: t, in: bufio.NewScanner(hostIn), out: hostOut}
		for l, ok := h.next(); ok; l, ok = h.next() {
			name, _ := l.Object.Get("env_name")
			served.Go(func() { // in any order
				h.write(`{"type":"env/space/resp","req_id":%q,"action_space":{"of":%s},"state_schema":{}}`, l.ID, name)
			})
		}
	})
	c := client.Attach(clientIn, &wholeLines{t: t, w: clientOut}, client.Options{})
	var callersDone sync.WaitGroup
	for i := range callers {
		callersDone.Go(func() {
			for j := range each {
				name := fmt.Sprint(i, "-", j)
				var resp protocol.EnvSpaceResponse
				err := c.Call(t.Context(), protocol.TypeEnvSpaceReq, protocol.EnvSpaceRequest{EnvName: name}, &resp)
				assert.That(t, err == nil && resp.ActionSpace["of"] == name, "%s was answered by %v, %v", name, resp,
					err)
			}
		})
	}
	callersDone.Wait()
	assert.OK(t, c.Close())
	served.Wait()
}

// wholeLines fails the test when a write is not exactly one line, or two writes
// overlap.
type wholeLines struct {
	t    *testing.T
	w    io.WriteCloser
	busy atomic.Int32
}

func (w *wholeLines) Write(b []byte) (int, error) {
	assert.That(w.t, w.busy.Add(1) == 1, "two writes overlap")
	defer w.busy.Add(-1)
	assert.That(w.t, bytes.IndexByte(b, '\n') == len(b)-1, "a write is not one line: %q", b)
	return w.w.Write(b)
}

func (w *wholeLines) Close() error { return w.w.Close() }

// TestSlowEvents: a callback that waits does not delay other calls.
func TestSlowEvents(t *testing.T) {
	const events = 500
	c := attach(t, client.Options{}, func(h *fakeHost) {
		l := h.expect("tool/call/req")
		for i := range events {
			h.write(`{"type":"invoke/event","req_id":%q,"kind":"progress","data":{"pct":%d,"message":"m"},"seq":%d}`,
				l.ID, i/5, i)
		}
		h.write(`{"type":"tool/call/resp","req_id":%q,"data":{}}`, l.ID)
		h.rest()
	})
	release := make(chan struct{})
	var seen []int
	p := must.Get(c.Go(protocol.TypeToolCallReq, nil, client.OnEvent(func(m client.Message) {
		<-release
		var e protocol.EventOf[protocol.Progress]
		err := m.Decode(&e)
		assert.That(t, err == nil && e.Kind == protocol.EventProgress && e.Data.Pct == float64(e.Seq/5) &&
			m.Seq == e.Seq, "%+v, %v", e, err)
		seen = append(seen, m.Seq)
	})))(t)
	waited := make(chan error, 1)
	go func() { waited <- p.Wait(t.Context(), nil) }()
	<-p.Done() // the answer has arrived, after all events
	_, err := c.Ping(t.Context())
	assert.That(t, err == nil, "%v", err)
	close(release)
	assert.OK(t, <-waited)
	want := make([]int, events)
	for i := range want {
		want[i] = i
	}
	assert.Diff(t, want, seen)
}

// TestEventsBeforeWait: the events of a call are passed on even if the call was answered before Wait.
func TestEventsBeforeWait(t *testing.T) {
	const calls = 25
	c := attach(t, client.Options{}, func(h *fakeHost) {
		for range calls {
			l := h.expect("skill/call/req")
			h.write(`{"type":"skill/event","req_id":%q,"seq":0}`, l.ID)
			h.write(`{"type":"skill/call/resp","req_id":%q,"data":null}`, l.ID)
		}
		h.rest()
	})
	for range calls {
		events := 0
		p := must.Get(c.Go(protocol.TypeSkillCallReq, nil, client.OnEvent(func(client.Message) { events++ })))(t)
		<-p.Done()
		err := p.Wait(t.Context(), nil)
		assert.That(t, err == nil && events == 1, "%d events, %v", events, err)
	}
}

func TestCancel(t *testing.T) {
	for _, tt := range []struct {
		name, answer   string
		wait           time.Duration
		taken, hostErr bool
	}{
		{
			"cancelled", `{"type":"error","req_id":"1","code":"cancelled","message":"as asked"}`, time.Minute, false,
			true,
		},
		{"answer under way", `{"type":"chain/resp","req_id":"1","success":true}`, time.Minute, true, false},
		{"silent host", ``, time.Millisecond, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cancelled := make(chan string, 1)
			c := attach(t, client.Options{CancelWait: tt.wait}, func(h *fakeHost) {
				h.expect("chain/req")
				cancelled <- h.expect("cancel").ReqID
				if tt.answer != "" {
					h.write("%s", tt.answer)
				}
				h.rest()
			})
			ctx, cancel := context.WithCancel(t.Context())
			p, err := c.Go(protocol.TypeChainReq, nil)
			must.OK(t, err)
			cancel()
			var resp protocol.ChainResponse
			err = p.Wait(ctx, &resp)
			assert.Equal(t, <-cancelled, p.ID(), "cancelled")
			assert.That(t, resp.Success == tt.taken && (err == nil) == tt.taken, "%+v, %v", resp, err)
			assert.That(t, tt.taken || errors.Is(err, context.Canceled), "%v does not say that the context ended", err)
			var answer *protocol.Error
			assert.Equal(t, errors.As(err, &answer), tt.hostErr, "%v: is the host's error in it?", err)
			if _, err := c.Ping(t.Context()); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			assert.Is(t, c.Call(ctx, protocol.TypePing, nil, nil), context.Canceled, "a call with an ended context")
		})
	}
}

// TestHostEnds: no call waits for ever, whatever the host does.
func TestHostEnds(t *testing.T) {
	const limit = 4096
	for _, tt := range []struct{ name, last, want string }{
		{"end of output", "", "closed its output"},
		{"not JSON", "panic: oops", `that is not a message ("panic: oops")`},
		{"array", "[1]", "not an object"},
		{"over-long line", `{"type":"` + strings.Repeat("x", limit) + `"}`, "longer than 4096 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := attach(t, client.Options{MaxLine: limit}, func(h *fakeHost) {
				l := h.expect("ping")
				h.write(`{"type":"pong","req_id":%q,"pad":%q}`, l.ID, strings.Repeat("x",
					limit-100)) // within the limit
				h.expect("tool/list/req")
				h.expect("tool/list/req")
				if tt.last != "" {
					h.write("%s", tt.last)
				}
				h.write(`{"type":"tool/list/resp","req_id":"3"}`) // read only if the line before is valid
			})
			must.Get(c.Ping(t.Context()))(t)
			p, err := c.Go(protocol.TypeToolListReq, nil)
			must.OK(t, err)
			err = c.Call(t.Context(), protocol.TypeToolListReq, nil, nil)
			assert.Equal(t, (err == nil), (tt.last == ""), "the second call: %v", err)
			for _, err := range []error{p.Wait(t.Context(), nil), c.Call(t.Context(), protocol.TypePing, nil, nil)} {
				assert.That(t, errors.Is(err, client.ErrClosed) && strings.Contains(err.Error(), tt.want),
					"the error is %v, should say %q", err, tt.want)
			}
			if err := c.Wait(); (err == nil) != (tt.last == "") {
				t.Errorf("Wait: %v", err)
			}
		})
	}
}

func TestShutdown(t *testing.T) {
	c := attach(t, client.Options{}, func(h *fakeHost) {
		v, _ := h.expect("shutdown").Object.Get("timeout")
		assert.That(h.t, string(v) == "3", "the timeout is %s", v)
	})
	assert.OK(t, c.Shutdown(t.Context(), 3*time.Second))
	assert.Is(t, c.Shutdown(t.Context(), 0), client.ErrClosed, "a second one")
	stuck := attach(t, client.Options{}, func(h *fakeHost) { h.rest() })
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	assert.Is(t, stuck.Shutdown(ctx, 0), io.ErrNoProgress, "a host that does not stop")
}

// TestHostThatReadsNothing: Close ends a write that waits.
func TestHostThatReadsNothing(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	c := attach(t, client.Options{}, func(h *fakeHost) {
		close(started)
		<-release
	})
	<-started
	failed := make(chan error, 1)
	go func() { failed <- c.Call(context.Background(), protocol.TypePing, nil, nil) }()
	go func() {
		defer close(release)
		err := <-failed
		assert.Fails(t, err, "", "the call should fail")
	}()
	assert.OK(t, c.Close())
}

func TestPeerThatCannotBeClosed(t *testing.T) {
	r, w, err := os.Pipe()
	must.OK(t, err)
	out := struct{ io.WriteCloser }{nopCloser{io.Discard}}
	c := client.Attach(struct{ io.Reader }{r}, out, client.Options{
		ExitWait: time.Millisecond,
		TermWait: time.Millisecond,
	})
	p := must.Get(c.Go(protocol.TypePing, nil))(t)
	assert.Fails(t, c.Close(), "does not end", "Close")
	assert.Is(t, p.Wait(t.Context(), nil), client.ErrClosed, "a call after Close")
	w.Close() // frees the reader
	eventually(t, "Close gives no error", func() bool { return c.Close() == nil })
	r.Close()
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// TestSamplesDecode: a message of each type can be decoded.
func TestSamplesDecode(t *testing.T) {
	samples := must.Get(os.ReadFile("../../testdata/wire/samples.ndjson"))(t)
	var lines atomic.Int32
	r, w := io.Pipe()
	c := client.Attach(r, nopCloser{io.Discard}, client.Options{OnLine: func([]byte) { lines.Add(1) }})
	decoded := make(chan error, 200)
	for _, row := range protocol.Types() {
		c.Handle(row.Type, func(_ context.Context, m client.Message) (any, error) {
			decoded <- m.Decode(row.New())
			return nil, nil
		})
	}
	must.Get(w.Write(samples))(t)
	w.Close()
	assert.OK(t, c.Close())
	close(decoded)
	n := 0
	for err := range decoded {
		n++
		assert.OK(t, err)
	}
	if want := len(protocol.Types()); n != want || int(lines.Load()) != want {
		t.Errorf("%d lines, %d decoded; both should be %d", lines.Load(), n, want)
	}
}
