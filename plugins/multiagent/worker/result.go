package worker

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/guard/redact"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// charsPerToken is what an estimate of tokens goes by.
const charsPerToken = 4

// said is what a worker says of a task, as JSON; all but the status may be missing.
type said struct {
	Status          string         `json:"status"`
	TokensSpent     jsontext.Value `json:"tokens_spent"`
	TokensEstimated bool           `json:"tokens_estimated"`
	NextSteps       []string       `json:"next_steps"`
	BlockedReason   string         `json:"blocked_reason"`
	Artifacts       struct {
		PR           jsontext.Value `json:"pr"`
		FilesChanged []string       `json:"files_changed"`
		Branch       string         `json:"branch"`
		Patch        string         `json:"patch"`
		Files        []fleet.File   `json:"files"`
	} `json:"artifacts"`
	Summary   jsontext.Value `json:"summary"`
	Error     string         `json:"error"`
	Remaining jsontext.Value `json:"remaining"`
}

// resultIn returns the last result in what a worker printed: a JSON object with a status that
// begins a line, whether it stands on that line, goes over several or is fenced. One whose
// status is none of the protocol's counts only as the very last thing, for programs print
// objects of their own. It takes linear time, whatever the text is.
func resultIn(text []byte) (found protocol.Object, ok bool) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	for at := 0; at < len(text); {
		begin := len(text) - len(bytes.TrimLeft(text[at:], " \t"))
		if begin == len(text) || text[begin] != '{' {
			at = nextLine(text, begin)
			continue
		}
		from, to, next := objectAt(text, begin)
		if obj, is := asResult(text[from:to], text[to:]); is {
			found, ok = obj, true
		}
		at = next
	}
	return found, ok
}

// objectAt returns where the JSON object that begins at begin is, and where to look for the
// next one. Where it breaks off, that is the last whole object in it that begins a line.
func objectAt(text []byte, begin int) (from, to, next int) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(text[begin:]))
	var open []int // where the objects begin that are not closed yet
	for {
		token, err := dec.ReadToken()
		at := begin + int(dec.InputOffset())
		switch {
		case err != nil:
			at = len(text)
			if fault := (*jsontext.SyntacticError)(nil); errors.As(err, &fault) &&
				!errors.Is(err, io.ErrUnexpectedEOF) {
				at = begin + int(fault.ByteOffset)
			}
			return from, to, max(bytes.LastIndexByte(text[:at], '\n')+1, nextLine(text, begin))
		case token.Kind() == '{':
			open = append(open, at-1)
		case token.Kind() == '}':
			last := open[len(open)-1]
			open = open[:len(open)-1]
			if before := bytes.TrimRight(text[:last], " \t"); len(before) == 0 || before[len(before)-1] == '\n' {
				from, to = last, at
			}
			if len(open) == 0 {
				return from, to, nextLine(text, at)
			}
		}
	}
}

// nextLine returns where the line begins that follows the one of at.
func nextLine(text []byte, at int) int {
	if end := bytes.IndexByte(text[at:], '\n'); end >= 0 {
		return at + end + 1
	}
	return len(text)
}

// asResult returns an object as a worker's result, if it is one. rest is what follows it.
func asResult(text, rest []byte) (protocol.Object, bool) {
	rest = bytes.TrimLeft(rest, " \t\r")
	if len(text) == 0 || len(rest) > 0 && rest[0] != '\n' {
		return protocol.Object{}, false
	}
	rest = bytes.TrimLeft(rest, " \t\r\n")
	if len(rest) > 0 && strings.IndexByte(",]}", rest[0]) >= 0 { // it is a part of something else
		return protocol.Object{}, false
	}
	obj, err := protocol.ParseObject(text)
	if err != nil {
		return protocol.Object{}, false
	}
	status, ok := obj.Get("status")
	word, _ := status.Str()
	switch fleet.Status(word) {
	case fleet.StatusDone, fleet.StatusPartial, fleet.StatusBlocked, fleet.StatusError:
		return obj, ok
	}
	return obj, ok && len(bytes.TrimLeft(bytes.TrimPrefix(rest, []byte("```")), " \t\r\n")) == 0
}

// read makes a result of what the worker says. What has the wrong type makes it one of
// status error that names it. A worker that does not tell its tokens gets an estimate; chars
// is how much text the task had so far, without the summary.
func (t *task) read(obj protocol.Object, chars int) *fleet.Result {
	var s said
	if err := obj.Decode(&s); err != nil {
		return t.unread(obj, chars, err)
	}
	res := fleet.NewResult(t.Task.TaskID, fleet.Status(s.Status))
	res.Summary = textOf(s.Summary)
	tokens, err := s.tokens()
	if err != nil {
		return t.unread(obj, chars, err)
	}
	if res.TokensSpent, res.TokensEstimated = tokens, s.TokensEstimated; tokens < 0 {
		t.estimate(res, chars+utf8.RuneCountInString(res.Summary))
	}
	res.NextSteps = append(res.NextSteps, s.NextSteps...)
	if pr := textOf(s.Artifacts.PR); pr != "" { // a model may give the number alone
		res.Artifacts.PR = &pr
	}
	res.Artifacts.Branch = s.Artifacts.Branch
	res.Artifacts.FilesChanged = append(res.Artifacts.FilesChanged, s.Artifacts.FilesChanged...)
	res.Artifacts.Patch, res.Artifacts.Files = s.Artifacts.Patch, s.Artifacts.Files
	res.Error = s.Error
	if s.Remaining.Kind() != 'n' {
		res.Remaining = slices.Clone(s.Remaining)
	}
	switch res.Status {
	case fleet.StatusDone, fleet.StatusPartial:
	case fleet.StatusBlocked:
		reason := cmp.Or(s.BlockedReason, s.Error, res.Summary, "the worker gave no reason")
		res.BlockedReason = &reason
	case fleet.StatusError:
		res.Error = cmp.Or(s.Error, res.Summary, "the worker gave no reason")
	default:
		res.Status, res.Error = fleet.StatusError, fmt.Sprintf("the worker gave the status %.64q; it should be "+
			"done, blocked, error or partial", s.Status)
	}
	return res
}

// unread is the result of a worker whose own cannot be read.
func (t *task) unread(obj protocol.Object, chars int, err error) *fleet.Result {
	res := t.failed("the worker's result is not valid: %v", err)
	if summary, ok := obj.Get("summary"); ok {
		res.Summary = textOf(jsontext.Value(summary))
	}
	t.estimate(res, chars+utf8.RuneCountInString(res.Summary))
	return res
}

// tokens returns the tokens that were spent; -1 = it does not say.
func (s *said) tokens() (int, error) {
	if len(s.TokensSpent) == 0 || s.TokensSpent.Kind() == 'n' {
		return -1, nil
	}
	n, ok := protocol.Value(s.TokensSpent).Int()
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0, fmt.Errorf("tokens_spent is %.32s; it should be a whole number, 0 or more", s.TokensSpent)
	}
	return n, nil
}

// estimate sets the tokens of a result by its brief and chars characters of output.
func (t *task) estimate(res *fleet.Result, chars int) {
	chars += utf8.RuneCountInString(t.Brief)
	res.TokensSpent, res.TokensEstimated = (chars+charsPerToken-1)/charsPerToken, true
}

// textOf returns a text, or the JSON of a value that is none.
func textOf(v jsontext.Value) string {
	if text, ok := protocol.Value(v).Str(); ok {
		return text
	}
	if v.Kind() == 'n' {
		return ""
	}
	return string(v)
}

// shaped returns the summary of a result the shape that the task wants: where that is JSON,
// a text becomes {"text": …}. One that came within a result of the worker is as
// structured as that, so only json asks for more. Prose asks for nothing beyond the summary,
// and so nothing is made of it; but what the worker says beside it, such as what remains of
// a task done in part, is its result whatever the shape, and is not kept back.
func (t *task) shaped(res *fleet.Result) *fleet.Result {
	if t.Task.ReplySchema == fleet.ReplyJSON {
		res.Summary = wrapped(res.Summary, res.Status)
	}
	return res
}

// wrapped returns a text as JSON, which it may be already. Nothing stays nothing where the
// status says why.
func wrapped(text string, status fleet.Status) string {
	if text == "" && status != fleet.StatusDone && status != fleet.StatusPartial || jsontext.Value(text).IsValid() {
		return text
	}
	return string(append(protocol.AppendString([]byte(`{"text":`), text), '}'))
}

// secretsOf returns the secrets of the host with what a worker is told in confidence: its
// token, and what of its environment is no plain setting.
func secretsOf(w *Worker, host *redact.Set) *redact.Set {
	s := redact.New(host)
	s.AddSecret(w.AuthToken.Reveal())
	s.AddSecret(w.LLM.APIKey.Reveal())
	s.AddURL(w.Fleet.Reveal())
	for name, value := range w.Env {
		s.Add(name, value)
	}
	return s
}

// clean hides it in the texts of a result.
func (r *runner) clean(res *fleet.Result) {
	texts := []*string{&res.Summary, &res.Error, &res.Artifacts.Branch, &res.Artifacts.Patch}
	for _, text := range []*string{res.BlockedReason, res.Artifacts.PR} {
		if text != nil {
			texts = append(texts, text)
		}
	}
	r.hideIn(texts, res.NextSteps, res.Artifacts.FilesChanged, res.Artifacts.Written)
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
