package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

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
