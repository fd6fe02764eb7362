package jmes

import (
	"testing"
	"unicode/utf8"
)

// Any text is either refused or gives a value or an error, within the bounds, and leaves
// what it reads as it was.
func FuzzEval(f *testing.F) {
	for _, text := range []string{
		"n1.output.text", "$.input.xs[?@ > `1`] | [0]", "let $x = @ in sort_by($x.input.objects, &k)[].n", "{a: n1.*, b: [n2, !n3]}", "map(&[@,@], input.xs)[]",
		"pad_left(to_string(@), `99`, 'x')", "replace('aa', 'a', input.name)", "find_first('abc', 'b', `9`, `1`)", "zip(input.xs, values(n1.deep))", "group_by(input.objects, &k)",
		"from_items(items(@))", "-input.xs[0] // `0`", "((((a", "[[[[", "{a:{a:{a:", "a[::0]", "`[1", "'", "\"\\ud800\".x", "&a", "$$", "a = b",
	} {
		f.Add(text)
	}
	c := NewCompiler()
	f.Fuzz(func(t *testing.T, text string) {
		e, err := c.Compile(text)
		if err != nil {
			if !utf8.ValidString(err.Error()) && utf8.ValidString(text) {
				t.Errorf("%q: the error is no text: %q", text, err)
			}
			return
		}
		v := value(t, state).(map[string]any)
		before, err := Append(nil, v, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := e.Eval(t.Context(), scope(v)); err == nil {
			_, _ = Append(nil, got, 1<<20)
		}
		if after, err := Append(nil, v, 1<<20); err != nil || string(after) != string(before) {
			t.Fatalf("%q changed what it read to %s", text, after)
		}
	})
}
