package config

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/config/yamltree"
	"a2e/host/guard/redact"
)

var (
	secretType   = reflect.TypeFor[Secret]()
	optionsType  = reflect.TypeFor[Options]()
	durationType = reflect.TypeFor[time.Duration]()
)

// decoder fills Go values from nodes and collects the problems.
type decoder struct {
	getenv   func(string) string // nil = variables are not replaced
	secrets  *redact.Set         // receives the values that must not be shown
	problems []Problem
	warnings []Warning
	root     *node    // top node of the file; nil = there is no file
	types    []string // of plugins; see knownTypes
}

// placed is a node or a member, both of which have a position.
type placed interface{ Where() position }

func (d *decoder) fail(at placed, format string, args ...any) {
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, problemAt(at, format, args...))
	}
}

func (d *decoder) warn(at placed, format string, args ...any) {
	d.warnings = append(d.warnings, problemAt(at, format, args...))
}

func problemAt(at placed, format string, args ...any) Problem {
	return Problem{Position: at.Where(), Message: fmt.Sprintf(format, args...)}
}

// value decodes n into v. path is the name of n in messages; rules are the tags of its struct field.
func (d *decoder) value(n *node, v reflect.Value, path string, rules reflect.StructTag) {
	switch v.Type() {
	case secretType:
		if s, ok := d.text(n, path, wantText, rules); ok {
			d.hide(lastKey(path), s)
			v.Set(reflect.ValueOf(NewSecret(s)))
		}
		return
	case optionsType:
		if d.is(n, mapping, path) {
			v.Set(reflect.ValueOf(d.options(n, path)))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		fresh := reflect.New(v.Type().Elem())
		if !v.IsNil() {
			fresh.Elem().Set(v.Elem())
		}
		d.value(n, fresh.Elem(), path, rules)
		v.Set(fresh)
	case reflect.Interface:
		if a := d.any(n, path); a != nil {
			v.Set(reflect.ValueOf(a))
		}
	case reflect.Struct:
		if name := rules.Get("switch"); name != "" {
			d.section(n, v, path, name)
		} else {
			d.object(n, v, path)
		}
	case reflect.Map:
		d.dictionary(n, v, path, rules)
	case reflect.Slice:
		d.slice(n, v, path, rules)
	default:
		d.scalar(n, v, path, rules)
	}
}

// hide adds the value of a Secret to the secrets.
func (d *decoder) hide(key, value string) {
	if key == "key" {
		d.secrets.AddSecret(value)
	} else { // it may be an address, or a header
		d.secrets.Add(key, value)
	}
}

// options returns the options at n, which are decoded later.
func (d *decoder) options(n *node, path string) Options {
	return Options{path: path, node: n, getenv: d.getenv, secrets: d.secrets}
}

// is reports whether n is a mapping or a list, as kind requires; if not, it adds a problem.
func (d *decoder) is(n *node, kind yamltree.Kind, path string) bool {
	if n.Kind == kind {
		return true
	}
	right := "a mapping, such as {key: value}"
	switch {
	case kind == list && lastKey(path) == "command":
		right = "a list, such as [program, argument]"
	case kind == list:
		right = "a list, such as [a, b]"
	case path == top:
		right = "a mapping, such as max_parallel: 4 (a space follows the colon)"
	}
	d.wrong(n, path, right)
	return false
}

// wrong adds the problem that a value has the wrong type.
func (d *decoder) wrong(n *node, path, right string) {
	d.fail(n, "%s must be %s, not %s", path, right, what(n))
}

// what returns the kind of a node for messages, without its content.
func what(n *node) string {
	switch {
	case n.Kind != scalar:
		return n.What()
	case strings.Contains(n.Text, "${"):
		return "what the variable holds"
	case n.Tag == "!!bool":
		return "true or false"
	case n.Tag == "!!int", n.Tag == "!!float":
		return "a number"
	case n.Null():
		return n.What()
	}
	return "a string"
}

// section decodes a mapping whose presence sets its boolean field called name; a boolean may stand in
// its place.
func (d *decoder) section(n *node, v reflect.Value, path, name string) {
	f, _ := fieldsOf(v.Type()).find(name)
	on, is := booleans(n.Text)
	switch {
	case n.Kind == mapping:
		v.FieldByIndex(f.Index).SetBool(true)
		d.object(n, v, path)
	case n.Kind == scalar && n.Plain && is:
		v.FieldByIndex(f.Index).SetBool(on)
	default:
		d.wrong(n, path, "true, false or a mapping, such as {key: value}")
	}
}

// object decodes a mapping into a struct. For keys without a value the defaults stay.
func (d *decoder) object(n *node, v reflect.Value, path string) {
	if !d.is(n, mapping, path) {
		return
	}
	fields := fieldsOf(v.Type())
	for _, m := range n.Members {
		f, ok := fields.find(m.Key)
		if !ok {
			hint := SuggestName(m.Key, fields.names())
			if _, has := fields.find("metadata"); has {
				hint += "; the options of a plugin in a list belong under metadata"
			}
			if strings.HasPrefix(m.Key, "//") {
				hint = "a comment begins with #"
			}
			d.fail(m, "unknown key %s in %s: %s", named(m.Key), path, hint)
			continue
		}
		if !m.Value.Null() {
			d.value(m.Value, v.FieldByIndex(f.Index), joined(path, m.Key), f.Tag)
		} else if f.Tag.Get("required") != "" {
			d.fail(m.Value, "%s must not be empty", joined(path, m.Key))
		}
	}
	for _, f := range fields {
		if f.Tag.Get("required") != "" && n.At(f.name) == nil {
			d.fail(n, "%s needs the key %q", path, f.name)
		}
	}
}

// top is the path of the mapping that is the whole file.
const top = "the file"

// lastKey returns the last key of a path.
func lastKey(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

func joined(path, key string) string {
	if path == top || path == "" {
		return key
	}
	return path + "." + key
}

func (d *decoder) dictionary(n *node, v reflect.Value, path string, rules reflect.StructTag) {
	if !d.is(n, mapping, path) {
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(n.Members))
	for _, m := range n.Members {
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(m.Value, item, joined(path, shortKey(m.Key)), rules)
		out.SetMapIndex(reflect.ValueOf(m.Key).Convert(v.Type().Key()), item)
	}
	v.Set(out)
}

// shortKey returns a key for messages, or "…" if it looks like content.
func shortKey(key string) string {
	if isName(key) {
		return key
	}
	return "…"
}

func (d *decoder) slice(n *node, v reflect.Value, path string, rules reflect.StructTag) {
	if !d.is(n, list, path) {
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.Items), len(n.Items))
	for i, item := range n.Items {
		d.value(item, out.Index(i), fmt.Sprintf("%s[%d]", path, i), rules)
	}
	v.Set(out)
}

// DecodeText fills dst, a pointer to a struct with yaml tags, from YAML text by the rules of
// Options.Decode, but does not replace variables: ${…} stays. file is the name for messages. The error
// is an *Error with every problem.
func DecodeText(file string, text []byte, dst any) error {
	root, problems := parse(file, text)
	if len(problems) > 0 {
		return problemsError(problems)
	}
	return Options{path: top, node: root}.Decode(dst)
}

const redacted = redact.Text

// Secret is a text that logs, errors and encodings do not show. Its zero value is "".
type Secret struct {
	text *string // behind a pointer, which fmt does not follow in an unexported field
}

// NewSecret makes a Secret with the text s.
func NewSecret(s string) Secret { return Secret{text: &s} }

// Reveal returns the text. Compare tokens by Hash instead.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Hash returns the SHA-256 of the text, for comparisons in constant time.
func (s Secret) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(s.Reveal())) }

// String returns "[redacted]", even for the empty secret.
func (Secret) String() string { return redacted }

// GoString returns "[redacted]".
func (Secret) GoString() string { return redacted }

// Format writes "[redacted]" for every verb.
func (Secret) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, redacted) }

// MarshalJSON returns "[redacted]" as a JSON string.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// UnmarshalJSON reads a JSON string.
func (s *Secret) UnmarshalJSON(raw []byte) error { return json.Unmarshal(raw, &s.text) }

// MarshalText returns "[redacted]".
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// field is a struct field with its key.
type field struct {
	name string
	reflect.StructField
}

type fields []field

// fieldsOf returns the fields of a struct type in their order, including those of embedded structs.
func fieldsOf(t reflect.Type) (all fields) {
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !f.Anonymous && f.IsExported() && name != "-" {
			all = append(all, field{cmp.Or(name, strings.ToLower(f.Name)), f})
		}
	}
	return all
}

func (fs fields) find(name string) (field, bool) {
	i := slices.IndexFunc(fs, func(f field) bool { return f.name == name })
	if i < 0 {
		return field{}, false
	}
	return fs[i], true
}

func (fs fields) names() []string {
	names := make([]string, len(fs))
	for i, f := range fs {
		names[i] = f.name
	}
	return names
}
