package config

import (
	"bytes"
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/guard/redact"
	"a2e/protocol"
)

// UserServersFile is the file with the user's own MCP servers, in the user's config folder of a2e.
const UserServersFile = "mcp.json"

// addServers adds the MCP servers of the workspace's .mcp.json if it is trusted and, if no config is
// named, the user's own servers. Servers of the config take precedence. Other clients also write these
// files, so unusable entries are skipped with a warning.
func (c *Config) addServers(src Source) (warnings []Warning) {
	to := c.mcp()
	if to == nil {
		return nil
	}
	c.Servers = map[string]string{}
	for _, p := range c.Plugins {
		if p.Type == to.Type {
			c.note(p.Options.node.At("servers"))
			c.note(p.Options.node.At("mcpServers"))
		}
	}
	files := []*file{inFolder(src, c.Workspace, ServersFile)}
	if !c.Named {
		own, err := ofUser(src, UserServersFile)
		if err != nil {
			return []Warning{problemAt(position{File: filepath.Join(c.UserDir, UserServersFile)}, "%v", err)}
		}
		files = append(files, own)
	}
	for _, f := range files {
		switch {
		case f.name == "":
		case !f.trusted():
			c.Untrusted = append(c.Untrusted, f.path)
			warnings = append(warnings, f.unused()...)
		default:
			warnings = append(warnings, c.addFile(src, f, &to.Options)...)
		}
	}
	return warnings
}

// mcp returns the plugin for MCP servers, or nil if it is off.
func (c *Config) mcp() *Plugin {
	i := slices.IndexFunc(c.Plugins, func(p Plugin) bool { return p.Type == string(protocol.CapMCP) && p.Enabled })
	if i < 0 {
		return nil
	}
	return &c.Plugins[i]
}

// note records the places of servers.
func (c *Config) note(servers *node) {
	if servers == nil {
		return
	}
	for _, m := range servers.Members {
		c.Servers[m.Key] = m.String()
	}
	for _, item := range servers.Items {
		for _, key := range []string{"server_id", "id"} {
			if id := item.At(key); id != nil {
				c.Servers[id.Text] = item.String()
			}
		}
	}
}

// addFile adds the servers of one file to the options o of the plugin.
func (c *Config) addFile(src Source, f *file, o *Options) (warnings []Warning) {
	root, problems := parseJSON(f.name, f.data)
	all := place(root, "mcpServers")
	if len(problems) == 0 && (root.Kind != mapping || all.Kind != mapping && !all.Null() && all.Line > 0) {
		problems = []Problem{problemAt(all, "it should be {\"mcpServers\": {\"ID\": {\"command\": \"…\"}}}")}
	}
	if len(problems) > 0 {
		problems[0].Message += "; no server of the file is used"
		return problems[:1]
	}
	if o.node == nil {
		own := &node{Kind: mapping, Position: root.Position}
		*o = Options{path: "plugins." + string(protocol.CapMCP), node: own, getenv: src.Getenv, secrets: c.Secrets}
	}
	for _, m := range all.Members {
		if _, taken := c.Servers[m.Key]; taken || startsThis(m.Value) {
			continue
		}
		if err := checkEntry(src, c.Secrets, m); err != nil {
			text := strings.ReplaceAll(err.Error(), "\n", "; ")
			warnings = append(warnings, problemAt(m, "the MCP server %s is left out: %s", named(m.Key), text))
			continue
		}
		c.Servers[m.Key] = m.String()
		*o = o.withServer(m)
	}
	return warnings
}

// startsThis reports whether a server is this program, which other clients start through the same
// file.
func startsThis(entry *node) bool {
	return strings.TrimSuffix(filepath.Base(place(entry, "command").Text), ".exe") == "a2e"
}

// checkEntry returns an error for an invalid entry, for example if a variable is not set.
func checkEntry(src Source, secrets *redact.Set, m member) error {
	d := decoder{getenv: src.Getenv, secrets: secrets}
	entry := d.any(m.Value, shortKey(m.Key))
	switch {
	case len(d.problems) > 0:
		return errors.New(d.problems[0].Message)
	case src.Server == nil:
		return nil
	}
	return src.Server(m.Key, entry)
}

// withServer returns the options with one more server, in the form of the existing servers.
func (o Options) withServer(m member) Options {
	key := "mcpServers"
	there := o.node.At(key)
	if there == nil || there.Null() {
		there = &node{Kind: mapping, Position: m.Position}
	}
	all := *there
	if all.Kind == list {
		item := *m.Value
		item.Members = slices.Clone(item.Members)
		item.Set("server_id", &node{Position: m.Position, Tag: "!!str", Text: m.Key})
		all.Items = append(slices.Clone(all.Items), &item)
	} else {
		all.Members = append(slices.Clone(all.Members), m)
	}
	return o.set(key, &all)
}

// ServerOptions returns options of the plugin for MCP servers with a single server, whose entry is
// JSON.
func ServerOptions(id string, entry []byte, getenv func(string) string) (Options, error) {
	root, problems := parseJSON(ServersFile, entry)
	o := Options{path: string(protocol.CapMCP), node: &node{Kind: mapping}, getenv: envOr(getenv)}
	return o.withServer(member{Position: root.Position, Key: id, Value: root}), problemsError(problems)
}

// parseJSON is parse for JSON. YAML accepts JSON except for a few escapes.
func parseJSON(file string, data []byte) (*node, []Problem) {
	if len(data) > maxFileBytes {
		return parse(file, data)
	}
	v := jsontext.Value(bytes.TrimRight(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), " \t\r\n"))
	err := jsontext.NewDecoder(bytes.NewReader(v)).SkipValue()
	if err == nil && bytes.Contains(v, []byte(`\u`)) {
		v = slices.Clone(v) // a copy, in which the escapes are replaced
		err = v.Format(jsontext.WithIndent("  "))
	}
	if err == nil && v.IsValid() {
		return parse(file, v)
	}
	at := &node{Position: position{File: file, Line: 1, Column: 1}}
	if wrong, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		before := v[:min(int(wrong.ByteOffset), len(v))]
		at.Line += bytes.Count(before, []byte("\n"))
		at.Column += len(before) - 1 - bytes.LastIndexByte(before, '\n')
		err = wrong.Err
	}
	return at, []Problem{problemAt(at, "not valid JSON: %v", cmp.Or(err, errors.New("there is more than one value")))}
}
