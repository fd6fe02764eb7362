package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol/fleet"
)

// TestResultsBounded: results take only a bounded number of bytes, in memory and in the store.
func TestResultsBounded(t *testing.T) {
	state := stores.Memory(t, Part())
	summary := strings.Repeat("x", 100<<10)
	for name, c := range map[string]struct {
		results *results
		fit     int
	}{
		"memory": {&results{log: zerolog.Nop(), room: room{250 << 10, 1050 << 10}}, 2},
		"store": {&results{
			log: zerolog.Nop(), room: room{250 << 10, 1050 << 10}, patience: time.Hour,
			store: func(context.Context) (store.Store, error) { return state, nil },
		}, 10},
	} {
		made := c.fit + 3
		for i := range made {
			r := fleet.NewResult(fmt.Sprint(i), fleet.StatusDone)
			r.Summary = summary
			c.results.keep(t.Context(), r.TaskID, r)
		}
		for i := range made {
			r := c.results.get(t.Context(), fmt.Sprint(i))
			assert.Equal(t, (r != nil), (i >= 3), "%s: result %d of %d is there: %t", name, i, made, r != nil)
		}
	}
	r := &results{log: zerolog.Nop(), room: room{250 << 10, 1050 << 10}}
	for i := range maxRemembered + 5 {
		r.remember(kept{Result: []byte("1"), task: fmt.Sprint(i % (maxRemembered + 2))})
	}
	assert.That(t, len(r.known) == maxRemembered && r.known[maxRemembered-1].task == "2",
		"%d results are remembered, the last is %s", len(r.known), r.known[len(r.known)-1].task)
}

// Hurry shortens the times that a Front waits.
func (f *Front) Hurry(late, connect, watch time.Duration) { f.pace = pace{late, connect, watch} }

// HurryGit shortens the time that a Front waits for git.
func (f *Front) HurryGit(patience time.Duration) { f.repo.patience = patience }

// HurryStore shortens the time that a Front waits for the store.
func (f *Front) HurryStore(patience time.Duration) { f.results.patience = patience }
