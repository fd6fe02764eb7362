package exec

import "sync"

const (
	defaultMaxLine = 16 << 20 // longest line of the child's stdout, in bytes
	maxStderrLine  = 8 << 10  // of its stderr; the rest of a longer one is dropped
	maxShown       = 200      // of a line that the log shows
)

// gauge counts what is under way, up to a bound.
type gauge struct {
	mu sync.Mutex
	n  int
}

func (g *gauge) enter(most int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n >= most {
		return false
	}
	g.n++
	return true
}

func (g *gauge) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
}
