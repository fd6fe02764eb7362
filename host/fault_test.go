package host_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/protocol"
)

// labHost returns a lab, and a pair with an open session of a host with that lab.
func labHost(t testing.TB, change func(*host.Options)) (*lab, *hosttest.Pair) {
	t.Helper()
	l := newLab()
	opts := host.Options{Plugins: []host.Plugin{l, &procs{gate: l.gate}}}
	if change != nil {
		change(&opts)
	}
	p := hosttest.New(t, opts)
	p.Handshake(protocol.CapTools, protocol.CapProc)
	return l, p
}

// wantCode fails unless m is an error with this code; with code "" it fails unless m is a response.
func wantCode(t testing.TB, m hosttest.Message, code protocol.ErrorCode) {
	t.Helper()
	assert.That(t, m.Code == code && (code == "") != (m.Type == protocol.TypeError),
		"got %s %q, want code %q: %.500s", m.Type, m.Code, code, m.Line)
}

// TestFaults: a request gets exactly one answer whatever its handler does, and the host continues. The handler runs on
// the goroutine that reads, on another one, and on one of its own after the request has waited in the queue.
func TestFaults(t *testing.T) {
	_, p := labHost(t, nil)
	for _, c := range []struct {
		tool, args string
		code       protocol.ErrorCode
		says       string // part of the error's message
	}{
		{"echo", `{"n":9007199254740993}`, "", ""},
		{"panic", `{}`, protocol.CodeRuntimeError, "panicked"},
		{"goexit", `{}`, protocol.CodeRuntimeError, "broke off"},
		{"gopanic", `{}`, protocol.CodeRuntimeError, "panicked"},
		{"plainerror", `{}`, protocol.CodeRuntimeError, "it broke"},
		{"nilerror", `{}`, protocol.CodeRuntimeError, ""},
		{"wrapped", `{}`, protocol.CodeToolDenied, "not allowed"},
		{"deadline", `{}`, protocol.CodeTimeout, ""},
		{"baddetail", `{}`, protocol.CodeToolError, "odd"},
		{"bombdetail", `{}`, protocol.CodeToolError, "odd"},
		{"badmessage", `{}`, protocol.CodeRuntimeError, "not \ufffd UTF-8"},
		{"noanswer", `{}`, protocol.CodeRuntimeError, "no answer"},
		{"nan", `{}`, protocol.CodeRuntimeError, "cannot be encoded"},
		{"chan", `{}`, protocol.CodeRuntimeError, "cannot be encoded"},
		{"bomb", `{}`, protocol.CodeRuntimeError, ""},
		{"badraw", `{}`, protocol.CodeRuntimeError, "cannot be encoded"},
		{"badutf8", `{}`, "", ""},
		{"huge", `{"n":300000}`, "", ""},
		{"nan", `[]`, protocol.CodeSchemaViolation, "/arguments"},
		{"panic", `{"n":"text"}`, protocol.CodeSchemaViolation, "/n"},
	} {
		t.Run(c.tool, func(t *testing.T) {
			check := func(m hosttest.Message) {
				wantCode(t, m, c.code)
				assert.Contains(t, m.Get("/message"), c.says, "does not say …: %s", m.Line)
				assert.That(t, !strings.Contains(string(m.Line), "secret"), "tells what the plugin panicked with: %s",
					m.Line)
			}
			for range 2 { // first on the goroutine that reads, then on another one
				check(p.Call(protocol.TypeToolCallReq, tool(c.tool, c.args)))
			}
			wantCode(t, p.Call(protocol.TypeToolCallReq, tool("echo", `{}`)), "")
			l, p := labHost(t, func(o *host.Options) { o.MaxParallel = 1 })
			first := p.Go(protocol.TypeToolCallReq, tool("block", `{}`))
			<-l.begun
			waits := p.Go(protocol.TypeToolCallReq, tool(c.tool, c.args))
			last := p.Go(protocol.TypeToolCallReq, tool("echo", `{}`))
			close(l.gate)
			wantCode(t, p.Answer(first), "")
			check(p.Answer(waits))
			wantCode(t, p.Answer(last), "")
		})
	}
}

// TestImmediateFaults: an immediate request that panics or ends its goroutine does not change the number of free
// slots.
func TestImmediateFaults(t *testing.T) {
	_, p := labHost(t, func(o *host.Options) { o.MaxParallel = 1 })
	for range 3 {
		wantCode(t, p.Call(protocol.TypeProcKillReq, `{"proc_id":"ok"}`), "")
		wantCode(t, p.Call(protocol.TypeProcKillReq, `{"proc_id":"panic"}`), protocol.CodeRuntimeError)
		wantCode(t, p.Call(protocol.TypeProcKillReq, `{"proc_id":"goexit"}`), protocol.CodeRuntimeError)
		wantCode(t, p.Call(protocol.TypeToolCallReq, tool("echo", `{}`)), "")
	}
}

// TestTimeout: a call that ignores its context is answered when its timeout is over, whether it ran at once or waited
// in the queue. Its slot is free again after that.
func TestTimeout(t *testing.T) {
	for _, name := range []string{"block", "stubborn", "derived"} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab()
			p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{l}, MaxParallel: 1})
			p.Handshake(protocol.CapTools)
			call := `{"tool_name":"` + name + `","arguments":{},"timeout":1,"streaming":true}`
			first := p.Go(protocol.TypeToolCallReq, call)
			second := p.Go(protocol.TypeToolCallReq, call)
			third := p.Go(protocol.TypeToolCallReq, tool("echo", `{}`))
			wantCode(t, p.Answer(first), protocol.CodeTimeout)
			wantCode(t, p.Answer(second), protocol.CodeTimeout)
			wantCode(t, p.Answer(third), "")
			close(l.gate)
			p.Close()
		})
	}
}

// TestAbandonedHandlers: while 100 handlers still run after their cancel, the host refuses new requests and says why. It
// still answers a ping, and serves requests again once a handler has ended.
func TestAbandonedHandlers(t *testing.T) {
	const most = 100
	l, p := labHost(t, func(o *host.Options) { o.MaxParallel = most })
	var calls []string
	for range most {
		calls = append(calls, p.Go(protocol.TypeToolCallReq, tool("stubborn", `{}`)))
		<-l.begun
	}
	for _, id := range calls {
		p.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	}
	for _, id := range calls {
		wantCode(t, p.Answer(id), protocol.CodeCancelled)
	}
	p.Refused(protocol.TypeToolCallReq, tool("echo", `{}`), protocol.CodeOverloaded, "100 requests still run")
	assert.Equal(t, p.Call(protocol.TypePing, "").Type, protocol.TypePong)
	close(l.gate)
	poll.Eventually(t, "an answer once the handlers have ended", func() bool {
		return p.Call(protocol.TypeToolCallReq, tool("echo", `{}`)).Type == protocol.TypeToolCallResp
	})
}

// broken is a plugin with its own Start and Close, which may fail.
type broken struct {
	*lab
	start func() error
	close func() error
}

func (b broken) Start(context.Context, *host.Services) error { return b.start() }
func (b broken) Close(context.Context) error                 { return b.close() }

// TestBrokenStart: if a plugin fails or panics at its start, Serve returns an error that names it and closes the
// other plugins.
func TestBrokenStart(t *testing.T) {
	for name, start := range map[string]func() error{
		"error": func() error { return errors.New("no disk") },
		"panic": func() error { panic("no disk") },
	} {
		t.Run(name, func(t *testing.T) {
			good, bad := newLab(), newLab()
			bad.info.Name = "bad"
			h, err := host.New(host.Options{Plugins: []host.Plugin{good, broken{
				bad, start,
				func() error { return nil },
			}}})
			must.OK(t, err)
			err = h.Serve(strings.NewReader(""), &strings.Builder{})
			assert.Fails(t, err, "bad", "Serve gave …; should name the plugin")
			assert.Equal(t, good.closed, 1, "the other plugin was closed … times")
		})
	}
}

// TestBrokenClose: a plugin whose Close fails, panics or hangs does not prevent the end of the host.
func TestBrokenClose(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for name, stop := range map[string]func() error{
		"error": func() error { return errors.New("stuck") },
		"panic": func() error { panic("stuck") },
		"hangs": func() error { <-release; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			p := hosttest.New(t, host.Options{Plugins: []host.Plugin{broken{
				newLab(), func() error { return nil },
				stop,
			}}})
			p.Handshake(protocol.CapTools)
			wantCode(t, p.Call(protocol.TypeToolCallReq, tool("echo", `{}`)), "")
			p.CloseInput()
			assert.OK(t, p.WaitEnd())
		})
	}
}

// TestImmediateAtTheEnd: after the end of the input the host waits for immediate requests that still run, as for all
// others.
func TestImmediateAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{&procs{gate: gate}}})
		p.Handshake(protocol.CapProc)
		id := p.Go(protocol.TypeProcKillReq, `{"proc_id":"slow"}`)
		p.Call(protocol.TypePing, "") // the answer shows that the host has read the request
		p.CloseInput()
		time.AfterFunc(2*time.Second, func() { close(gate) })
		assert.OK(t, p.WaitEnd())
		assert.Equal(t, len(p.Answers(id)), 1, "answered … times")
	})
}
