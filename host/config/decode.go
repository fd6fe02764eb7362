package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/redact"
)

var (
	secretType   = reflect.TypeFor[Secret]()
	optionsType  = reflect.TypeFor[Options]()
	durationType = reflect.TypeFor[time.Duration]()
)

// decoder fills Go values from nodes and gathers what is wrong.
type decoder struct {
	getenv   func(string) string
	secrets  *redact.Set // gets the values that nothing may show
	problems []Problem
	types    []string // of plugins; see knownTypes
}

// placed is a node or a member.
type placed interface{ Where() position }

func (d *decoder) fail(at placed, format string, args ...any) {
	if len(d.problems) < maxKeyProblem {
		d.problems = append(d.problems, problemAt(at, format, args...))
	}
}

func problemAt(at placed, format string, args ...any) Problem {
	p := at.Where()
	return Problem{File: p.File, Line: p.Line, Column: p.Column, Message: fmt.Sprintf(format, args...)}
}

// value decodes n into v. path names n in messages; rules are the tags of the
// field it goes to.
func (d *decoder) value(n *node, v reflect.Value, path string, rules reflect.StructTag) {
	switch v.Type() {
	case secretType:
		if s, ok := d.textOf(n, path, rules); ok {
			if key := lastKey(path); key == "key" {
				d.secrets.AddSecret(s)
			} else { // it may be an address, or a header
				d.secrets.Add(key, s)
			}
			v.Set(reflect.ValueOf(NewSecret(s)))
		}
		return
	case optionsType:
		if n.Kind != mapping {
			d.wrong(n, path, "a mapping, such as {key: value}")
			return
		}
		v.Set(reflect.ValueOf(Options{path: path, node: n, getenv: d.getenv, secrets: d.secrets}))
		return
	case durationType:
		d.duration(n, v, path)
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
			return
		}
		d.object(n, v, path)
	case reflect.Map:
		d.dictionary(n, v, path, rules)
	case reflect.Slice:
		d.slice(n, v, path, rules)
	default:
		d.scalar(n, v, path, rules)
	}
}

// wrong reports a value of another type than it should be.
func (d *decoder) wrong(n *node, path, right string) {
	d.fail(n, "%s must be %s, not %s", path, right, d.what(n))
}

// what describes a node without showing its content.
func (d *decoder) what(n *node) string {
	switch {
	case n.Kind == mapping:
		return "a mapping"
	case n.Kind == list:
		return "a list"
	case strings.Contains(n.Text, "${"):
		return "what the variable holds"
	case n.Tag == "!!null":
		return "nothing"
	case n.Tag == "!!bool":
		return "true or false"
	case n.Tag == "!!int", n.Tag == "!!float":
		return "a number"
	}
	return "a string"
}

// section decodes a mapping whose presence sets a boolean of it, called name, which may stand in its place.
func (d *decoder) section(n *node, v reflect.Value, path, name string) {
	f, _ := fieldsOf(v.Type()).find(name)
	on, is := booleans(n.Text)
	switch {
	case n.Kind == mapping:
		v.FieldByIndex(f.index).SetBool(true)
		d.object(n, v, path)
	case n.Kind == scalar && n.Plain && is:
		v.FieldByIndex(f.index).SetBool(on)
	default:
		d.wrong(n, path, "true, false or a mapping, such as {key: value}")
	}
}

// object decodes a mapping into a struct; keys without a value keep the default.
func (d *decoder) object(n *node, v reflect.Value, path string) {
	if n.Kind != mapping {
		right := "a mapping, such as {key: value}"
		if path == top {
			right = "a mapping, such as max_parallel: 4 (a space follows the colon)"
		}
		d.wrong(n, path, right)
		return
	}
	fields := fieldsOf(v.Type())
	given := map[string]bool{}
	for _, m := range n.Members {
		f, ok := fields.find(m.Key)
		if !ok {
			hint := Suggest(m.Key, fields.names())
			if _, has := fields.find("metadata"); has {
				hint += "; the options of a plugin in a list belong under metadata"
			}
			if strings.HasPrefix(m.Key, "//") {
				hint = "a comment begins with #"
			}
			d.fail(m, "unknown key %s in %s: %s", named(m.Key), path, hint)
			continue
		}
		given[m.Key] = true
		if !m.Value.Null() {
			d.value(m.Value, v.FieldByIndex(f.index), joined(path, m.Key), f.tag)
		} else if f.tag.Get("required") != "" {
			d.fail(m.Value, "%s must not be empty", joined(path, m.Key))
		}
	}
	for _, f := range fields {
		if f.tag.Get("required") != "" && !given[f.name] {
			d.fail(n, "%s needs the key %q", path, f.name)
		}
	}
}

// top is the path of the file's own mapping.
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
	if n.Kind != mapping {
		d.wrong(n, path, "a mapping, such as {key: value}")
		return
	}
	if v.Type().Key().Kind() != reflect.String {
		d.fail(n, "%s cannot be set: its Go type has keys that are not strings", path)
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

// shortKey keeps content that was written as a key out of messages.
func shortKey(key string) string {
	if isName(key) {
		return key
	}
	return "…"
}

func (d *decoder) slice(n *node, v reflect.Value, path string, rules reflect.StructTag) {
	if n.Kind != list {
		example := "[a, b]"
		if lastKey(path) == "command" {
			example = "[program, argument]"
		}
		d.wrong(n, path, "a list, such as "+example)
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.Items), len(n.Items))
	for i, item := range n.Items {
		d.value(item, out.Index(i), fmt.Sprintf("%s[%d]", path, i), rules)
	}
	v.Set(out)
}

// DecodeText fills dst, a pointer to a struct with yaml tags, from YAML text by the
// rules of Options.Decode, but puts no variables in: ${…} stays as it is. file is
// the name for messages. The error is an *Error with every problem.
func DecodeText(file string, text []byte, dst any) error {
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return errors.New("config: DecodeText needs a pointer to a struct")
	}
	root, problems := parse(file, text)
	if root == nil {
		return problemsError(problems)
	}
	d := decoder{problems: problems}
	d.value(root, v.Elem(), top, "")
	return problemsError(d.problems)
}

const redacted = redact.Text

// Secret is a text that no log, error or encoding shows. Its zero value is "".
type Secret struct {
	text *string // behind a pointer, which fmt does not follow in an unexported field
}

// NewSecret wraps s.
func NewSecret(s string) Secret { return Secret{text: &s} }

// Reveal returns the text. Compare tokens by Hash instead.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Hash is the SHA-256 of the text, for comparing in constant time.
func (s Secret) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(s.Reveal())) }

// String returns "[redacted]", also for the empty secret.
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

// field is one key of a struct.
type field struct {
	name  string
	index []int
	typ   reflect.Type
	tag   reflect.StructTag
}

type fields []field

// fieldsOf lists the keys of a struct type in its order.
func fieldsOf(t reflect.Type) fields {
	var out fields
	for i := range t.NumField() {
		f := t.Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" || (!f.IsExported() && !f.Anonymous) {
			continue
		}
		if (option == "inline" || (f.Anonymous && name == "")) && f.Type.Kind() == reflect.Struct {
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				out = append(out, inner)
			}
			continue
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		out = append(out, field{name: name, index: []int{i}, typ: f.Type, tag: f.Tag})
	}
	return out
}

func (fs fields) find(name string) (field, bool) {
	for _, f := range fs {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

func (fs fields) names() []string {
	names := make([]string, len(fs))
	for i, f := range fs {
		names[i] = f.name
	}
	return names
}
