package proc

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// gate is an agent's side of the output: it reads until it has seen the answer to
// a spawn, and then only once it is opened.
type gate struct {
	mu      sync.Mutex
	changed sync.Cond // on mu
	open    bool      // guarded by mu
	text    []byte    // guarded by mu
	skip    []byte    // what stands in the lines to throw away
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

// flood is a spawn that prints for ever, in lines long enough to be few.
const flood = `{"cmd":["bash","-c","yes $(printf flood%01000d 0)"]}`

// lazy is a host whose agent stops reading at the answer to its one spawn.
type lazy struct {
	*gate
	t      *testing.T
	host   *host.Host
	in     io.WriteCloser
	plugin *Plugin
	p      *process // the spawned one
}

// newLazy starts one and spawns.
func newLazy(t *testing.T, opts Options, spawn string) *lazy {
	t.Helper()
	l := &lazy{t: t, gate: &gate{}, plugin: newPlugin(t, "procs", t.TempDir(), opts)}
	l.changed.L = &l.mu
	h, err := host.New(host.Options{Plugins: []host.Plugin{l.plugin}})
	if err != nil {
		t.Fatal(err)
	}
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
		if err := <-served; err != nil {
			t.Error(err)
		}
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

// An agent that does not read loses the oldest output of a process and is told
// how much, to the byte; the process is never stopped for good.
func TestFloodWithoutReader(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxOutputBytes = 20 << 10
	const lines = 80_000
	l := newLazy(t, opts, `{"cmd":["bash","-c","seq 1 `+strconv.Itoa(lines)+`"]}`)
	hosttest.Eventually(t, "the end of the process", l.p.ended)
	l.opens()
	l.says(t, `"data":{"code":`)
	all := l.events(t)
	next, dropped := 1, 0
	for i, e := range all {
		switch {
		case e.Seq != i:
			t.Fatalf("seq %d of event %d", e.Seq, i)
		case e.last():
		case e.Data.Dropped > 0:
			dropped += e.Data.Dropped
			for left := e.Data.Dropped; left > 0; next++ {
				left -= len(strconv.Itoa(next)) + 1
			}
		default:
			for line := range strings.Lines(e.String()[len("stdout "):]) {
				if line != strconv.Itoa(next)+"\n" {
					t.Fatalf("event %d has %q, should be %d", i, line, next)
				}
				next++
			}
		}
	}
	if last := all[len(all)-1].String(); next != lines+1 || last != "stdout code 0" {
		t.Errorf("%d lines, then %s", next-1, last)
	}
	// Of 469 KB the feed has taken 256 KiB of events, and the backlog kept 20 KiB.
	if dropped < 150<<10 || dropped > 350<<10 {
		t.Errorf("%d bytes were dropped", dropped)
	}
}

// An agent that does not read holds up neither the end of its host nor that of
// its processes.
func TestEndWithoutReader(t *testing.T) {
	l := newLazy(t, DefaultOptions(), flood)
	l.floods()
	l.host.Shutdown(0)
	<-l.p.done
	l.opens()
	<-l.p.sent
}

// The end of a session waits for an agent that is about to read on.
func TestSessionEndWaits(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxOutputBytes = 64 << 10
	l := newLazy(t, opts, flood)
	l.floods()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for s := range l.plugin.procs.sessions { // nobody else looks at it now
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

// A flood of one process leaves the others their turns.
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
		l.says(t, `"data":{"text":"`+text+`\n"}`)
	}
	if l.p.ended() {
		t.Error("the flood has ended")
	}
	l.send(protocol.TypeProcKillReq, "kill", fields(t, "proc_id", l.p.id, "signal", "SIGKILL"))
	l.says(t, `"stream_type":"killed"`)
}
