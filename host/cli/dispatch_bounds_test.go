package cli

import (
	"slices"
	"strings"
	"testing"
)

// TestDispatchFileOfProblems: a large file in which everything is wrong is not looked through
// to its end.
func TestDispatchFileOfProblems(t *testing.T) {
	t.Parallel()
	_, problems, err := readTasks(wrote(t, "t.ndjson", strings.Repeat("{}\n", 3*maxProblems)), nil, "run")
	if err != nil || len(problems) != maxProblems {
		t.Errorf("%d problems (%v)", len(problems), err)
	}
}

// TestDispatchTimeout: a time that does not fit is refused.
func TestDispatchTimeout(t *testing.T) {
	t.Parallel()
	for seconds, fits := range map[int]bool{-1: false, 0: true, 3600: true, maxTaskTime: true, maxTaskTime + 1: false, 10_000_000_000: false} {
		d := dispatchCmd{Workers: 1, File: "-", Out: "-", Timeout: seconds}
		if err := d.check(); (err == nil) != fits {
			t.Errorf("--timeout %d: %v", seconds, err)
		}
	}
}

// TestDispatchArgv: what the workers are started with is what was said, also where it looks
// like a flag.
func TestDispatchArgv(t *testing.T) {
	t.Parallel()
	d := dispatchRun{dispatchCmd: dispatchCmd{Model: "-m", Command: []string{"x", "--", "-y"}}, cmd: &commands{LogLevel: "warn", Config: "-c.yaml"}}
	want := []string{"self", "--log-level", "warn", "--config=-c.yaml", "worker", "--agent-id", "w", "--model=-m", "--", "x", "--", "-y"}
	if got := d.argv("self", "w"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
