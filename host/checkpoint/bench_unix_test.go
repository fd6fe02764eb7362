//go:build unix

package checkpoint_test

import (
	"fmt"
	"testing"

	"a2e/host/checkpoint"
)

// BenchmarkOneChangedFile makes checkpoints of a tree of 50,000 files of which one changed: with the
// keeper of a host that lives on, with one that begins anew each time, and the first of all.
func BenchmarkOneChangedFile(b *testing.B) {
	s := newStage(b, nil)
	for d := range 2500 {
		for f := range 20 {
			s.write(fmt.Sprintf("d%02d/s%03d/file_%d.go", d%50, d, f), fmt.Sprintf("package x // %d %d", d, f))
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			s.take("first")
		}
	})
	change := func(n int) { s.write("d07/s007/file_3.go", fmt.Sprint("package y // ", n)) }
	b.Run("warm", func(b *testing.B) {
		s.take("warm")
		for n := 0; b.Loop(); n++ {
			change(n)
			s.take("warm")
		}
	})
	b.Run("cold", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			change(n)
			k := checkpoint.Open(s.opts)
			if _, err := k.Take(b.Context(), "cold"); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			_ = k.Close()
			b.StartTimer()
		}
	})
}
