package proc

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host"
	"a2e/host/guard/redact"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

// sent collects events as they would be sent.
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
	assert.That(s.t, err == nil && jsontext.Value(raw).IsValid(), "%v in %s", err, raw)
	var back event
	if err := json.Unmarshal(raw, &back); err != nil {
		s.t.Errorf("%v in %s", err, raw)
	}
	assert.That(s.t, back.Seq == len(s.all) && back.counted(), "seq %d of event %d, or other lines are counted: %s",
		back.Seq, len(s.all), raw)
	s.all = append(s.all, back)
	return s.fail
}

// drain ends a backlog, and returns the events in it.
func drain(t testing.TB, b *backlog) *sent {
	t.Helper()
	s := &sent{t: t}
	b.end()
	assert.OK(t, (&sender{send: s.take, procID: "p1"}).run(b))
	return s
}

// raw returns the text of each event.
func raw(all []event) []string {
	out := make([]string, len(all))
	for i, e := range all {
		out[i] = e.String()
	}
	return out
}

// TestStream: output is passed on as the process wrote it, with its line ends.
func TestStream(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	euros := strings.Repeat("€", maxLine/3) // 65,535 bytes
	for _, tc := range []struct {
		name   string
		wait   time.Duration
		writes []string
		want   []string
	}{
		{"nothing", lineWait, nil, nil},
		{"in pieces", lineWait, []string{"a", "b\nc", "\n", "d"}, []string{"stdout ab\nc\nd"}},
		{"empty lines", lineWait, []string{"\n\n", "\n"}, []string{"stdout \n\n\n"}},
		{"a carriage return", lineWait, []string{"a\r", "\n"}, []string{"stdout a\r\n"}},
		{"longer than an event", lineWait, []string{long + "y\nb\n"}, []string{"stdout " + long, "stdout y\nb\n"}},
		{"much longer", lineWait, []string{"a\n", long, long + "\nb"}, []string{
			"stdout a\n", "stdout " + long,
			"stdout " + long, "stdout \nb",
		}},
		{"between characters", lineWait, []string{euros + "€€\n"}, []string{"stdout " + euros, "stdout €€\n"}},
		{"binary", lineWait, []string{"a\xffb\n", "ok\n"}, []string{`stdout base64 "a\xffb\n"`, "stdout ok\n"}},
		{
			"binary, long", lineWait,
			[]string{strings.Repeat("\x80", maxLine+1)},
			[]string{fmt.Sprintf("stdout base64 %q", strings.Repeat("\x80", maxLine)), `stdout base64 "\x80"`},
		},
		{
			"JSON in text", lineWait,
			[]string{"\"\\\u2028\x01\x7f</script>\n"},
			[]string{"stdout \"\\\u2028\x01\x7f</script>\n"},
		},
		{"a terminal's prompt", 0, []string{">>> "}, []string{"stdout >>> "}},
		{"a character in four", 0, []string{"\xf0", "\x9f", "\x98", "\x80"}, []string{"stdout 😀"}},
		{"a character without an end", 0, []string{"a\xe2\x82"}, []string{`stdout base64 "a\xe2\x82"`}},
	} {
		b := newBacklog(1 << 20)
		l := newStream(b, protocol.StreamStdout, tc.wait, nil)
		for _, w := range tc.writes {
			n, err := l.Write([]byte(w))
			assert.That(t, n == len(w) && err == nil, "%v %v", n, err)
		}
		l.end()
		assert.Slice(t, raw(drain(t, b).all), tc.want, "%s", tc.name)
	}
}

// TestStreamHidesSecrets: a secret is hidden however it is cut into pieces, in text and in binary
// output, also with a silence between its pieces. No other byte is lost, however short the events are, and the start
// of a secret without its rest is sent in the end.
func TestStreamHidesSecrets(t *testing.T) {
	secrets := redact.New(nil)
	secrets.AddSecret("s3cr3t-token")
	secrets.AddSecret("3t-token-of-two")
	property.Check(t, func(r *rapid.T) {
		parts := rapid.SampledFrom(
			strings.Split("s3cr3t-token,-of-two,3t-token-of-two,s3cr,s,\n,\r\n,x,\xff,é,€,😀", ","))
		text := strings.Join(rapid.SliceOf(parts).Draw(r, "text"), "")
		wait := rapid.SampledFrom([]time.Duration{0, lineWait}).Draw(r, "wait")
		pause := rapid.SampledFrom([]time.Duration{0, lineWait + 1, secretWait - 1, secretWait + 1}).Draw(r, "pause")
		longest := rapid.SampledFrom([]int{4, 40, maxLine}).Draw(r, "longest")
		var got string
		synctest.Test(t, func(*testing.T) {
			b := newBacklog(1 << 20)
			l := newStream(b, protocol.StreamStdout, wait, secrets)
			l.max = longest
			for rest := text; rest != ""; {
				n := rapid.IntRange(1, len(rest)).Draw(r, "n")
				_, _ = l.Write([]byte(rest[:n]))
				rest = rest[n:]
				time.Sleep(pause)
			}
			if pause > secretWait {
				l.mu.Lock()
				must.That(r, !l.shown.Holds(), "something is held back after a silence")
				l.mu.Unlock()
			}
			l.end()
			for b.end(); ; {
				next, _, ok := b.take()
				if !ok {
					break
				}
				got += string(next.data)
			}
		})
		switch whole := secrets.Text(text); {
		case pause < secretWait:
			must.Equal(r, got, whole, "%q became", text)
		case whole == text:
			must.Equal(r, got, text, "bytes are lost")
		default:
			for _, secret := range []string{"s3cr3t-token", "3t-token-of-two"} {
				must.That(r, !strings.Contains(got, secret), "%q became %q", text, got)
			}
		}
	})
}

// TestStreamSilence: a line without an end is sent after a silence, and its rest later. A character is
// never cut.
func TestStreamSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(1 << 20)
		l := newStream(b, protocol.StreamStdout, lineWait, nil)
		s := &sent{t: t}
		done := make(chan error)
		go func() { done <- (&sender{send: s.take, procID: "p1"}).run(b) }()
		for _, w := range []string{"Name", ": \xe2\x82", "\xac", " Bob\n"} {
			_, _ = l.Write([]byte(w))
			time.Sleep(lineWait - 1) // less than a silence
		}
		_, _ = l.Write([]byte("50% \xe2"))
		time.Sleep(lineWait + 1)
		_, _ = l.Write([]byte("\x82\xac\n"))
		l.end()
		b.end()
		assert.OK(t, <-done)
		got, want := raw(s.all), []string{"stdout Name: € Bob\n", "stdout 50% ", "stdout €\n"}
		assert.That(t, slices.Equal(got, want), "%q, want %q", got, want)
	})
}

// TestBacklogWaitsForRoom: a writer waits for room for a limited time before output is dropped.
func TestBacklogWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog(8)
		l := newStream(b, protocol.StreamStdout, lineWait, nil)
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
		assert.Equal(t, time.Since(begun), 0, "waited … in a hurry")
		b.close()
		_, _ = l.Write([]byte("more\n"))
		_, _, ok := b.take()
		assert.That(t, !ok && b.size == 0, "something is left after close")
	})
}

// TestBlockCut: output is dropped up to the start of a line or a character.
func TestBlockCut(t *testing.T) {
	for _, tc := range []struct {
		data string
		n    int
		left string
	}{
		{"a\nbc\nd\n", 1, "bc\nd\n"},
		{"a\nbc\nd\n", 2, "bc\nd\n"},
		{"a\nbc\nd\n", 3, "d\n"},
		{"a\nbc\nd\n", 7, ""},
		{"a\nbc\nd\n", 70, ""},
		{"a€b", 2, "b"},
		{"a€b", 1, "€b"},
	} {
		b := block{data: []byte(tc.data)}
		left := tc.data[b.cut(tc.n):]
		assert.Equal(t, left, tc.left, "%q less %d", tc.data, tc.n)
	}
}

// gate is an agent's side of the output: it reads until the answer to a spawn, and then only once it is
// open.
type gate struct {
	mu      sync.Mutex
	changed sync.Cond // on mu
	open    bool      // guarded by mu
	text    []byte    // guarded by mu
	skip    []byte    // lines with this text are dropped
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.open && bytes.Contains(g.text, []byte(`"proc/spawn/resp"`)) {
		g.changed.Wait()
	}
	for line := range bytes.Lines(p) { // the host writes whole lines
		if g.skip == nil || !bytes.Contains(line, g.skip) {
			g.text = append(g.text, line...)
		}
	}
	return len(p), nil
}

func (g *gate) opens() {
	g.mu.Lock()
	g.open = true
	g.mu.Unlock()
	g.changed.Broadcast()
}

// read returns what was read so far, line by line.
func (g *gate) read() [][]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return bytes.Split(bytes.Clone(g.text), []byte("\n"))
}

// events returns the events of the one process that were read.
func (g *gate) events(t *testing.T) (all []event) {
	t.Helper()
	for _, line := range g.read() {
		var e event
		if bytes.Contains(line, []byte(`"proc/read/event"`)) && json.Unmarshal(line, &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// says waits until a text was read.
func (g *gate) says(t *testing.T, text string) {
	t.Helper()
	hosttest.Eventually(t, text, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return bytes.Contains(g.text, []byte(text))
	})
}

// flood is a spawn of a process that prints without end, in lines long enough to be few.
const flood = `{"cmd":["bash","-c","yes $(printf flood%01000d 0)"]}`

// lazy is a host whose agent stops reading at the answer to its only spawn.
type lazy struct {
	*gate
	t      *testing.T
	host   *host.Host
	in     io.WriteCloser
	plugin *Plugin
	p      *process // the spawned one
}

// newLazy starts a host and spawns a process.
func newLazy(t *testing.T, opts Options, spawn string) *lazy {
	t.Helper()
	l := &lazy{t: t, gate: &gate{}, plugin: newPlugin(t, "procs", t.TempDir(), opts)}
	l.changed.L = &l.mu
	h := must.Get(host.New(host.Options{Plugins: []host.Plugin{l.plugin}}))(t)
	in, w := io.Pipe()
	l.host, l.in = h, w
	served := make(chan error, 1)
	go func() {
		served <- h.Serve(in, l)
		in.Close()
	}()
	t.Cleanup(func() {
		l.opens()
		w.Close()
		assert.OK(t, <-served)
	})
	l.send(protocol.TypeHandshakeReq, "1", `{"agent_id":"a","agent_caps":["proc"]}`)
	l.send(protocol.TypeProcSpawnReq, "2", spawn)
	hosttest.Eventually(t, "the process", func() bool {
		if all := l.plugin.procs.all(); len(all) > 0 {
			l.p = all[0]
		}
		return l.p != nil
	})
	return l
}

func (l *lazy) send(typ protocol.Type, id, fields string) {
	l.t.Helper()
	if _, err := io.WriteString(l.in, hosttest.Request(typ, id, fields)+"\n"); err != nil {
		l.t.Error(err)
	}
}

// floods waits until output of the process was dropped.
func (l *lazy) floods() {
	l.t.Helper()
	hosttest.Eventually(l.t, "a full backlog", func() bool {
		l.p.mu.Lock()
		live := l.p.live
		l.p.mu.Unlock()
		live.output.mu.Lock()
		defer live.output.mu.Unlock()
		return live.output.dropped.bytes > 0
	})
}

// TestFloodWithoutReader: an agent that does not read loses the oldest output of a process, and is told
// the exact number of bytes. The process can always continue.
func TestFloodWithoutReader(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxOutputBytes = 20 << 10
	const lines = 80_000
	l := newLazy(t, opts, `{"cmd":["bash","-c","seq 1 `+strconv.Itoa(lines)+`"]}`)
	hosttest.Eventually(t, "the end of the process", l.p.ended)
	l.opens()
	l.says(t, `"data":{"code":`)
	all := l.events(t)
	var output strings.Builder
	for i := range lines {
		fmt.Fprintln(&output, i+1)
	}
	rest, dropped := output.String(), 0
	for i, e := range all {
		switch {
		case e.Seq != i:
			t.Fatalf("seq %d of event %d", e.Seq, i)
		case e.last():
		case e.Data.Dropped > 0:
			dropped += e.Data.Dropped
			rest = rest[e.Data.Dropped:]
		default: // on a busy machine, also a part of a line
			text := e.String()[len("stdout "):]
			must.That(t, strings.HasPrefix(rest, text), "event %d has %.40q, should be %.40q", i, text, rest)
			rest = rest[len(text):]
		}
	}
	assert.That(t, rest == "" && last(all) == "stdout code 0", "%d bytes are missing before %s", len(rest), last(all))
	// Of 469 KB, the feed took 256 KiB of events, and the backlog kept 20 KiB.
	assert.That(t, dropped >= 150<<10 && dropped <= 350<<10, "%d bytes were dropped", dropped)
}

// TestEndWithoutReader: an agent that does not read delays neither the end of its host nor that of its
// processes.
func TestEndWithoutReader(t *testing.T) {
	l := newLazy(t, DefaultOptions(), flood)
	l.floods()
	l.host.Shutdown(0)
	<-l.p.done
	l.opens()
	<-l.p.sent
}

// TestSessionEndWaits: the end of a session waits for an agent that will read again.
func TestSessionEndWaits(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxOutputBytes = 64 << 10
	l := newLazy(t, opts, flood)
	l.plugin.endWait = patience
	l.floods()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for s := range l.plugin.procs.sessions { // no other goroutine uses it now
			l.plugin.EndSession(t.Context(), s)
		}
		select {
		case <-l.p.sent:
		default:
			t.Error("the session has ended before the last event")
		}
	}()
	<-l.p.done
	l.opens()
	<-ended
}

// TestFloodBesideOthers: a flood of one process does not keep other processes and requests from their
// turns.
func TestFloodBesideOthers(t *testing.T) {
	l := newLazy(t, DefaultOptions(), flood)
	l.mu.Lock()
	l.skip = []byte("flood0000")
	l.mu.Unlock()
	l.opens()
	for i := range 10 {
		text := "other " + strconv.Itoa(i)
		l.send(protocol.TypePing, "ping "+strconv.Itoa(i), `{}`)
		l.send(protocol.TypeProcSpawnReq, "spawn "+strconv.Itoa(i), fields(t, "cmd", []string{"echo", text}))
		l.says(t, `"req_id":"ping `+strconv.Itoa(i)+`"`)
		l.says(t, `"data":{"text":"`+text+`\n","lines":1}`)
	}
	assert.That(t, !l.p.ended(), "the flood has ended")
	l.send(protocol.TypeProcKillReq, "kill", fields(t, "proc_id", l.p.id, "signal", "SIGKILL"))
	l.says(t, `"stream_type":"killed"`)
}
