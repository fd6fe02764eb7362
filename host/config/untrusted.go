package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"a2e/host/sandbox"
	"a2e/host/wall"
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
func (o Options) with(name string, v reflect.Value) Options { return o.set(name, literal(v)) }

// set returns options with another value of one.
func (o Options) set(name string, value *node) Options {
	n := &node{kind: mapping}
	if o.node != nil {
		n.line, n.column = o.node.line, o.node.column
		n.members = slices.DeleteFunc(slices.Clone(o.node.members), func(m member) bool { return m.key == name })
	}
	n.members = append(n.members, member{key: name, value: value})
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

// plugins goes through what stands under plugins. Those of a type that a list does not name
// are switched off, unless the user has ranked plugins: then one may stand guard before others.
func (t *tightener) plugins(n *node) {
	if n.kind == scalar {
		t.drop("plugins", n)
		return
	}
	t.settle()
	ranked := slices.ContainsFunc(t.base.Plugins, func(p Plugin) bool { return p.Exclusive || p.Priority != 0 || p.Type == typeExec })
	on := make(map[string]bool) // by type
	if n.kind == mapping {
		for _, p := range t.base.Plugins {
			on[p.Type] = true
		}
		t.mapped(n, on, !ranked)
	} else {
		t.listed(n, on, !ranked)
	}
	others := func(p Plugin) bool { return !on[p.Type] }
	switch {
	case !slices.ContainsFunc(t.base.Plugins, others):
	case ranked:
		t.left = append(t.left, LeftOut{Path: "plugins"})
	default:
		for _, p := range t.base.Plugins {
			if others(p) && n.kind == list && p.Enabled {
				t.base.Off = append(t.base.Off, p.Type)
			}
		}
		t.base.Plugins = slices.DeleteFunc(t.base.Plugins, others)
		t.taken = append(t.taken, "plugins")
	}
}

// has reports whether there is a plugin of a type.
func (t *tightener) has(typ string) bool {
	return slices.ContainsFunc(t.base.Plugins, func(p Plugin) bool { return p.Type == typ })
}

// listed goes through a list, and notes the types that it leaves on.
func (t *tightener) listed(n *node, on map[string]bool, mayEnd bool) {
	for i, item := range n.items {
		path := fmt.Sprintf("plugins[%d]", i)
		kind := item.at("type")
		if item.kind != mapping || kind == nil || kind.kind != scalar {
			t.drop(path, item)
			continue
		}
		if typ := canonical(kind.text); on[typ] || !t.has(typ) {
			t.drop(path, item)
		} else {
			on[typ] = t.plugin(item, typ, path, mayEnd)
		}
	}
}

// mapped goes through a mapping, and notes the types that it switches off. The entry of a
// name makes no plugin: what it says holds for all that there are of its type.
func (t *tightener) mapped(n *node, on map[string]bool, mayEnd bool) {
	seen := make(map[string]bool)
	for _, m := range n.members {
		path, typ, options := "plugins."+shortKey(m.key), canonical(m.key), *m.value
		kind := options.at("type")
		if kind != nil {
			typ = canonical(kind.text)
		}
		yes, is := booleans(options.text)
		switch {
		case seen[typ] || !t.has(typ):
			t.drop(path, m.value)
		case options.kind == mapping:
			if kind != nil && kind.text != m.key {
				t.drop(path+".type", kind)
			}
			options.members = slices.DeleteFunc(slices.Clone(options.members), func(m member) bool { return m.key == "type" })
			on[typ] = t.metadata(&options, typ, path, mayEnd)
		case options.null(), is && options.plain && yes:
		case is && options.plain && mayEnd:
			on[typ] = false
			t.taken = append(t.taken, path)
		default:
			t.drop(path, m.value)
		}
		seen[typ] = true
	}
}

// plugin puts an entry into all plugins of its type; on is false where it switches them off.
func (t *tightener) plugin(item *node, typ, path string, mayEnd bool) (on bool) {
	on = true
	for _, m := range item.members {
		at := joined(path, shortKey(m.key))
		switch {
		case m.key == "type", m.value.null(), m.key == "cls":
		case m.key == "name" && slices.ContainsFunc(t.base.Plugins, func(p Plugin) bool { return p.Type == typ && p.Name == m.value.text }):
		case m.key == "metadata" && m.value.kind == mapping:
			on = t.metadata(m.value, typ, at, mayEnd)
		default:
			t.drop(at, m.value)
		}
	}
	return on
}

// metadata goes through the options of an entry.
func (t *tightener) metadata(n *node, typ, path string, mayEnd bool) (on bool) {
	on = true
	for _, m := range n.members {
		at := joined(path, shortKey(m.key))
		name := m.key
		if same, is := optionAliases(typ)[name]; is {
			name = same
		}
		yes, is := booleans(m.value.text)
		is = is && m.value.plain
		_, ignored := ignoredOptions(typ)[name]
		switch {
		case m.value.null(), ignored:
		case name == "enabled" && is && yes, name == "exclusive" && is && !yes, name == "priority" && m.value.text == "0":
		case name == "enabled" && is && mayEnd:
			on = false
			t.taken = append(t.taken, at)
		default:
			t.option(name, m.value, typ, at)
		}
	}
	return on
}

// option puts one option into all plugins of a type, or into none where it is not for all.
func (t *tightener) option(name string, n *node, typ, path string) {
	rule := t.types[typ].Rules[name]
	for i := range t.base.Plugins {
		p := &t.base.Plugins[i]
		if p.Type != typ {
			continue
		}
		held, tag, ok := t.held(p, name)
		if !ok {
			t.drop(path, n)
			return
		}
		if value, changed := t.value(n, held, path, tag, rule); changed {
			p.Options = p.Options.with(name, value)
		}
	}
}

// held returns what an option of a plugin is so far.
func (t *tightener) held(p *Plugin, name string) (v reflect.Value, tag reflect.StructTag, ok bool) {
	defaults := t.types[p.Type].Defaults
	if defaults == nil {
		return v, "", false
	}
	all := reflect.New(reflect.TypeOf(defaults))
	all.Elem().Set(reflect.ValueOf(defaults))
	f, known := fieldsOf(all.Elem().Type()).find(name)
	if !known || p.Options.Decode(all.Interface()) != nil {
		return v, "", false
	}
	return all.Elem().FieldByIndex(f.index), f.tag, true
}

// settle writes down what options are that depend on other plugins.
func (t *tightener) settle() {
	was := *t.base
	was.Plugins = slices.Clone(t.base.Plugins)
	for i := range t.base.Plugins {
		p := &t.base.Plugins[i]
		for _, name := range slices.Sorted(maps.Keys(t.types[p.Type].Rules)) {
			rule := t.types[p.Type].Rules[name]
			if rule.settle == nil {
				continue
			}
			held, _, ok := t.held(p, name)
			if !ok {
				continue
			}
			if value := rule.settle(&was, held); !reflect.DeepEqual(value.Interface(), held.Interface()) {
				p.Options = p.Options.with(name, value)
			}
		}
	}
}

// own is a folder of the host's own files, and where the file names it.
type own struct {
	dir    string // absolute, with the links in it
	file   bool   // the host's files lie right in it, among whatever else does
	what   string // as messages call it
	at     *node
	chosen bool // the config names it; else it is the usual place
}

// wallOff tells what of the host's own files agents are to be kept from, and refuses what
// nothing keeps them from.
func (d *decoder) wallOff(c *Config, root *node, src Source) {
	workspace, err := filepath.Abs(c.Workspace)
	if err != nil {
		return // the folder was refused
	}
	real := wall.Real(workspace)
	w := &wall.Wall{Open: []string{real}, Loose: src.Getenv(sandbox.EnvConfined) != ""}
	for _, o := range ownFolders(c, root, src) {
		if o.dir, err = filepath.Abs(o.dir); err != nil {
			continue
		}
		d.place(c, &o, src, workspace, real)
		// a folder that the host shares with others is hidden in the workspace alone
		if dir := wall.Real(o.dir); !w.Hides(dir) && (!o.file || wall.Within(real, dir)) {
			w.Hidden = append(w.Hidden, dir)
		}
	}
	if c.File != "" {
		if file, err := filepath.Abs(resolve(src.Dir, c.File)); err == nil {
			w.Fixed = []string{wall.Real(file)}
			w.Firm = c.Named && wall.Within(real, w.Fixed[0])
			if c.Named && wall.Within(workspace, filepath.Dir(file)) && throughLink(workspace, file) {
				d.fail(&node{}, "the config file is reached through a link that lies in the workspace, where agents could put another one; name the file itself")
			}
		}
	}
	c.Wall = w
}

// ownFolders lists where the host keeps its files.
func ownFolders(c *Config, root *node, src Source) []own {
	at := root.place
	chosen := root.at("state_dir") != nil || src.Getenv(EnvStateDir) != ""
	all := []own{{dir: c.StateDir, what: "state_dir", at: at("state_dir"), chosen: chosen}}
	if c.Audit.Enabled && filepath.Dir(c.Audit.Path) != c.StateDir {
		all = append(all, own{dir: filepath.Dir(c.Audit.Path), file: true, what: "the folder of audit.path", at: at("audit", "path"), chosen: true})
	}
	for _, key := range []string{"path", "root"} {
		path, ok := c.SnapshotStore.Config[key].(string)
		if !ok || path == "" {
			continue
		}
		o := own{dir: resolve(c.StateDir, path), what: "the place of snapshot_store", at: at("snapshot_store", "config", key), chosen: true}
		if o.file = c.SnapshotStore.Type == "sqlite"; o.file {
			o.dir = filepath.Dir(o.dir)
		}
		all = append(all, o)
	}
	if c.UserDir != "" {
		all = append(all, own{dir: c.UserDir, what: "the user's config folder", at: &node{}})
	}
	return all
}

// place refuses a folder of the host where agents would get at it. The usual places are
// not refused, as a home folder may be a workspace; `doctor` tells what that means.
func (d *decoder) place(c *Config, o *own, src Source, workspace, real string) {
	if !o.chosen {
		return
	}
	dir := wall.Real(o.dir)
	switch inside := wall.Within(real, dir) || wall.Within(workspace, o.dir); {
	case !inside:
	case dir == real:
		d.fail(o.at, "%s is the workspace itself, where agents could change what the host keeps; name a folder outside the workspace", o.what)
	case wall.Within(workspace, o.dir) && throughLink(workspace, o.dir):
		d.fail(o.at, "%s is reached through a link in the workspace, where agents could put another one; name the folder itself, best outside the workspace", o.what)
	case c.Sandbox == "off" && src.Getenv(sandbox.EnvConfined) == "":
		d.fail(o.at, "%s lies in the workspace, and with sandbox: off nothing keeps programs out of it; name a folder outside the workspace", o.what)
	}
}

// throughLink reports whether a path in a folder goes through a link below that.
func throughLink(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	if err != nil {
		return false
	}
	at := dir
	for name := range strings.SplitSeq(rel, string(filepath.Separator)) {
		at = filepath.Join(at, name)
		if info, err := os.Lstat(at); err == nil && info.Mode()&os.ModeSymlink != 0 {
			return true
		}
	}
	return false
}
