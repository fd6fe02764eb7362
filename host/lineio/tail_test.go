package lineio

import (
	"strings"
	"testing"
)

// TestTailOfAStream: what is written in pieces is kept as one text, whose first character
// is whole and which tells how much is missing before it.
func TestTailOfAStream(t *testing.T) {
	const text = "the begin, ü and the end \n"
	for _, size := range []int{1, 2, 5, 1 << 20} { // of one write
		for _, kept := range []int{len(text) - 11, len(text) - 12, len(text) - 13} { // ü is the bytes 11 and 12
			tail := Tail{Size: kept}
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				if got, err := tail.Write([]byte(rest[:n])); got != n || err != nil {
					t.Fatal(got, err)
				}
				rest = rest[n:]
			}
			want, left := "ü and the end", 11
			if kept < len(text)-11 {
				want, left = "and the end", 13
			}
			if tail.String() != want || tail.Left() != left {
				t.Errorf("in pieces of %d, %d kept: %q after %d bytes", size, kept, tail.String(), tail.Left())
			}
		}
	}
	var tail Tail
	if tail.Size = 10; tail.String() != "" || tail.Left() != 0 {
		t.Errorf("nothing is %q", tail.String())
	}
	for range 100 {
		_, _ = tail.Write([]byte(strings.Repeat("x", 100_000))) // it has no error
	}
	if cap(tail.text) > 100 || tail.Left() != 10_000_000-10 {
		t.Errorf("%d bytes are kept, %d left out", cap(tail.text), tail.Left())
	}
}
