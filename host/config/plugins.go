package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"a2e/host/guard/redact"
	"a2e/host/schema"
	"a2e/protocol"
)

// knownTypes returns the plugin types of a build and those of the protocol's capabilities: a plugin of
// such a type may be meant for another build.
func knownTypes(available []string) []string {
	known := slices.Clone(available)
	for _, c := range protocol.PluginCapabilities() {
		if !slices.Contains(known, string(c)) {
			known = append(known, string(c))
		}
	}
	return known
}

// typeExec is the type of a plugin that is a separate program in any language.
const typeExec = "exec"

// found is a plugin with the positions of its name and its type.
type found struct {
	Plugin
	at, typ placed
}

// plugins decodes the value of `plugins`: a list contains exactly the plugins that are on, a mapping
// changes the defaults. Plugins of a type that this build lacks are skipped with a warning. off are
// the types that a list does not contain.
func (d *decoder) plugins(n *node, available []string) (all []Plugin, off []string) {
	if n.Kind == scalar {
		d.wrong(n, "plugins", "a mapping such as {proc: {max_procs: 3}, env: false}, or a list of {name: …, type: …}")
		return nil, nil
	}
	all = make([]Plugin, 0, len(available))
	mentioned := map[string]bool{} // types
	lines := map[string]int{}
	add := func(p found, ok bool) {
		mentioned[p.Type] = true
		first, twice := lines[p.Name]
		switch {
		case !ok:
			return
		case twice:
			d.fail(p.at, "the plugin name %s appears twice, first in line %d: names must be unique",
				named(p.Name), first)
		case slices.Contains(available, p.Type):
			all = append(all, p.Plugin)
		case p.Enabled:
			d.warn(p.typ, "no such plugin in this build: %s; it is left out", p.Type)
		}
		if !twice {
			lines[p.Name] = p.at.Where().Line
		}
	}
	for i, item := range n.Items {
		add(d.listed(item, fmt.Sprintf("plugins[%d]", i)))
	}
	for _, m := range n.Members {
		add(d.mapped(m, "plugins."+shortKey(m.Key)))
	}
	defaults := slices.DeleteFunc(defaultPlugins(available), func(p Plugin) bool { return mentioned[p.Type] })
	if n.Kind == list {
		for _, p := range defaults {
			off = append(off, p.Type)
		}
		return all, off
	}
	all = append(all, defaults...) // in their order without a config
	slices.SortStableFunc(all, func(a, b Plugin) int {
		return slices.Index(available, a.Type) - slices.Index(available,
			b.Type)
	})
	return all, nil
}

// control is the part of a plugin's metadata that the host itself uses.
type control struct {
	Enabled   bool `yaml:"enabled" doc:"Whether the plugin is loaded."`
	Priority  int  `yaml:"priority" min:"-1000000" max:"1000000" doc:"Higher is asked first."`
	Exclusive bool `yaml:"exclusive" doc:"Whether it answers its message types alone."`
}

// listed decodes one entry of a list of plugins.
func (d *decoder) listed(item *node, path string) (p found, ok bool) {
	if item.Kind != mapping {
		d.wrong(item, path, "a mapping, such as {name: tools, type: tools}")
		return p, false
	}
	before := len(d.problems)
	own := takeOwn(item.At("metadata"))
	d.value(item, reflect.ValueOf(&p.Plugin).Elem(), path, "")
	d.control(&p.Plugin, own, path+".metadata")
	if len(d.problems) > before {
		return p, false
	}
	p.at, p.typ = item.At("name"), item.At("type")
	p.Type, ok = d.typed(p.typ, p.Type, path+".type")
	return p, ok
}

// mapped decodes one entry of a mapping of plugins. The key is a type, or the name of a plugin whose
// options contain its type.
func (d *decoder) mapped(m member, path string) (p found, ok bool) {
	name := canonical(m.Key)
	p = found{Plugin: Plugin{Name: name, Type: name, Enabled: true}, at: m, typ: m}
	before := len(d.problems)
	switch v := m.Value; {
	case name == "":
		d.fail(m, "plugins: a name must not be empty")
	case v.Kind == mapping:
		return d.optioned(p, v, path)
	case v.Null():
	case v.Kind == scalar && !slices.Contains(d.types, name): // for example an option that is not indented
	default:
		const want = "a mapping of options, or true or false"
		text, is := d.text(v, path, want, "")
		if p.Enabled, ok = booleans(text); is && !ok {
			d.wrong(v, path, want)
		}
	}
	if len(d.problems) > before {
		return p, false
	}
	p.Type, ok = d.typed(m, p.Type, path)
	return p, ok
}

// optioned decodes an entry of the mapping whose value is a mapping of options, which may contain the
// type.
func (d *decoder) optioned(p found, options *node, path string) (_ found, ok bool) {
	before := len(d.problems)
	text, typePath := p.Type, path
	if typ := take(options, "type"); typ.Value != nil {
		p.typ, typePath = typ.Value, path+".type"
		if text, ok = d.text(typ.Value, typePath, wantText, ""); !ok {
			return p, false
		}
	}
	if p.Type, ok = d.typed(p.typ, text, typePath); !ok {
		return p, false
	}
	switch {
	case slices.Contains(d.types, p.Name) && p.Name != p.Type:
		d.fail(p.typ, "%s: %s is a type itself; a plugin of type %s needs another name", typePath, p.Name, p.Type)
		return p, false
	case options.At("metadata") != nil:
		d.fail(p.at, "%s.metadata: in a mapping of plugins the options go directly under the name", path)
		return p, false
	}
	own := takeOwn(options)
	p.Options = d.options(options, path)
	d.control(&p.Plugin, own, path)
	return p, len(d.problems) == before
}

// takeOwn removes the host's own keys from the options of a plugin and returns them.
func takeOwn(options *node) *node {
	own := &node{Kind: mapping}
	for _, f := range fieldsOf(reflect.TypeFor[control]()) {
		if m := take(options, f.name); m.Value != nil {
			own.Members = append(own.Members, m)
		}
	}
	return own
}

func (d *decoder) control(p *Plugin, own *node, path string) {
	c := control{Enabled: true}
	d.value(own, reflect.ValueOf(&c).Elem(), path, "")
	p.Enabled, p.Priority, p.Exclusive = c.Enabled, c.Priority, c.Exclusive
}

// typed returns the plugin type for a text, or adds a problem.
func (d *decoder) typed(at placed, text, path string) (string, bool) {
	typ, known := canonical(text), d.types
	if slices.Contains(known, typ) {
		return typ, true
	}
	hint := "known are " + strings.Join(known, ", ")
	if near := schema.DidYouMean(text, known); near != "" && isName(text) {
		hint = near + " " + hint
	}
	if strings.HasPrefix(path, "plugins.") && !strings.HasSuffix(path, ".type") {
		hint += "; options are indented below their plugin, and a plugin of another name gives its type among its " +
			"options"
	}
	d.fail(at, "%s: unknown plugin type %s: %s", path, named(text), hint)
	return typ, false
}

// Options is the part of a plugin's `metadata` that belongs to the plugin. The zero value has no
// options.
type Options struct {
	path    string
	node    *node
	getenv  func(string) string
	secrets *redact.Set
}

// ParseOptions reads options from YAML text, as Load does from a file. file is the name for messages;
// a nil getenv is an empty environment.
func ParseOptions(file string, text []byte, getenv func(string) string) (Options, error) {
	root, problems := parse(file, text)
	if len(problems) > 0 {
		return Options{}, problemsError(problems)
	}
	d := decoder{getenv: envOr(getenv)}
	d.is(root, mapping, "metadata")
	return d.options(root, "metadata"), problemsError(d.problems)
}

// Decode fills dst, a pointer to a struct with yaml tags (see the package comment), with the options.
// If the file does not contain a key, or gives it no value, the field stays as it is, so set the
// defaults before. The error is an *Error with every problem: unknown options, wrong types, values out
// of range, missing variables. dst is then partly filled.
//
// Fields may be strings, booleans, numbers, time.Duration (seconds, or a text
// such as 1m30s), Secret, any, structs, pointers, slices, and maps with string
// keys.
func (o Options) Decode(dst any) error {
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return errors.New("config: Decode needs a pointer to a struct")
	}
	if o.node == nil {
		return nil
	}
	d := decoder{getenv: o.getenv, secrets: o.secrets}
	d.value(o.node, v.Elem(), o.path, "")
	return problemsError(d.problems)
}

// At adds to an error the option that it is about: the path of keys to the option, with the indexes of
// list items. See Options.Locate.
func At(err error, keys ...string) error {
	if err == nil {
		return nil
	}
	return &optionError{keys, err}
}

type optionError struct {
	keys []string
	err  error
}

func (e *optionError) Error() string { return strings.Join(e.keys, ".") + ": " + e.err.Error() }
func (e *optionError) Unwrap() error { return e.err }

// Locate converts an error from making a plugin to an *Error: one problem at the position of each option
// that was named with At, or one problem at the position of the plugin.
func (o Options) Locate(err error) error {
	if _, placed := errors.AsType[*Error](err); err == nil || placed || o.node == nil {
		return err
	}
	return problemsError(o.place(err, "", o.node))
}

// place returns the problems of an error about n or values below n; path is the path of n.
func (o Options) place(err error, path string, n *node) (all []Problem) {
	if at, ok := err.(*optionError); ok {
		for _, key := range at.keys {
			if n.Kind == list {
				path += "[" + key + "]"
			} else {
				path = joined(path, shortKey(key))
			}
			n = below(n, key)
		}
		return o.place(at.err, path, n)
	}
	if _, inside := errors.AsType[*optionError](err); inside {
		switch w := err.(type) {
		case interface{ Unwrap() []error }:
			for _, one := range w.Unwrap() {
				all = append(all, o.place(one, path, n)...)
			}
			return all
		case interface{ Unwrap() error }:
			return o.place(w.Unwrap(), path, n)
		}
	}
	text := err.Error()
	if _, rest, is := strings.Cut(text, `": `); is && strings.HasPrefix(text, `plugin "`) {
		text = rest
	}
	for key, rest, is := strings.Cut(text, ": "); is && n.At(key) != nil; key, rest, is = strings.Cut(rest, ": ") {
		n = n.At(key) // a message begins with the option that it is about
	}
	p := problemAt(n, "%s", err.Error())
	if path != "" {
		if !strings.HasPrefix(path, "mcpServers") { // it may be at the top of the file
			path = joined(o.path, path)
		}
		p.Message = path + ": " + p.Message
	}
	return []Problem{p}
}

// below returns the value of a key or an index, or n itself if there is none.
func below(n *node, key string) *node {
	if i, err := strconv.Atoi(key); err == nil && n.Kind == list && i >= 0 && i < len(n.Items) {
		return n.Items[i]
	}
	if v := n.At(key); v != nil {
		return v
	}
	return n
}

// Where returns FILE:LINE:COLUMN of an option such as workspace.deny or deny[2], or of its nearest
// parent if it is missing. It returns "" if the options are from no file.
func (o Options) Where(key string) string {
	if o.node == nil {
		return ""
	}
	n := o.node
	for _, part := range strings.FieldsFunc(key, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		n = below(n, part)
	}
	return n.String()
}

// Keep returns the options with only those items of a list for which keep returns true.
func (o Options) Keep(name string, keep func(i int) bool) Options {
	given := o.node.At(name)
	if given == nil {
		return o
	}
	n := *given
	n.Items = nil
	for i, item := range given.Items {
		if keep(i) {
			n.Items = append(n.Items, item)
		}
	}
	return o.set(name, &n)
}

// set returns the options with one option changed.
func (o Options) set(name string, value *node) Options {
	n := &node{Kind: mapping}
	if o.node != nil {
		*n = *o.node
		n.Members = slices.Clone(n.Members)
	}
	n.Set(name, value)
	o.node = n
	return o
}

func envOr(getenv func(string) string) func(string) string {
	if getenv == nil {
		return func(string) string { return "" }
	}
	return getenv
}
