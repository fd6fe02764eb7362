package hosttest

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/middleware"
	"a2e/protocol"
)

// patience is how long a Pair waits for messages that should arrive at once. Only a
// failing test waits that long.
const patience = 60 * time.Second

// Pair is a host in memory and the test that talks to it. Every line the host
// writes is checked against its schema; no request may be answered twice, and
// its events must come before its answer, counted 0,1,2…
type Pair struct {
	Host *host.Host

	t        testing.TB
	in       *io.PipeWriter
	done     chan struct{} // closed when Serve has returned
	dialects bool          // the host speaks other protocols too

	mu       sync.Mutex // guards the fields below
	err      error      // what Serve returned
	partial  []byte     // the start of a line
	messages []Message
	news     chan struct{}  // closed when a message was added
	sent     map[string]int // number of requests, by id
	answers  map[string]int // number of answers, by req_id
	events   map[string]int // next seq, by req_id
	next     int            // index of the next message for Recv
	ids      int            // number of ids made by NewID
}

// New starts a host. At the end of the test New closes the host's input, and the host must stop
// without leaving a goroutine behind.
func New(t testing.TB, opts host.Options) *Pair {
	t.Helper()
	p := start(t, opts)
	t.Cleanup(p.Close)
	return p
}

// Start is like New for a test that calls Close itself, such as one within a synctest
// bubble.
func Start(t testing.TB, opts host.Options) *Pair {
	t.Helper()
	return start(t, opts)
}

func start(t testing.TB, opts host.Options) *Pair {
	t.Helper()
	opts.Middleware = middleware.All()
	h, err := host.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	in, w := io.Pipe()
	p := &Pair{
		Host: h, t: t, in: w, dialects: len(opts.Dialects) > 0, done: make(chan struct{}), news: make(chan struct{}),
		sent: map[string]int{}, answers: map[string]int{}, events: map[string]int{},
	}
	go func() {
		err := h.Serve(in, p)
		in.CloseWithError(io.ErrClosedPipe) // ends the writes of a test that still sends
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.done)
	}()
	return p
}

// Write implements io.Writer for the output of the host. Only the host calls it.
func (p *Pair) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = append(p.partial, b...)
	for {
		line, rest, ok := bytes.Cut(p.partial, []byte("\n"))
		if !ok {
			break
		}
		p.partial = rest
		p.takeLocked(bytes.Clone(line))
	}
	close(p.news)
	p.news = make(chan struct{})
	return len(b), nil
}

func (p *Pair) takeLocked(line []byte) {
	foreign := p.dialects && !bytes.HasPrefix(line, []byte(`{"a2e"`))
	if !foreign {
		CheckLine(p.t, line)
	}
	m, err := parse(line)
	if err != nil {
		p.t.Errorf("%v in %s", err, line)
		return
	}
	p.messages = append(p.messages, m)
	switch {
	case foreign: // other dialects have their own tests
	case m.IsRequest() || p.sent[m.ReqID] != 1:
	case m.IsEvent():
		if m.seq == "" { // an event that does not belong to the call
			return
		}
		if want := fmt.Sprint(p.events[m.ReqID]); m.seq != want {
			p.t.Errorf("an event has seq %s, should be %s: %s", m.seq, want, line)
		}
		switch answered := p.answers[m.ReqID] > 0; { // output of a process may follow the answer to its spawn
		case answered && m.Type != protocol.TypeProcReadEvent:
			p.t.Errorf("an event after the answer: %s", line)
		case !answered && m.Type == protocol.TypeProcReadEvent:
			p.t.Errorf("output of a process before the answer: %s", line)
		}
		p.events[m.ReqID]++
	default:
		if p.answers[m.ReqID]++; p.answers[m.ReqID] > 1 {
			p.t.Errorf("a second answer: %s", line)
		}
	}
}

// Send writes lines to the host. It waits until they are read, or the host has
// stopped.
func (p *Pair) Send(lines ...string) {
	p.mu.Lock()
	for _, line := range lines {
		var m struct {
			ID string `json:"id"`
		}
		if json.Unmarshal([]byte(line), &m) == nil && m.ID != "" {
			p.sent[m.ID]++
		}
	}
	p.mu.Unlock()
	p.SendRaw(strings.Join(lines, "\n") + "\n")
}

// SendRaw writes bytes to the host unchanged.
func (p *Pair) SendRaw(text string) {
	_, _ = io.WriteString(p.in, text) // an error means that the host has stopped
}

// Request makes the line of a request: fields is a JSON object.
func Request(t protocol.Type, id, fields string) string {
	quoted, _ := json.Marshal(id)
	head := fmt.Sprintf(`{"a2e":"1.0","type":%q,"id":%s`, string(t), quoted)
	fields = strings.TrimSpace(fields)
	if inner := strings.TrimSpace(strings.TrimPrefix(fields, "{")); inner != "" && inner != "}" {
		return head + "," + inner
	}
	return head + "}"
}

// NewID returns an id that this Pair has not used.
func (p *Pair) NewID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids++
	return fmt.Sprintf("q%d", p.ids)
}

// Go sends a request and returns its id, without waiting for the answer.
func (p *Pair) Go(t protocol.Type, fields string) (id string) {
	id = p.NewID()
	p.Send(Request(t, id, fields))
	return id
}

// Call sends a request and waits for its answer.
func (p *Pair) Call(t protocol.Type, fields string) Message {
	p.t.Helper()
	return p.Answer(p.Go(t, fields))
}

// Refused sends a request whose answer must be an error with this code and contain these words.
func (p *Pair) Refused(t protocol.Type, fields string, code protocol.ErrorCode, words ...string) Message {
	p.t.Helper()
	m := p.Call(t, fields)
	missing := func(word string) bool {
		return !strings.Contains(m.Get("/message"), word) && !strings.Contains(string(m.Line), word)
	}
	if m.Code != code || slices.ContainsFunc(words, missing) {
		p.t.Errorf("%s %.300s should be refused as %s, %q: %.1000s", t, fields, code, words, m.Line)
	}
	return m
}

// Handshake opens a session with these capabilities; all twelve when none is named.
func (p *Pair) Handshake(caps ...protocol.Capability) Message {
	p.t.Helper()
	if len(caps) == 0 {
		caps = []protocol.Capability{
			"skill", "tools", "toolkits", "env", "proc", "memory", "learning", "chains", "mcp",
			"multi_agent", "planning", "test",
		}
	}
	list, _ := json.Marshal(caps)
	return p.Call(protocol.TypeHandshakeReq, fmt.Sprintf(`{"agent_id":"agent","agent_caps":%s}`, list))
}

// Answer waits for the response or error that answers a request.
func (p *Pair) Answer(id string) Message {
	p.t.Helper()
	return p.Wait("the answer to "+id, func(m Message) bool {
		return m.ReqID == id && !m.IsEvent() && !m.IsRequest()
	})
}

// Event waits for an event of a request.
func (p *Pair) Event(id string) Message {
	p.t.Helper()
	return p.Wait("an event of "+id, func(m Message) bool { return m.ReqID == id && m.IsEvent() })
}

// Wait waits for the first message that matches, including earlier messages.
func (p *Pair) Wait(what string, match func(Message) bool) Message {
	p.t.Helper()
	from := 0
	var found Message
	p.until(what, func() bool {
		for ; from < len(p.messages); from++ {
			if match(p.messages[from]) {
				found = p.messages[from]
				return true
			}
		}
		return false
	})
	return found
}

// Recv waits for the next message, whatever it is.
func (p *Pair) Recv() Message {
	p.t.Helper()
	p.until("the next message", func() bool { return p.next < len(p.messages) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return p.messages[p.next-1]
}

// until waits for a condition on the messages. It calls ok with mu held.
func (p *Pair) until(what string, ok func() bool) {
	p.t.Helper()
	clock := time.NewTimer(patience)
	defer clock.Stop()
	for ended := false; ; {
		p.mu.Lock()
		met, news := ok(), p.news
		p.mu.Unlock()
		switch {
		case met:
			return
		case ended:
			p.t.Fatalf("the host has ended without %s; it said\n%s", what, p.tail())
		}
		select {
		case <-news:
		case <-p.done:
			ended = true
		case <-clock.C:
			p.t.Fatalf("%s did not come; the host said\n%s\n%s", what, p.tail(), stacks())
		}
	}
}

// Messages returns all messages of the host so far.
func (p *Pair) Messages() []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Message(nil), p.messages...)
}

// Answers returns the answers to a request so far.
func (p *Pair) Answers(id string) (all []Message) {
	for _, m := range p.Messages() {
		if m.ReqID == id && !m.IsEvent() && !m.IsRequest() {
			all = append(all, m)
		}
	}
	return all
}

// CloseInput ends the host's input.
func (p *Pair) CloseInput() { p.in.Close() }

// WaitEnd waits until Serve returns, and returns its error.
func (p *Pair) WaitEnd() error {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("the host did not end; it said\n%s\n%s", p.tail(), stacks())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.partial) > 0 {
		p.t.Errorf("the host ended within a line: %s", p.partial)
	}
	return p.err
}

// Ended reports whether Serve has returned.
func (p *Pair) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Close ends the input and waits for the host to end. It may be called twice.
func (p *Pair) Close() {
	p.t.Helper()
	p.CloseInput()
	_ = p.WaitEnd()
}

// tail returns the last lines that the host wrote.
func (p *Pair) tail() string {
	all := p.Messages()
	var b strings.Builder
	for _, m := range all[max(0, len(all)-10):] {
		fmt.Fprintf(&b, "  %.300s\n", m.Line)
	}
	return b.String()
}

func stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
