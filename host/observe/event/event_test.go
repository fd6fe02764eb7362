package event_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/guard/redact"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/observe/event"
)

// keeper is a sink that keeps events.
type keeper []event.Event

func (k *keeper) Take(e event.Event) { *k = append(*k, e) }

// TestStream: each sink gets only the kinds of events that it asked for, without secrets and with a time.
func TestStream(t *testing.T) {
	const token = "canary-token-1"
	secrets := redact.New(nil)
	secrets.AddSecret(token)
	var all, ends keeper
	none := event.New(secrets)
	s := none.With(&all, event.Request|event.ChildEnd|event.In).With(&ends, event.ChildEnd)
	s.Take(event.Event{
		Kind: event.Request, Type: token, Name: "a " + token, ReqID: token, CorrelationID: token,
		SessionID: token, ErrorCode: token,
	})
	s.Take(event.Event{Kind: event.ChildEnd, Name: "sh", Text: "said " + token})
	s.Take(event.Event{Kind: event.In, Message: []byte(token)}) // the sink that keeps the message hides its secrets
	s.Take(event.Event{Kind: event.Out})
	none.Take(event.Event{Kind: event.Request})
	assert.That(t, len(all) == 3 && len(ends) == 1 && ends[0].Text == "said [redacted]", "got %+v and %+v", all, ends)
	assert.That(t, !strings.Contains(fmt.Sprint(all[:2]), token) && string(all[2].Message) == token, "got %+v", all)
	assert.That(t, !slices.ContainsFunc(all, func(e event.Event) bool { return time.Since(e.Time) > time.Hour }),
		"the times of %+v", all)
	assert.That(t, s.Wants(event.In) && !s.Wants(event.Out) && !(*event.Stream)(nil).Wants(event.In),
		"who listens to what")
	all = slices.Grow(all[:0], 2000)
	e := event.Event{
		Kind: event.Request, Time: time.Now(), Type: "tool/call/req", Name: "echo", ReqID: "1",
		SessionID: strings.Repeat("s", 40),
	}
	assert.Equal(t, testing.AllocsPerRun(1000, func() { s.Take(e) }), 0, "allocations of Take")
}

// TestLog: the level of the log selects which events are logged, and a line is bounded.
func TestLog(t *testing.T) {
	for level, want := range map[zerolog.Level]int{zerolog.WarnLevel: 0, zerolog.InfoLevel: 1, zerolog.DebugLevel: 4} {
		var out bytes.Buffer
		s := event.New(nil).WithLog(zerolog.New(&out).Level(level))
		for _, kind := range []event.Kind{
			event.Request, event.ChildStart, event.ChildEnd, event.Denied, event.In,
			event.Out,
		} {
			s.Take(event.Event{Kind: kind, Name: strings.Repeat("n", 1000)})
		}
		assert.Equal(t, strings.Count(out.String(), "\n"), want, "lines at the level %s:\n%s", level, out.String())
		assert.That(t, !strings.Contains(out.String(), strings.Repeat("n", 257)), "a long line: %s", out.String())
	}
}

// TestSpool: events that the file does not accept wait, in order. Events for which there is no room are counted, and
// their number stands where they are missing.
func TestSpool(t *testing.T) {
	var mu sync.Mutex
	var file []string
	fails, warned := true, 0
	s := event.NewSpool(event.SpoolOptions{
		Name: "the file", Max: 100, Delay: time.Millisecond,
		Warn: func(string) { mu.Lock(); defer mu.Unlock(); warned++ },
		Append: func(dst []byte, e event.Event, lost int) []byte {
			return fmt.Appendf(dst, "%d %d %s\n", e.Kind, lost, e.Name)
		},
		Write: func(texts []byte, _ <-chan struct{}, _ time.Duration) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if fails {
				return 0, fmt.Errorf("the disk is full")
			}
			line, _, _ := strings.Cut(string(texts), "\n") // it accepts only one line at a time
			file = append(file, line)
			if len(line)+1 < len(texts) {
				return len(line) + 1, fmt.Errorf("interrupted")
			}
			return len(texts), nil
		},
	})
	s.Add(event.Event{Kind: event.In, Name: "first"})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		mu.Lock()
		heard := warned
		mu.Unlock()
		if heard > 0 {
			break
		}
		must.That(t, time.Now().Before(deadline), "nobody is warned")
	}
	s.Add(event.Event{Kind: event.Out, Name: "second"})
	for range 3 {
		s.Add(event.Event{Kind: event.Out, Name: strings.Repeat("x", 90)})
	}
	s.Add(event.Event{Kind: event.In, Name: strings.Repeat("x", 90)})
	_, dropped := s.Waiting()
	assert.Equal(t, dropped, 4, "dropped events")
	s.Add(event.Event{Kind: event.In, Name: "third"})
	mu.Lock()
	fails = false
	mu.Unlock()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if size, _ := s.Waiting(); size == 0 {
			break
		}
		must.That(t, time.Now().Before(deadline), "the file is never written")
	}
	must.OK(t, s.Close())
	s.Add(event.Event{Kind: event.In, Name: "late"})
	assert.Equal(t, strings.Join(file, ","), "2 0 first,4 0 second,2 1 ,4 3 ,2 0 third", "the file")
}
