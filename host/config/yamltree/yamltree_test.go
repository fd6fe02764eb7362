package yamltree

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// shown returns a value as one line, with the line of the file after each part.
func shown(n *Node) string {
	if n == nil {
		return "nil"
	}
	var parts []string
	switch n.Kind {
	case Mapping:
		for _, m := range n.Members {
			parts = append(parts, fmt.Sprintf("%s@%d=%s", m.Key, m.Line, shown(m.Value)))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case List:
		for _, item := range n.Items {
			parts = append(parts, shown(item))
		}
		return "[" + strings.Join(parts, " ") + "]"
	}
	return fmt.Sprintf("%s%s@%d:%d", n.Text, strings.TrimPrefix(n.Tag, "!"), n.Line, n.Column)
}

func TestRead(t *testing.T) {
	const laughs = "a: &a [x, x, x, x]\nb: &b [*a, *a]\n"
	for name, c := range map[string]struct {
		text, want, wrong string
		merge             bool
	}{
		"values": {
			"a: 1\nb: [true, ~, '2']", "{a@11=1!int@11:4 b@12=[true!bool@12:5 ~!null@12:11 2!str@12:14]}",
			"", false,
		},
		"an alias": {"a: &x {b: 1}\nc: *x", "{a@11={b@11=1!int@11:11} c@12={b@11=1!int@11:11}}", "", false},
		"a key twice": {
			"a: 1\na: 2", "{a@11=1!int@11:4}",
			`12:1: the key "a" appears twice, first in line 11: keep one`, false,
		},
		"own tags": {
			"a: !x 1\nb: !y []\nc: 3", "{c@13=3!int@13:4}", "11:4: own tags (!name) have no meaning here",
			false,
		},
		"merged": {"a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}", "{a@11={b@11=1!int@11:11 c@11=2!int@11:17} " +
			"d@12={b@12=3!int@12:16 c@11=2!int@11:17}}", "", true},
		"no merge":    {"a: {<<: {b: 1}}", "{a@11={}}", "11:5: << has no meaning here", false},
		"merge text":  {"<<: x", "{}", "11:5: << takes a mapping", true},
		"list as key": {"[a]: 1\nb: 2", "{b@12=2!int@12:4}", "11:1: a key must be a string", false},
		"a circle":    {"a: &x {b: *x}", "nil", "11:11: an alias stands within its own anchor", false},
		"many":        {laughs + "c: *b", "nil", "13:4: aliases stand for more than 14 values or 40 bytes", false},
		"long":        {"a: &a " + strings.Repeat("x", 50) + "\nb: *a", "nil", "12:4: aliases stand for more", false},
		"deep":        {"a: &a [[[1]]]\nb: [[*a]]", "nil", "12:6: more than 5 levels deep", false},
	} {
		t.Run(name, func(t *testing.T) {
			rules := Rules{
				Depth: 5, Aliased: 14, AliasedBytes: 40, Merge: c.merge, LinesBefore: 10,
				Name: strconv.Quote,
			}
			doc := must.Get(rules.Load([]byte(c.text)))(t)
			n, problems := rules.Read(doc)
			assert.Equal(t, shown(n), c.want)
			said := ""
			if len(problems) > 0 {
				said = fmt.Sprintf("%d:%d: %s", problems[0].Line, problems[0].Column, problems[0].Message)
			}
			assert.That(t, strings.HasPrefix(said, c.wrong) && (c.wrong == "") == (said == ""), "said %q, want %q",
				said, c.wrong)
		})
	}
}

func TestLoad(t *testing.T) {
	rules := Rules{Depth: 5}
	for text, want := range map[string]bool{"": true, "# nothing": true, "a: 1": false} {
		doc, err := rules.Load([]byte(text))
		assert.That(t, err == nil && (doc == nil) == want, "%q: %v, %v", text, doc, err)
	}
	_, err := rules.Load([]byte("a: 1\n---\nb: 2"))
	assert.That(t, errors.Is(err, ErrDocuments), "two documents: %v", err)
	for _, text := range []string{"a: [", "a: 1\n---\nb: [", strings.Repeat("- ", 9) + "x"} {
		_, err := rules.Load([]byte(text))
		assert.That(t, err != nil && !errors.Is(err, ErrDocuments), "%q: %v", text, err)
	}
}

// TestLinesOfDeepFilesAreBounded: the paths that are kept for error messages take no more memory than the file. Paths
// of all values of a small file could take gigabytes, because each path contains all keys above it.
func TestLinesOfDeepFilesAreBounded(t *testing.T) {
	key := strings.Repeat("k", 1000)
	text := "nodes: " + strings.Repeat("{"+key+": ", 40) + "[" + strings.Repeat("a,", 10_000) + "a]" +
		strings.Repeat("}", 40)
	raw, lines, err := ToJSON([]byte(text))
	must.That(t, err == nil && strings.Contains(string(raw), key), "%v", err)
	held := 0
	for path := range lines {
		held += len(path)
	}
	assert.That(t, held <= len(text), "%d bytes of paths for a file of %d", held, len(text))
}

// TestLinesOfNodesAreKept: the lines of the nodes of a large file are still known, for error messages.
func TestLinesOfNodesAreKept(t *testing.T) {
	var text strings.Builder
	text.WriteString("nodes:\n")
	for i := range 300 {
		text.WriteString("  - node_id: n" + strconv.Itoa(i) + "\n    kind: tool\n    name: echo\n    input_map:\n   " +
			"   text: input.a\n")
	}
	_, lines, err := ToJSON([]byte(text.String()))
	must.OK(t, err)
	for path, want := range map[string]int{
		"/nodes": 1, "/nodes/0": 2, "/nodes/299": 1497, "/nodes/299/kind": 1498,
		"/nodes/299/input_map/text": 1501,
	} {
		assert.Equal(t, lines[path], want, "%s is in line", path)
	}
}

// TestToJSON: a value that JSON cannot express, or that has no end, is an error with its line.
func TestToJSON(t *testing.T) {
	deep := strings.Repeat("[", maxDepth+2) + strings.Repeat("]", maxDepth+2)
	for text, want := range map[string]string{
		"a: [1.50, 0x10, .5, 1_000, true, ~, 2020-01-02, 'x']": `{"a":[1.50,16,0.5,1000,true,null,"2020-01-02","x"]}`,
		"a: &x {b: 1}\nc: *x": `{"a":{"b":1},"c":{"b":1}}`,
		"":                    "the file is empty",
		"a: 1\n---\nb: 2":     ErrDocuments.Error(),
		"a:\n  - .inf":        "line 2: the number .inf cannot be written in JSON",
		"a: !!bool maybe":     `line 1: "maybe" is neither true nor false`,
		"a: 1\na: 2":          "line 2: the key \"a\" appears twice, first in line 1: keep one",
		"a: [\n":              "line 2: not valid YAML",
		"a: " + deep:          "line 1: ",
		"a: &a [&b [*a]]":     "an alias stands within its own anchor",
	} {
		raw, _, err := ToJSON([]byte(text))
		got := string(raw)
		if err != nil {
			got = err.Error()
		}
		assert.Contains(t, got, want, "%.40q", text)
	}
}
