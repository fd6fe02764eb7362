package proc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/protocol"
)

// sent collects events as they would go over the wire.
type sent struct {
	t    testing.TB
	mu   sync.Mutex
	all  []event // guarded by mu
	fail error
}

func (s *sent) take(e *readEvent) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, err := e.AppendJSON(nil)
	if err != nil || !jsontext.Value(raw).IsValid() {
		s.t.Errorf("%v in %s", err, raw)
	}
	var back event
	if err := json.Unmarshal(raw, &back); err != nil {
		s.t.Errorf("%v in %s", err, raw)
	}
	if back.Seq != len(s.all) {
		s.t.Errorf("seq %d of event %d", back.Seq, len(s.all))
	}
	s.all = append(s.all, back)
	return s.fail
}

func (s *sent) texts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return texts(s.all)
}

// drain sends what is in a backlog that has ended.
func drain(t testing.TB, b *backlog) *sent {
	t.Helper()
	s := &sent{t: t}
	b.end()
	if err := (&sender{send: s.take, procID: "p1"}).run(b); err != nil {
		t.Error(err)
	}
	return s
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	euros := strings.Repeat("€", maxLine/3) // 65,535 bytes
	for _, tc := range []struct {
		name   string
		writes []string
		want   []string
	}{
		{"nothing", nil, nil},
		{"in pieces", []string{"a", "b\nc", "\n", "d"}, []string{"stdout ab", "stdout c", "stdout d"}},
		{"empty lines", []string{"\n\n", "\n"}, []string{"stdout ", "stdout ", "stdout "}},
		{"as long as may be", []string{long + "\n"}, []string{"stdout " + long}},
		{"as long as may be, without an end", []string{long}, []string{"stdout " + long}},
		{"longer by one", []string{long + "y\n"}, []string{"stdout+ " + long, "stdout y"}},
		{"longer by one, without an end", []string{long, "y"}, []string{"stdout+ " + long, "stdout y"}},
		{"much longer", []string{"a\n", long, long, long + "\nb\n"}, []string{"stdout a", "stdout+ " + long, "stdout+ " + long, "stdout " + long, "stdout b"}},
		{"in one write", []string{long + long + long + "\nb"}, []string{"stdout+ " + long, "stdout+ " + long, "stdout " + long, "stdout b"}},
		{"between characters", []string{euros + "€€\n"}, []string{"stdout+ " + euros, "stdout €€"}},
		{"binary", []string{"a\xffb\n", "ok\n"}, []string{`stdout base64 "a\xffb"`, "stdout ok"}},
		{"binary, long", []string{strings.Repeat("\x80", maxLine+1)}, []string{fmt.Sprintf("stdout+ base64 %q", strings.Repeat("\x80", maxLine)), `stdout base64 "\x80"`}},
		{"JSON in text", []string{"\"\\\u2028\x01\x7f</script>\n"}, []string{"stdout \"\\\u2028\x01\x7f</script>"}},
	} {
		b := newBacklog(1 << 20)
		l := newLines(b, protocol.StreamStdout)
		for _, w := range tc.writes {
			if n, err := l.Write([]byte(w)); n != len(w) || err != nil {
				t.Error(n, err)
			}
		}
		l.end()
		if got := drain(t, b).texts(); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %.200q, want %.200q", tc.name, got, tc.want)
		}
	}
}

// Whatever is written in whatever portions comes out the same.
func TestLinesKeepEveryByte(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := newBacklog(1 << 30)
		l := newLines(b, protocol.StreamStdout)
		l.max = rapid.IntRange(4, 40).Draw(r, "max")
		tokens := rapid.SliceOf(rapid.SampledFrom([]string{"\n", "a", "é", "€", "😀", "\xff", "abcdefgh", "\r\n"}))
		var all []byte
		for _, w := range rapid.SliceOf(tokens).Draw(r, "writes") {
			part := []byte(strings.Join(w, ""))
			all = append(all, part...)
			_, _ = l.Write(part)
		}
		l.end()
		var got []byte
		b.end()
		s := &sender{procID: "p", send: func(e *readEvent) error {
			if len(e.text) > l.max || bytes.IndexByte(e.text, '\n') >= 0 {
				r.Errorf("an event of %q", e.text)
			}
			got = append(got, e.text...)
			if !e.partial {
				got = append(got, '\n')
			}
			return nil
		}}
		if err := s.run(b); err != nil {
			r.Error(err)
		}
		if len(all) > 0 && all[len(all)-1] != '\n' {
			all = append(all, '\n')
		}
		if !bytes.Equal(got, all) {
			r.Errorf("%q, should be %q", got, all)
		}
	})
}

func TestChunks(t *testing.T) {
	for _, tc := range []struct {
		name   string
		writes []string
		want   []string
	}{
		{"as it comes", []string{">>> "}, []string{"stdout >>> "}},
		{"a character in two", []string{"a\xe2", "\x82\xac b"}, []string{"stdout a€ b"}},
		{"a character in four", []string{"\xf0", "\x9f", "\x98", "\x80"}, []string{"stdout 😀"}},
		{"a character without an end", []string{"a\xe2\x82"}, []string{"stdout a", `stdout base64 "\xe2\x82"`}},
		{"binary", []string{"ok", "\xff\xfe"}, []string{"stdout ok", `stdout base64 "\xff\xfe"`}},
		{"lines", []string{"a\r\nb\r\n"}, []string{"stdout a\r\nb\r\n"}},
	} {
		b := newBacklog(1 << 20)
		c := &chunks{to: b}
		for _, w := range tc.writes {
			_, _ = c.Write([]byte(w))
		}
		c.end()
		if got := drain(t, b).texts(); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %.200q, want %.200q", tc.name, got, tc.want)
		}
	}
	b := newBacklog(1 << 20)
	_, _ = (&chunks{to: b}).Write([]byte(strings.Repeat("€", 50_000)))
	for _, e := range drain(t, b).all {
		if e.Data.Text == nil || len(*e.Data.Text) > blockSize {
			t.Errorf("a large chunk: %.100s", e)
		}
	}
}

// A backlog that nobody reads keeps the newest output, whole lines of it, and
// says once how much is gone.
func TestBacklogDropsTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(20)
		stdout, stderr := newLines(b, protocol.StreamStdout), newLines(b, protocol.StreamStderr)
		for i := range 10 {
			_, _ = fmt.Fprintf(stdout, "line%d\n", i)
			_, _ = fmt.Fprintf(stderr, "e%d\n", i)
			if b.size > b.limit {
				t.Fatalf("%d bytes are kept", b.size)
			}
		}
		// of 90 bytes, the last 18 are whole lines within 20
		if got, want := drain(t, b).texts(), []string{"dropped 72", "stdout line8", "stderr e8", "stdout line9", "stderr e9"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// What is dropped after something was sent is told for itself, in its place.
func TestBacklogTellsInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(8)
		l := newLines(b, protocol.StreamStdout)
		_, _ = l.Write([]byte("one\n"))
		s := &sent{t: t}
		send := &sender{send: s.take, procID: "p1"}
		next, lost, ok := b.take()
		if !ok || lost.bytes != 0 {
			t.Fatal(lost, ok)
		}
		if err := send.block(next); err != nil {
			t.Fatal(err)
		}
		_, _ = l.Write([]byte("two\nthree\nfour\n"))
		b.end()
		if err := send.run(b); err != nil {
			t.Fatal(err)
		}
		if got, want := s.texts(), []string{"stdout one", "dropped 10", "stdout four"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// A writer waits a moment for room before anything is dropped, and no longer.
func TestBacklogWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(8)
		l := newLines(b, protocol.StreamStdout)
		_, _ = l.Write([]byte("1234567\n"))
		go func() {
			time.Sleep(fullWait / 2)
			_, _, _ = b.take()
		}()
		begun := time.Now()
		_, _ = l.Write([]byte("abc\n"))
		if waited := time.Since(begun); waited != fullWait/2 || b.dropped.bytes != 0 {
			t.Errorf("waited %v for a reader, dropped %d", waited, b.dropped.bytes)
		}
		begun = time.Now()
		_, _ = l.Write([]byte("defgh\n"))
		if waited := time.Since(begun); waited != fullWait || b.dropped.bytes != 4 {
			t.Errorf("waited %v for nobody, dropped %d", waited, b.dropped.bytes)
		}
		b.hurry()
		begun = time.Now()
		_, _ = l.Write([]byte("ijklm\n"))
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("waited %v in a hurry", waited)
		}
		b.close()
		_, _ = l.Write([]byte("more\n"))
		if _, _, ok := b.take(); ok || b.size != 0 {
			t.Error("something is left after close")
		}
	})
}

// Pieces of memory are cut where a line, or a character, begins.
func TestBlockCut(t *testing.T) {
	for _, tc := range []struct {
		kind kind
		data string
		n    int
		left string
	}{
		{wholeLines, "a\nbc\nd\n", 1, "bc\nd\n"},
		{wholeLines, "a\nbc\nd\n", 2, "bc\nd\n"},
		{wholeLines, "a\nbc\nd\n", 3, "d\n"},
		{wholeLines, "a\nbc\nd\n", 7, ""},
		{linePiece, "abcdef", 1, ""},
		{chunkText, "a€b", 2, "b"},
		{chunkText, "a€b", 1, "€b"},
		{chunkBytes, "a\x80\x80b", 2, "\x80b"},
	} {
		b := block{kind: tc.kind, data: []byte(tc.data)}
		if left := tc.data[b.cut(tc.n):]; left != tc.left {
			t.Errorf("%q less %d is %q, want %q", tc.data, tc.n, left, tc.left)
		}
	}
}

// A sender stops at the first event that nobody takes.
func TestSenderStops(t *testing.T) {
	b := newBacklog(100)
	_, _ = newLines(b, protocol.StreamStdout).Write([]byte("a\nb\n"))
	s := &sent{t: t, fail: errors.New("nobody")}
	if err := (&sender{send: s.take}).run(b); err != s.fail || len(s.all) != 1 {
		t.Errorf("%v after %d events", err, len(s.all))
	}
}
