package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/client"
)

func TestHostRequests(t *testing.T) {
	answered := make(chan line, 4)
	c := attach(t, client.Options{}, func(h *fakeHost) {
		h.expect("handshake/req")
		h.write(`{"type":"mcp/sample/req","id":"q1","server_id":"s","mcp_request_id":"9","messages":[{"role":"user"}]}`)
		answered <- h.expect("mcp/sample/resp")
		h.write(`{"type":"mcp/roots/list/req","id":"q2","server_id":"s","mcp_request_id":"10"}`)
		answered <- h.expect("mcp/root/list/resp")
		h.write(`{"type":"mcp/sample/req","id":"q3","server_id":"refuse"}`)
		answered <- h.expect("mcp/sample/resp")
		h.rest()
	})
	c.Handle("mcp/sampling/req", func(_ context.Context, m client.Message) (any, error) {
		var req protocol.MCPSampleRequest
		if err := m.Decode(&req); err != nil {
			return nil, err
		}
		if req.ServerID == "refuse" {
			return nil, errors.New("the person said no")
		}
		assert.That(t, req.MaxTokens == 1024 && len(req.Messages) == 1, "%+v", req)
		return protocol.MCPSampleResponse{ServerID: req.ServerID, MCPRequestID: req.MCPRequestID, Model: "m"}, nil
	})
	must.Get(c.Send(protocol.TypeHandshakeReq, nil))(t)
	for _, want := range []map[string]string{
		{"req_id": `"q1"`, "server_id": `"s"`, "mcp_request_id": `"9"`, "model": `"m"`, "error": `""`},
		{
			"req_id": `"q2"`, "server_id": `"s"`, "mcp_request_id": `"10"`,
			"error": `"invalid_message: this agent has no handler for mcp/roots/list/req"`,
		},
		{"req_id": `"q3"`, "server_id": `"refuse"`, "error": `"the person said no"`},
	} {
		got, l := map[string]string{}, <-answered
		for name := range want {
			val, _ := l.Object.Get(name)
			got[name] = string(val)
		}
		diff := cmp.Diff(want, got)
		assert.Equal(t, diff, "", "%s", l.Raw)
	}
}

// TestPushes: pushes arrive in order. A handler that waits does not delay a call, and does not get
// events of another type.
func TestPushes(t *testing.T) {
	const pushes = 300
	c := attach(t, client.Options{}, func(h *fakeHost) {
		l := h.expect("proc/spawn/req")
		h.write(`{"type":"proc/read/event","req_id":%q,"seq":0,"data":{"text":"before"}}`, l.ID)
		h.write(`{"type":"invoke/event","req_id":%q,"kind":"status","seq":7}`, l.ID)
		h.write(`{"type":"proc/spawn/resp","req_id":%q,"ok":true,"proc_id":"p"}`, l.ID)
		for i := 1; i < pushes; i++ {
			h.write(`{"type":"proc/read/event","req_id":%q,"seq":%d,"data":{"text":"after"}}`, l.ID, i)
		}
		h.rest()
	})
	release, all := make(chan struct{}), make(chan struct{})
	var seen []int
	c.Handle(protocol.TypeProcReadEvent, func(_ context.Context, m client.Message) (any, error) {
		<-release
		if seen = append(seen, m.Seq); len(seen) == pushes {
			close(all)
		}
		return nil, errors.New("nobody hears this")
	})
	var events []client.Message
	var resp protocol.ProcSpawnResponse
	err := c.Call(t.Context(), protocol.TypeProcSpawnReq, protocol.ProcSpawnRequest{Cmd: []string{"x"}}, &resp,
		client.OnEvent(func(m client.Message) { events = append(events, m) }))
	must.That(t, err == nil && resp.ProcID == "p", "%v %v", resp, err)
	assert.That(t, len(events) == 1 && events[0].Type == protocol.TypeInvokeEvent, "the call saw %v", events)
	if _, err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	close(release)
	<-all
	for i, seq := range seen {
		must.Equal(t, seq, i, "push … came as number")
	}
}

// TestPushAfterPush: a handler that was idle runs again for the next push.
func TestPushAfterPush(t *testing.T) {
	c := attach(t, client.Options{}, func(h *fakeHost) {
		for l, ok := h.next(); ok; l, ok = h.next() {
			h.write(`{"type":"env/state/push","episode_id":"e","step_id":1,"event_type":"x"}`)
			h.write(`{"type":"pong","req_id":%q}`, l.ID)
		}
	})
	var seen atomic.Int32
	c.Handle(protocol.TypeEnvStatePush, func(context.Context, client.Message) (any, error) {
		seen.Add(1)
		return nil, nil
	})
	for i := range int32(20) {
		must.Get(c.Ping(t.Context()))(t)
		eventually(t, "the handler has seen the push", func() bool { return seen.Load() == i+1 })
	}
}

// TestHandlerEndsWithConnection: Close ends handlers that wait.
func TestHandlerEndsWithConnection(t *testing.T) {
	c := attach(t, client.Options{}, func(h *fakeHost) {
		h.expect("ping")
		h.write(`{"type":"mcp/sample/req","id":"q"}`)
		h.write(`{"type":"mcp/server/push","server_id":"s"}`)
		h.rest()
	})
	var started, ended sync.WaitGroup
	for _, typ := range []protocol.Type{protocol.TypeMCPSampleReq, protocol.TypeMCPServerPush} {
		started.Add(1)
		ended.Add(1)
		c.Handle(typ, func(ctx context.Context, _ client.Message) (any, error) {
			defer ended.Done()
			started.Done()
			<-ctx.Done()
			return nil, ctx.Err()
		})
	}
	must.Get(c.Send(protocol.TypePing, nil))(t)
	started.Wait()
	assert.OK(t, c.Close())
	ended.Wait()
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// line is one message as the fake host reads it.
type line struct {
	Type, ID, ReqID string
	Object          protocol.Object
	Raw             string
}

// fakeHost is the other end of a Client: a script in its own goroutine.
type fakeHost struct {
	t   *testing.T
	in  *bufio.Scanner
	mu  sync.Mutex // one writer at a time
	out io.Writer
}

// next reads the next line; ok is false at the end of the input.
func (h *fakeHost) next() (l line, ok bool) {
	if !h.in.Scan() {
		return line{}, false
	}
	obj, err := protocol.ParseObject([]byte(h.in.Text()))
	if err != nil {
		h.t.Errorf("the client wrote %q: %v", h.in.Text(), err)
		return line{}, false
	}
	l = line{Object: obj, Raw: h.in.Text()}
	for name, dst := range map[string]*string{"type": &l.Type, "id": &l.ID, "req_id": &l.ReqID} {
		if val, there := obj.Get(name); there {
			*dst, _ = val.Str()
		}
	}
	return l, true
}

// expect reads the next line, which must be of type t.
func (h *fakeHost) expect(t string) line {
	l, ok := h.next()
	assert.That(h.t, ok && l.Type == t, "the client sent %q, should be %s", l.Raw, t)
	return l
}

func (h *fakeHost) write(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := fmt.Fprintf(h.out, format+"\n", args...)
	assert.That(h.t, err == nil || errors.Is(err, io.ErrClosedPipe), "fake host: %v", err)
}

// rest answers every ping until the client closes.
func (h *fakeHost) rest() {
	for l, ok := h.next(); ok; l, ok = h.next() {
		if l.Type == "ping" {
			h.write(`{"type":"pong","req_id":%q,"uptime_seconds":1.5}`, l.ID)
		}
	}
}

// attach connects a Client with a script. The fake host closes its output when
// the script returns.
func attach(t *testing.T, opts client.Options, script func(h *fakeHost)) *client.Client {
	t.Helper()
	hostIn, out := io.Pipe()
	in, hostOut := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer hostOut.Close()
		h := &fakeHost{t: t, in: bufio.NewScanner(hostIn), out: hostOut}
		h.in.Buffer(nil, 32<<20)
		script(h)
		hostIn.Close()
	}()
	c := client.Attach(in, out, opts)
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	return c
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		must.That(t, !time.Now().After(deadline), "waited in vain until %s", what)
	}
}
