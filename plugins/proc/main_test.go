package proc

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/protocol"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// patience is how long a test waits for an event that should happen at once. Only a failing test waits
// that long.
const patience = 60 * time.Second

// newPlugin makes a plugin with a launcher of its own on the folder dir.
func newPlugin(t testing.TB, name, dir string, opts Options) *Plugin {
	t.Helper()
	return must.Get(New(name, opts, host.Env{Workspace: dir, Launcher: sandboxtest.For(t,
		sandbox.Options{Workspace: dir})}))(t)
}

// stage is a host with a proc plugin and a session.
type stage struct {
	*hosttest.Pair
	t      testing.TB
	dir    string
	plugin *Plugin
}

func newStage(t testing.TB, opts Options) *stage {
	t.Helper()
	dir := t.TempDir()
	plugin := newPlugin(t, "procs", dir, opts)
	s := &stage{t: t, dir: dir, plugin: plugin, Pair: hosttest.New(t, host.Options{
		Plugins:     []host.Plugin{plugin},
		MaxParallel: 16,
	})}
	s.Handshake(protocol.CapProc)
	return s
}

// proc is a spawned process, as the agent knows it.
type proc struct {
	s   *stage
	req string // the spawn's id
	id  string
	pid int
}

// fields makes a JSON object of names and values in turn.
func fields(t testing.TB, pairs ...any) string {
	t.Helper()
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	b := must.Get(json.Marshal(m))(t)
	return string(b)
}

// spawn starts cmd; more are further fields, as fields takes them.
func (s *stage) spawn(cmd []string, more ...any) *proc {
	s.t.Helper()
	req := s.Go(protocol.TypeProcSpawnReq, fields(s.t, append([]any{"cmd", cmd}, more...)...))
	var resp protocol.ProcSpawnResponse
	m := s.Answer(req)
	m.Decode(s.t, &resp)
	must.That(s.t, m.Type == protocol.TypeProcSpawnResp && resp.OK && resp.ProcID != "" && resp.PID > 0,
		"spawn of %q: %s", cmd, m.Line)
	return &proc{s, req, resp.ProcID, resp.PID}
}

func (s *stage) bash(script string, more ...any) *proc {
	s.t.Helper()
	return s.spawn([]string{"bash", "-c", script}, more...)
}

func (s *stage) python(script string, more ...any) *proc {
	s.t.Helper()
	return s.spawn([]string{"python3", "-u", "-c", script}, more...)
}

// event is a proc/read/event with all members that its data may have.
type event struct {
	Seq    int                 `json:"seq"`
	Kind   protocol.EventKind  `json:"kind"`
	ProcID string              `json:"proc_id"`
	Stream protocol.ProcStream `json:"stream_type"`
	Data   struct {
		Text    *string `json:"text"`
		Base64  []byte  `json:"base64"`
		Lines   *int    `json:"lines"`
		Code    *int    `json:"code"`
		Message string  `json:"message"`
		Dropped int     `json:"dropped_bytes"`
	} `json:"data"`
}

// counted reports whether lines is right: the number of newlines in the output, or absent without
// output.
func (e event) counted() bool {
	output := e.output()
	if output == nil {
		return e.Data.Lines == nil
	}
	return e.Data.Lines != nil && *e.Data.Lines == bytes.Count(output, []byte("\n"))
}

// output returns the output in an event; nil = it has none.
func (e event) output() []byte {
	if e.Data.Text != nil {
		return []byte(*e.Data.Text)
	}
	return e.Data.Base64
}

// last reports whether the event is the end of a process.
func (e event) last() bool { return e.Data.Code != nil || e.Stream == protocol.StreamKilled }

// String returns the event as "stdout text", "stderr base64 bytes", "stdout code 0", "killed" or
// "dropped 10".
func (e event) String() string {
	switch {
	case e.Stream == protocol.StreamKilled:
		return "killed"
	case e.Data.Code != nil:
		return fmt.Sprintf("%s code %d", e.Stream, *e.Data.Code)
	case e.Data.Dropped > 0:
		return fmt.Sprintf("dropped %d", e.Data.Dropped)
	}
	if e.Data.Text == nil {
		return fmt.Sprintf("%s base64 %q", e.Stream, e.Data.Base64)
	}
	return string(e.Stream) + " " + *e.Data.Text
}

// events returns the events of the process so far, and checks their order: after the answer, numbered,
// and none after the last.
func (p *proc) events() (all []event) {
	p.s.t.Helper()
	answered := false
	for _, m := range p.s.Messages() {
		if m.ReqID != p.req {
			continue
		}
		if !m.IsEvent() {
			answered = true
			continue
		}
		var e event
		m.Decode(p.s.t, &e)
		status := e.Kind == protocol.EventStatus
		switch {
		case !answered:
			p.s.t.Errorf("an event before the answer: %s", m.Line)
		case e.Seq != len(all) || e.ProcID != p.id:
			p.s.t.Errorf("seq %d of %s, should be %d of %s", e.Seq, e.ProcID, len(all), p.id)
		case len(all) > 0 && all[len(all)-1].last():
			p.s.t.Errorf("an event after the last: %s", m.Line)
		case !e.counted():
			p.s.t.Errorf("%s counts other lines", m.Line)
		case status != (e.last() || e.Data.Dropped > 0):
			p.s.t.Errorf("%s is of kind %s", m.Line, e.Kind)
		}
		all = append(all, e)
	}
	return all
}

// end waits for the last event, and returns all events.
func (p *proc) end() []event {
	p.s.t.Helper()
	p.s.Wait("the end of "+p.id, func(m hosttest.Message) bool {
		if m.ReqID != p.req || m.Type != protocol.TypeProcReadEvent || m.Get("/kind") != "status" {
			return false
		}
		var e event
		m.Decode(p.s.t, &e)
		return e.last()
	})
	return p.events()
}

// says waits until the text of the events contains text, and returns all of their text.
func (p *proc) says(text string) string {
	p.s.t.Helper()
	p.s.t.Cleanup(func() {
		if p.s.t.Failed() {
			p.s.t.Logf("%s said %.1000q", p.id, texts(p.events()))
		}
	})
	var said string
	hosttest.Eventually(p.s.t, fmt.Sprintf("%q from %s", text, p.id), func() bool {
		said = textOf(p.events())
		return strings.Contains(said, text)
	})
	return said
}

// textOf joins the text of events.
func textOf(all []event) string {
	var b strings.Builder
	for _, e := range all {
		if e.Data.Text != nil {
			b.WriteString(*e.Data.Text)
		}
	}
	return b.String()
}

// write sends input, which the host must accept.
func (p *proc) write(data string, eof bool) {
	p.s.t.Helper()
	resp := p.tryWrite("data", data, "eof", eof)
	must.That(p.s.t, resp.OK && resp.Error == "" && resp.ProcID == p.id && resp.PID == p.pid, "write to %s: %+v", p.id,
		resp)
}

func (p *proc) tryWrite(more ...any) (resp protocol.ProcWriteResponse) {
	p.s.t.Helper()
	p.s.ask(protocol.TypeProcWriteReq, &resp, append(more, "proc_id", p.id)...)
	return resp
}

func (p *proc) kill(signal string) (resp protocol.ProcKillResponse) {
	p.s.t.Helper()
	p.s.ask(protocol.TypeProcKillReq, &resp, "proc_id", p.id, "signal", signal)
	return resp
}

// dies kills the process, and returns its last event.
func (p *proc) dies() string {
	p.s.t.Helper()
	r := p.kill("SIGKILL")
	assert.That(p.s.t, r.OK && r.State == protocol.ProcKilled, "%+v", r)
	return last(p.end())
}

// status returns the answer to a status request; "" asks for all.
func (s *stage) status(id string) (resp protocol.ProcStatusResponse) {
	s.t.Helper()
	s.ask(protocol.TypeProcStatusReq, &resp, "proc_id", id)
	return resp
}

// ask sends a request, which must have the response of its type, and reads that.
func (s *stage) ask(typ protocol.Type, resp any, pairs ...any) {
	s.t.Helper()
	m := s.Call(typ, fields(s.t, pairs...))
	info, _ := protocol.Lookup(typ)
	must.That(s.t, m.Type == info.Response, "%s %v was answered by %s", typ, pairs, m.Line)
	m.Decode(s.t, resp)
}

// last returns the last of some events as text.
func last(all []event) string { return all[len(all)-1].String() }

// texts returns events as String does, but each line on its own without its newline, whatever pieces
// the output came in. A line without an end is "stdout+ text".
func texts(all []event) (out []string) {
	begun := map[protocol.ProcStream]string{}
	flush := func() {
		for _, stream := range slices.Sorted(maps.Keys(begun)) {
			out = append(out, string(stream)+"+ "+begun[stream])
		}
		clear(begun)
	}
	for _, e := range all {
		if e.Data.Text == nil {
			flush()
			out = append(out, e.String())
			continue
		}
		text := begun[e.Stream] + *e.Data.Text
		delete(begun, e.Stream)
		for line := range strings.Lines(text) {
			if whole, ok := strings.CutSuffix(line, "\n"); ok {
				out = append(out, string(e.Stream)+" "+whole)
			} else {
				begun[e.Stream] = line
			}
		}
	}
	flush()
	return out
}
