package merge

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// facts is what the results hold beyond text.
type facts struct {
	files     []string // sorted
	next      []string // in order, none twice
	tokens    int
	estimated bool // not all agents counted their tokens
}

// gather reads the results of all agents. A member of another type than it should have is
// passed over: agents write what they like.
func gather(inputs []Input) facts {
	f := facts{files: []string{}, next: []string{}}
	seen := make(map[string]bool)
	for _, in := range inputs {
		obj, err := protocol.ParseObject(in.Result)
		if err != nil {
			continue // there is none
		}
		f.files = append(f.files, texts(obj, "files_changed")...)
		if raw, ok := obj.Get("artifacts"); ok {
			if artifacts, err := protocol.ParseObject(raw); err == nil {
				f.files = append(f.files, texts(artifacts, "files_changed")...)
			}
		}
		for _, step := range texts(obj, "next_steps") {
			if !seen[step] {
				seen[step] = true
				f.next = append(f.next, step)
			}
		}
		f.count(obj)
	}
	slices.Sort(f.files)
	f.files = slices.Compact(f.files)
	return f
}

// count adds the tokens of an agent.
func (f *facts) count(obj protocol.Object) {
	raw, _ := obj.Get("tokens_spent")
	if n, ok := raw.Int(); ok && n > 0 {
		f.tokens += min(n, math.MaxInt-f.tokens)
	}
	raw, _ = obj.Get("tokens_estimated")
	f.estimated = f.estimated || string(raw) == "true"
}

// texts gives the texts of a list; what is none is left out.
func texts(obj protocol.Object, key string) (all []string) {
	raw, _ := obj.Get(key)
	var list []jsontext.Value
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	for _, v := range list {
		text, _ := protocol.Value(v).Str()
		if text = strings.TrimSpace(text); text != "" {
			all = append(all, text)
		}
	}
	return all
}

// cut shortens a text to at most so many bytes, and shows that it did.
func cut(text string, bytes int) string {
	const mark = "…"
	if len(text) <= bytes {
		return text
	}
	keep := max(bytes-len(mark), 0)
	for keep > 0 && !utf8.RuneStart(text[keep]) {
		keep--
	}
	return text[:keep] + mark
}
