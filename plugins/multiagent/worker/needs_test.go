package worker

import (
	"context"
	"strings"
	"testing"
)

// What a task may want is bounded: it is looked for while all others wait.
func TestTooManyNeeds(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", "true"))
	for i, path := range []string{"/requirements/required_mcp", "/requirements/required_capabilities"} {
		task := brief("t", "")
		list := []*[]string{&task.Requirements.RequiredMCP, &task.Requirements.RequiredCapabilities}[i]
		*list = make([]string, maxNeeds)
		if _, err := s.RunTask(context.Background(), task); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		*list = make([]string, maxNeeds+1)
		if res, err := s.RunTask(context.Background(), task); res != nil || err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v %v", path, res, err)
		}
	}
}
