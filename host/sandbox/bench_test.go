//go:build linux

package sandbox

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"a2e/host/hosttest/must"
)

// BenchmarkStart measures the start of a child through the launcher, on every level of this machine, and that of a
// child without the launcher.
func BenchmarkStart(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			must.OK(b, exec.Command("/bin/true").Run())
		}
	})
	for i, lv := range levels(BestEffort) {
		if i > 0 && lv.mechanism == levels(BestEffort)[0].mechanism {
			continue
		}
		for _, way := range []string{"at once", "after a pause"} {
			b.Run(string(lv.mechanism)+"/"+way, func(b *testing.B) { benchmarkStart(b, lv, way == "after a pause") })
		}
	}
}

// benchmarkStart starts children one after the other: at once, or after a pause in which the spare launcher becomes
// ready, as when an agent thinks between two calls.
func benchmarkStart(b *testing.B, lv level, pause bool) {
	l := must.Get(New(Options{Home: b.TempDir()}))(b)
	defer l.Close()
	l.start.levels = []level{lv}
	for b.Loop() {
		p := must.Get(l.Command(context.Background(), Policy{Path: "/bin/true"}))(b)
		state, err := p.Wait()
		must.That(b, err == nil && state.Code == 0, "%v %v", state, err)
		if pause {
			b.StopTimer()
			l.start.fills.Wait()
			time.Sleep(10 * time.Millisecond) // meanwhile the spare launcher starts and the last one is removed
			b.StartTimer()
		}
	}
}
