package lineio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSplitter(t *testing.T) {
	long := strings.Repeat("x", keptHead)
	for _, size := range []int{1, 2, 3, 7, 1 << 20} { // of one write
		var lines []string
		s := Splitter{Max: keptHead + 2, Line: func(line []byte) { lines = append(lines, string(line)) }, Long: func(head []byte) { lines = append(lines, "long:"+string(head)) }}
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

// TestOutbox: lines arrive whole and in order; one that does not fit behind the others is
// refused, and so is everything after Close.
func TestOutbox(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	o := NewOutbox(w)
	if err := o.Add([]byte("direct\n"), true); err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("y"), MaxOutbox-1)
	for _, line := range [][]byte{append(big, '\n'), []byte("refused\n")} {
		err = o.Add(line, false)
	}
	if !errors.Is(err, ErrInputFull) {
		t.Errorf("one line too much: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		o.Run(make(chan struct{}), func(err error) { t.Errorf("killed: %v", err) }, time.Minute)
	}()
	o.Close()
	all, err := io.ReadAll(r)
	if err != nil || len(all) != len("direct\n")+MaxOutbox || !bytes.HasPrefix(all, []byte("direct\ny")) {
		t.Errorf("%d bytes, %v", len(all), err)
	}
	<-ended
	if err := o.Add([]byte("late\n"), false); !errors.Is(err, ErrInputClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestOutboxKills: a child that has closed its side is ended.
func TestOutboxKills(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	o := NewOutbox(w)
	if err := o.Add([]byte("x\n"), false); err != nil {
		t.Fatal(err)
	}
	ctx, kill := context.WithCancelCause(t.Context())
	o.Run(make(chan struct{}), kill, 0)
	if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), "does not take its input") {
		t.Errorf("cause: %v", cause)
	}
}

func TestNoise(t *testing.T) {
	n, now := Noise{Burst: 2}, time.Unix(0, 0)
	var got []int
	for i := range 10 {
		if hidden, ok := n.Loud(now.Add(time.Duration(i) * 250 * time.Millisecond)); ok {
			got = append(got, i, hidden)
		}
	}
	if want := []int{0, 0, 1, 0, 4, 2, 5, 0, 8, 2, 9, 0}; !slices.Equal(got, want) {
		t.Errorf("line and how many were hidden before it: %v, want %v", got, want)
	}
}

func TestTail(t *testing.T) {
	tail := Tail{Size: 10}
	for range 100 {
		tail.Add([]byte("12345"))
	}
	tail.Add([]byte("\xffend"))
	if got := tail.String(); got != "2345\n\uFFFDend" {
		t.Errorf("%q", got)
	}
	if len(tail.text) > 30 {
		t.Errorf("%d bytes are kept", len(tail.text))
	}
}
