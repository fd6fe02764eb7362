package chains

import (
	"runtime"
	"testing"
)

// A plugin that ends the goroutine of a pool ends its own call alone: who waits for the pool
// is still helped.
func TestGoroutineThatAPluginEndsIsReplaced(t *testing.T) {
	p := &pool{}
	once := func(do func()) *crew {
		begun := false
		c := &crew{pool: p, most: 2, active: 1, done: make(chan struct{}), do: func(int) { do() }, more: func() bool { return false }}
		c.next = func() (int, bool) {
			defer func() { begun = true }()
			return 0, !begun
		}
		return c
	}
	helped := make(chan struct{})
	ended, waits := once(runtime.Goexit), once(func() { close(helped) })
	p.ask(waits)
	p.all.Go(func() { p.serve(ended) })
	p.all.Wait()
	select {
	case <-helped:
	default:
		t.Error("who waited was forgotten")
	}
	if p.free != 1 || len(p.waiting) != 0 {
		t.Errorf("%d free, %d wait", p.free, len(p.waiting))
	}
}
