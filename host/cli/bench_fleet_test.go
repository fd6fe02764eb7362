package cli_test

import (
	"runtime"
	"testing"

	"github.com/go-json-experiment/json"
)

// TestBenchFleet: the bench gives tasks to the program and sees their worker begin. The
// figures are not judged: the machine may be busy.
func TestBenchFleet(t *testing.T) {
	dir := workDir(t)
	out, err := command(t, dir, "./a2e", "bench", "--quick", "--json", "--cases", "fleet").Output()
	var report struct {
		Failures []any `json:"failures"`
		Fleet    struct {
			Ways []struct {
				What  string  `json:"what"`
				P50   float64 `json:"p50_us"`
				P99   float64 `json:"p99_us"`
				Times float64 `json:"times"`
			} `json:"ways"`
		} `json:"fleet"`
	}
	if err == nil {
		err = json.Unmarshal(out, &report)
	}
	ways := 4
	if runtime.GOOS == "windows" {
		ways = 0 // it has no named pipes
	}
	if err != nil || len(report.Failures) > 0 || len(report.Fleet.Ways) != ways {
		t.Fatalf("%v: %s", err, out)
	}
	for _, w := range report.Fleet.Ways {
		if w.P50 <= 0 || w.P99 < w.P50 || w.Times <= 0 {
			t.Errorf("%s: %+v", w.What, w)
		}
	}
}
