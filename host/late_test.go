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

// latch is a dialect that holds the reader at a line until the plugins are being closed: the
// line is one that came just before the end. It is asked for lines that may not be A2E's.
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

// closer is the plugin that tells the latch, and gives the late line time to be answered.
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

// A request that was read while the host ends is answered as what the end cuts off is, and
// can be sent again: the session that it belongs to has ended meanwhile, but it had one.
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

// fill has a host answer until the output is full and it reads no more.
func (b *scene) fill() {
	text := strings.Repeat("x", 10_000)
	go func() { // ends with the host
		for i := range 100 {
			b.line(protocol.TypeToolCallReq, fmt.Sprint("c", i), tool("echo", fmt.Sprintf(`{"text":%q}`, text)))
		}
	}()
	time.Sleep(time.Second)
}

// The peer has gone and reads no more: the host ends after the time that the end of the input
// gives, though its lines before that end wait behind answers that nobody reads; and sooner
// on a signal.
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

// The peer has closed its side but reads on, slowly: it gets every answer.
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

// The time in which a request ran on and nobody read counts as one in which nobody read.
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

// A signal ends the host in its time also while the peer reads on, slowly: what it was not given is lost.
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
		time.Sleep(time.Second) // the last write
		written := len(b.out.text())
		time.Sleep(10 * time.Second)
		assert.Equal(t, len(b.out.text()), written, "the host wrote on after its end: … bytes")
	})
}

// Plugins have their time to close, which a signal cuts.
func TestASignalCutsTheTimeToClose(t *testing.T) {
	for _, signal := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := bubble(t, host.Options{Plugins: []host.Plugin{lingers{newLab()}}})
			begun := time.Now()
			b.in.Close()
			time.Sleep(10 * time.Second)
			if signal {
				b.Interrupt()
			}
			b.end(t)
			least, most := time.Minute, time.Minute+time.Second
			if signal {
				least, most = 10*time.Second, 11500*time.Millisecond
			}
			took := time.Since(begun)
			assert.That(t, took >= least && took <= most, "it took %v", took)
		})
	}
}
