package worker

import (
	"bytes"
	"context"
	"fmt"
	"unicode/utf8"

	"a2e/host/child"
	"a2e/host/redact"
	"a2e/protocol/fleet"
)

// How much is kept of what a worker prints, in bytes.
const (
	maxLine    = 1 << 20   // of one line, a result above all, of a oneshot worker
	maxSummary = 256 << 10 // of the stdout that is the summary: its end
	maxWords   = 2 << 10   // of stderr, for the error that says how it ended: its end
	maxStderr  = 64 << 10  // of one line of stderr
)

// stdout keeps what a oneshot worker says. It is for one goroutine.
type stdout struct {
	lines child.Splitter
	all   child.Tail
	chars int    // so far
	solid int    // bytes so far, blanks left out
	last  []byte // the last line, if it may be a result

	budget int                     // tokens that it may be; 0 = any number
	stop   context.CancelCauseFunc // of a worker that prints more; it may be called again
}

// newStdout makes a stdout that passes each line on.
func newStdout(say func(line []byte)) *stdout {
	s := &stdout{all: child.Tail{Size: maxSummary}}
	s.lines = child.Splitter{Max: maxLine, Line: func(line []byte) {
		s.keep(line)
		say(line)
	}, Long: func(head []byte) {
		s.last = s.last[:0]
		say(fmt.Appendf(nil, "%s… (the begin of a line of more than %d bytes)", head, maxLine))
	}}
	return s
}

// Write implements io.Writer.
func (s *stdout) Write(p []byte) (int, error) {
	for _, b := range p {
		if utf8.RuneStart(b) { // a character may come in two pieces
			s.chars++
		}
		if b > ' ' {
			s.solid++
		}
	}
	if overspent(s.solid, s.budget) {
		s.stop(&budgetError{s.budget})
	}
	_, _ = s.all.Write(p) // it has no error
	return s.lines.Write(p)
}

// keep keeps a line that may be a result, until one follows that is not empty.
func (s *stdout) keep(line []byte) {
	trimmed := bytes.TrimSpace(line)
	if len(trimmed) == 0 {
		return
	}
	if s.last = s.last[:0]; trimmed[0] == '{' {
		s.last = append(s.last, trimmed...)
	}
}

// text gives the end of all. What was left out is said.
func (s *stdout) text() string {
	if left := s.all.Left(); left > 0 {
		return fmt.Sprintf("[%d bytes before this were left out]\n%s", left, s.all.String())
	}
	return s.all.String()
}

// newWords gives what takes the stderr of a worker, and its end.
func newWords(take func(line []byte)) *child.Splitter {
	return &child.Splitter{Max: maxStderr, Line: take, Long: take}
}

// secretsOf gives the secrets of the host with what a worker is told in confidence: its
// token, and what of its environment is no plain setting.
func secretsOf(w *Worker, host *redact.Set) *redact.Set {
	s := redact.New(host)
	s.AddSecret(w.AuthToken.Reveal())
	for name, value := range w.Env {
		s.Add(name, value)
	}
	return s
}

// hide takes what the worker was told in confidence out of what it wrote.
func (r *runner) hide(text []byte) []byte { return r.secrets.Bytes(text) }

// clean hides it in the texts of a result.
func (r *runner) clean(res *fleet.Result) {
	texts := []*string{&res.Summary, &res.Error}
	for _, text := range []*string{res.BlockedReason, res.Artifacts.PR} {
		if text != nil {
			texts = append(texts, text)
		}
	}
	r.hideIn(texts, res.NextSteps, res.Artifacts.FilesChanged)
	res.Remaining = r.secrets.Line(res.Remaining)
}

// hideIn hides it in texts and lists of them.
func (r *runner) hideIn(texts []*string, lists ...[]string) {
	for _, list := range lists {
		for i := range list {
			texts = append(texts, &list[i])
		}
	}
	for _, text := range texts {
		*text = r.secrets.Text(*text)
	}
}
