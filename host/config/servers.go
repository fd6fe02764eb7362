package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/redact"
	"a2e/protocol"
)

// UserServersFile has the user's own MCP servers, in the user's config folder of a2e.
const UserServersFile = "mcp.json"

// addServers adds the MCP servers of the workspace's .mcp.json, once that is trusted, and the user's own
// where no config is named. Those of the config win. What cannot be used of these files, which other
// clients write too, is left out with a warning.
func (c *Config) addServers(src Source) (warnings []Warning) {
	typ := string(protocol.CapMCP)
	i := slices.IndexFunc(c.Plugins, func(p Plugin) bool { return p.Type == typ && p.Enabled })
	if i < 0 {
		return nil
	}
	c.Servers = map[string]string{}
	for _, p := range c.Plugins {
		if p.Type == typ {
			c.note(p.Options.at("servers"))
			c.note(p.Options.at("mcpServers"))
		}
	}
	files := []*file{inFolder(src, c.Workspace, ServersFile)}
	if !c.Named {
		own, err := ofUser(src, UserServersFile)
		if err != nil {
			return []Warning{{File: filepath.Join(c.UserDir, UserServersFile), Message: err.Error()}}
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
			warnings = append(warnings, c.addFile(src, f, &c.Plugins[i].Options)...)
		}
	}
	return warnings
}

// note keeps where servers stand.
func (c *Config) note(servers *node) {
	if servers == nil {
		return
	}
	for _, m := range servers.members {
		c.Servers[m.key] = m.String()
	}
	for _, item := range servers.items {
		for _, key := range []string{"server_id", "id"} {
			if id := item.at(key); id != nil {
				c.Servers[id.text] = item.String()
			}
		}
	}
}

// addFile adds the servers of one file to the options of a plugin.
func (c *Config) addFile(src Source, f *file, o *Options) (warnings []Warning) {
	root, problems := parseJSON(f.name, f.data)
	all := root.place("mcpServers")
	if len(problems) == 0 && (root.kind != mapping || all.kind != mapping && !all.null() && all.line > 0) {
		problems = []Problem{problemAt(all, "it should be {\"mcpServers\": {\"ID\": {\"command\": \"…\"}}}")}
	}
	if len(problems) > 0 {
		problems[0].Message += "; no server of the file is used"
		return problems[:1]
	}
	if o.node == nil {
		own := &node{kind: mapping, position: root.position}
		*o = Options{path: "plugins." + string(protocol.CapMCP), node: own, getenv: src.Getenv, secrets: c.Secrets}
	}
	for _, m := range all.members {
		if _, taken := c.Servers[m.key]; taken || startsThis(m.value) {
			continue
		}
		if err := checkEntry(src, c.Secrets, m); err != nil {
			text := strings.ReplaceAll(err.Error(), "\n", "; ")
			warnings = append(warnings, problemAt(m, "the MCP server %s is left out: %s", named(m.key), text))
			continue
		}
		c.Servers[m.key] = m.String()
		*o = o.withServer(m)
	}
	return warnings
}

// startsThis reports whether a server is this program, which other clients start from the same file.
func startsThis(entry *node) bool {
	return strings.TrimSuffix(filepath.Base(entry.place("command").text), ".exe") == "a2e"
}

// checkEntry tells what is wrong with an entry, such as a variable that is not set.
func checkEntry(src Source, secrets *redact.Set, m member) error {
	d := decoder{getenv: src.Getenv, secrets: secrets}
	entry := d.any(m.value, shortKey(m.key))
	switch {
	case len(d.problems) > 0:
		return errors.New(d.problems[0].Message)
	case src.Server == nil:
		return nil
	}
	return src.Server(m.key, entry)
}

// withServer returns options with one more server, in the form that those have which are there.
func (o Options) withServer(m member) Options {
	key := "mcpServers"
	there := o.at(key)
	if there == nil || there.null() {
		there = &node{kind: mapping, position: m.position}
	}
	all := *there
	if all.kind == list {
		item := *m.value
		item.members = append(slices.Clone(item.members), textMember(m.position, "server_id", m.key))
		all.items = append(slices.Clone(all.items), &item)
	} else {
		all.members = append(slices.Clone(all.members), m)
	}
	return o.set(key, &all)
}

// ServerOptions returns options of the plugin for MCP servers with one server, whose entry is JSON.
func ServerOptions(id string, entry []byte, getenv func(string) string) (Options, error) {
	root, problems := parseJSON(ServersFile, entry)
	o := Options{path: string(protocol.CapMCP), node: &node{kind: mapping}, getenv: envOr(getenv)}
	return o.withServer(member{root.position, id, root}), problemsError(problems)
}

// jsonReader reads JSON with the places of its values.
type jsonReader struct {
	data []byte
	dec  *jsontext.Decoder
	at   position // of the byte counted
	seen int
}

// parseJSON is parse for JSON.
func parseJSON(file string, data []byte) (*node, []Problem) {
	empty := &node{position: position{file: file}}
	if len(data) > maxFileBytes {
		return empty, []Problem{problemAt(empty, "the file is larger than %d bytes", maxFileBytes)}
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	r := jsonReader{data: data, dec: jsontext.NewDecoder(bytes.NewReader(data)), at: position{file, 1, 1}}
	root, err := r.value(0)
	if err == nil {
		if _, err = r.dec.ReadToken(); err == nil {
			err = errors.New("there is more than one value")
		} else if err == io.EOF {
			return root, nil
		}
	}
	if wrong, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		r.count(int(wrong.ByteOffset))
		err = wrong.Err
	}
	empty.position = r.at
	return empty, []Problem{problemAt(empty, "not valid JSON: %v", err)}
}

// count moves the place on to a byte.
func (r *jsonReader) count(to int) {
	between := r.data[min(r.seen, to):min(to, len(r.data))]
	if i := bytes.LastIndexByte(between, '\n'); i >= 0 {
		r.at.line += bytes.Count(between, []byte("\n"))
		r.at.column, between = 1, between[i+1:]
	}
	r.at.column += bytes.Count(between, nil) - 1 // characters
	r.seen = to
}

// here returns where the next value begins.
func (r *jsonReader) here() position {
	at := int(r.dec.InputOffset())
	for at < len(r.data) && strings.IndexByte(" \t\r\n,:", r.data[at]) >= 0 {
		at++
	}
	r.count(at)
	return r.at
}

func (r *jsonReader) value(depth int) (*node, error) {
	opens := r.dec.PeekKind()
	n := &node{position: r.here()}
	token, err := r.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	n.text = token.String()
	switch opens {
	case '{', '[':
		n.text = ""
	case '"':
		n.tag = "!!str"
		return n, nil
	default:
		tags := map[jsontext.Kind]string{'t': "!!bool", 'f': "!!bool", 'n': "!!null", '0': "!!int"}
		if n.plain, n.tag = true, tags[opens]; opens == '0' && strings.ContainsAny(n.text, ".eE") {
			n.tag = "!!float"
		}
		return n, nil
	}
	if depth == maxDepth {
		return nil, fmt.Errorf("it is more than %d levels deep", maxDepth)
	}
	n.kind = list
	for next := r.dec.PeekKind(); next != ']' && next != '}'; next = r.dec.PeekKind() {
		m := member{position: r.here()}
		if opens == '{' {
			if token, err = r.dec.ReadToken(); err != nil {
				return nil, err
			}
			m.key = token.String()
		}
		if m.value, err = r.value(depth + 1); err != nil {
			return nil, err
		}
		if opens == '{' {
			n.members = append(n.members, m)
		} else {
			n.items = append(n.items, m.value)
		}
	}
	if opens == '{' {
		n.kind = mapping
	}
	_, err = r.dec.ReadToken()
	return n, err
}
