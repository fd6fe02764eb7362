package metrics_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/observe/event"
	"a2e/host/observe/metrics"
)

// TestBounded: whatever clients send and plugins answer, the number of samples stays bounded and every request is
// counted.
func TestBounded(t *testing.T) {
	t.Parallel()
	none := func() int { return 0 }
	m := metrics.New(metrics.Options{Sessions: none, Processes: none, Load: func() (int, int) { return 0, 0 }})
	const n = 5000
	for i := range n {
		m.Take(event.Event{Type: fmt.Sprintf("unknown\n%d", i), ErrorCode: "invalid_message"})
		m.Take(event.Event{Type: fmt.Sprintf(`own"%d`, i), Duration: time.Duration(i) * time.Second})
		m.Take(event.Event{Type: "ping", ErrorCode: fmt.Sprint("code", i)})
	}
	m.Take(event.Event{Type: strings.Repeat("x", 1000)})
	m.Take(event.Event{Type: "no\xffUTF-8", ErrorCode: "no\xffUTF-8"})
	got := httptest.NewRecorder()
	m.ServeHTTP(got, httptest.NewRequest("GET", "/metrics", nil))
	total, lines := 0, 0
	for line := range strings.Lines(got.Body.String()) {
		if lines++; strings.HasPrefix(line, "a2e_requests_total{") {
			var count float64
			_, _ = fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &count)
			total += int(count)
		}
	}
	assert.Equal(t, total, 3*n+2, "requests")
	assert.That(t, lines < 1100*15, "%d lines", lines)
	assert.That(t, !strings.Contains(got.Body.String(), "unknown"), "a type that nobody has is a label")
}
