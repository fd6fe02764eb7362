package jmes

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jmespath-community/go-jmespath/pkg/api"
	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
)

// scope is an object as a Scope. Members whose name begins with n are outputs of nodes.
type scope map[string]any

func (s scope) Member(name string) (any, bool) { return s[name], strings.HasPrefix(name, "n") }
func (s scope) All() map[string]any            { return s }

// value decodes JSON.
func value(t testing.TB, text string) any {
	t.Helper()
	v, _, err := Decode([]byte(text), 1<<30)
	must.That(t, err == nil, "%s: %v", text, err)
	return v
}

const state = `{
	"input": {"xs": [3, 1, 2], "big": 12345678901234567890, "one": 1.0, "name": "ada", "none": null, "objects": [{"k":"b","n":2},{"k":"a","n":1},{"k":"b","n":3}]},
	"n1": {"text": "hello", "deep": {"b": 2, "a": 1, "c": null}},
	"n2": {"output": {"x": 1}},
	"n3": "plain",
	"n4": null,
	"n5": [{"v":1},{"v":2}]
}`

func TestEval(t *testing.T) {
	for _, tc := range []struct{ expr, want string }{
		{"n1.text", `"hello"`},
		{"$.n1.text", `"hello"`},
		{"@.n1.text", `"hello"`},
		{"$.n1.output.text", `"hello"`},
		{"n1.output", `{"deep":{"a":1,"b":2,"c":null},"text":"hello"}`},
		{"n2.output.x", `1`},
		{"n5[1].v", `2`},
		{"n5.output[1].v", `2`},
		{"n5.output[*].v", `[1,2]`},
		{"n5.output[].v", `[1,2]`},
		{"n5.output[1:].v", `[2]`},
		{"n5.output[?v == `2`].v", `[2]`},
		{"n5.output | [0].v", `1`},
		{"n1.output.*.b", `[2]`},
		{"n1.deep.output", `null`},
		{"n3.output", `"plain"`},
		{"n3.output.output", `null`},
		{"n4.output", `null`},
		{"n4.output || n3.output", `"plain"`},
		{"input.output", `null`},
		{"input.big", `12345678901234567890`},
		{"[input.big]", `[12345678901234567890]`},
		{"input.one", `1.0`},
		{"input.one == `1`", `true`},
		{"to_string(input.big)", `"12345678901234567890"`},
		{"type(input.big)", `"number"`},
		{"sort_by([{v: input.big}, {v: `2`}], &v)[].v", `[2,12345678901234567890]`},
		{"sum([input.big, `1`])", `12345678901234567891`},
		{"input.big == `12345678901234567891`", `false`},
		{"input.big == `12345678901234567890.0`", `true`},
		{"input.big < `12345678901234567891`", `true`},
		{"input.big >= `12345678901234567889.5`", `true`},
		{"`9007199254740992` + `1`", `9007199254740993`},
		{"`9007199254740993` - `9007199254740992`", `1`},
		{"`3037000500` * `3037000501`", `9223372040037250500`},
		{"`12345678901234567890` / `10`", `1234567890123456789`},
		{"`12345678901234567891` % `10`", `1`},
		{"`-12345678901234567891` // `10`", `-1234567890123456790`},
		{"-input.big", `-12345678901234567890`},
		{"abs(-input.big)", `12345678901234567890`},
		{
			"[ceil(input.big), floor(input.big), ceil(`1.5`), floor(`-1.5`)]",
			`[12345678901234567890,12345678901234567890,2,-2]`,
		},
		{
			"sort([`9007199254740993`, `9007199254740992`, `9007199254740994`])",
			`[9007199254740992,9007199254740993,9007199254740994]`,
		},
		{"sort(['b', 'a'])", `["a","b"]`},
		{
			"[max([`9007199254740992`, `9007199254740993`]), min([`9007199254740993`, `9007199254740992`])]",
			`[9007199254740993,9007199254740992]`,
		},
		{"[max(['a', 'b']), min(['b', 'a']), max(`[]`), min(`[]`), sort(`[]`)]", `["b","a",null,null,[]]`},
		{"sort_by([{v: `9007199254740993`}, {v: `9007199254740992`}], &v)[].v", `[9007199254740992,9007199254740993]`},
		{"max_by([{v: `9007199254740992`}, {v: `9007199254740993`}], &v).v", `9007199254740993`},
		{"contains([input.big], `12345678901234567891`)", `false`},
		{"avg([`9007199254740993`, `9007199254740995`])", `9007199254740994`},
		{"[avg(`[1, 2]`), avg(`[]`), sum(`[]`), sum(`[0.1, 0.2]`)]", `[1.5,null,0,0.30000000000000004]`},
		{"to_number('9007199254740993')", `9007199254740993`},
		{"to_number('x10')", `null`},
		{"`{\"id\": [1765432109876543210]}`.id[0]", `1765432109876543210`},
		{"[`\"a \\` b\"`, `1765432109876543210`, '`5`', input.\"`\"]", "[\"a ` b\",1765432109876543210,\"`5`\",null]"},
		{"n1.deep.*", `[1,2]`},
		{"keys(n1.deep)", `["a","b","c"]`},
		{"values(n1.deep)", `[1,2,null]`},
		{"items(n1.deep)", `[["a",1],["b",2],["c",null]]`},
		{"from_items(items(n1.deep))", `{"a":1,"b":2,"c":null}`},
		{"keys(@)", `["input","n1","n2","n3","n4","n5"]`},
		{"$ | n3", `"plain"`},
		{"@ | @.n3", `"plain"`},
		{"[n3, $.n2.output.x]", `["plain",1]`},
		{"@.[n3]", `["plain"]`},
		{"{a: n3, b: {c: @.n2.x}}", `{"a":"plain","b":{"c":null}}`},
		{"sort(input.xs)", `[1,2,3]`},
		{"input.xs", `[3,1,2]`},
		{"input.xs[::-1]", `[2,1,3]`},
		{"input.xs[-1]", `2`},
		{"input.xs[5]", `null`},
		{"input.name[1:]", `"da"`},
		{"reverse(input.name)", `"ada"`},
		{"input.objects[?n > `1`].k", `["b","b"]`},
		{"input.objects[?k == $.input.objects[1].k].n", `[1]`},
		{
			"[sort_by(input.objects, &n)[].n, reverse(input.objects)[].n, input.objects[].n]",
			`[[1,2,3],[3,1,2],[2,1,3]]`,
		},
		{"group_by(input.objects, &k).b[].n", `[2,3]`},
		{"max_by(input.objects, &n).n", `3`},
		{"min_by(input.objects, &k).n", `1`},
		{"map(&n, input.objects)", `[2,1,3]`},
		{"let $x = input.name, $y = n3 in join('-', [$x, $y])", `"ada-plain"`},
		{"let $x = `1` in let $x = `2`, $y = $x in [$x, $y]", `[2,1]`},
		{"input.objects[].[n, let $k = k in $k]", `[[2,"b"],[1,"a"],[3,"b"]]`},
		{"contains(input.objects, {k: 'a', n: `1`})", `true`},
		{"contains(input.name, 'd')", `true`},
		{"`7` // `2` + `1`", `4`},
		{"-input.xs[0]", `-3`},
		{"n1.missing.deeper", `null`},
		{"!n4", `true`},
		{"n4 && n3", `null`},
		{"pad_left('5', `3`, '0')", `"005"`},
		{"replace('aXbX', 'X', '--', `1`)", `"a--bX"`},
		{"split('a,b,c', ',', `1`)", `["a","b,c"]`},
		{"not_null(n4, n3)", `"plain"`},
		{"@ == @", `true`},
	} {
		e, err := NewCompiler().Compile(tc.expr)
		if err != nil {
			t.Errorf("%s: %v", tc.expr, err)
			continue
		}
		v, err := e.Eval(t.Context(), scope(value(t, state).(map[string]any)))
		if err != nil {
			t.Errorf("%s: %v", tc.expr, err)
			continue
		}
		if got, err := Append(nil, v, 1<<20); err != nil || string(got) != tc.want {
			t.Errorf("%s gives %s, %v; should be %s", tc.expr, got, err, tc.want)
		}
	}
}

func TestNames(t *testing.T) {
	for _, tc := range []struct {
		expr string
		want []string
	}{
		{"a.b.c", []string{"a"}},
		{"$.a || b", []string{"a", "b"}},
		{"a[?b > $.c].d", []string{"a", "c"}},
		{"{x: a, y: [b, @.c]}", []string{"a", "b", "c"}},
		{"map(&x.y, a)", []string{"a"}},
		{"length(@) > length(a)", []string{"a"}},
		{"let $v = a in b[?c == $v]", []string{"a", "b"}},
		{`"my-node".x`, []string{"my-node"}},
		{"a | b", []string{"a"}},
		{"@ | b", []string{"b"}},
		{"'a'", nil},
		{"`{\"a\":1}`.a", nil},
		{"*.a", nil},
	} {
		e, err := NewCompiler().Compile(tc.expr)
		if err != nil {
			t.Errorf("%s: %v", tc.expr, err)
		} else if got := e.Names(); !cmp.Equal(got, tc.want) {
			t.Errorf("%s names %q, should be %q", tc.expr, got, tc.want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, tc := range []struct{ expr, want string }{
		{"", "empty"},
		{"a.", "is not JMESPath"},
		{"a[", "is not JMESPath"},
		{"[", "is not JMESPath"},
		{"a ||", "is not JMESPath"},
		{"{", "is not JMESPath"},
		{"/etc/x", "single quotes"},
		{"a > 5", "backquotes"},
		{"step-1.x", "double quotes"},
		{"nothing(a)", "function nothing"},
		{"length()", "takes 1"},
		{"length(a, b)", "takes 1"},
		{"merge()", "1 or more"},
		{"length(&a)", "an expression"},
		{"$name", "no let binds"},
		{"a = b", "== compares"},
		{"a[::0]", "step 0"},
		{"let $x in a", "let"},
		{
			strings.Repeat("(", 4000) + "a" + strings.Repeat(")", 4000) + strings.Repeat("!", 180) + "a",
			"is not JMESPath",
		},
		{strings.Repeat("!", 5000) + "a", "within each other"},
		{strings.Repeat("[", 8000), "is not JMESPath"},
		{strings.Repeat("a.", 4000) + "a", "within each other"},
		{strings.Repeat("a", maxText+1), "longer than"},
		{"foo.\xff", "is not JMESPath"},
		{"`{`", "is not JMESPath"},
		{"`[[", "is not JMESPath"},
	} {
		if _, err := NewCompiler().Compile(tc.expr); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.40q: %v; should say %q", tc.expr, err, tc.want)
		} else if len(err.Error()) > 400 {
			t.Errorf("%.40q: the error has %d bytes", tc.expr, len(err.Error()))
		}
	}
}

// TestBombs: expressions that would take very long, or all memory, end within their bounds.
func TestBombs(t *testing.T) {
	double := strings.Repeat("[@,@]|", 100)
	list := "`[" + strings.Repeat("1,", 200) + "1]`"
	nested := "input.xs"
	for range 60 {
		nested = "input.xs[].{a: " + nested + "}"
	}
	for _, expr := range []string{
		double + "to_string(@)",
		"let $x = input.many in $x[?$x[?$x[?$x[?[1:]]]]]",
		double + "length(to_string(@))",
		"let $x = " + strings.Repeat("[@,@]|", 50) + "@ in $x == ($x | [@[0], @[1]])",
		"abs(" + double + "@)",
		"pad_left('', `1000000000000`)",
		"pad_right('x', `100000000`, 'y')",
		strings.Repeat("replace(", 40) + "'aaaaaaaaaaaa'" + strings.Repeat(",'a','aaaaaaaaaaaa')", 40),
		"map(&map(&map(&map(&map(&map(&map(&map(&@, $.input.many), $.input.many), $.input.many), $.input.many), " +
			"$.input.many), $.input.many), $.input.many), input.many)",
		"input.many[?$.input.many[?$.input.many[?$.input.many[?$.input.many[?`true`]]]]]",
		list + strings.Repeat(" | [@,@][]", 60) + " | length(@)",
		strings.Repeat("join('ab', [", 60) + "'x'" + strings.Repeat(",'y', 'z'])", 60) + " | [@,@,@,@] | join(@[0], " +
			"map(&@, $.input.many[].to_string(@)))",
		double + "contains(@, `1`)",
		"input.many[].input || " + nested,
		"let $a = input.many[].{x: @} in let $b = $a[].{x: $a} in $b[].x[].x[].x == $a",
		"split(pad_left('', `10000000`, 'x'), '')",
		"zip(" + strings.Repeat("input.many,", 400) + "input.many) | [" + strings.Repeat("@,", 400) + "@][][][]",
		"find_first('abc', 'b', `99`, `1`)",
		"merge(" + strings.Repeat("input,", 500) + "input) | to_string([" + strings.Repeat("@,", 900) + "@])",
	} {
		e, err := NewCompiler().Compile(expr)
		if err != nil {
			t.Errorf("%.60s: %v", expr, err)
			continue
		}
		many := make([]any, 1000)
		for i := range many {
			many[i] = float64(i)
		}
		s := scope{"input": map[string]any{"many": many, "xs": many[:100]}}
		v, err := e.Eval(t.Context(), s) // without a bound this would not end within the time of the test
		if err == nil {
			_, err = Append(nil, v, 1<<20)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("%.60s: the error has %d bytes", expr, len(err.Error()))
		}
	}
}

func TestEvalEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	e := must.Get(NewCompiler().Compile("input.many[].[@, @][].[@, @][]"))(t)
	_, err := e.Eval(ctx, scope{"input": map[string]any{"many": make([]any, 10_000)}})
	assert.That(t, errors.Is(err, why), "it ended with %v", err)
}

// values draws JSON values whose objects have at most one member, because the library walks members in random order.
func values(deep int) *rapid.Generator[any] {
	leaf := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.IntRange(-3, 3), func(n int) any { return float64(n) }),
		rapid.Map(rapid.SampledFrom([]string{"", "a", "b", "ab"}), func(s string) any { return s }))
	if deep == 0 {
		return leaf
	}
	inner := values(deep - 1)
	return rapid.OneOf(leaf,
		rapid.Map(rapid.SliceOfN(inner, 0, 4), func(l []any) any { return append([]any{}, l...) }),
		rapid.Map(rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), inner, 0, 1),
			func(m map[string]any) any { return m }))
}

// expressions draws expressions over the members a and b.
func expressions(t *rapid.T, deep int) string {
	if deep == 0 {
		return rapid.SampledFrom([]string{"a", "b", "@", "$", "'a'", "`1`", "`[1,2]`", "a.b", "$.a", "$.b.a"}).Draw(t,
			"leaf")
	}
	x := func() string { return expressions(t, deep-1) }
	switch rapid.IntRange(0, 22).Draw(t, "form") {
	case 0:
		return "(" + x() + ") | (" + x() + ")"
	case 1:
		return x() + " || " + x()
	case 2:
		return x() + " && " + x()
	case 3:
		return "!(" + x() + ")"
	case 4:
		return "(" + x() + ") " + rapid.SampledFrom([]string{"==", "!=", "<", ">=", "+", "-", "*"}).Draw(t, "op") +
			" (" + x() + ")"
	case 5:
		return "[" + x() + ", " + x() + "]"
	case 6:
		return "{a: " + x() + "}"
	case 7:
		return "(" + x() + ")[?" + x() + "]"
	case 8:
		return "(" + x() + ")[*]." + rapid.SampledFrom([]string{"a", "b"}).Draw(t, "field")
	case 9:
		return "(" + x() + ")[]"
	case 10:
		return "(" + x() + ")[" + rapid.SampledFrom([]string{
			"0", "-1", "1:", ":-1", "::-1", "::2", "-9:9:3",
			"5:0:-1",
		}).Draw(t, "slice") + "]"
	case 11:
		return "(" + x() + ")." + rapid.SampledFrom([]string{"a", "b", "[a, b]", "{b: a}", "*"}).Draw(t, "sub")
	case 12:
		return "length(" + x() + ")"
	case 13:
		return "to_array(" + x() + ")"
	case 14:
		return "map(&" + x() + ", " + x() + ")"
	case 15:
		return "let $v = " + x() + " in [$v, " + x() + "]"
	case 16:
		return "not_null(" + x() + ", " + x() + ")"
	case 17:
		return "type(" + x() + ")"
	case 18:
		return "to_string(" + x() + ")"
	case 19:
		return "sort_by(" + x() + ", &" + x() + ")"
	case 20:
		return "reverse(" + x() + ")"
	case 21:
		return "merge(" + x() + ", " + x() + ")"
	}
	return "(" + x() + ")"
}

// TestSameAsTheLibrary: if the library returns a value, our implementation returns the same value.
func TestSameAsTheLibrary(t *testing.T) {
	compared := 0
	property.Check(t, func(t *rapid.T) {
		text := expressions(t, rapid.IntRange(0, 4).Draw(t, "deep"))
		data := map[string]any{"a": values(3).Draw(t, "a")} // an object of one member, for the same reason
		theirs, err := api.Compile(text)
		ours, ourErr := NewCompiler().Compile(text)
		if err != nil {
			must.Fails(t, ourErr, "", "%s: the library says %v", text, err)
			return
		}
		if ourErr != nil {
			if strings.Contains(ourErr.Error(), "within each other") {
				return
			}
			t.Fatalf("%s: %v", text, ourErr)
		}
		got, ourErr := ours.Eval(context.Background(), scope(data))
		want, err := libraryValue(theirs, data)
		if err != nil || ourErr != nil {
			return // the library and our implementation differ about errors within a projection
		}
		compared++
		diff := cmp.Diff(want, got)
		must.Equal(t, diff, "", "%s over %v (-library +ours)", text, data)
	})
	assert.That(t, compared != 0, "nothing was compared")
}

// libraryValue evaluates an expression with the library. A panic of the library becomes an error.
func libraryValue(e api.JMESPath, data any) (v any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("it panicked")
		}
	}()
	return e.Search(data)
}

// TestNothingChangesItsInput: an evaluation does not change its input, because all nodes of a chain share that input.
func TestNothingChangesItsInput(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		text := expressions(t, rapid.IntRange(1, 4).Draw(t, "deep"))
		v := values(3).Draw(t, "a")
		before := must.Get(Append(nil, v, 1<<20))(t)
		e, err := NewCompiler().Compile(text)
		if err != nil {
			return
		}
		_, _ = e.Eval(context.Background(), scope{"a": v})
		if after, err := Append(nil, v, 1<<20); err != nil || string(after) != string(before) {
			t.Fatalf("%s made %s of %s", text, after, before)
		}
	})
}

func BenchmarkEval(b *testing.B) {
	e := must.Get(NewCompiler().Compile("n1.output.text"))(b)
	s := scope(value(b, state).(map[string]any))
	b.ReportAllocs()
	for b.Loop() {
		must.Get(e.Eval(b.Context(), s))(b)
	}
}
