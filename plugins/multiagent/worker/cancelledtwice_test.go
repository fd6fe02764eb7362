package worker

import (
	"context"
	"strconv"
	"testing"

	"a2e/protocol/fleet"
)

// Who cancels tasks does not make a worker ill that has to be ended for it.
func TestCancelsAreNoCrashes(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "f"))
	for i := range 4 {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := s.RunTask(ctx, brief("c"+strconv.Itoa(i), "note; hang"))
			ended <- err
		}()
		s.await("notes", i+1)
		cancel()
		if err := <-ended; err == nil {
			t.Fatal("it was not cancelled")
		}
		if info := s.info("f"); !info.Healthy {
			t.Fatalf("after %d cancels: %s", i+1, info.Reason)
		}
	}
	if res := s.do(brief("next", "done")); res.Status != fleet.StatusDone {
		t.Errorf("%+v", res)
	}
}
