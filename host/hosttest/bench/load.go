package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// tally is the result of one load of requests.
type tally struct {
	answers int
	elapsed time.Duration
	cpu     time.Duration // of the host; <= 0 = unknown
}

// load keeps a window of requests under way.
type load struct {
	c        *child
	b        *batch
	check    *checker
	window   int
	duration time.Duration
}

// probe does one exchange and verifies it in full.
func (c *child) probe(d *dialect, q request, b *batch) (*checker, error) {
	defer c.within(c.patience)()
	whole := c.answers.whole
	c.answers.whole = true
	defer func() { c.answers.whole = whole }()
	sent, _ := b.take(1)
	got, err := c.exchange(sent)
	if err != nil {
		return nil, err
	}
	if err := d.verify(sent, got); err != nil {
		return nil, err
	}
	return newChecker(q, got)
}

// run sends for the duration and waits for all answers. The first eighth is not
// counted: it warms up both sides.
func (l *load) run() (tally, error) {
	defer l.c.within(2*l.duration + l.c.patience)()
	l.c.answers.whole = false
	send, stop := l.sender()
	defer stop()
	begin := time.Now()
	from, until := begin.Add(l.duration/8), begin.Add(l.duration)
	var t tally
	var counted time.Time // zero until the warm-up is over
	var all int           // answers, those of the warm-up included
	atFirst := cpuTime(l.c.cmd)
	used := atFirst
	under := l.window // requests sent and not answered
	if err := send(under); err != nil {
		return t, l.c.explain(err)
	}
	for under > 0 {
		if err := l.c.answers.fill(); err != nil {
			return t, l.c.explain(err)
		}
		n, err := l.check.count(l.c.answers)
		if err != nil {
			return t, err
		}
		now := time.Now()
		t.answers += n
		all += n
		if counted.IsZero() && now.After(from) {
			counted, used, t.answers = now, cpuTime(l.c.cmd), 0
		}
		if now.After(until) {
			under -= n
			t.elapsed = now.Sub(counted)
		} else if err := send(n); err != nil {
			return t, l.c.explain(err)
		}
	}
	if under < 0 {
		return t, fmt.Errorf("%d answers more than requests", -under)
	}
	if t.answers == 0 { // the host is so slow that all answers came after the end: count them all
		t.answers, t.elapsed, used = all, time.Since(begin), atFirst
	}
	t.cpu = cpuTime(l.c.cmd) - used
	return t, nil
}

// sender returns a function that sends n more requests, and one that ends the
// sending. If all requests surely fit into the pipe, send writes directly, which
// costs least. Otherwise a goroutine writes, as a host that waits until its answers
// are read may stop reading.
func (l *load) sender() (send func(n int) error, stop func()) {
	if l.window*l.b.size <= pipeSize(l.c.in)/2 {
		return l.write, func() {}
	}
	var due atomic.Int64
	var failed atomic.Pointer[error]
	wake, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for range wake {
			for n := due.Swap(0); n > 0; n = due.Swap(0) {
				if err := l.write(int(n)); err != nil {
					failed.Store(&err)
					return
				}
			}
		}
	}()
	send = func(n int) error {
		if err := failed.Load(); err != nil {
			return *err
		}
		due.Add(int64(n))
		select {
		case wake <- struct{}{}:
		default:
		}
		return nil
	}
	return send, func() { l.finish(wake, done) }
}

// finish ends the writing goroutine. If the goroutine still waits in a write, the load has failed, and
// only the end of the host ends the write.
func (l *load) finish(wake chan struct{}, done chan struct{}) {
	close(wake)
	timer := time.AfterFunc(time.Second, func() { killGroup(l.c.cmd) })
	<-done
	timer.Stop()
}

func (l *load) write(n int) error {
	for n > 0 {
		data, k := l.b.take(n)
		if _, err := l.c.in.Write(data); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// sequential sends one request after the other and returns the time of each.
func (l *load) sequential() ([]time.Duration, error) {
	defer l.c.within(2*l.duration + l.c.patience)()
	times := make([]time.Duration, 0, 1<<18)
	begin := time.Now()
	warm, until := begin.Add(l.duration/8), begin.Add(l.duration)
	for sent := begin; sent.Before(until) || len(times) == 0; {
		if err := l.write(1); err != nil {
			return nil, l.c.explain(err)
		}
		for n := 0; n == 0; {
			if err := l.c.answers.fill(); err != nil {
				return nil, l.c.explain(err)
			}
			var err error
			if n, err = l.check.count(l.c.answers); err != nil {
				return nil, err
			}
		}
		now := time.Now()
		if now.After(warm) {
			times = append(times, now.Sub(sent))
		}
		sent = now
	}
	return times, nil
}

// lines splits the output of a host into lines. The buffer is small enough to stay in
// the processor's cache, so only the start of a very long line is kept.
type lines struct {
	file     *os.File
	buf      []byte
	from, to int  // buf[from:to] is read and not yet taken
	seen     int  // buf[from:seen] holds no newline
	whole    bool // keep long lines whole, however long
	dropped  int  // bytes left out of the line that is being read
	cut      int  // bytes left out of the line that was taken last
}

const (
	readSize = 256 << 10
	keepSize = 32 << 10 // kept bytes of a longer line while whole is false
)

func newLines(f *os.File) *lines { return &lines{file: f, buf: make([]byte, readSize), whole: true} }

// fill reads once.
func (l *lines) fill() error {
	if l.from == l.to {
		l.from, l.to, l.seen = 0, 0, 0
	}
	if have := l.to - l.from; !l.whole && have > keepSize {
		l.dropped += have - keepSize
		l.to = l.from + keepSize
		l.seen = l.to
	}
	if len(l.buf)-l.to < readSize/2 {
		n := copy(l.buf, l.buf[l.from:l.to])
		l.from, l.to, l.seen = 0, n, l.seen-l.from
		if len(l.buf)-n < readSize/2 {
			l.buf = append(l.buf, make([]byte, len(l.buf))...)
		}
	}
	n, err := l.file.Read(l.buf[l.to:min(len(l.buf), l.to+readSize)])
	l.to += n
	return err
}

// next returns the next line in the buffer, without its newline, or nil. The line
// stays valid until fill is called.
func (l *lines) next() []byte {
	i := bytes.IndexByte(l.buf[l.seen:l.to], '\n')
	if i < 0 {
		l.seen = l.to
		return nil
	}
	line := l.buf[l.from : l.seen+i : l.seen+i]
	l.from = l.seen + i + 1
	l.seen = l.from
	l.cut, l.dropped = l.dropped, 0
	return line
}

// batch has encoded requests one after the other, so that one write sends many.
type batch struct {
	buf   []byte
	size  int // of one request with its newline
	slots int
	idAt  int
	id    uint32 // of the next request
}

// batchSize bounds a batch of several requests, in bytes.
const batchSize = 256 << 10

func newBatch(q request, window int) *batch {
	one := q.before + "00000000" + q.after + "\n"
	slots := max(1, min(window, batchSize/len(one)))
	return &batch{buf: bytes.Repeat([]byte(one), slots), size: len(one), slots: slots, idAt: len(q.before), id: 1}
}

// take returns up to n requests with new ids, and their number. They stay
// valid until the next call.
func (b *batch) take(n int) ([]byte, int) {
	n = min(n, b.slots)
	var id [4]byte
	for at := b.idAt; at < n*b.size; at += b.size {
		binary.BigEndian.PutUint32(id[:], b.id)
		hex.Encode(b.buf[at:at+idLen], id[:])
		b.id++
	}
	return b.buf[:n*b.size], n
}

// checker compares every answer of a load with the first one, which was
// verified in full.
type checker struct {
	marker []byte
	at     int // offset of the marker in the first answer
	least  int // least length of an answer
}

// slack is the number of bytes by which an answer may be shorter than the first, as numbers such as
// times have more or fewer digits.
const slack = 32

func newChecker(q request, first []byte) (*checker, error) {
	at := bytes.Index(first, []byte(q.marker))
	if at < 0 || !bytes.Contains(first, []byte(q.text)) {
		return nil, fmt.Errorf("the text did not come back: %s", clip(first))
	}
	return &checker{marker: []byte(q.marker), at: at, least: len(first) - slack}, nil
}

// count takes the lines in the buffer and returns the number of answers among
// them.
func (k *checker) count(l *lines) (int, error) {
	n := 0
	for line := l.next(); line != nil; line = l.next() {
		end := k.at + len(k.marker)
		if len(line) < end || string(line[k.at:end]) != string(k.marker) {
			if !bytes.Contains(line, k.marker) {
				if bytes.Contains(line, []byte(`"method"`)) {
					continue // a JSON-RPC notification
				}
				return n, fmt.Errorf("not an answer: %s", clip(line))
			}
		}
		if len(line)+l.cut < k.least {
			return n, fmt.Errorf("cut short: %s", clip(line))
		}
		n++
	}
	return n, nil
}
