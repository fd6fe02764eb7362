package exec

import (
	"testing"
	"time"

	"a2e/host"
)

// BenchmarkOverhead calls the built-in echo and the same tool behind a child in turn, one
// call at a time and 16 at once: x/builtin is how much longer one through the child takes.
func BenchmarkOverhead(b *testing.B) {
	for name, child := range map[string]struct {
		role    string
		example []string
		tool    string
	}{
		"host":   {role: "host", tool: "echo"},
		"python": {example: []string{"python3", "word_tools.py"}, tool: "word_count"},
		"node":   {example: []string{"node", "hash_tools.mjs"}, tool: "sha256"},
	} {
		for _, at := range []struct {
			name string
			once int
		}{{"alone", 1}, {"16", 16}} {
			b.Run(name+"/"+at.name, func(b *testing.B) {
				f := newField(b)
				opts := Options{}
				if child.example != nil {
					opts.Command = []string{child.example[0], f.example(child.example[1])}
				}
				near, far := newAgent(b, builtin(b)), newAgent(b, host.Plugin(f.plugin("x", child.role, opts)))
				var took [2]time.Duration
				for b.Loop() {
					for i, a := range []*agent{near, far} {
						start := time.Now()
						calls(b, a, []string{"echo", child.tool}[i], at.once)
						took[i] += time.Since(start)
					}
				}
				n := float64(b.N * at.once)
				b.ReportMetric(float64(took[0].Microseconds())/n, "µs-builtin")
				b.ReportMetric(float64(took[1].Microseconds())/n, "µs-child")
				b.ReportMetric(float64(took[1])/float64(took[0]), "x/builtin")
			})
		}
	}
}

// calls makes n calls at once and waits for them.
func calls(b *testing.B, a *agent, tool string, n int) {
	failed := make(chan error, n)
	for range n {
		go func() {
			_, err := a.call(b, tool, "some text")
			failed <- err
		}()
	}
	for range n {
		if err := <-failed; err != nil {
			b.Fatal(err)
		}
	}
}
