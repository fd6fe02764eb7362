package multiagent

import (
	"strings"
	"testing"

	"a2e/protocol/fleet"
)

// What is kept of a result has an end, however much a worker says.
func TestKeptResultIsBounded(t *testing.T) {
	plugin := newPlugin(t, t.TempDir(), options(shell("w", "cat")), Env{})
	res := fleet.NewResult("t", fleet.StatusDone)
	res.Summary = strings.Repeat("s", 8<<20)
	for range 2000 {
		res.NextSteps = append(res.NextSteps, strings.Repeat("n", 8<<10))
		res.Artifacts.FilesChanged = append(res.Artifacts.FilesChanged, strings.Repeat("f", 8<<10))
	}
	kept := plugin.resultOf(res)
	for _, key := range []string{"next_steps", "files_changed"} {
		list := kept[key].([]string)
		if size := len(strings.Join(list, "")); size > maxList || len(list) < maxList/maxEntry/2 {
			t.Errorf("%s: %d entries of %d bytes", key, len(list), size)
		}
	}
	if size := len(text(kept, keySummary)); size > defaultMaxOutput {
		t.Errorf("the summary has %d bytes", size)
	}
}
