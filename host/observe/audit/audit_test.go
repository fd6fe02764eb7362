package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/host/observe/event"
)

// notes collects the messages that a Log passes to its Logger.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) add(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, line)
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.lines...)
}

func open(t testing.TB, o Options) *Log {
	t.Helper()
	return must.Get(Open(o))(t)
}

// closeLog closes a Log and waits until it has written everything, however slow this machine is.
func closeLog(t testing.TB, l *Log) {
	t.Helper()
	eventually(t, "all is written and the log closed", func() bool { return l.Close() == nil })
}

// verified checks the chain at path and returns the report.
func verified(t testing.TB, path string) Report {
	t.Helper()
	r := must.Get(Verify(path, Key{}))(t)
	must.That(t, r.OK(), "chain is broken:\n%s", r)
	return r
}

func sample(i int) event.Event {
	return event.Event{
		Kind: event.Request,
		Time: time.UnixMicro(1712345678000001 + int64(i)), SessionID: "s-1", ReqID: fmt.Sprintf("req-%d", i),
		Duration: 3 * time.Millisecond, InputBytes: 120, OutputBytes: 340,
		Type: "tool/call/req", Capability: "tools",
	}
}

// eventually waits until ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		must.That(t, !time.Now().After(deadline), "not within a minute: %s", what)
	}
}

func lines(t testing.TB, path string) []string {
	t.Helper()
	data := must.Get(os.ReadFile(path))(t)
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

func TestEntryIsWrittenAsDocumented(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "folder", "audit.jsonl")
	l := open(t, Options{Path: path})
	l.Take(sample(0))
	l.Take(event.Event{
		Time: time.UnixMicro(1_500_000), SessionID: "s", ReqID: "a\"\\\n\x00é\u2028", CorrelationID: "c",
		Duration: 1999 * time.Microsecond, ErrorCode: "tool_error", Type: "t", Capability: "k", Name: "n",
	})
	closeLog(t, l)

	zeros := strings.Repeat("0", 64)
	first := `{"ts":1712345678.000001,"session_id":"s-1","req_id":"req-0","correlation_id":"","success":true,"duration_ms":3,` +
		`"error_code":null,"input_bytes":120,"output_bytes":340,"type":"tool/call/req","capability":"tools","prev":"` +
		zeros + `"}`
	prev := linkOf([]byte(first))
	second := `{"ts":1.500000,"session_id":"s","req_id":"a\"\\\n\u0000é` + "\u2028" +
		`","correlation_id":"c","success":false,"duration_ms":1,` +
		`"error_code":"tool_error","input_bytes":0,"output_bytes":0,"type":"t","capability":"k","name":"n","prev":"` +
		string(prev[:]) + `"}`
	assert.Diff(t, []string{first, second}, lines(t, path))
	r := verified(t, path)
	last := linkOf([]byte(second))
	assert.That(t, r.Entries == 2 && r.Anchor == "" && r.Last == string(last[:]), "report %+v", r)
	if runtime.GOOS != "windows" {
		modes := map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700 | os.ModeDir}
		for name, want := range modes {
			if fi, err := os.Stat(name); err != nil || fi.Mode() != want {
				t.Errorf("%s: mode %v, %v; want %v", name, fi.Mode(), err, want)
			}
		}
	}
}

// TestAnyText: an entry with any text is valid JSON, one line, and bounded in size.
func TestAnyText(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes"))
		if rapid.Bool().Draw(t, "text") {
			s = rapid.String().Draw(t, "runes")
		}
		s = strings.Repeat(s, rapid.IntRange(1, 60).Draw(t, "times"))
		line := appendEntry(nil, event.Event{
			ReqID: s, SessionID: s, CorrelationID: s, ErrorCode: s, Type: s,
			Capability: s, Name: s,
		}, 0)
		line, _ = appendLinked(nil, line[:len(line)-1], noLink(), nil, 0)
		if len(line) > maxLine || bytes.Count(line, []byte{'\n'}) != 1 {
			t.Fatalf("%d bytes, %d newlines", len(line), bytes.Count(line, []byte{'\n'}))
		}
		_, ok := linkIn(line[:len(line)-1])
		must.That(t, ok, "not an entry: %q", line)
		var got struct {
			ReqID string `json:"req_id"`
		}
		must.OK(t, json.Unmarshal(line, &got))
		must.That(t, !utf8.ValidString(s) || len(s) > maxText || got.ReqID == s, "got %q, want %q", got.ReqID, s)
	})
}

func TestTakeKeepsNoStringAndAllocatesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, Options{Path: path})
	id := []byte("caller's buffer")
	e := sample(1)
	e.ReqID = string(id)
	// Take alone is measured: the log's goroutine waits for the lock, so it allocates nothing meanwhile.
	unlock := must.Get(open(t, Options{Path: path}).file.lock(nil, time.Second))(t)
	assert.Equal(t, testing.AllocsPerRun(2000, func() { l.Take(e) }), 0, "Take makes … allocations")
	unlock()
	closeLog(t, l)
	r := verified(t, path)
	assert.Equal(t, r.Entries, 2001, "… entries, want 2001")
}

func TestCloseIsIdempotentAndEndsRecording(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, Options{Path: path})
	l.Take(sample(0))
	closeLog(t, l)
	l.Take(sample(1))
	closeLog(t, l)
	r := verified(t, path)
	assert.Equal(t, r.Entries, 1, "… entries, want 1")
	closeLog(t, open(t, Options{Path: filepath.Join(t.TempDir(), "never used")}))
	_, err := Open(Options{})
	assert.That(t, err != nil, "a Log without a path was opened")
}

// TestMoved: when the log is moved, as logrotate does, the chain continues in a new file. This also holds for a host
// that starts then, for a host that wrote nothing between two moves, and after hosts that numbered the files
// themselves.
func TestMoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	move := func() {
		t.Helper()
		for i := 3; i > 0; i-- {
			_ = os.Rename(fmt.Sprint(path, ".", i), fmt.Sprint(path, ".", i+1))
		}
		must.OK(t, os.Rename(path, path+".1"))
	}
	write := func(l *Log, n int) {
		t.Helper()
		for i := range n {
			l.Take(sample(i))
		}
		eventually(t, "all is written", func() bool { size, _ := l.Waiting(); return size == 0 })
	}
	lasting, other := open(t, Options{Path: path}), open(t, Options{Path: path})
	write(other, 2)
	write(lasting, 3)
	move()
	verified(t, path)
	write(lasting, 3)
	move()
	must.OK(t, os.WriteFile(path, nil, 0o600)) // as the option "create" of logrotate does
	write(other, 1)
	move()
	closeLog(t, other)
	next := open(t, Options{Path: path})
	write(next, 1)
	write(lasting, 1)
	closeLog(t, lasting)
	closeLog(t, next)
	r := verified(t, path)
	assert.That(t, r.Entries == 11 && r.Anchor == "" && len(r.Files) == 4, "report %+v", r)
	must.OK(t, os.Remove(path+".3"))
	r = verified(t, path)
	assert.That(t, r.Entries == 6 && r.Anchor != "", "report %+v", r)
}

// TestHalfLineIsRepaired: wherever a kill cuts the last line, the next start repairs the file and keeps every whole
// entry.
func TestHalfLineIsRepaired(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	l := open(t, Options{Path: path})
	for i := range 3 {
		l.Take(sample(i))
	}
	closeLog(t, l)
	whole := must.Get(os.ReadFile(path))(t)
	second := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for cut := second; cut < len(whole); cut += 1 + (len(whole)-cut)/12 {
		must.OK(t, os.WriteFile(path, whole[:cut], 0o600))
		var n notes
		l := open(t, Options{Path: path, Logger: n.add})
		l.Take(sample(9))
		closeLog(t, l)
		want, wantNotes := 2, 1
		switch cut {
		case second:
			wantNotes = 0 // the cut is at the end of a line
		case len(whole) - 1:
			want, wantNotes = 3, 0 // only the newline is missing
		}
		if r := verified(t, path); r.Entries != want+1 || len(n.all()) != wantNotes {
			t.Fatalf("cut at %d: %d entries, want %d and one more; notes %q", cut, r.Entries, want, n.all())
		}
	}
}

// TestHalfLineAlone: if the half line is the whole file, the chain continues from the file before it.
func TestHalfLineAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, Options{Path: path})
	l.Take(sample(0))
	closeLog(t, l)
	must.OK(t, os.Rename(path, path+".1"))
	must.OK(t, os.WriteFile(path, []byte(`{"ts":17123`), 0o600))
	r, err := Verify(path, Key{})
	assert.That(t, err == nil && !r.OK() && r.Broken.Kind == BreakHalf && r.Broken.Line == 1, "%+v, %v", r, err)
	l = open(t, Options{Path: path})
	l.Take(sample(1))
	closeLog(t, l)
	r = verified(t, path)
	assert.That(t, r.Entries == 2 && r.Anchor == "", "%+v", r)
}

// TestForeignLinesStay: lines that are not entries are never deleted. They break the chain, and the log continues
// after them.
func TestForeignLinesStay(t *testing.T) {
	for name, foreign := range map[string]string{
		"short line":             "hello\n",
		"long line":              strings.Repeat("x", 200_000) + "\n",
		"long without a newline": strings.Repeat("x", 200_000),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.jsonl")
			must.OK(t, os.WriteFile(path, []byte(foreign), 0o600))
			l := open(t, Options{Path: path})
			l.Take(sample(0))
			l.Take(sample(1))
			closeLog(t, l)
			got := lines(t, path)
			assert.That(t, len(got) == 3 && got[0] == strings.TrimSuffix(foreign, "\n"), "%d lines", len(got))
			r, err := Verify(path, Key{})
			assert.That(t, err == nil && !r.OK() && r.Broken.Kind == BreakNotJSON && r.Broken.Line == 1, "%+v, %v",
				r.Broken, err)
		})
	}
}

// TestFailingDiskDelaysNothing: while a folder stands in place of the file, requests continue, the Logger is told
// once, and no entry is lost when the folder is removed.
func TestFailingDiskDelaysNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	must.OK(t, os.MkdirAll(filepath.Join(path, "in the way"), 0o700))
	var n notes
	l := open(t, Options{Path: path, Logger: n.add})
	l.Take(sample(0))
	eventually(t, "the Logger hears of it", func() bool { return len(n.all()) > 0 })
	for i := 1; i < 200; i++ {
		l.Take(sample(i))
	}
	must.OK(t, os.RemoveAll(path))
	eventually(t, "the Logger hears that it works again", func() bool { return len(n.all()) > 1 })
	closeLog(t, l)
	r := verified(t, path)
	assert.That(t, r.Entries == 200 && r.Dropped == 0 && r.Anchor == "", "%+v", r)
	got := n.all()
	assert.That(t, len(got) == 2 && strings.Contains(got[0], "cannot be written") &&
		strings.Contains(got[1], "can be written again"), "notes: %q", got)
}

// TestMemoryIsBoundedAndDropsAreCounted: entries beyond the memory bound are dropped, and the chain has an entry with
// their number.
func TestMemoryIsBoundedAndDropsAreCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	must.OK(t, os.Mkdir(path, 0o700))
	var n notes
	l := open(t, Options{Path: path, Logger: n.add})
	const total = 60_000
	for i := range total / 2 {
		l.Take(sample(i))
		if i == 10 {
			eventually(t, "a batch is stuck", func() bool { return len(n.all()) > 0 })
		}
	}
	for i := range total / 2 {
		l.Take(sample(i))
	}
	held, dropped := l.Waiting()
	assert.That(t, held <= maxPending && held >= maxPending/2 && dropped != 0, "%d bytes wait, %d entries dropped",
		held, dropped)
	must.OK(t, os.Remove(path))
	eventually(t, "all is written", func() bool { size, _ := l.Waiting(); return size == 0 })
	l.Take(sample(total))
	closeLog(t, l)
	r := verified(t, path)
	markers := 0
	for i, line := range lines(t, path) {
		if strings.Contains(line, `"type":"audit/dropped"`) {
			markers++
			assert.Equal(t, i, r.Entries-2, "the count is entry %d of %d, want it right before the last one", i+1,
				r.Entries)
		}
	}
	assert.That(t, markers == 1 && r.Dropped == dropped && r.Entries-markers+r.Dropped == total+1,
		"%d entries, %d counts of %d dropped ones; %d recorded, %d dropped", r.Entries, markers, r.Dropped, total+1,
		dropped)
}

// TestHeldLock: Close ends in bounded time even if another process never releases the lock.
func TestHeldLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	unlock := must.Get((&file{path: path}).lock(nil, time.Second))(t)
	l := open(t, Options{Path: path})
	l.Take(sample(0))
	l.Take(sample(1))
	assert.Fails(t, l.Close(), "lost at least 2 entries", "Close")
	unlock()
	l = open(t, Options{Path: path})
	l.Take(sample(2))
	closeLog(t, l)
	r := verified(t, path)
	assert.Equal(t, r.Entries, 1, "%+v", r)
}
