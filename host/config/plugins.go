package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"a2e/protocol"
)

// Types lists the plugin types of a2e, whether or not a build has them.
func Types() []string {
	return []string{"tools", "toolkits", "skill", "env", "proc", "memory", "learning", "chains", "mcp", "multi_agent", "planning", typeExec}
}

// typeExec is the type of a plugin in another language.
const typeExec = "exec"

// optionAliases maps the upper-case option names of the Python host to ours.
func optionAliases() map[string]string {
	return map[string]string{
		"ALLOWED_COMMANDS": "allowed_commands", "DEFAULT_TIMEOUT": "timeout", "MAX_OUTPUT_BYTES": "max_output_bytes",
		"MAX_PROCS": "max_procs", "DISABLE_NETWORK": "network_disabled",
	}
}

// The keys of the Python host that mean nothing here.
func ignoredTop() []string {
	return []string{"transport", "server", "audit_log_path", "global_limits"}
}

func ignoredPlugin() []string { return []string{"cls"} }

func ignoredOptions() []string {
	return []string{"tool_modules", "modules", "routing", "routing_strategy", "fallback_enabled", "observability", "ROOT"}
}

func snapshotModes() []string { return []string{"host", "plugin", "hybrid"} }

// ignoring takes keys without effect out of mappings and warns of each name
// once, where it stands first.
type ignoring struct {
	file     string
	order    []string
	first    map[string]member
	count    map[string]int
	warnings []Warning
}

func (g *ignoring) strip(n *node, names []string) {
	if n == nil {
		return
	}
	n.members = slices.DeleteFunc(n.members, func(m member) bool {
		ignored := slices.Contains(names, m.key)
		if ignored {
			g.note(m)
		}
		return ignored
	})
}

func (g *ignoring) note(m member) {
	if g.first == nil {
		g.first, g.count = map[string]member{}, map[string]int{}
	}
	if g.count[m.key]++; g.count[m.key] == 1 {
		g.first[m.key] = m
		g.order = append(g.order, m.key)
	}
}

func (g *ignoring) warn(line, column int, format string, args ...any) {
	g.warnings = append(g.warnings, Warning{File: g.file, Line: line, Column: column, Message: fmt.Sprintf(format, args...)})
}

// all gives the warnings in the order of the file.
func (g *ignoring) all() []Warning {
	for _, key := range g.order {
		places := ""
		if n := g.count[key]; n > 1 {
			places = fmt.Sprintf(" (%d places)", n)
		}
		g.warn(g.first[key].line, g.first[key].column, "%s has no meaning for this host and is ignored%s", key, places)
	}
	slices.SortStableFunc(g.warnings, func(a, b Warning) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return g.warnings
}

// plugins decodes the list of plugins. Those of a type that this build lacks
// are left out with a warning.
func (d *decoder) plugins(n *node, available []string, g *ignoring) []Plugin {
	if n.kind != list {
		d.wrong(n, "plugins", "a list of {name: …, type: …}")
		return nil
	}
	out := make([]Plugin, 0, len(n.items))
	lines := map[string]int{}
	for i, item := range n.items {
		p, ok := d.plugin(item, fmt.Sprintf("plugins[%d]", i), g)
		if !ok {
			continue
		}
		name := item.at("name")
		if first, twice := lines[p.Name]; twice {
			d.fail(name, "the plugin name %s stands twice, first in line %d: names must differ", named(name.text), first)
			continue
		}
		lines[p.Name] = name.line
		if slices.Contains(available, p.Type) {
			out = append(out, p)
		} else if p.Enabled {
			t := item.at("type")
			g.warn(t.line, t.column, "no such plugin in this build: %s; it is left out", p.Type)
		}
	}
	return out
}

// control is what the host itself reads from a plugin's metadata.
type control struct {
	Enabled   bool `yaml:"enabled" doc:"Whether the plugin is loaded."`
	Priority  int  `yaml:"priority" min:"-1000000" max:"1000000" doc:"Higher is asked first."`
	Exclusive bool `yaml:"exclusive" doc:"Whether it answers its message types alone."`
}

func (d *decoder) plugin(n *node, path string, g *ignoring) (p Plugin, ok bool) {
	before := len(d.problems)
	g.strip(n, ignoredPlugin())
	meta := n.at("metadata")
	g.strip(meta, ignoredOptions())
	d.rename(meta, path)
	own := d.split(meta)

	d.value(n, reflect.ValueOf(&p).Elem(), path, "")
	c := control{Enabled: true}
	if own != nil {
		d.value(own, reflect.ValueOf(&c).Elem(), path+".metadata", "")
	}
	p.Enabled, p.Priority, p.Exclusive = c.Enabled, c.Priority, c.Exclusive
	if len(d.problems) > before {
		return p, false
	}
	if p.Name == "" {
		d.fail(n.at("name"), "%s.name must not be empty", path)
		return p, false
	}
	if capability, is := protocol.CapabilityAliases()[p.Type]; is {
		p.Type = string(capability)
	}
	if known := Types(); !slices.Contains(known, p.Type) {
		t := n.at("type")
		hint := "known are " + strings.Join(known, ", ")
		if near := nearest(t.text, known); near != "" && isName(t.text) {
			hint = fmt.Sprintf("did you mean %q? %s", near, hint)
		}
		d.fail(t, "%s.type: unknown plugin type %s: %s", path, named(t.text), hint)
		return p, false
	}
	return p, true
}

// rename puts our names in the place of upper-case ones.
func (d *decoder) rename(meta *node, path string) {
	if meta == nil {
		return
	}
	aliases := optionAliases()
	for i, m := range meta.members {
		name, is := aliases[m.key]
		if !is {
			continue
		}
		if meta.at(name) != nil {
			d.failAt(m.line, m.column, "%s.metadata has both %s and %s, which are the same option: keep one", path, m.key, name)
		}
		meta.members[i].key = name
	}
}

// split takes the host's own keys out of a plugin's metadata.
func (d *decoder) split(meta *node) *node {
	if meta == nil || meta.kind != mapping {
		return nil
	}
	own := &node{kind: mapping, line: meta.line, column: meta.column}
	names := fieldsOf(reflect.TypeFor[control]())
	meta.members = slices.DeleteFunc(meta.members, func(m member) bool {
		_, is := names.find(m.key)
		if is {
			own.members = append(own.members, m)
		}
		return is
	})
	return own
}
