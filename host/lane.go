package host

import (
	"context"
	"slices"
)

// order says what a request is to the others of its capability.
type order int

const (
	anyOrder order = iota
	reads          // sees what came before it; runs beside other reads
	changes        // runs alone
)

// lane keeps the requests of one capability in the order in which they came: an agent
// that does not wait for each answer finds what it has just stored. A request in a lane
// has its place already, and waits in it.
type lane struct {
	// guarded by Host.mu: of the changes and the reads that have not ended, a channel
	// each that is closed then
	changing, reading []<-chan struct{}
}

// joinLocked puts a call at the end of the lane and notes what it has to wait for: all
// of it, as one that waits itself may be stopped and end before those ahead of it.
func (l *lane) joinLocked(c *call) {
	c.passed = make(chan struct{})
	l.changing, l.reading = slices.DeleteFunc(l.changing, isClosed), slices.DeleteFunc(l.reading, isClosed)
	c.before = slices.Clone(l.changing)
	if c.dest.order == reads {
		l.reading = append(l.reading, c.passed)
		return
	}
	c.before = append(c.before, l.reading...)
	l.changing = append(l.changing, c.passed)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// waitTurn waits for the calls before this one; the error is why it was stopped meanwhile.
func (c *call) waitTurn() error {
	for _, before := range c.before {
		if isClosed(before) {
			continue
		}
		Detach(c)
		select {
		case <-before:
		case <-c.Done():
			return context.Cause(c)
		}
	}
	if std := c.std.Load(); std != nil && std.Err() != nil {
		return context.Cause(std)
	}
	return nil
}
