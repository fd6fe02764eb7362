package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Tightening describes the options of a plugin type, for files that nobody has trusted.
type Tightening struct {
	Defaults any             // the option struct of a config that sets none
	Rules    map[string]Rule // by option; what has none never counts
}

// LeftOut is one key that a file sets beyond what an untrusted one may.
type LeftOut struct {
	Path     string    // such as plugins[0]; what does not look like a key is hidden
	Settings []Setting // all that stands there
}

// Setting is one value of a file.
type Setting struct {
	Path  string // such as plugins[0].metadata.command, as it stands in the file
	Value string // in one line, variables not put in
}

// tightener puts what only tightens of an untrusted file into the config that holds
// without it. Everything else is left out.
type tightener struct {
	base  *Config
	types map[string]Tightening
	taken []string // paths of what counts
	left  []LeftOut
}

func (t *tightener) drop(path string, n *node) {
	t.left = append(t.left, LeftOut{path, n.settings(path, nil)})
}

// file goes through the keys of the whole file.
func (t *tightener) file(root *node) {
	if root.kind != mapping {
		t.drop(top, root)
		return
	}
	for _, m := range root.members {
		if m.key != "plugins" {
			continue
		}
		if !m.value.null() {
			t.plugins(m.value)
		}
	}
	t.object(root, reflect.ValueOf(t.base).Elem(), "", topRules())
}

// object goes through the keys of a struct of the config.
func (t *tightener) object(n *node, v reflect.Value, path string, rules map[string]Rule) {
	known := fieldsOf(v.Type())
	for _, m := range n.members {
		at := joined(path, shortKey(m.key))
		f, ok := known.find(m.key)
		_, ignored := ignoredTop()[m.key]
		switch {
		case m.value.null() && ok && m.key != "audit", path == "" && (m.key == "plugins" || ignored):
		case !ok:
			t.drop(at, m.value)
		case f.typ.Kind() == reflect.Struct && f.typ != secretType && m.value.kind == mapping && m.key != "audit" && m.key != "snapshot_store":
			t.object(m.value, v.FieldByIndex(f.index), at, rules)
		default:
			if value, changed := t.value(m.value, v.FieldByIndex(f.index), at, f.tag, rules[at]); changed {
				v.FieldByIndex(f.index).Set(value)
			}
		}
	}
}

// value returns what comes of one key, and whether that differs from what holds.
func (t *tightener) value(n *node, held reflect.Value, path string, tag reflect.StructTag, rule Rule) (reflect.Value, bool) {
	given := reflect.New(held.Type()).Elem()
	d := decoder{} // without variables
	if d.value(n, given, path, tag); len(d.problems) > 0 || n.hasVariable() {
		t.drop(path, n)
		return held, false
	}
	if reflect.DeepEqual(held.Interface(), given.Interface()) {
		return held, false // neither tighter nor wider
	}
	if rule.take == nil {
		t.drop(path, n)
		return held, false
	}
	taken, all := rule.take(t.base, held, given)
	if !all {
		t.drop(path, n)
	}
	if !all && (!rule.inPart || reflect.DeepEqual(held.Interface(), taken.Interface())) {
		return held, false
	}
	t.taken = append(t.taken, path)
	return taken, true
}

// with returns options of which one has another value: a boolean, a number, a text or a list of texts.
func (o Options) with(name string, v reflect.Value) Options {
	n := &node{kind: mapping}
	if o.node != nil {
		n.line, n.column = o.node.line, o.node.column
		n.members = slices.DeleteFunc(slices.Clone(o.node.members), func(m member) bool { return m.key == name })
	}
	n.members = append(n.members, member{key: name, value: literal(v)})
	o.node = n
	return o
}

// literal returns the node of a value.
func literal(v reflect.Value) *node {
	n := &node{kind: scalar, plain: true}
	switch {
	case v.Kind() == reflect.Slice:
		n.kind, n.plain = list, false
		for i := range v.Len() {
			n.items = append(n.items, literal(v.Index(i)))
		}
	case v.Kind() == reflect.Bool:
		n.text, n.tag = strconv.FormatBool(v.Bool()), "!!bool"
	case v.CanInt():
		n.text, n.tag = strconv.FormatInt(v.Int(), 10), "!!int"
	case v.CanFloat():
		n.text, n.tag = strconv.FormatFloat(v.Float(), 'g', -1, 64), "!!float"
	default:
		n.text, n.tag, n.plain = strings.ReplaceAll(v.String(), "${", "$${"), "!!str", false
	}
	return n
}

// hasVariable reports whether a text in n would be expanded in a trusted file.
func (n *node) hasVariable() bool {
	return strings.Contains(n.text, "${") || slices.ContainsFunc(n.items, (*node).hasVariable) ||
		slices.ContainsFunc(n.members, func(m member) bool { return m.value.hasVariable() })
}

// settings adds the values in n to all: mappings and lists of them one by one, another list
// as a whole.
func (n *node) settings(path string, all []Setting) []Setting {
	deep := slices.ContainsFunc(n.items, func(item *node) bool { return item.kind != scalar })
	switch {
	case n.kind == mapping && len(n.members) > 0:
		for _, m := range n.members {
			all = m.value.settings(joined(path, m.key), all)
		}
		return all
	case deep:
		for i, item := range n.items {
			all = item.settings(fmt.Sprintf("%s[%d]", path, i), all)
		}
		return all
	}
	return append(all, Setting{path, n.shown()})
}

// shown returns a text, a list of texts or what is empty as YAML has it in brackets.
func (n *node) shown() string {
	var parts []string
	switch {
	case n.kind == mapping:
		return "{}"
	case n.kind == list:
		for _, item := range n.items {
			parts = append(parts, item.shown())
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case n.text == "" || strings.ContainsAny(n.text, ",[]{}\"'\n") || strings.TrimSpace(n.text) != n.text:
		return strconv.Quote(n.text)
	}
	return n.text
}
