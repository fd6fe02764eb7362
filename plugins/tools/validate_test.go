package tools

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"a2e/protocol"
)

// par declares a parameter; a "!" at the end of the type makes it required.
func par(name, typ string, enum ...string) protocol.ToolParameter {
	plain := strings.TrimSuffix(typ, "!")
	return protocol.ToolParameter{Name: name, Type: plain, Required: plain != typ, Enum: enum}
}

func withProperties(p protocol.ToolParameter, members ...protocol.ToolParameter) protocol.ToolParameter {
	p.Properties = make(map[string]protocol.ToolParameter)
	for _, m := range members {
		p.Properties[m.Name] = m
	}
	return p
}

func parsed(t testing.TB, raw string) protocol.Object {
	t.Helper()
	o, err := protocol.ParseObject([]byte(raw))
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return o
}

// problems gives the problems of a schema_violation, nil for no error.
func problems(t testing.TB, err error) []protocol.FieldError {
	t.Helper()
	if err == nil {
		return nil
	}
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != protocol.CodeSchemaViolation {
		t.Fatalf("want a schema_violation, got %v", err)
	}
	return e.Detail["errors"].([]protocol.FieldError)
}

func sampleParams(t testing.TB) params {
	t.Helper()
	ps, err := newParams([]protocol.ToolParameter{
		par("path", "string!"), par("limit", "integer"), par("ratio", "number"), par("deep", "boolean"),
		par("env", "object"), par("command", "array"), par("what", "any"), par("mode", "string", "fast", "slow", `a"b`),
		par("level", "integer", "1", "2"), par("größe/~", "string"),
		withProperties(par("where", "object"), par("host", "string!"), par("port", "integer"),
			withProperties(par("auth", "object"), par("user", "string!"))),
	})
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

func TestArgumentsThatFit(t *testing.T) {
	ps := sampleParams(t)
	for _, raw := range []string{
		`{"path":"x"}`, `{"path":""}`, `{"path":"\u0000é\ud83d\ude00"}`, `{"p\u0061th":"x"}`,
		`{"path":"x","limit":0}`, `{"path":"x","limit":-7}`, `{"path":"x","limit":123456789012345678901234567890}`,
		`{"path":"x","ratio":1.5e-7}`, `{"path":"x","ratio":3}`, `{"path":"x","deep":true}`, `{"path":"x","deep":false}`,
		`{"path":"x","env":{}}`, `{"path":"x","env":{"a":[1]}}`, `{"path":"x","command":[]}`, `{"path":"x","command":["a",1]}`,
		`{"path":"x","what":null}`, `{"path":"x","what":[{}]}`, `{"path":"x","mode":"fast"}`, `{"path":"x","mode":"f\u0061st"}`,
		`{"path":"x","mode":"a\"b"}`, `{"path":"x","level":2}`, `{"path":"x","level":2.0}`, `{"path":"x","größe/~":"x"}`,
		`{"path":"x","where":{"host":"h"}}`, `{"path":"x","where":{"host":"h","port":1,"auth":{"user":"u"}}}`,
	} {
		if _, err := ps.check(parsed(t, raw)); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if _, err := params(nil).check(protocol.Object{}); err != nil {
		t.Errorf("no parameters, no arguments: %v", err)
	}
}

func TestArgumentsThatDoNotFit(t *testing.T) {
	ps := sampleParams(t)
	for _, tc := range []struct{ raw, path, message string }{
		{`{}`, "/arguments/path", "required, but missing; it is of type string"},
		{`{"path":null}`, "/arguments/path", "must be of type string, is null"},
		{`{"path":1}`, "/arguments/path", "must be of type string, is a number"},
		{`{"path":["x"]}`, "/arguments/path", "must be of type string, is an array"},
		{`{"path":"x","limit":"3"}`, "/arguments/limit", "must be of type integer, is a string"},
		{`{"path":"x","limit":1.5}`, "/arguments/limit", "is a number with a fraction"},
		{`{"path":"x","limit":1e-1}`, "/arguments/limit", "is a number with a fraction"},
		{`{"path":"x","limit":1e999999999}`, "/arguments/limit", "out of range"},
		{`{"path":"x","limit":1e99999999999999999999}`, "/arguments/limit", "out of range"},
		{`{"path":"x","limit":true}`, "/arguments/limit", "is a boolean"},
		{`{"path":"x","ratio":"1.5"}`, "/arguments/ratio", "is a string"},
		{`{"path":"x","deep":"true"}`, "/arguments/deep", "must be of type boolean, is a string"},
		{`{"path":"x","deep":1}`, "/arguments/deep", "is a number"},
		{`{"path":"x","env":[]}`, "/arguments/env", "must be of type object, is an array"},
		{`{"path":"x","command":"ls"}`, "/arguments/command", "must be of type array, is a string"},
		{`{"path":"x","mode":"fas"}`, "/arguments/mode", `must be one of "fast", "slow", "a\"b"`},
		{`{"path":"x","mode":"FAST"}`, "/arguments/mode", "must be one of"},
		{`{"path":"x","mode":"a\\\"b"}`, "/arguments/mode", "must be one of"},
		{`{"path":"x","level":3}`, "/arguments/level", `must be one of "1", "2"`},
		{`{"path":"x","limt":3}`, "/arguments/limt", `unknown argument; did you mean "limit"?`},
		{`{"path":"x","Path":"y"}`, "/arguments/Path", `unknown argument; did you mean "path"?`},
		{`{"path":"x","path\u0000":"y"}`, "/arguments/path\x00", `did you mean "path"?`},
		{`{"path":"x","a/b~c":1}`, "/arguments/a~1b~0c", "unknown argument"},
		{`{"path":"x","größe/~":1}`, "/arguments/größe~1~0", "must be of type string"},
		{`{"path":"x","where":{}}`, "/arguments/where/host", "required, but missing"},
		{`{"path":"x","where":{"host":"h","prt":1}}`, "/arguments/where/prt", `did you mean "port"?`},
		{`{"path":"x","where":{"host":"h","auth":{"user":7}}}`, "/arguments/where/auth/user", "must be of type string, is a number"},
	} {
		_, err := ps.check(parsed(t, tc.raw))
		got := problems(t, err)
		if len(got) != 1 || got[0].Path != tc.path || !strings.Contains(got[0].Message, tc.message) {
			t.Errorf("%s: got %q, want one problem at %s saying %q", tc.raw, got, tc.path, tc.message)
		}
	}
	if _, err := params(nil).check(parsed(t, `{"x":1}`)); len(problems(t, err)) != 1 {
		t.Error("a tool without parameters takes an argument")
	}
}

func TestAllProblemsAreListedWithinBounds(t *testing.T) {
	ps := sampleParams(t)
	_, err := ps.check(parsed(t, `{"limit":"x","deep":1}`))
	var paths []string
	for _, p := range problems(t, err) {
		paths = append(paths, p.Path)
	}
	if diff := cmp.Diff([]string{"/arguments/limit", "/arguments/deep", "/arguments/path"}, paths); diff != "" {
		t.Error(diff)
	}
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, `,"%s%d":1`, strings.Repeat("x", 1000), i)
	}
	_, err = ps.check(parsed(t, `{"path":"x"`+many.String()+`}`))
	if got := problems(t, err); len(got) != maxProblems || len(fmt.Sprint(got)) > 20000 {
		t.Errorf("%d problems in %d bytes", len(got), len(fmt.Sprint(got)))
	}
}

func TestIntegersAreRespelled(t *testing.T) {
	ps := sampleParams(t)
	for raw, want := range map[string]string{
		`{"path":"1.0","limit":3.0}`:                                 `{"path":"1.0","limit":3}`,
		`{"path":"x","limit":1e2,"ratio":1e2}`:                       `{"path":"x","limit":100,"ratio":1e2}`,
		`{"path":"x","limit":-1.50E+1}`:                              `{"path":"x","limit":-15}`,
		`{"path":"x","limit":120e-1}`:                                `{"path":"x","limit":12}`,
		`{"path":"x","limit":0.000}`:                                 `{"path":"x","limit":0}`,
		`{"path":"x","limit":-0e999}`:                                `{"path":"x","limit":0}`,
		`{"p\u0061th":"\u0061", "where":{"host":"h","port":8.08e1}}`: "", // 80.8
		`{"p\u0061th":"\u0061", "where":{"host":"h","port":8.08e3}}`: `{"path":"\u0061","where":{"host":"h","port":8080}}`,
		`{"path": "x", "limit": 3}`:                                  `{"path": "x", "limit": 3}`,
	} {
		got, err := ps.check(parsed(t, raw))
		if want == "" {
			if err == nil {
				t.Errorf("%s: accepted as %s", raw, got.Raw())
			}
			continue
		}
		if err != nil || string(got.Raw()) != want {
			t.Errorf("%s: got %s, %v; want %s", raw, got.Raw(), err, want)
		}
	}
}

func TestDeclarationsThatMakeNoSense(t *testing.T) {
	for _, tc := range []struct {
		declared []protocol.ToolParameter
		want     string
	}{
		{[]protocol.ToolParameter{par("a", "string"), par("b", "str")}, `"b": unknown type "str"`},
		{[]protocol.ToolParameter{par("", "string")}, "has no name"},
		{[]protocol.ToolParameter{par("a", "string"), par("a", "integer")}, "declared twice"},
		{[]protocol.ToolParameter{withProperties(par("a", "string"), par("b", "string"))}, "only an object has properties"},
		{[]protocol.ToolParameter{withProperties(par("a", "object"), par("b", "text"))}, `"a": parameter "b": unknown type`},
	} {
		if _, err := newParams(tc.declared); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: got %v, want %q", tc.declared, err, tc.want)
		}
	}
}

// sample is a JSON value made for a parameter, or for one that has none.
type sample struct {
	name    string
	param   *param // nil = no such parameter
	raw     string // of anything but an object with declared members
	members []sample
}

func (s sample) render(b *strings.Builder) {
	if s.raw != "" {
		b.WriteString(s.raw)
		return
	}
	b.WriteByte('{')
	for i, m := range s.members {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(protocol.AppendString(nil, m.name))
		b.WriteByte(':')
		m.render(b)
	}
	b.WriteByte('}')
}

var (
	someNames  = rapid.SampledFrom([]string{"a", "b", "path", "größe", "x/y", "~", "A", "", `q"`, "long_name_here", "n\n"})
	someTypes  = rapid.SampledFrom([]valueType{typeString, typeInteger, typeNumber, typeBoolean, typeObject, typeArray, typeAny})
	someValues = map[valueType][]string{
		typeString: {`""`, `"x"`, `"\u0041"`, `"true"`, `"1"`}, typeInteger: {"0", "-3", "1.0", "2e3", "98765432109876543210"},
		typeNumber: {"0", "1.5", "-2e-9"}, typeBoolean: {"true", "false"}, typeObject: {"{}", `{"a":null}`}, typeArray: {"[]", "[1,[]]"},
		typeAny: {"null", "1.5", `"x"`, "[]"},
	}
)

func drawParams(t *rapid.T, depth int) params {
	var ps params
	for _, name := range rapid.SliceOfNDistinct(someNames, 0, 6, rapid.ID).Draw(t, "names") {
		if name == "" && depth == 2 {
			continue
		}
		p := param{name: name, typ: someTypes.Draw(t, "type"), required: rapid.Bool().Draw(t, "required")}
		if p.typ == typeObject && depth > 0 && rapid.Bool().Draw(t, "nested") {
			p.nested = drawParams(t, depth-1)
		}
		if p.typ == typeString && rapid.Bool().Draw(t, "enum") {
			p.enum = []string{"x", "A", "größe"}
		}
		ps = append(ps, p)
	}
	return ps
}

func drawObject(t *rapid.T, ps params) sample {
	var s sample
	for i := range ps {
		p := &ps[i]
		if !p.required && rapid.Bool().Draw(t, "left out") {
			continue
		}
		m := sample{name: p.name, param: p}
		switch {
		case len(p.nested) > 0:
			m.members = drawObject(t, p.nested).members
		case p.enum != nil:
			m.raw = rapid.SampledFrom([]string{`"x"`, `"\u0041"`, `"größe"`}).Draw(t, "value")
		default:
			m.raw = rapid.SampledFrom(someValues[p.typ]).Draw(t, "value")
		}
		s.members = append(s.members, m)
	}
	s.members = rapid.Permutation(s.members).Draw(t, "order")
	return s
}

// mutate breaks one thing and gives the place of it, "" when there was nothing
// to break.
func mutate(t *rapid.T, s *sample, ps params, up *place) string {
	if len(s.members) > 0 && rapid.Bool().Draw(t, "deeper") {
		m := &s.members[rapid.IntRange(0, len(s.members)-1).Draw(t, "member")]
		if len(m.param.nested) > 0 {
			return mutate(t, m, m.param.nested, &place{name: m.name, up: up})
		}
		if m.param.typ == typeAny {
			return ""
		}
		m.raw = wrongValue(t, m.param)
		return (&place{name: m.name, up: up}).pointer()
	}
	if i := slices.IndexFunc(s.members, func(m sample) bool { return m.param.required }); i >= 0 && rapid.Bool().Draw(t, "drop") {
		name := s.members[i].name
		s.members = slices.Delete(s.members, i, i+1)
		return (&place{name: name, up: up}).pointer()
	}
	name := rapid.SampledFrom([]string{"b ", "PATH", "größe\x00", "other"}).Draw(t, "unknown")
	s.members = append(s.members, sample{name: name, raw: "1"})
	return (&place{name: name, up: up}).pointer()
}

func wrongValue(t *rapid.T, p *param) string {
	wrong := []string{"null"}
	for typ, values := range someValues {
		compatible := typ == p.typ || typ == typeAny || typ == typeInteger && p.typ == typeNumber || typ == typeNumber && p.typ == typeInteger
		if !compatible {
			wrong = append(wrong, values...)
		}
	}
	if p.enum != nil {
		wrong = append(wrong, `"y"`, `""`, `"X"`)
	}
	if p.typ == typeInteger {
		wrong = append(wrong, "1.5", "1e-3")
	}
	slices.Sort(wrong)
	return rapid.SampledFrom(wrong).Draw(t, "wrong")
}

// Whatever the declaration says is accepted; with one thing broken in it, the
// answer names that place, and only it.
func TestValidationProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ps := drawParams(t, 2)
		s := drawObject(t, ps)
		s.raw = ""
		var b strings.Builder
		s.render(&b)
		good, err := protocol.ParseObject([]byte(b.String()))
		if err != nil {
			t.Fatalf("the sample %s is no object: %v", b.String(), err)
		}
		fit, err := ps.check(good)
		if err != nil {
			t.Fatalf("%s: %v", good.Raw(), err)
		}
		if _, err := ps.check(fit); err != nil || fit.Len() != good.Len() {
			t.Fatalf("%s became %s: %v", good.Raw(), fit.Raw(), err)
		}
		at := mutate(t, &s, ps, nil)
		if at == "" {
			return
		}
		b.Reset()
		s.render(&b)
		bad, err := protocol.ParseObject([]byte(b.String()))
		if err != nil {
			t.Fatalf("the sample %s is no object: %v", b.String(), err)
		}
		_, err = ps.check(bad)
		var e *protocol.Error
		if !errors.As(err, &e) {
			t.Fatalf("%s was accepted", bad.Raw())
		}
		if got := e.Detail["errors"].([]protocol.FieldError); len(got) != 1 || got[0].Path != at {
			t.Fatalf("%s: broken at %s, reported %v", bad.Raw(), at, got)
		}
	})
}

func TestCheckingAllocatesNothing(t *testing.T) {
	ps := sampleParams(t)
	args := parsed(t, `{"path":"x","limit":3,"deep":true,"mode":"slow","what":null,"command":["a"]}`)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := ps.check(args); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
