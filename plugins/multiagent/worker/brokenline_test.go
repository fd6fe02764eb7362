package worker

import (
	"strings"
	"testing"

	"a2e/protocol/fleet"
)

// A result that is no valid message ends its task: nobody waits for another one until the
// deadline.
func TestBrokenResults(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "f"))
	for name, rest := range map[string]string{
		"half a character": `"status":"done","summary":"caf\ud800"`,
		"a key twice":      `"status":"done","status":"error"`,
		"broken off":       `"status":"done","summary":"x`,
	} {
		task := brief("t "+name, "result "+rest)
		task.Worker = "f"
		if res := s.do(task); res.Status != fleet.StatusError || !strings.Contains(res.Error, "not valid") {
			t.Errorf("%s: %+v", name, res)
		}
	}
	if res := s.do(brief("next", "done")); res.Status != fleet.StatusDone {
		t.Errorf("%+v", res)
	}
}

// What a worker says remains can be told to others as it is.
func TestRemainingIsFitToBeTold(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "f"))
	for _, rest := range []string{`{"a":1,"a":2}`, strings.Repeat("[", 9990) + strings.Repeat("]", 9990)} {
		s.do(brief("t", `result "status":"partial","remaining":`+rest)) // it checks that the result encodes
	}
}
