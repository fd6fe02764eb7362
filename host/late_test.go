package host_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// latch is a dialect whose Mine blocks at a line with an id that begins with "late" until the plugins are being
// closed, so that the line counts as read just before the end. The host asks dialects only about lines that may not
// be A2E's.
type latch struct {
	parrot
	closing chan struct{}
}

func (l *latch) Mine(line *protocol.Line) bool {
	if id, _ := line.ID.Str(); strings.HasPrefix(id, "late") {
		<-l.closing
	}
	return false
}

// closer is the plugin that closes the channel of the latch. Its Close then waits for the answer to the late line.
type closer struct {
	lab
	closing chan struct{}
	pair    func() *hosttest.Pair
}

func (c *closer) Close(ctx context.Context) error {
	close(c.closing)
	for ctx.Err() == nil && len(c.pair().Answers("late")) == 0 {
		time.Sleep(time.Millisecond)
	}
	return nil
}

// TestARequestThatComesTooLateIsNotUnauthorized: a request that the host reads while it ends gets the same error as a
// request that the end cuts off, so the agent can send it again. Its session has ended meanwhile, but "unauthorized"
// would be wrong.
func TestARequestThatComesTooLateIsNotUnauthorized(t *testing.T) {
	for _, late := range []string{
		hosttest.Request(protocol.TypeToolCallReq, "late", tool("echo", `{}`)),
		hosttest.Request(protocol.TypeProcKillReq, "late", `{"proc_id":"p"}`),
		hosttest.Request(protocol.TypeHandshakeReq, "late", `{}`),
		hosttest.Request(protocol.TypeCancel, "late", `{"req_id":"x"}`),
		hosttest.Request(protocol.TypeMCPSampleResp, "late", `{"req_id":"x"}`),
		hosttest.Request("no/such/req", "late", `{}`),
	} {
		synctest.Test(t, func(t *testing.T) {
			var p *hosttest.Pair
			closing := make(chan struct{})
			c := &closer{closing: closing, pair: func() *hosttest.Pair { return p }}
			c.tools, c.info = labTools(), host.PluginInfo{Name: "lab", Capability: protocol.CapTools}
			p = hosttest.Start(t, host.Options{
				Plugins: []host.Plugin{c, &procs{}}, Dialects: []host.Dialect{&latch{closing: closing}},
			})
			p.Handshake(protocol.CapTools, protocol.CapProc)
			p.Send(strings.Replace(late, "{", `{"jsonrpc":null,`, 1))
			synctest.Wait()
			p.Host.Shutdown(0)
			p.Answer("late").Has(t, "/code", string(protocol.CodeTimeout), "/retryable", "true")
			assert.OK(t, p.WaitEnd())
			p.Close()
		})
	}
}

// fill sends calls until the output is full and the host stops reading.
func (b *scene) fill() {
	text := strings.Repeat("x", 10_000)
	go func() { // ends with the host
		for i := range 100 {
			b.line(protocol.TypeToolCallReq, fmt.Sprint("c", i), tool("echo", fmt.Sprintf(`{"text":%q}`, text)))
		}
	}()
	time.Sleep(time.Second)
}

// TestAPeerThatHasGoneEndsTheHost: if the peer has gone and reads no more, the host ends after DrainTimeout, although
// lines before the end of the input wait behind answers that nobody reads. A signal ends it sooner.
func TestAPeerThatHasGoneEndsTheHost(t *testing.T) {
	for name, tc := range map[string]struct {
		signal      time.Duration
		least, most time.Duration
	}{
		"hung up":               {0, host.DrainTimeout, host.DrainTimeout + 2*time.Second},
		"hung up, then SIGTERM": {3 * time.Second, 3 * time.Second, 4500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := bubble(t, host.Options{
					Plugins: []host.Plugin{newLab()},
					Limits:  host.Limits{OutputBuffer: 100 << 10},
				})
				resume := b.out.shut()
				b.fill()
				b.InputClosed()
				b.InputClosed()
				if tc.signal > 0 {
					time.AfterFunc(tc.signal, b.Interrupt)
				}
				took := b.end(t)
				assert.That(t, took >= tc.least && took <= tc.most, "it took %v", took)
				resume()
			})
		})
	}
}

// TestAPeerThatReadsOnGetsItAll: a peer that has closed its side but continues to read, slowly, gets every answer.
func TestAPeerThatReadsOnGetsItAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bubble(t, host.Options{Plugins: []host.Plugin{newLab()}, Limits: host.Limits{OutputBuffer: 100 << 10}})
		resume := b.out.shut()
		b.fill()
		b.InputClosed()
		time.Sleep(8 * time.Second)
		b.out.mu.Lock()
		b.out.slow = 6 * time.Second
		b.out.mu.Unlock()
		resume()
		time.Sleep(5 * time.Minute)
		b.in.Close()
		b.end(t)
		for i := range 100 {
			must.That(t, strings.Contains(b.out.text(), fmt.Sprintf(`"req_id":"c%d"`, i)), "c%d was not answered", i)
		}
	})
}

// TestTheEndTakesNoLongerThanItsTimeout: time in which a request still runs also counts as time in which the peer
// does not read, so the two waits do not add up.
func TestTheEndTakesNoLongerThanItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bubble(t, host.Options{Plugins: []host.Plugin{newLab()}, Limits: host.Limits{OutputBuffer: 10 << 20}})
		resume := b.out.shut()
		b.line(protocol.TypeToolCallReq, "long", tool("sleep", `{"ms":9000}`))
		b.fill()
		b.in.Close()
		took := b.end(t)
		assert.That(t, took <= host.DrainTimeout+2*time.Second, "it took %v", took)
		resume()
	})
}

// TestASignalEndsASlowRead: a signal ends the host within 1.5 seconds even while the peer continues to read slowly.
// Text that the host has not written by then is lost.
func TestASignalEndsASlowRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bubble(t, host.Options{Plugins: []host.Plugin{newLab()}})
		resume := b.out.shut()
		b.fill()
		b.in.Close()
		b.out.mu.Lock()
		b.out.slow = 300 * time.Millisecond
		b.out.mu.Unlock()
		resume()
		time.Sleep(time.Second)
		b.Interrupt()
		took := b.end(t)
		assert.That(t, took <= 1500*time.Millisecond, "it took %v", took)
		time.Sleep(time.Second) // the last write ends in this second
		written := len(b.out.text())
		time.Sleep(10 * time.Second)
		assert.Equal(t, len(b.out.text()), written, "the host wrote on after its end: … bytes")
	})
}

// lingers uses up all the time that its Close has.
type lingers struct{ *lab }

func (lingers) CloseTimeout() time.Duration { return time.Minute }

func (lingers) Close(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// TestASignalCutsTheTimeToClose: plugins have their full CloseTimeout to close. A signal shortens it while they close,
// and also if it comes earlier in a shutdown, when it does not shorten the time that requests have left.
func TestASignalCutsTheTimeToClose(t *testing.T) {
	for name, tc := range map[string]struct {
		signal      time.Duration // after the end has begun; 0 = none
		request     bool          // a request runs, and the shutdown gives it a second
		least, most time.Duration
	}{
		"no signal":            {0, false, time.Minute, time.Minute + time.Second},
		"while they close":     {10 * time.Second, false, 10 * time.Second, 11500 * time.Millisecond},
		"while a request runs": {300 * time.Millisecond, true, 300 * time.Millisecond, 1800 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab()
				b := bubble(t, host.Options{Plugins: []host.Plugin{lingers{l}}})
				if tc.request {
					b.line(protocol.TypeToolCallReq, "1", tool("block", `{}`))
					<-l.begun
					b.line(protocol.TypeShutdown, "2", `{"timeout":1}`)
				} else {
					b.in.Close()
				}
				if tc.signal > 0 {
					time.AfterFunc(tc.signal, b.Interrupt)
				}
				took := b.end(t)
				assert.That(t, took >= tc.least && took <= tc.most, "it took %v", took)
			})
		})
	}
}
