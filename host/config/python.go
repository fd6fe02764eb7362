package config

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"a2e/protocol"
)

// The keys, mostly of the Python host, that mean nothing here, each with what to do instead.
func ignoredTop() map[string]string {
	const export = "there are no snapshots; `a2e state export` and `import` save the state and restore it"
	return map[string]string{
		"transport": "", "server": "", "audit_log_path": "",
		"snapshot_store": export, "snapshot_mode": export,
	}
}

// ignoredAudit returns those of the section audit; older versions of this host had them too.
func ignoredAudit() map[string]string {
	return map[string]string{
		"rotate": "the log grows until another program, such as logrotate, moves it; the host then begins a new file",
	}
}

// elsewhere is said of the places of files and databases.
const elsewhere = "what this plugin keeps is in the store under state_dir"

// ignoredOptions returns those of a plugin type.
func ignoredOptions(typ string) map[string]string {
	all := map[string]string{
		"tool_modules": "no Python module is loaded; commands declares tools that are programs", "routing": "", "routing_strategy": "",
		"fallback_enabled": "", "observability": "", "audit_log": "", "session_id": "",
	}
	all["modules"] = all["tool_modules"]
	own := map[string]map[string]string{
		"skill":    {"ROOT": "skills_path names folders", "pool_size": ""},
		"memory":   {"ROOT": elsewhere, "db_path": elsewhere, "episodic_db_path": elsewhere, "semantic_db_path": elsewhere},
		"planning": {"ROOT": elsewhere},
		"env":      {"ROOT": "", "store": elsewhere},
		"learning": {"ROOT": elsewhere, "store_root": elsewhere, "adapt_every": "", "min_experiences": "", "confidence_threshold": "", "scope": ""},
		"mcp":      {"ROOT": "", "tool_registry": "", "send_fn": "", "sampling_fn": "the agent is asked", "roots": "the agent is asked"},
	}
	for name, instead := range own[typ] {
		all[name] = instead
	}
	return all
}

// optionAliases maps the option names of the Python host to ours.
func optionAliases(typ string) map[string]string {
	all := map[string]string{
		"ALLOWED_COMMANDS": "allowed_commands", "DEFAULT_TIMEOUT": "timeout", "MAX_OUTPUT_BYTES": "max_output_bytes",
		"MAX_PROCS": "max_procs", "DISABLE_NETWORK": "network_disabled",
	}
	switch typ {
	case "skill":
		all["root"] = "skills_path"
	case string(protocol.CapMultiAgent):
		all["max_subagents_per_session"] = "max_subagents"
	}
	return all
}

// canonical returns the type that a text names, which may be an alias.
func canonical(typ string) string {
	if capability, is := protocol.CapabilityAliases()[typ]; is {
		return string(capability)
	}
	return typ
}

// python gathers what a file has of the Python host, and warns of each key once, where it
// stands first.
type python struct {
	order     []*ignored
	classes   []string // of cls
	class     member   // the first of them
	warnings  []Warning
	d         *decoder
	workspace string // where tools work, as the file has it
}

// ignored is a key without effect.
type ignored struct {
	first   member
	instead string // what to do; may be ""
	count   int
}

func (g *python) strip(n *node, names map[string]string) {
	if n == nil {
		return
	}
	n.Members = slices.DeleteFunc(n.Members, func(m member) bool {
		instead, is := names[m.Key]
		if is {
			g.note(m, instead)
		}
		return is
	})
}

func (g *python) note(m member, instead string) {
	for _, known := range g.order {
		if known.first.Key == m.Key && known.instead == instead {
			known.count++
			return
		}
	}
	g.order = append(g.order, &ignored{m, instead, 1})
}

func (g *python) warn(at placed, format string, args ...any) {
	g.warnings = append(g.warnings, problemAt(at, format, args...))
}

// all returns the warnings in the order of the file.
func (g *python) all() []Warning {
	for _, i := range g.order {
		places, instead := "", ""
		if i.count > 1 {
			places = fmt.Sprintf(" (%d places)", i.count)
		}
		if i.instead != "" {
			instead = ": " + i.instead
		}
		g.warn(i.first, "%s has no meaning for this host and is ignored%s%s", i.first.Key, places, instead)
	}
	if g.classes != nil {
		g.warn(g.class, "cls is ignored, as this host loads no Python class: its own plugins of the same types answer "+
			"instead of %s; to keep a class, run its host as a plugin of type exec", some(g.classes))
	}
	slices.SortStableFunc(g.warnings, func(a, b Warning) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return g.warnings
}

// top reads the keys of the whole file as this host has them. What restricts and is not obeyed is an error.
func (g *python) top(root *node) {
	if token := root.At("server").At("auth_token"); token != nil && !token.Null() && root.At("auth_token") == nil {
		g.d.fail(token, "server.auth_token protects nothing here; write auth_token at the top of the file")
	}
	g.workspace = cmp.Or(place(root, "workspace").Text, ".")
	g.limits(root)
	g.strip(root, ignoredTop())
	g.strip(root.At("audit"), ignoredAudit())
}

// limits takes global_limits over.
func (g *python) limits(root *node) {
	const key = "global_limits"
	all := root.At(key)
	if all == nil {
		return
	}
	for _, m := range all.Members {
		if m.Key != "max_workers" {
			g.d.fail(m, "%s.%s bounds nothing here; see limits and max_parallel", key, shortKey(m.Key))
		} else if root.At("max_parallel") == nil {
			root.Members = append(root.Members, member{Place: m.Place, Key: "max_parallel", Value: m.Value})
		}
	}
	root.Members = slices.DeleteFunc(root.Members, func(m member) bool { return m.Key == key })
}

// rename returns a member another key where that is free.
func (g *python) rename(n *node, from, to string) {
	if n == nil || n.At(to) != nil {
		return
	}
	for i := range n.Members {
		if n.Members[i].Key == from {
			n.Members[i].Key = to
		}
	}
}

// entry reads an entry of the list of plugins as this host has it. Only those with a cls
// are for the Python host.
func (g *python) entry(n *node, path string) {
	i := slices.IndexFunc(n.Members, func(m member) bool { return m.Key == "cls" })
	if i < 0 {
		return
	}
	cls := n.Members[i]
	n.Members = slices.Delete(n.Members, i, i+1)
	if g.classes == nil {
		g.class = cls
	}
	shown := cls.Value.Text
	odd := func(part string) bool { return !isName(part) }
	if cls.Value.Kind != scalar || slices.ContainsFunc(strings.Split(shown, "."), odd) {
		shown = "a class"
	}
	g.classes = append(g.classes, shown)
	if config := n.At("config"); config != nil && n.At("metadata") == nil {
		g.rename(n, "config", "metadata")
		g.warn(config, "%s.config is read as metadata", path)
	}
	if n.At("type") != nil {
		return
	}
	if typ := g.inferred(n.At("name"), cls.Value); typ != "" {
		n.Members = append(n.Members, textMember(cls.Place, "type", typ))
		g.warn(n, "%s has no type; by its name or cls it is taken for one of type %s", path, typ)
	}
}

// inferred returns the type that the name of a plugin is, or a part of its class; "" = none.
func (g *python) inferred(name, cls *node) string {
	var words []string
	if name != nil {
		words = append(words, name.Text)
	}
	for _, word := range append(words, strings.Split(cls.Text, ".")...) {
		if typ := canonical(word); slices.Contains(g.d.types, typ) {
			return typ
		}
	}
	return ""
}

// options reads the options of a plugin as this host has them.
func (g *python) options(meta *node, typ, path string) {
	if meta == nil {
		return
	}
	if root := meta.At("ROOT"); root != nil && typ == string(protocol.CapTools) {
		if filepath.Clean(root.Text) != filepath.Clean(g.workspace) {
			g.d.fail(root, "%s.ROOT bounds nothing here, as tools work in the workspace; write that folder as "+
				"workspace at the top of the file", path)
		}
		meta.Members = slices.DeleteFunc(meta.Members, func(m member) bool { return m.Key == "ROOT" })
	}
	g.strip(meta, ignoredOptions(typ))
	if servers := meta.At("servers"); typ == string(protocol.CapMCP) && servers != nil && servers.Kind == list {
		g.servers(servers, path+".servers")
	}
}

// servers reads a list of MCP servers. Those of transport direct are objects within the
// Python host.
func (g *python) servers(n *node, path string) {
	var kept []*node
	for i, item := range n.Items {
		if t := item.At("transport"); t != nil && t.Text == "direct" {
			g.warn(item, "%s[%d] is a part of the Python host (transport: direct); it is left out", path, i)
			continue
		}
		if meta := item.At("metadata"); meta != nil && meta.Kind == mapping {
			item.Members = slices.DeleteFunc(item.Members, func(m member) bool { return m.Key == "metadata" })
			g.rename(meta, "base_url", "url")
			item.Members = append(item.Members, meta.Members...)
			g.warn(meta, "%s[%d].metadata is read as options of the server itself", path, i)
		}
		if item.At("id") == nil {
			g.nameServer(item)
		}
		kept = append(kept, item)
	}
	n.Items = kept
}

// nameServer gives a server without an id that of its name.
func (g *python) nameServer(item *node) {
	if name := item.At("name"); name != nil && item.At("server_id") == nil {
		item.Members = append(item.Members, member{Place: name.Place, Key: "server_id", Value: name})
	}
}
