package worker

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/redact"
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
		PR           *string  `json:"pr"`
		FilesChanged []string `json:"files_changed"`
	} `json:"artifacts"`
	Summary   jsontext.Value `json:"summary"`
	Error     string         `json:"error"`
	Remaining jsontext.Value `json:"remaining"`
}

// resultIn returns the object that a line holds, if it is a worker's result: a JSON object
// with a status.
func resultIn(line []byte) (protocol.Object, bool) {
	if line = bytes.TrimSpace(line); len(line) == 0 || line[0] != '{' {
		return protocol.Object{}, false
	}
	obj, err := protocol.ParseObject(line)
	if err != nil {
		return protocol.Object{}, false
	}
	_, ok := obj.Get("status")
	return obj, ok
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
	res.Artifacts.PR = s.Artifacts.PR
	res.Artifacts.FilesChanged = append(res.Artifacts.FilesChanged, s.Artifacts.FilesChanged...)
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
		res.Status, res.Error = fleet.StatusError, fmt.Sprintf("the worker gave the status %.64q; it should be done, blocked, error or partial", s.Status)
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
	for name, value := range w.Env {
		s.Add(name, value)
	}
	return s
}

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
