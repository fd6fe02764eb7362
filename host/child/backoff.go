package child

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff says when a program that ended may be started again. The owner guards it.
type Backoff struct {
	First, Most time.Duration // the first wait, and the longest: each is twice as long as the one before
	Free        int           // failures in a row without a wait: an end may be an accident
	Enough      time.Duration // a process that lived as long was no failure

	// After Limit failures in a row it waits for Pause, then twice as long up to PauseMost;
	// 0 = it never comes to that.
	Limit            int
	Pause, PauseMost time.Duration
	Jitter           float64 // the part of each wait by which it may be longer or shorter, such as 0.5

	Failures int       // in a row
	Last     error     // how it ended the last time, or why it did not start; nil = it runs
	Ready    time.Time // when it may start again
}

// Up notes that it runs and works.
func (b *Backoff) Up() { b.Failures, b.Last = 0, nil }

// Down notes how it ended after it lived for a while; good says that it was of use meanwhile.
func (b *Backoff) Down(now time.Time, err error, lived time.Duration, good bool) {
	b.Last = err
	if b.Failures++; good || b.Enough > 0 && lived >= b.Enough {
		b.Failures = 0
	}
	doubled := b.Failures - 1 - b.Free
	wait := time.Duration(0)
	switch {
	case b.Paused():
		wait = min(b.Pause<<min(b.Failures-b.Limit, 10), max(b.Pause, b.PauseMost))
	case b.Failures > 0 && doubled >= 0:
		wait = min(b.First<<min(doubled, 16), b.Most)
	}
	if b.Jitter > 0 {
		wait += time.Duration(float64(wait) * b.Jitter * (2*rand.Float64() - 1))
	}
	b.Ready = now.Add(wait)
}

// Paused reports whether there were too many failures.
func (b *Backoff) Paused() bool { return b.Limit > 0 && b.Failures >= b.Limit }

// Wait is how long it must not be started yet; 0 = it may.
func (b *Backoff) Wait(now time.Time) time.Duration {
	if b.Last == nil {
		return 0
	}
	return max(b.Ready.Sub(now), 0)
}

// Reason says why it may not be started, and until when; "" = it may.
func (b *Backoff) Reason(now time.Time) string {
	if wait := b.Wait(now); wait > 0 {
		return fmt.Sprintf("%v; the next start is in %s", b.Last, wait.Round(time.Millisecond))
	}
	return ""
}
