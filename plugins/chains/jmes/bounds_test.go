package jmes

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestWorkOnLongTextsCounts: sorting, grouping and trimming compare texts again and again, and each comparison counts
// towards the bound. Otherwise a few long texts that are in a list many times would keep a processor busy for hours,
// and nothing could stop that.
func TestWorkOnLongTextsCounts(t *testing.T) {
	long := strings.Repeat("x", 4<<20)
	members := scope{"input": map[string]any{
		"a": long + "a", "b": long + "b", "cut": strings.Repeat("é", 64<<10) + "x",
		"object": map[string]any{long + "a": 1.0, long + "b": 2.0, long + "c": 3.0},
	}}
	many := "[input.a,input.b" + strings.Repeat(",input.a,input.b", 30) + "]"
	lists := "let $l = " + many + " in " // 62 texts of 4 MiB
	objects := "let $o = input.object, $l = [" + strings.Repeat("$.input.object,", 30) + "$.input.object] in "
	for _, expr := range []string{
		lists + "sort($l)", lists + "sort($l[?@])", lists + "max($l)", lists + "min($l)",
		lists + "sort_by($l[].{k: @}, &k)", lists + "max_by($l[].{k: @}, &k)", lists + "min_by($l[].{k: @}, &k)",
		lists + "group_by([$l,$l][].{k: @}, &k)", lists + "from_items([$l,$l][].[@,@])",
		objects + "$l[].keys(@)", objects + "$l[].values(@)", objects + "$l[].items(@)", objects + "$l[].*",
		objects + "[$l,$l][] | [?@ == $o]",
		"trim(input.a, input.cut)", "trim_left(input.a, input.cut)", "trim_right(input.a, input.cut)",
	} {
		e, err := NewCompiler().Compile(expr)
		must.That(t, err == nil, "%.80s: %v", expr, err)
		if _, err := e.Eval(t.Context(), members); !errors.Is(err, errSteps) {
			t.Errorf("%s: the error is %v; the work should count", expr[max(0, len(expr)-40):], err)
		}
	}
}

// TestWorkOnOrdinaryTextsFits: ordinary work with texts of ordinary length stays far from the bound.
func TestWorkOnOrdinaryTextsFits(t *testing.T) {
	list := make([]any, 50_000)
	for i := range list {
		list[i] = map[string]any{"k": strings.Repeat("name ", 10) + string(rune('a'+i%26))}
	}
	members := scope{"input": list}
	for _, expr := range []string{
		"sort_by(input, &k)[0].k", "max(input[].k)", "sort(input[].k)[0]",
		"group_by(input, &k).a", "trim(input[0].k, ' \n')", "max_by(input, &k).k",
	} {
		e := must.Get(NewCompiler().Compile(expr))(t)
		_, err := e.Eval(t.Context(), members)
		assert.That(t, err == nil, "%s: %v", expr, err)
	}
}

// FuzzEval: any text is refused, or has a value or an error within the bounds. The evaluation does not change its
// input.
func FuzzEval(f *testing.F) {
	for _, text := range []string{
		"n1.output.text", "$.input.xs[?@ > `1`] | [0]", "let $x = @ in sort_by($x.input.objects, &k)[].n",
		"{a: n1.*, b: [n2, !n3]}", "map(&[@,@], input.xs)[]",
		"pad_left(to_string(@), `99`, 'x')", "replace('aa', 'a', input.name)", "find_first('abc', 'b', `9`, `1`)",
		"zip(input.xs, values(n1.deep))", "group_by(input.objects, &k)",
		"from_items(items(@))", "-input.xs[0] // `0`", "((((a", "[[[[", "{a:{a:{a:", "a[::0]", "`[1", "'", "\"\\ud800\".x", "&a", "$$", "a = b",
	} {
		f.Add(text)
	}
	c := NewCompiler()
	f.Fuzz(func(t *testing.T, text string) {
		e, err := c.Compile(text)
		if err != nil {
			assert.That(t, utf8.ValidString(err.Error()) || !utf8.ValidString(text), "%q: the error is not text: %q",
				text, err)
			return
		}
		v := value(t, state).(map[string]any)
		before := must.Get(Append(nil, v, 1<<20))(t)
		if got, err := e.Eval(t.Context(), scope(v)); err == nil {
			_, _ = Append(nil, got, 1<<20)
		}
		if after, err := Append(nil, v, 1<<20); err != nil || string(after) != string(before) {
			t.Fatalf("%q changed what it read to %s", text, after)
		}
	})
}
