package audit

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A folder stands where the file should be: requests go on, the Logger hears
// of it once, and nothing is lost when the folder goes away.
func TestFailingDiskDelaysNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	var n notes
	l := open(t, Options{Path: path, Logger: n.add})
	l.Record(sample(0))
	eventually(t, "the Logger hears of it", func() bool { return len(n.all()) > 0 })
	for i := 1; i < 200; i++ {
		l.Record(sample(i))
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Logger hears that it works again", func() bool { return len(n.all()) > 1 })
	closeLog(t, l)
	if r := verified(t, path); r.Entries != 200 || r.Dropped != 0 || r.Anchor != "" {
		t.Errorf("%+v", r)
	}
	if got := n.all(); len(got) != 2 || !strings.Contains(got[0], "cannot be written") || !strings.Contains(got[1], "is written again") {
		t.Errorf("notes: %q", got)
	}
}

// Past the bound entries are dropped, counted, and the count is part of the chain.
func TestMemoryIsBoundedAndDropsAreCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	l := open(t, Options{Path: path, MaxBytes: -1})
	const total = 60_000
	for i := range total / 2 {
		l.Record(sample(i))
		if i == 10 {
			eventually(t, "a batch is stuck", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.inflight > 0 })
		}
	}
	for i := range total / 2 {
		l.Record(sample(i))
	}
	l.mu.Lock()
	held, dropped := len(l.pending)+l.inflight, l.dropped
	l.mu.Unlock()
	if held > maxPending || held < maxPending/2 || dropped == 0 {
		t.Errorf("%d bytes wait, %d entries dropped", held, dropped)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is written", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.pending)+l.inflight == 0 })
	l.Record(sample(total))
	closeLog(t, l)
	r := verified(t, path)
	markers := 0
	for i, line := range lines(t, path) {
		if strings.Contains(line, `"type":"audit/dropped"`) {
			markers++
			if i != r.Entries-2 {
				t.Errorf("the count is entry %d of %d, want it right before the last one", i+1, r.Entries)
			}
		}
	}
	if markers != 1 || r.Dropped != dropped || r.Entries-markers+r.Dropped != total+1 {
		t.Errorf("%d entries, %d counts of %d dropped ones; %d recorded, %d dropped", r.Entries, markers, r.Dropped, total+1, dropped)
	}
}

// Entries taken again before the writer comes by stand behind the count.
func TestDropCountStandsBeforeTheNextEntry(t *testing.T) {
	l := open(t, Options{Path: filepath.Join(t.TempDir(), "audit.jsonl")})
	l.started = true // no writer: the test looks at what waits
	l.limit = 700
	for i := range 5 {
		l.Record(sample(i))
	}
	l.limit = 2000
	l.Record(sample(5))
	var got []string
	for line := range bytes.Lines(l.pending) {
		_, id, _ := strings.Cut(string(line), `"req_id":"`)
		id, _, _ = strings.Cut(id, `"`)
		if strings.Contains(string(line), `"dropped":2`) {
			id = "2 dropped"
		}
		got = append(got, id)
	}
	if want := "req-0 req-1 req-2 2 dropped req-5"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// What the writer holds counts towards the bound until it is on disk.
	if taken := l.take(nil); len(taken) == 0 || l.inflight != len(taken) {
		t.Errorf("took %d bytes, counts %d", len(taken), l.inflight)
	}
	l.limit = l.inflight
	l.Record(sample(6))
	if len(l.pending) != 0 || l.dropped != 1 {
		t.Errorf("%d bytes wait beyond the bound, %d dropped", len(l.pending), l.dropped)
	}
}

// A lock that another process never gives back bounds Close, too.
func TestHeldLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	unlock, err := (&file{path: path}).lock(nil, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, Options{Path: path})
	l.Record(sample(0))
	l.Record(sample(1))
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "at least 2 entries were lost") {
		t.Errorf("Close: %v", err)
	}
	unlock()
	l = open(t, Options{Path: path})
	l.Record(sample(2))
	closeLog(t, l)
	if r := verified(t, path); r.Entries != 1 {
		t.Errorf("%+v", r)
	}
}

func TestComplaintsAreRare(t *testing.T) {
	now := time.Unix(1000, 0)
	var n notes
	l := open(t, Options{Path: filepath.Join(t.TempDir(), "a"), Logger: n.add, Now: func() time.Time { return now }})
	var w worker
	for range 130 { // one failure a second
		l.complain(&w, os.ErrInvalid)
		w.failing = false // and a recovery after each
		now = now.Add(time.Second)
	}
	if got := len(n.all()); got != 3 {
		t.Errorf("%d complaints in 130 s, want 3", got)
	}
}

// A rotation that cannot be done lets the file grow instead of losing entries.
func TestRotationThatFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.MkdirAll(filepath.Join(path+".1", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	var n notes
	l := open(t, Options{Path: path, MaxBytes: 1000, Backups: 1, Logger: n.add})
	for i := range 20 {
		l.Record(sample(i))
	}
	closeLog(t, l)
	if err := os.RemoveAll(path + ".1"); err != nil {
		t.Fatal(err)
	}
	if r := verified(t, path); r.Entries != 20 {
		t.Errorf("%+v", r)
	}
	if got := n.all(); len(got) != 1 || !strings.Contains(got[0], "cannot be rotated") {
		t.Errorf("notes: %q", got)
	}
}
