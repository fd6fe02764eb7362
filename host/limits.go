package host

import (
	"cmp"
	"time"
)

// Limits bounds what one host holds in memory. A zero field means its default.
type Limits struct {
	LineBytes    int // longest line taken; default 16 MiB
	Queue        int // requests that wait for a slot; default 65,536
	QueueBytes   int // bytes of those; default 32 MiB
	OutputBuffer int // bytes of answers that nobody has read yet; default 16 MiB
}

func (l *Limits) setDefaults() {
	l.LineBytes = cmp.Or(l.LineBytes, 16<<20)
	l.Queue = cmp.Or(l.Queue, 65536)
	l.QueueBytes = cmp.Or(l.QueueBytes, 32<<20)
	l.OutputBuffer = cmp.Or(l.OutputBuffer, 16<<20)
}

const (
	// callOverhead is what a queued request costs beyond the bytes of its line.
	callOverhead = 512
	// maxAbandoned is how many handlers may fail to stop before new requests are refused. Each of them may hold a
	// processor and its data.
	maxAbandoned = 100
	// closeTimeout is how long the plugins may take to end the session of a host that ends, and then to close.
	closeTimeout = 400 * time.Millisecond
	// leaveTimeout is how long the plugins may take to end a session if the host goes on.
	leaveTimeout = 5 * time.Second
	// maxTimeout bounds the timeout that a request may ask for, in seconds.
	maxTimeout = 7 * 24 * 3600
	// maxShutdown bounds the timeout that a shutdown may ask for.
	maxShutdown = time.Hour
)
