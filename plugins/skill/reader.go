package skill

import (
	"slices"
	"strconv"
	"strings"
	"unicode"

	"a2e/host/schema"
)

// reader reads the keys of front matter, and notes what is wrong with them.
type reader struct {
	*notes
	keys map[string]member // by name, with _ for -
}

// newReader takes the keys of a mapping in.
func newReader(m *node, n *notes) *reader {
	r := &reader{notes: n, keys: map[string]member{}}
	known := knownKeys()
	for _, e := range m.members {
		name := strings.ReplaceAll(e.key, "-", "_")
		if first, twice := r.keys[name]; twice {
			n.fail(e.line, "the key %s stands twice, as %s in line %d; keep one", quote(e.key), quote(first.key), first.line)
			continue
		}
		r.keys[name] = e
		if !slices.Contains(known, name) {
			says := schema.DidYouMean(e.key, known)
			if says == "" {
				says = "it is ignored"
			}
			n.hint(e.line, "the key %s has no meaning here; %s", quote(e.key), says)
		}
	}
	return r
}

// value gives the value of a key, unless it is empty.
func (r *reader) value(key string) (*node, bool) {
	m, ok := r.keys[key]
	return m.value, ok && !m.value.null()
}

// text reads one text; numbers and the like are texts as they stand.
func (r *reader) text(key, otherwise string) string {
	v, ok := r.value(key)
	if !ok {
		return otherwise
	}
	if v.kind != scalar {
		r.fail(v.line, "%s: should be a text; here is %s", key, v.what())
		return otherwise
	}
	return strings.TrimSpace(v.text)
}

// line is text for a value of one line: control characters are refused.
func (r *reader) line(key string) string {
	text := r.text(key, "")
	if strings.ContainsFunc(text, unicode.IsControl) {
		r.fail(r.keys[key].line, "%s: there are control characters in it", key)
		return ""
	}
	return text
}

// list reads a list of texts, or one text of some with separators between them.
func (r *reader) list(key, separators string) []string {
	v, ok := r.value(key)
	if !ok {
		return nil
	}
	if v.kind != scalar {
		return r.texts(key, v)
	}
	var all []string
	for part := range strings.FieldsFuncSeq(v.text, func(c rune) bool { return strings.ContainsRune(separators, c) }) {
		if part = strings.TrimSpace(part); part != "" && len(all) < maxListed {
			all = append(all, part)
		}
	}
	return all
}

// texts reads the entries of a list.
func (r *reader) texts(key string, v *node) (all []string) {
	switch {
	case v.kind != sequence:
		r.fail(v.line, "%s: should be a list of texts; here is %s", key, v.what())
		return nil
	case len(v.items) > maxListed:
		r.fail(v.line, "%s: has %d entries; at most %d are taken", key, len(v.items), maxListed)
		return nil
	}
	for _, item := range v.items {
		if name := item.at("name"); name != nil && name.kind == scalar { // as some write tools
			item = name
		}
		if item.kind != scalar || item.null() {
			r.fail(item.line, "%s: each entry should be a text; here is %s", key, item.what())
			continue
		}
		if text := strings.TrimSpace(item.text); text != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// tools reads names of tools: a list, or a text such as "Read, Bash(git add:*) Grep".
func (r *reader) tools(key string) []string {
	v, ok := r.value(key)
	if !ok {
		return nil
	}
	if v.kind != scalar {
		return r.texts(key, v)
	}
	depth := 0
	words := strings.FieldsFunc(v.text, func(c rune) bool {
		switch c {
		case '(':
			depth++
		case ')':
			depth = max(depth-1, 0)
		}
		return depth == 0 && (c == ',' || unicode.IsSpace(c))
	})
	if len(words) > maxListed {
		r.fail(v.line, "%s: names %d tools; at most %d are taken", key, len(words), maxListed)
		return nil
	}
	var all []string
	for _, word := range words {
		if word[0] == '(' && len(all) > 0 { // "Bash (git:*)": the rule is one of the tool before it
			all[len(all)-1] += word
			continue
		}
		if !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}

// truth reads true or false; not said is false.
func (r *reader) truth(key string) bool {
	v, ok := r.value(key)
	if !ok {
		return false
	}
	if v.kind == scalar {
		switch strings.ToLower(v.text) {
		case "true", "yes":
			return true
		case "false", "no":
			return false
		}
	}
	r.fail(v.line, "%s: should be true or false", key)
	return false
}

// whole reads a whole number of 1 to most; 0 = not said.
func (r *reader) whole(key string, most int) int {
	v, ok := r.value(key)
	if !ok {
		return 0
	}
	if v.kind == scalar {
		if f, err := strconv.ParseFloat(v.text, 64); err == nil && f == float64(int(f)) && f >= 1 && f <= float64(most) {
			return int(f)
		}
	}
	r.fail(v.line, "%s: should be a whole number of 1 to %d", key, most)
	return 0
}
