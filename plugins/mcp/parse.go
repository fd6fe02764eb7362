package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"a2e/protocol"
)

// ParseServers reads the servers of a file of another MCP client: `.mcp.json`,
// claude_desktop_config.json (mcpServers), VS Code's mcp.json (servers), or a bare
// mapping of ids. The error names each server and field that does not fit, never a value
// that may be secret. Variables stay as they are, in the spelling of this host's config.
func ParseServers(raw []byte) (map[string]ServerOptions, error) {
	raw = bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))
	obj, err := protocol.ParseObject(bytes.TrimSpace(raw))
	if err != nil {
		var known *protocol.Error
		if errors.As(err, &known) {
			return nil, fmt.Errorf("this is no JSON object: %s", known.Message)
		}
		return nil, err
	}
	part, err := serversPart(obj)
	if err != nil {
		return nil, err
	}
	all, err := readServers(renamed(part))
	if err != nil {
		return nil, err
	}
	out := make(map[string]ServerOptions, len(all))
	for _, o := range all {
		out[o.ID] = o
	}
	return out, nil
}

// serversPart finds the servers in a file.
func serversPart(obj protocol.Object) ([]byte, error) {
	for _, key := range []string{"mcpServers", "servers", "context_servers"} {
		if v, ok := obj.Get(key); ok {
			return v, nil
		}
	}
	if v, ok := obj.Get("mcp"); ok { // VS Code's settings.json
		if inner, err := protocol.ParseObject(v); err == nil {
			return serversPart(inner)
		}
	}
	bare := obj.Len() > 0
	for _, v := range obj.All() {
		one, err := protocol.ParseObject(v)
		_, command := one.Get("command")
		_, address := one.Get("url")
		bare = bare && err == nil && (command || address)
	}
	if !bare {
		return nil, errors.New("there are no servers in it; it should look like {\"mcpServers\":{\"ID\":{\"command\":\"…\",\"args\":[…]}}}")
	}
	return obj.Raw(), nil
}

// renamed spells the variables of other clients as this host does.
func renamed(raw []byte) []byte {
	raw = bytes.ReplaceAll(raw, []byte("${env:"), []byte("${"))
	return bytes.ReplaceAll(raw, []byte("${workspaceFolder}"), []byte("."))
}

// readServers reads a mapping of ids, or a list of entries with an id.
func readServers(raw []byte) ([]ServerOptions, error) {
	var all []ServerOptions
	var wrong []error
	take := func(id string, place string, v protocol.Value) {
		o, problems := readServer(id, v)
		if o.ID != "" {
			place = strconv.Quote(shortened(o.ID))
		}
		for _, p := range problems {
			wrong = append(wrong, fmt.Errorf("server %s: %s", place, strings.TrimPrefix(strings.TrimPrefix(p.Path, "/")+": "+p.Message, ": ")))
		}
		all = append(all, o)
	}
	switch protocol.Value(raw).Kind() {
	case '{':
		obj, err := protocol.ParseObject(raw)
		if err != nil {
			return nil, err
		}
		for key, v := range obj.All() {
			take(string(key), strconv.Quote(shortened(string(key))), v)
		}
	case '[':
		items, err := listItems(raw)
		if err != nil {
			return nil, err
		}
		for i, v := range items {
			take("", fmt.Sprintf("number %d", i+1), v)
		}
	default:
		return nil, errors.New("it should be a mapping of ids to servers, such as {files: {command: mcp-files}}")
	}
	return all, errors.Join(wrong...)
}
