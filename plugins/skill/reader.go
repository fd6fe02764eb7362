package skill

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"a2e/host/schema"
	"a2e/host/yamltree"
)

// reader reads the keys of front matter, and notes what is wrong with them.
type reader struct {
	*notes
	keys map[string]yamltree.Member // by name, with _ for -
}

// newReader takes the keys of a mapping in.
func newReader(m *yamltree.Node, n *notes) *reader {
	r := &reader{notes: n, keys: map[string]yamltree.Member{}}
	known := knownKeys()
	for _, e := range m.Members {
		name := strings.ReplaceAll(e.Key, "-", "_")
		if first, twice := r.keys[name]; twice {
			n.fail(e.Line, "the key %s appears twice, as %s in line %d; keep one", quote(e.Key), quote(first.Key), first.Line)
			continue
		}
		r.keys[name] = e
		if !slices.Contains(known, name) {
			says := schema.DidYouMean(e.Key, known)
			if says == "" {
				says = "it is ignored"
			}
			n.hint(e.Line, "the key %s has no meaning here; %s", quote(e.Key), says)
		}
	}
	return r
}

// value returns the value of a key, unless it is empty.
func (r *reader) value(key string) (*yamltree.Node, bool) {
	m, ok := r.keys[key]
	return m.Value, ok && !m.Value.Null()
}

// text reads one text; numbers and the like are texts as they stand.
func (r *reader) text(key, otherwise string) string {
	v, ok := r.value(key)
	if !ok {
		return otherwise
	}
	if v.Kind != yamltree.Scalar {
		r.fail(v.Line, "%s: must be a string, not %s", key, v.What())
		return otherwise
	}
	return strings.TrimSpace(v.Text)
}

// line is text for a value of one line: control characters are refused.
func (r *reader) line(key string) string {
	text := r.text(key, "")
	if strings.ContainsFunc(text, unicode.IsControl) {
		r.fail(r.keys[key].Line, "%s: there are control characters in it", key)
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
	if v.Kind != yamltree.Scalar {
		return r.texts(key, v)
	}
	var all []string
	for part := range strings.FieldsFuncSeq(v.Text, func(c rune) bool { return strings.ContainsRune(separators, c) }) {
		if part = strings.TrimSpace(part); part != "" && len(all) < maxListed {
			all = append(all, part)
		}
	}
	return all
}

// texts reads the entries of a list.
func (r *reader) texts(key string, v *yamltree.Node) (all []string) {
	switch {
	case v.Kind != yamltree.List:
		r.fail(v.Line, "%s: must be a list of strings, not %s", key, v.What())
		return nil
	case len(v.Items) > maxListed:
		r.fail(v.Line, "%s: has %d entries; at most %d are taken", key, len(v.Items), maxListed)
		return nil
	}
	for _, item := range v.Items {
		if name := item.At("name"); name != nil && name.Kind == yamltree.Scalar { // as some write tools
			item = name
		}
		if item.Kind != yamltree.Scalar || item.Null() {
			r.fail(item.Line, "%s: each entry must be a string, not %s", key, item.What())
			continue
		}
		if text := strings.TrimSpace(item.Text); text != "" && !slices.Contains(all, text) {
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
	if v.Kind != yamltree.Scalar {
		return r.texts(key, v)
	}
	depth := 0
	words := strings.FieldsFunc(v.Text, func(c rune) bool {
		switch c {
		case '(':
			depth++
		case ')':
			depth = max(depth-1, 0)
		}
		return depth == 0 && (c == ',' || unicode.IsSpace(c))
	})
	if len(words) > maxListed {
		r.fail(v.Line, "%s: names %d tools; at most %d are taken", key, len(words), maxListed)
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
	if v.Kind == yamltree.Scalar {
		switch strings.ToLower(v.Text) {
		case "true", "yes":
			return true
		case "false", "no":
			return false
		}
	}
	r.fail(v.Line, "%s: should be true or false", key)
	return false
}

// whole reads a whole number of 1 to most; 0 = not said.
func (r *reader) whole(key string, most int) int {
	v, ok := r.value(key)
	if !ok {
		return 0
	}
	if v.Kind == yamltree.Scalar {
		if f, err := strconv.ParseFloat(v.Text, 64); err == nil && f == float64(int(f)) && f >= 1 && f <= float64(most) {
			return int(f)
		}
	}
	r.fail(v.Line, "%s: should be a whole number of 1 to %d", key, most)
	return 0
}

// maxNameBytes bounds the name of a skill.
const maxNameBytes = 128

// checkName tells why a text cannot be the name of a skill. The name is a part of
// skill://NAME/FILE and of messages to people, so it may hold nothing that means something
// else there, or that is not seen.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case len(name) > maxNameBytes:
		return fmt.Errorf("has %d bytes; at most %d are taken", len(name), maxNameBytes)
	case name == "." || name == "..":
		return errors.New("is the name of a folder above")
	case strings.TrimSpace(name) != name:
		return errors.New("begins or ends with a space")
	case strings.ContainsAny(name, `/\`):
		return errors.New("has a slash; a name is no path")
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return fmt.Errorf("has the character U+%04X, which cannot be seen", r)
		}
	}
	return nil
}

// public reports whether a name follows the public format.
func public(name string) bool {
	if len(name) > 64 || strings.Contains(name, "--") || strings.Trim(name, "-") != name {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

// quote shows a text of somebody else in a message.
func quote(text string) string {
	const most = 80
	if len(text) <= most {
		return strconv.Quote(text)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strconv.Quote(text[:cut]) + "…"
}
