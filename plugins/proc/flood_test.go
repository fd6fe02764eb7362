package proc

import (
	"bytes"
	"io"
	"strconv"
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

// read gives what was read so far, line by line.
func (g *gate) read() [][]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return bytes.Split(bytes.Clone(g.text), []byte("\n"))
}

// events gives the events of the one process that were read.
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
	poll(t, text, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return bytes.Contains(g.text, []byte(text))
	})
}

// lazy starts a host whose agent stops reading at the answer to its one spawn,
// and sends that. send sends more.
func lazy(t *testing.T, opts Options, spawn string) (g *gate, h *host.Host, p *process, send func(typ protocol.Type, id, fields string)) {
	t.Helper()
	plugin := newPlugin(t, "procs", t.TempDir(), opts)
	h, err := host.New(host.Options{Plugins: []host.Plugin{plugin}})
	if err != nil {
		t.Fatal(err)
	}
	g = &gate{}
	g.changed.L = &g.mu
	in, w := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- h.Serve(in, g)
		in.Close()
	}()
	t.Cleanup(func() {
		g.opens()
		w.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	send = func(typ protocol.Type, id, fields string) {
		if _, err := io.WriteString(w, hosttest.Request(typ, id, fields)+"\n"); err != nil {
			t.Error(err)
		}
	}
	send(protocol.TypeHandshakeReq, "1", `{"agent_id":"a","agent_caps":["proc"]}`)
	send(protocol.TypeProcSpawnReq, "2", spawn)
	poll(t, "the process", func() bool {
		if all := plugin.procs.all(); len(all) > 0 {
			p = all[0]
		}
		return p != nil
	})
	return g, h, p, send
}

// An agent that does not read loses the oldest output of a process and is told
// how much, to the byte; the process is never stopped for good.
func TestFloodWithoutReader(t *testing.T) {
	opts := DefaultOptions()
	opts.MaxOutputBytes = 100 << 10
	const lines = 100_000
	g, _, p, _ := lazy(t, opts, `{"cmd":["bash","-c","seq 1 `+strconv.Itoa(lines)+`"]}`)
	poll(t, "the end of the process", p.ended)
	g.opens()
	g.says(t, `"data":{"code":`)
	all := g.events(t)
	next, dropped, losses := 1, 0, 0
	for i, e := range all {
		switch {
		case e.Seq != i:
			t.Fatalf("seq %d of event %d", e.Seq, i)
		case e.last():
		case e.Data.Dropped > 0:
			losses++
			dropped += e.Data.Dropped
			for left := e.Data.Dropped; left > 0; next++ {
				left -= len(strconv.Itoa(next)) + 1
			}
		default:
			if e.Data.Text == nil || *e.Data.Text != strconv.Itoa(next) {
				t.Fatalf("event %d is %s, should be %d", i, e, next)
			}
			next++
		}
	}
	if last := all[len(all)-1].String(); next != lines+1 || losses != 1 || last != "stdout code 0" {
		t.Errorf("%d lines, %d losses, then %s", next-1, losses, last)
	}
	if dropped < 300<<10 || dropped > 500<<10 {
		t.Errorf("%d bytes were dropped", dropped)
	}
}

// An agent that does not read holds up neither the end of its host nor that of
// its processes.
func TestEndWithoutReader(t *testing.T) {
	g, h, p, _ := lazy(t, DefaultOptions(), `{"cmd":["bash","-c","yes"]}`)
	poll(t, "a full backlog", func() bool {
		p.mu.Lock()
		l := p.live
		p.mu.Unlock()
		l.output.mu.Lock()
		defer l.output.mu.Unlock()
		return l.output.dropped.bytes > 0
	})
	h.Shutdown(0)
	<-p.done
	g.opens()
	<-p.sent
}

// A flood of one process leaves the others their turns.
func TestFloodBesideOthers(t *testing.T) {
	g, _, p, send := lazy(t, DefaultOptions(), `{"cmd":["bash","-c","echo y >&2; yes"]}`)
	g.mu.Lock()
	g.skip = []byte(`"text":"y"},`)
	g.mu.Unlock()
	g.opens()
	for i := range 10 {
		text := "other " + strconv.Itoa(i)
		send(protocol.TypePing, "ping "+strconv.Itoa(i), `{}`)
		send(protocol.TypeProcSpawnReq, "spawn "+strconv.Itoa(i), fields(t, "cmd", []string{"echo", text}))
		g.says(t, `"req_id":"ping `+strconv.Itoa(i)+`"`)
		g.says(t, `"data":{"text":"`+text+`"}`)
	}
	if p.ended() {
		t.Error("the flood has ended")
	}
	send(protocol.TypeProcKillReq, "kill", fields(t, "proc_id", p.id, "signal", "SIGKILL"))
	g.says(t, `"stream_type":"killed"`)
}
