package cli_test

import (
	"testing"

	"github.com/go-json-experiment/json"
)

// TestBenchBridge: the bench reaches an MCP server through the program and without it. The
// figures are not judged: the machine may be busy.
func TestBenchBridge(t *testing.T) {
	dir := workDir(t)
	out, err := command(t, dir, "./a2e", "bench", "--quick", "--json", "--cases", "bridge").Output()
	var report struct {
		Failures []any `json:"failures"`
		Bridge   struct {
			Ways []struct {
				What  string  `json:"what"`
				P50   float64 `json:"p50_us"`
				Times float64 `json:"times"`
			} `json:"ways"`
		} `json:"bridge"`
	}
	if err == nil {
		err = json.Unmarshal(out, &report)
	}
	if err != nil || len(report.Failures) > 0 || len(report.Bridge.Ways) != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	for _, w := range report.Bridge.Ways {
		if w.P50 <= 0 || w.Times <= 0 {
			t.Errorf("%s: %+v", w.What, w)
		}
	}
}
