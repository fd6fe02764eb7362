package config

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"a2e/protocol"
)

// ignored returns the keys, of the Python host and of earlier versions, that have no meaning here, with what to do
// instead. in is "" for the top of the file, the name of a section, "*" for the options of every
// plugin, or a plugin type.
func ignored(in string) map[string]string {
	const (
		export    = "there are no snapshots; `a2e state export` and `import` save the state and restore it"
		moved     = "the log grows until another program, such as logrotate, moves it; the host then begins a new file"
		modules   = "no Python module is loaded; commands declares tools that are programs"
		elsewhere = "what this plugin keeps is in the store under state_dir"
		asked     = "the agent is asked"
	)
	return map[string]map[string]string{
		"": {
			"transport": "", "server": "", "audit_log_path": "", "global_limits": "",
			"snapshot_store": export, "snapshot_mode": export,
		},
		"audit": {"rotate": moved},
		"*": {
			"tool_modules": modules, "modules": modules, "routing": "", "routing_strategy": "",
			"fallback_enabled": "", "observability": "", "audit_log": "", "session_id": "",
		},
		"tools": {"ROOT": ""},
		"skill": {"ROOT": "skills_path names folders", "pool_size": ""},
		"memory": {
			"ROOT": elsewhere, "db_path": elsewhere, "episodic_db_path": elsewhere,
			"semantic_db_path": elsewhere,
		},
		"planning": {"ROOT": elsewhere},
		"env":      {"ROOT": "", "store": elsewhere},
		"learning": {
			"ROOT": elsewhere, "store_root": elsewhere, "adapt_every": "", "min_experiences": "",
			"confidence_threshold": "", "scope": "", "half_life": "evidence counts the same however old it is",
		},
		"mcp": {"ROOT": "", "tool_registry": "", "send_fn": "", "sampling_fn": asked, "roots": asked},
	}[in]
}

// optionAliases maps option names of the Python host to the names of this host.
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

// canonical returns the plugin type for a text, which may be an alias.
func canonical(typ string) string {
	if capability, is := protocol.CapabilityAliases()[typ]; is {
		return string(capability)
	}
	return typ
}

// adapt converts the form of the Python host to the form of this host, before the file is decoded.
// Keys without a meaning here are removed with a warning; restrictions that would have no effect here
// are errors.
func (d *decoder) adapt() {
	root := d.root
	if token := root.At("server").At("auth_token"); token != nil && !token.Null() && root.At("auth_token") == nil {
		d.fail(token, "server.auth_token protects nothing here; write auth_token at the top of the file")
	}
	if all := root.At("global_limits"); all != nil {
		d.adaptLimits(all)
	}
	d.ignore(root, "")
	d.ignore(root.At("audit"), "audit")
	d.adaptPlugins(root.At("plugins"), cmp.Or(d.at("workspace").Text, "."))
}

// ignore removes the keys that have no meaning at n, with one warning for each key, at its first
// place.
func (d *decoder) ignore(n *node, in string) {
	if n == nil {
		return
	}
	names := ignored(in)
	n.Members = slices.DeleteFunc(n.Members, func(m member) bool {
		instead, is := names[m.Key]
		text := strings.TrimSuffix(m.Key+" has no meaning for this host and is ignored: "+instead, ": ")
		said := slices.ContainsFunc(d.warnings, func(w Warning) bool { return w.Message == text })
		if is && !said {
			d.warn(m, "%s", text)
		}
		return is
	})
}

// adaptLimits converts global_limits.max_workers to max_parallel.
func (d *decoder) adaptLimits(all *node) {
	for _, m := range all.Members {
		if m.Key != "max_workers" {
			d.fail(m, "global_limits.%s bounds nothing here; see limits and max_parallel", shortKey(m.Key))
		} else if d.root.At("max_parallel") == nil {
			d.root.Members = append(d.root.Members, member{Position: m.Position, Key: "max_parallel", Value: m.Value})
		}
	}
	take(d.root, "global_limits")
}

// adaptPlugins adapts both forms of plugins. Only list entries may have a cls, which is for the Python
// host.
func (d *decoder) adaptPlugins(plugins *node, workspace string) {
	if plugins == nil {
		return
	}
	for _, m := range plugins.Members {
		typ := canonical(cmp.Or(place(m.Value, "type").Text, m.Key))
		d.adaptOptions(m.Value, typ, "plugins."+shortKey(m.Key), workspace)
	}
	var classes []string
	var first member
	for i, item := range plugins.Items {
		path := fmt.Sprintf("plugins[%d]", i)
		if cls := take(item, "cls"); cls.Value != nil {
			d.adaptEntry(item, cls, path)
			classes = append(classes, shownClass(cls.Value))
			if len(classes) == 1 {
				first = cls
			}
		}
		d.adaptOptions(item.At("metadata"), canonical(place(item, "type").Text), path+".metadata", workspace)
	}
	if classes != nil {
		d.warn(first, "cls is ignored, as this host loads no Python class: its own plugins of the same types answer "+
			"instead of %s; to keep a class, run its host as a plugin of type exec", some(classes))
	}
}

// adaptEntry adapts an entry with a class: its options may be in config, and its type may be its name
// or a part of the class name.
func (d *decoder) adaptEntry(item *node, cls member, path string) {
	if config := item.At("config"); config != nil && item.At("metadata") == nil {
		rename(item, "config", "metadata")
		d.warn(config, "%s.config is read as metadata", path)
	}
	if item.At("type") != nil {
		return
	}
	words := append([]string{place(item, "name").Text}, strings.Split(cls.Value.Text, ".")...)
	for _, word := range words {
		if typ := canonical(word); slices.Contains(d.types, typ) {
			item.Set("type", &node{Position: cls.Position, Tag: "!!str", Text: typ})
			d.warn(item, "%s has no type; by its name or cls it is taken for one of type %s", path, typ)
			return
		}
	}
}

// shownClass returns the name of a class for messages, or "a class" if it does not look like a name.
func shownClass(cls *node) string {
	odd := func(part string) bool { return !isName(part) }
	if cls.Kind != scalar || slices.ContainsFunc(strings.Split(cls.Text, "."), odd) {
		return "a class"
	}
	return cls.Text
}

// adaptOptions adapts the options of a plugin.
func (d *decoder) adaptOptions(meta *node, typ, path, workspace string) {
	if meta == nil {
		return
	}
	root := meta.At("ROOT")
	if root != nil && typ == string(protocol.CapTools) {
		if filepath.Clean(root.Text) != filepath.Clean(workspace) {
			d.fail(root, "%s.ROOT bounds nothing here, as tools work in the workspace; write that folder as "+
				"workspace at the top of the file", path)
		}
		take(meta, "ROOT")
	}
	d.ignore(meta, "*")
	d.ignore(meta, typ)
	aliases := optionAliases(typ)
	for i, m := range meta.Members {
		name, is := aliases[m.Key]
		if !is {
			continue
		}
		if meta.At(name) != nil {
			d.fail(m, "%s has both %s and %s, which are the same option: keep one", path, m.Key, name)
		}
		meta.Members[i].Key = name
	}
	if servers := meta.At("servers"); typ == string(protocol.CapMCP) && servers != nil && servers.Kind == list {
		d.adaptServers(servers, path+".servers")
	}
}

// adaptServers adapts a list of MCP servers. Servers with transport direct are objects in the Python
// host.
func (d *decoder) adaptServers(n *node, path string) {
	var kept []*node
	for i, item := range n.Items {
		if place(item, "transport").Text == "direct" {
			d.warn(item, "%s[%d] is a part of the Python host (transport: direct); it is left out", path, i)
			continue
		}
		if meta := item.At("metadata"); meta != nil && meta.Kind == mapping {
			take(item, "metadata")
			rename(meta, "base_url", "url")
			item.Members = append(item.Members, meta.Members...)
			d.warn(meta, "%s[%d].metadata is read as options of the server itself", path, i)
		}
		if name := item.At("name"); name != nil && item.At("id") == nil && item.At("server_id") == nil {
			item.Set("server_id", name)
		}
		kept = append(kept, item)
	}
	n.Items = kept
}
