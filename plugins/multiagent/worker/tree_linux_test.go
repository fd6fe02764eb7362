package worker

import (
	"context"
	"fmt"
	"os"
	"testing"

	"a2e/host/hosttest"
)

// A worker's children, and theirs, end with the task, however it ends.
func TestTheWholeTreeEnds(t *testing.T) {
	t.Parallel()
	for i, how := range []string{"cancel", "exit", "close"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			mark := fmt.Sprintf("98%d%d", i, os.Getpid()) // seconds
			script := `sh -c 'setsid sh -c "sleep ` + mark + ` & echo x >begun; wait" & wait' & while ! test -e begun; do sleep 0.01; done; `
			if how == "exit" {
				script += `while ! test -e go; do sleep 0.01; done`
			} else {
				script += `wait`
			}
			w := shell("w", script)
			s := confinedStage(t, w)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = s.RunTask(ctx, brief("id", "")) // how it ended is the other tests' matter
			}()
			s.await("begun", 1)
			switch poll(t, "the grandchild", func() bool { return hosttest.Running(t, mark) > 0 }); how {
			case "cancel":
				cancel()
			case "exit":
				s.touch("go")
			case "close":
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}
			<-ended
			cancel()
			if n := hosttest.Running(t, mark); n != 0 {
				t.Errorf("%d processes are left", n)
			}
		})
	}
}
