package host

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

// chunks is a reader that returns its data in pieces, whose sizes next chooses.
type chunks struct {
	data []byte
	next func() int
}

func (c *chunks) Read(b []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), max(0, c.next()))], c.data)
	c.data = c.data[n:]
	if len(c.data) == 0 && n%2 == 1 {
		return n, io.EOF // the last bytes and EOF at once, as readers may
	}
	return n, nil
}

// split returns the lines that lines finds: each line quoted, or "long" and its size for a line that is dropped. When
// fork returns true, another reader of lines continues.
func split(src io.Reader, limit int, fork func() bool) (found []string) {
	l := &lines{src: src, max: limit}
	var head string
	for {
		line, kind := l.next()
		switch kind {
		case lineText:
			found = append(found, fmt.Sprintf("%q", line))
		case lineLong:
			head = string(line[:min(len(line), keptHead)])
		case lineLongEnd:
			if string(l.head) != head || head == "" {
				found = append(found, fmt.Sprintf("the head is %q, should be %q", l.head, head))
			}
			found = append(found, fmt.Sprint("long ", l.size))
			head = ""
		case lineNone:
			l.fill()
		case lineEnd:
			return found
		}
		if fork() {
			l = l.fork()
		}
	}
}

// model is a simple implementation of split for a text that is complete.
func model(data []byte, limit int) (found []string) {
	for i, line := range bytes.Split(data, []byte("\n")) {
		if len(line) > limit {
			found = append(found, fmt.Sprint("long ", len(line)))
			continue
		}
		if i == 0 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		if len(bytes.Trim(line, " \t\r")) > 0 {
			found = append(found, fmt.Sprintf("%q", line))
		}
	}
	return found
}

func never() bool { return false }

// TestLines: the lines found do not depend on the sizes of the reads, or on where another reader of lines continues.
func TestLines(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.SampledFrom([]string{
			"\n", "\r\n", "\ufeff", "a", "{}", " ", "\t", "\f",
			"\u00a0", "\x00", "0123456789", strings.Repeat("x", 70000),
		})).Draw(t, "parts")
		data := []byte(strings.Join(parts, ""))
		limit := rapid.SampledFrom([]int{1, 2, 10, 11, 100, 65536, 70000, 1 << 20}).Draw(t, "limit")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		biggest := rapid.SampledFrom([]int{1, 3, 100, 1 << 20}).Draw(t, "biggest")
		if len(data) > 1000 {
			biggest = max(biggest, 1000)
		}
		got := split(&chunks{data, func() int { return random.IntN(biggest + 1) }}, limit,
			func() bool { return random.IntN(4) == 0 })
		want := model(data, limit)
		must.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "limit %d: %.500q\ngave %.500s\nwant %.500s",
			limit, data, got, want)
	})
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte("\ufeff{\"a\":1}\r\n\n \n{}"), uint8(3), uint8(10))
	f.Add([]byte(strings.Repeat("x", 100)+"\nshort\n"+strings.Repeat("y", 100)), uint8(7), uint8(20))
	f.Add([]byte("\n\ufeffa\n"), uint8(1), uint8(255))
	f.Fuzz(func(t *testing.T, data []byte, size, limit uint8) {
		step := 0
		got := split(&chunks{data, func() int { step++; return 1 + int(size)*step%17 }}, int(limit),
			func() bool { return step%3 == 0 })
		want := model(data, int(limit))
		must.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "limit %d: %q\ngave %s\nwant %s", limit,
			data, got, want)
	})
}

// endless is a reader of left bytes of one line, followed by the bytes of follow.
type endless struct {
	left   int
	follow io.Reader
}

func (e *endless) Read(b []byte) (int, error) {
	if e.left == 0 {
		return e.follow.Read(b)
	}
	const many = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
	n := min(len(b), e.left)
	for at := 0; at < n; {
		at += copy(b[at:n], many)
	}
	e.left -= n
	return n, nil
}

// TestLongLineInConstantMemory: reading a line of 64 MiB allocates no more than a few times its limit of 1 MiB.
func TestLongLineInConstantMemory(t *testing.T) {
	const limit = 1 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := split(&endless{64 << 20, strings.NewReader("\nnext\n")}, limit, never)
	runtime.ReadMemStats(&after)
	assert.That(t, len(got) == 2 && got[0] == "long 67108864" && got[1] == `"next"`, "gave %s", got)
	used := after.TotalAlloc - before.TotalAlloc
	assert.That(t, used <= 8*limit, "allocated %d bytes in all", used)
}

// TestQueue compares the queue with a plain list that has higher ranks first and keeps equal ranks in order.
func TestQueue(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		q := &queue{max: 200, maxBytes: 150 * callOverhead}
		var want []*call
		bytes := 0
		for range rapid.IntRange(0, 600).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "do") {
			case 0, 1, 2, 3, 4:
				c := &call{line: lineOf(t, rapid.IntRange(0, 3).Draw(t, "pad")*200)}
				if rank := rapid.IntRange(-4, 3).Draw(t, "rank"); rank > 0 {
					c.work = &Work{Priority: rank, Size: rank * 100}
				}
				if fits := q.fits(c); fits != (len(want) < 200 && bytes+c.size() <= q.maxBytes) {
					t.Fatalf("fits says %t with %d calls of %d bytes", fits, len(want), bytes)
				} else if fits {
					q.push(c)
					at := len(want)
					for at > 0 && want[at-1].rank() < c.rank() {
						at--
					}
					want = slices.Insert(want, at, c)
					bytes += c.size()
				}
			case 5, 6, 7, 8:
				if len(want) > 0 {
					must.That(t, q.pop() == want[0], "not in order")
					bytes -= want[0].size()
					want = want[1:]
				}
			case 9:
				odd := map[*call]bool{}
				var kept []*call
				for i, c := range want {
					if odd[c] = i%2 == 1; odd[c] {
						bytes -= c.size()
					} else {
						kept = append(kept, c)
					}
				}
				out := q.remove(func(c *call) bool { return odd[c] })
				must.Equal(t, len(out), len(want)-len(kept), "removed … of %d", len(want))
				want = kept
			}
			if q.len() != len(want) || q.empty() != (len(want) == 0) || q.bytes != bytes {
				t.Fatalf("holds %d calls of %d bytes, should be %d of %d", q.len(), q.bytes, len(want), bytes)
			}
		}
	})
}

func lineOf(t *rapid.T, pad int) *protocol.Line {
	l := new(protocol.Line)
	must.OK(t, l.Scan([]byte(`{"pad":"`+strings.Repeat("x", pad)+`"}`)))
	return l
}

// sizes is a reader that notes the size of the buffer of each read, and fills it with newlines.
type sizes struct{ room []int }

func (s *sizes) Read(b []byte) (int, error) {
	s.room = append(s.room, len(b))
	for i := range b {
		b[i] = '\n'
	}
	return len(b), nil
}

// TestReadsGrow: the first read is small, and the reads of a busy stream soon reach the full size.
func TestReadsGrow(t *testing.T) {
	src := new(sizes)
	l := &lines{src: src, max: 1 << 20}
	for range 4 {
		l.fill()
		l.next()
	}
	assert.Equal(t, fmt.Sprint(src.room), fmt.Sprint([]int{firstRead, 4 * firstRead, readSize, readSize}),
		"room of the reads")
}
