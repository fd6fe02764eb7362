package record

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/guard/redact"
)

const (
	// softWait is how long to wait for a message that may not come again.
	softWait = 2 * time.Second
	// maxMissed is how many answers in a row may be missing before the replay stops.
	maxMissed = 3
)

// PlayOptions are the parameters of Play.
type PlayOptions struct {
	Command   *exec.Cmd     // the host
	Timeout   time.Duration // for each answer
	Ignore    []string      // paths or names of values to ignore
	Workspace string        // workspace of the host, absolute
	Token     string        // replaces the masked token; "" = no token
}

// Report says how a host answered.
type Report struct {
	Requests  int      `json:"requests"` // requests that have an answer in the record
	Same      int      `json:"same"`
	Different []Result `json:"different"`
	Notes     []string `json:"notes"`
}

// Result is a request with another answer than in the record.
type Result struct {
	Entry       int64        `json:"entry"` // number of the request in the record
	Request     string       `json:"request"`
	Problem     string       `json:"problem,omitempty"`
	Differences []Difference `json:"differences"`
}

// player plays one record.
type player struct {
	opts PlayOptions
	tape *tape
	ids  *ids
	host *Process

	mu      sync.Mutex // guards the fields below
	heard   map[string][]*message
	output  map[string]*output // output of processes, by the request that started them
	changed chan struct{}      // closed when a message came or the host ended
	ended   string             // how the host ended; "" = it is running

	missed int    // missing answers in a row
	died   string // how the host ended before its input ended
	report Report
}

// Play plays the record in a file against a host and reports where the answers differ. It returns
// an error if the record could not be played at all.
//
// A line of the agent is sent once everything that it may depend on has arrived: every answer that
// the agent had when the line was recorded, ends of processes, and requests of the host. So
// requests that ran in parallel do so again, and requests that followed an answer follow it again.
// The time between lines is not kept.
func Play(ctx context.Context, file string, opts PlayOptions) (*Report, error) {
	t, err := load(file)
	if err != nil {
		return nil, err
	}
	p := &player{
		opts: opts, tape: t, heard: make(map[string][]*message), output: make(map[string]*output),
		changed: make(chan struct{}),
		ids: &ids{
			now: map[string]string{}, asked: map[string]jsontext.Value{}, own: map[string]bool{},
			from: t.workspace, to: opts.Workspace, token: opts.Token,
		},
		report: Report{Different: []Result{}, Notes: t.notes},
	}
	p.host, err = Start(opts.Command, MaxEntry, Heard{
		Line: p.hear, Long: func([]byte, int64) {
			p.note("a line of the host is longer than %d MiB and was not read", MaxEntry>>20)
		},
		Stderr: func([]byte) {}, Ended: p.hostEnded,
	})
	if err != nil {
		return nil, fmt.Errorf("the host: %w", err)
	}
	defer p.host.End()
	p.play(ctx)
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	p.died = p.how()
	p.host.Close()
	p.wait(ctx, opts.Timeout, func() bool { return p.ended != "" })
	p.compare()
	return &p.report, nil
}

// hear handles a line of the host.
func (p *player) hear(line []byte) {
	raw := jsontext.Value(bytes.Clone(line))
	if raw.Format(jsontext.AllowDuplicateNames(true)) != nil {
		return
	}
	m := parse(raw)
	p.mu.Lock()
	defer p.mu.Unlock()
	collect(p.output, m)
	if key, _ := m.said(); len(p.heard[key]) < p.tape.heard[key] { // further messages are not needed
		p.heard[key] = append(p.heard[key], m)
		p.wakeLocked()
	}
}

func (p *player) hostEnded(code int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = fmt.Sprintf("the host ended with exit code %d", code)
	if err != nil {
		p.ended = "the host ended: " + err.Error()
	}
	p.wakeLocked()
}

func (p *player) wakeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *player) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Notes = append(p.report.Notes, fmt.Sprintf(format, args...))
}

// wait waits until the condition is true, which is checked under the lock, or the host has ended.
// It reports whether the condition is true.
func (p *player) wait(ctx context.Context, within time.Duration, holds func() bool) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		p.mu.Lock()
		ok, over, changed := holds(), p.ended != "", p.changed
		p.mu.Unlock()
		if ok || over {
			return ok
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// play sends the lines of the agent, each after the messages that it depends on.
func (p *player) play(ctx context.Context) {
	for i := range p.tape.steps {
		s := &p.tape.steps[i]
		if !p.await(ctx, s.after) {
			p.note("gave up before entry %d: %d answers in a row did not come", s.entry, maxMissed)
			return
		}
		if err := p.send(ctx, s); err != nil {
			p.note("entry %d and what follows were not sent: %v", s.entry, err)
			return
		}
	}
	p.await(ctx, p.tape.last)
}

// await waits for the messages that the agent had received. It returns false if too many are missing to go on.
func (p *player) await(ctx context.Context, all []hostMessage) bool {
	for _, w := range all {
		within := p.opts.Timeout
		if !w.due {
			within = min(within, softWait)
		}
		came := p.wait(ctx, within, func() bool { return len(p.heard[w.key]) > w.index })
		switch {
		case came:
			p.missed = 0
			p.mu.Lock()
			now := p.heard[w.key][w.index]
			p.mu.Unlock()
			p.ids.learn(w.message, now)
		case ctx.Err() != nil:
			return true // Play reports it
		case w.due:
			if p.missed++; p.missed == maxMissed && p.how() == "" {
				return false
			}
		}
	}
	return true
}

// how returns how the host ended, or "" if it is running.
func (p *player) how() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// send sends a line. If the host does not read, it tries again until the timeout.
func (p *player) send(ctx context.Context, s *step) error {
	line := append([]byte(s.text), '\n')
	if s.message != nil {
		p.ids.spokenByAgent(s.message.raw)
		line = p.ids.rewrite(s.message)
	}
	for end := time.Now().Add(p.opts.Timeout); ; {
		err := p.host.Send(line)
		if !errors.Is(err, ErrFull) || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// compare compares each answer with the one in the record.
func (p *player) compare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &comparer{ids: p.ids, ignore: p.opts.Ignore, used: map[string]bool{}}
	for _, s := range p.tape.steps {
		if s.answer == nil {
			continue
		}
		p.report.Requests++
		r := Result{Entry: s.entry, Request: s.name(), Differences: []Difference{}}
		now := p.heard[s.key]
		if s.index >= len(now) {
			if r.Problem = fmt.Sprintf("no answer within %v", p.opts.Timeout); p.died != "" {
				r.Problem = "no answer; " + p.died
			}
		} else {
			r.Differences = append(r.Differences, c.answer(s.answer, now[s.index])...)
			if was := p.tape.output[s.id()]; was != nil && was.ended {
				r.Differences = append(r.Differences, c.output(was, p.output[s.id()])...)
			}
		}
		if r.Problem == "" && len(r.Differences) == 0 {
			p.report.Same++
			continue
		}
		p.report.Different = append(p.report.Different, r)
	}
	for _, path := range p.opts.Ignore {
		if !c.used[path] {
			p.report.Notes = append(p.report.Notes, fmt.Sprintf("--ignore %s: nothing differs there", path))
		}
	}
}

// answer compares two answers. If their types differ, for example if one is an error, only that is reported.
func (c *comparer) answer(was, is *message) []Difference {
	c.found = nil
	if was.Type != is.Type || (was.Error == nil) != (is.Error == nil) {
		return []Difference{{"answer", outcome(was), outcome(is)}}
	}
	a, b := members(was.raw), members(is.raw)
	for _, m := range []map[string]jsontext.Value{a, b} {
		delete(m, "id") // the id of the message itself
	}
	was2, _ := json.Marshal(a, json.Deterministic(true)) // cannot fail: the values were just decoded
	is2, _ := json.Marshal(b, json.Deterministic(true))
	c.compare("", "", was2, is2)
	return c.found
}

// outcome returns a short form of an answer.
func outcome(m *message) jsontext.Value {
	switch {
	case m.Error != nil:
		return m.Error
	case m.RPC != nil:
		return m.Result
	case m.Type == "error":
		return quote("error " + m.Code + ": " + m.Message)
	}
	return quote(m.Type)
}

// masked reports whether a line has a masked secret.
func masked(line []byte) bool { return bytes.Contains(line, []byte(redact.Text)) }
