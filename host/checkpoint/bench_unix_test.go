//go:build unix

package checkpoint_test

import (
	"fmt"
	"testing"

	"a2e/host/checkpoint"
	"a2e/host/hosttest/must"
)

// BenchmarkOneChangedFile makes checkpoints of a tree of 50,000 files of which one changed: with the
// keeper of a host that lives on, with one that begins anew each time, at once or
// once it has looked around, and the first of all.
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
	for _, prepared := range []bool{false, true} {
		b.Run(map[bool]string{false: "cold", true: "prepared"}[prepared], func(b *testing.B) {
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				change(2 * n)
				k := checkpoint.Open(s.opts)
				if prepared {
					k.Prepare()
					_, err := k.List(b.Context()) // which waits for it
					must.OK(b, err)
					change(2*n + 1)
				}
				b.StartTimer()
				_, err := k.Take(b.Context(), "cold")
				b.StopTimer()
				must.OK(b, err, k.Close())
				b.StartTimer()
			}
		})
	}
}
