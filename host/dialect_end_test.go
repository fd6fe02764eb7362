package host_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
)

// TestDialectThatIsSlowAtTheEnd: at its end the host waits for a dialect that was cut off, as long as the dialect
// sends answers. It does not wait for a dialect that is stuck.
func TestDialectThatIsSlowAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		defer close(stuck)
		d := &parrot{}
		d.drain = func(ctx context.Context) {
			<-ctx.Done()
			for i := range 5 {
				time.Sleep(900 * time.Millisecond)
				d.say(fmt.Sprint("answer ", i))
			}
			<-stuck
		}
		p := newRawPipe(t, host.Options{Dialects: []host.Dialect{d}})
		p.send(`{"parrot":"begin"}`)
		p.wait("begin")
		p.send(`{"type":"shutdown","timeout":0}`)
		p.ended()
		p.wait("answer 4")
	})
}

// TestDialectThatGoesOn: a dialect that never stops sending does not prevent the end of the host.
func TestDialectThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enough := make(chan struct{})
		defer close(enough)
		d := &parrot{}
		d.drain = func(context.Context) {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					d.say("more")
				case <-enough:
					return
				}
			}
		}
		p := newRawPipe(t, host.Options{Dialects: []host.Dialect{d}})
		p.send(`{"parrot":"begin"}`)
		p.wait("begin")
		p.send(`{"type":"shutdown","timeout":0}`)
		p.ended()
		p.wait("more")
	})
}
