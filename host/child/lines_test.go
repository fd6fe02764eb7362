package child_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host/child"
)

func TestSplitter(t *testing.T) {
	const kept = 4 << 10
	long := strings.Repeat("x", kept)
	for _, size := range []int{1, 2, 3, 7, 1 << 20} { // of one write
		var lines []string
		s := child.Splitter{Max: kept + 2, Line: func(line []byte) { lines = append(lines, string(line)) }, Long: func(head []byte) { lines = append(lines, "long:"+string(head)) }}
		for text := "a\nbc\n" + long + "yyyyy\nd\r\n" + long + "\nlast"; text != ""; {
			n := min(size, len(text))
			if got, err := s.Write([]byte(text[:n])); got != n || err != nil {
				t.Fatal(got, err)
			}
			text = text[n:]
		}
		s.End()
		want := []string{"a", "bc", "long:" + long, "d\r", long, "last"}
		if !slices.Equal(lines, want) {
			t.Errorf("in pieces of %d: %.60q", size, lines)
		}
	}
}

func TestSplitterHead(t *testing.T) {
	var heads []string
	s := child.Splitter{Max: 3, Head: 2, Line: func(line []byte) { heads = append(heads, string(line)) }, Long: func(head []byte) { heads = append(heads, string(head)+"…") }}
	_, _ = s.Write([]byte("abc\nabcd\n")) // it has no error
	if want := []string{"abc", "ab…"}; !slices.Equal(heads, want) {
		t.Error(heads)
	}
}

func TestLimiter(t *testing.T) {
	l, now := child.Limiter{Burst: 2, PerSecond: 1}, time.Unix(0, 0)
	var got []int
	for i := range 10 {
		if hidden, ok := l.Allow(now.Add(time.Duration(i) * 500 * time.Millisecond)); ok {
			got = append(got, i, hidden)
		}
	}
	if want := []int{0, 0, 1, 0, 2, 0, 4, 1, 6, 1, 8, 1}; !slices.Equal(got, want) {
		t.Errorf("when, and how many were hidden before it: %v, want %v", got, want)
	}
}

func TestTail(t *testing.T) {
	tail := child.Tail{Size: 10}
	for range 100 {
		tail.Add([]byte("12345"))
	}
	tail.Add([]byte("\xffend"))
	if got := tail.String(); got != "2345\n\uFFFDend" {
		t.Errorf("%q", got)
	}
}

// TestTailOfAStream: what is written in pieces is kept as one text, whose first character
// is whole and which tells how much is missing before it.
func TestTailOfAStream(t *testing.T) {
	const text = "the begin, ü and the end \n"
	for _, size := range []int{1, 2, 5, 1 << 20} { // of one write
		for _, kept := range []int{len(text) - 11, len(text) - 12, len(text) - 13} { // ü is the bytes 11 and 12
			tail := child.Tail{Size: kept}
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
	var tail child.Tail
	if tail.Size = 10; tail.String() != "" || tail.Left() != 0 {
		t.Errorf("nothing is %q", tail.String())
	}
	for range 100 {
		_, _ = tail.Write([]byte(strings.Repeat("x", 100_000))) // it has no error
	}
	if tail.Left() != 10_000_000-10 {
		t.Errorf("%d bytes left out", tail.Left())
	}
}
