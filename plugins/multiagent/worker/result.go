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

// charsPerToken is the assumed number of characters per token for estimates.
const charsPerToken = 4

// said is the result of a worker as JSON; all fields but the status may be missing.
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

// resultIn returns the last result in the output of a worker: a JSON object with a status that
// begins at the start of a line. It may span several lines or be fenced. An object with an unknown
// status counts only at the very end, as programs print objects of their own. resultIn takes linear
// time for any text.
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

// objectAt returns the start and end of the JSON object at begin, and where to look for the
// next one. For an unfinished object it returns the last complete object in it that begins a line.
func objectAt(text []byte, begin int) (from, to, next int) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(text[begin:]))
	var open []int // starts of the objects that are not closed yet
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

// nextLine returns the start of the line after the one at offset at.
func nextLine(text []byte, at int) int {
	if end := bytes.IndexByte(text[at:], '\n'); end >= 0 {
		return at + end + 1
	}
	return len(text)
}

// asResult returns an object as a worker's result, if it is one. rest is the text after it.
func asResult(text, rest []byte) (protocol.Object, bool) {
	rest = bytes.TrimLeft(rest, " \t\r")
	if len(text) == 0 || len(rest) > 0 && rest[0] != '\n' {
		return protocol.Object{}, false
	}
	rest = bytes.TrimLeft(rest, " \t\r\n")
	if len(rest) > 0 && strings.IndexByte(",]}", rest[0]) >= 0 { // the object is part of other JSON
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

// read turns the object of a worker into a result. If a field has the wrong type, the result has the
// status error and names it. If the worker reports no tokens, they are estimated; chars
// is the length of the task's output so far, without the summary.
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
	if pr := textOf(s.Artifacts.PR); pr != "" { // a model may send only the number
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

// unread returns the result for a worker whose own result cannot be read.
func (t *task) unread(obj protocol.Object, chars int, err error) *fleet.Result {
	res := t.failed("the worker's result is not valid: %v", err)
	if summary, ok := obj.Get("summary"); ok {
		res.Summary = textOf(jsontext.Value(summary))
	}
	t.estimate(res, chars+utf8.RuneCountInString(res.Summary))
	return res
}

// tokens returns the reported tokens; -1 = not reported.
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

// estimate sets the tokens of a result to an estimate from the brief and chars characters of output.
func (t *task) estimate(res *fleet.Result, chars int) {
	chars += utf8.RuneCountInString(t.Brief)
	res.TokensSpent, res.TokensEstimated = (chars+charsPerToken-1)/charsPerToken, true
}

// textOf returns a string as text, "" for null, and other values as JSON.
func textOf(v jsontext.Value) string {
	if text, ok := protocol.Value(v).Str(); ok {
		return text
	}
	if v.Kind() == 'n' {
		return ""
	}
	return string(v)
}

// shaped gives the summary of a result the format that the task wants. For ReplyJSON
// a text becomes {"text": …}. For ReplyStructured the summary of the worker's own result is structured
// enough, and for ReplyProse it is used unchanged. The other fields of the result, such as the
// remaining work, do not depend on the format.
func (t *task) shaped(res *fleet.Result) *fleet.Result {
	if t.Task.ReplySchema == fleet.ReplyJSON {
		res.Summary = wrapped(res.Summary, res.Status)
	}
	return res
}

// wrapped returns a text as JSON; valid JSON stays unchanged. An empty text stays empty unless the
// status is done or partial.
func wrapped(text string, status fleet.Status) string {
	if text == "" && status != fleet.StatusDone && status != fleet.StatusPartial || jsontext.Value(text).IsValid() {
		return text
	}
	return string(append(protocol.AppendString([]byte(`{"text":`), text), '}'))
}

// secretsOf returns the secrets of the host and of a worker: its tokens and keys, and the
// secret values of its environment.
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

// clean hides secrets in the texts of a result.
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

// hideIn hides secrets in texts and lists of texts.
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
