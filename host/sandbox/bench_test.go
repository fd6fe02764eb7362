//go:build linux

package sandbox

import (
	"context"
	"os/exec"
	"testing"
)

// BenchmarkStart compares a child started through the launcher, on every level
// that this machine has, with a bare one.
func BenchmarkStart(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, lv := range levels(BestEffort) {
		b.Run(string(lv.mechanism), func(b *testing.B) {
			l, err := New(Options{Home: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			l.start.levels = []level{lv}
			for b.Loop() {
				p, err := l.Command(context.Background(), Policy{Path: "/bin/true"})
				if err != nil {
					b.Fatal(err)
				}
				if state, err := p.Wait(); err != nil || state.Code != 0 {
					b.Fatal(state, err)
				}
			}
		})
	}
}
