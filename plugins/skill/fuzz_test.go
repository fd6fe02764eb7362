package skill

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// understood reads the text of a SKILL.md whose folder has the name x. The skill is nil if the text is not valid.
func understood(t testing.TB, text []byte) (*skill, diagnostics) {
	var n diagnostics
	s := &skill{}
	d := split(text, &n)
	if d.front != nil {
		s.front, s.body = readFront(d, "x", &n), d.body
	}
	for _, note := range append(n.problems, n.hints...) {
		must.That(t, note.Line >= 0 && note.Line <= bytes.Count(text, []byte("\n"))+2 && note.Text != "" &&
			len(note.Text) < 2000 && utf8.ValidString(note.Text), "it is told %+v", note)
	}
	if d.front == nil || len(n.problems) > 0 {
		must.That(t, len(n.problems) > 0, "nothing is said of why it cannot be used")
		return nil, n
	}
	must.That(t, checkName(s.name) == nil && s.description != "" && s.inputs != nil, "a skill without what it "+
		"needs: %+v", s.front)
	return s, n
}

// FuzzSkill: for any SKILL.md and any arguments, errors have their line, and a valid skill is the same when it is read
// again.
func FuzzSkill(f *testing.F) {
	for _, tc := range hostileFronts() {
		f.Add([]byte(md(tc.front, "Do {{topic}} and ${x}, {args} $1 $ARGUMENTS[0] ${CLAUDE_SKILL_DIR}")),
			`{"args":"one 'two three'"}`)
	}
	f.Add([]byte(md("name: x\ndescription: d\nargument-hint: [file] [n]\narguments: a b", "$a $0 {{ inputs.b }}")),
		`{"args":"1 2","b":[null]}`)
	f.Add([]byte(md("name: x\ndescription: d\ninputs:\n  topic: {type: string, required: true}\n  depth: {type: "+
		"integer, default: 3}", "{topic}")), `{"args":"x","depth":4.0}`)
	files := must.Get(filepath.Glob(filepath.Join(samples(), "*", "SKILL.md")))(f)
	must.That(f, len(files) > 0, "no samples")
	for _, file := range files {
		if text := must.Get(os.ReadFile(file))(f); len(text) < 4000 {
			f.Add(text, `{}`)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, given string) {
		var public diagnostics
		public.validate(string(text), "x", &CheckResult{})
		s, n := understood(t, text)
		again, told := understood(t, text)
		must.That(t, reflect.DeepEqual(n, told) && (s == nil) == (again == nil), "told %+v, then %+v", n, told)
		if s == nil {
			return
		}
		must.Equal(t, string(s.inputs.raw), string(again.inputs.raw), "not the same inputs")
		if !bytes.Contains(text, []byte("\r")) {
			windows, _ := understood(t, bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n")))
			must.That(t, windows != nil && windows.name == s.name && windows.description == s.description &&
				windows.body == s.body, "Windows line ends make it %+v", windows)
		}
		if obj, err := protocol.ParseObject([]byte(given)); err == nil {
			called(t, s, obj)
		}
	})
}

// called puts arguments into the text of a skill, and checks the result.
func called(t *testing.T, s *skill, given protocol.Object) {
	a, err := s.prepare(given)
	if err != nil {
		wrong, ok := errors.AsType[*protocol.Error](err)
		must.That(t, ok && wrong.Code == protocol.CodeSchemaViolation && len(wrong.Detail) > 0, "%v", err)
		return
	}
	must.That(t, a.raw.IsValid() && len(s.inputs.Check(a.raw, "")) == 0, "arguments that do not fit: %s", a.raw)
	whole := must.Get(protocol.ParseObject(a.raw))(t)
	again := must.Get(s.prepare(whole))(t)
	must.Equal(t, string(again.raw), string(a.raw), "prepared once more")
	for name, value := range a.values {
		must.That(t, jsontext.Value(value).IsValid(), "%q is %s", name, value)
	}
	const limit = 100_000
	out, err := s.render(a, limit)
	must.That(t, len(out) <= limit && (err == nil || errors.As(err, new(*protocol.Error))), "%d bytes, %v", len(out),
		err)
}
