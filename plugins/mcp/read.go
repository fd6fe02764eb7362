package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/config"
	"a2e/plugins/mcp/link"
	"a2e/protocol"
)

// readServer reads one entry; id is its key in a mapping, or "" in a list.
func readServer(id string, v protocol.Value) (ServerOptions, problems) {
	r := optionReader{o: ServerOptions{Config: link.Config{ID: id}}}
	obj, err := protocol.ParseObject(v)
	if err != nil {
		r.wrong.add("/", "should be a mapping such as {command: …, args: […]}")
		return r.o, r.wrong
	}
	r.object(obj)
	if id != "" && r.o.ID != id {
		r.wrong.add("/server_id", "is %.64q, but the key of the entry is %.64q", r.o.ID, id)
	}
	r.wrong = append(r.wrong, r.o.check()...)
	return r.o, r.wrong
}

// optionReader reads the options of one server and collects what is wrong.
type optionReader struct {
	o                 ServerOptions
	command           []string // the program, and maybe arguments behind it
	disabled, enabled *bool
	wrong             problems
}

func (r *optionReader) object(obj protocol.Object) {
	for key, v := range obj.All() {
		name := string(key)
		switch {
		case slices.Contains(foreignKeys(), name) || v.Kind() == 'n':
		case bytes.Contains(v, []byte("${input:")):
			r.wrong.add("/"+name, "has a variable ${input:…}, which only its own client asks for; write ${VAR}, or "+
				"the value")
		case !r.field(name, v):
			names := []string{}
			for _, o := range r.options() {
				if o.name != o.also {
					names = append(names, o.name)
				}
			}
			r.wrong.add("/"+protocol.Clip(name, maxQuoted), "unknown option of a server: %s",
				config.SuggestName(name, names))
		}
	}
	if len(r.command) > 0 {
		r.o.Command, r.o.Args = r.command[0], append(r.command[1:], r.o.Args...)
	}
	r.o.Disabled = r.disabled != nil && *r.disabled || r.enabled != nil && !*r.enabled
}

// foreignKeys returns the keys that other clients write beside the options. They have no meaning here.
func foreignKeys() []string {
	return []string{
		"autoApprove", "alwaysAllow", "description", "icon", "gallery", "version", "dev", "auto_reconnect",
		"source",
	}
}

// option is one key of a server and the place of its value.
type option struct {
	name string
	also string // another name of the key, as other clients write it
	dst  any
}

// options lists the keys of a server.
func (r *optionReader) options() []option {
	o := &r.o
	return []option{
		{"server_id", "id", &o.ID},
		{"name", "", &o.Name},
		{"type", "transport", &o.Transport},
		{"command", "cmd", &r.command},
		{"args", "", &o.Args},
		{"env", "", &o.Env},
		{"cwd", "", &o.Dir},
		{"network", "", &o.Network},
		{"read", "", &o.Read},
		{"url", "", &o.URL},
		{"headers", "", &o.Headers},
		{"timeout", "", &o.CallTimeout},
		{"start_timeout", "", &o.ConnectTimeout},
		{"disabled", "", &r.disabled},
		{"allow", "tool_allow_list", &o.Allow},
		{"deny", "", &o.Deny},
		{"resource_allow_list", "", &o.Resources},
		{"sampling", "", &o.Sampling},
		{"roots", "", &o.Roots},
		{"elicitation", "", &o.Elicitation},
		{"enabled", "enabled", &r.enabled},
	}
}

// field reads one option; false = no option has that name.
func (r *optionReader) field(name string, v protocol.Value) bool {
	for _, o := range r.options() {
		if name == o.name || name == o.also {
			r.value("/"+name, v, o.dst)
			return true
		}
	}
	return false
}

// value reads the value of one option.
func (r *optionReader) value(path string, v protocol.Value, dst any) {
	switch dst := dst.(type) {
	case *string:
		text, ok := v.Scalar()
		if !ok {
			r.wrong.add(path, "must be a string, not %s", kindName(v))
			return
		}
		*dst = text
	case *[]string: // for a command, a text is a list of one
		items, err := listItems(v)
		if err != nil && dst == &r.command && v.Kind() == '"' {
			items, err = []protocol.Value{v}, nil
		}
		if err != nil {
			r.wrong.add(path, "must be a list of strings, not %s", kindName(v))
			return
		}
		*dst = make([]string, len(items))
		for i, item := range items {
			r.value(fmt.Sprintf("%s/%d", path, i), item, &(*dst)[i])
		}
	case *map[string]string:
		obj, err := protocol.ParseObject(v)
		if err != nil {
			r.wrong.add(path, "must be a mapping of names to strings, not %s", kindName(v))
			return
		}
		*dst = make(map[string]string, obj.Len())
		for key, item := range obj.All() {
			var text string
			r.value(path+"/"+protocol.Clip(string(key), maxQuoted), item, &text)
			(*dst)[string(key)] = text
		}
	case **bool:
		on := v.Kind() == 't'
		if *dst = &on; !on && v.Kind() != 'f' {
			r.wrong.add(path, "must be true or false, not %s", kindName(v))
		}
	case *time.Duration:
		n, err := strconv.ParseFloat(string(v), 64)
		if text, is := v.Str(); is {
			var t time.Duration
			t, err = time.ParseDuration(text)
			n = t.Seconds()
		}
		if err != nil || n <= 0 || n > maxTimeout {
			r.wrong.add(path, "must be a number of seconds, more than 0 and at most %d, or a duration such as 1m30s",
				maxTimeout)
			return
		}
		*dst = time.Duration(n * float64(time.Second))
	case *link.Transport:
		r.transport(path, v, dst)
	}
}

func (r *optionReader) transport(path string, v protocol.Value, dst *link.Transport) {
	var word string
	r.value(path, v, &word)
	switch strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(word)) {
	case "":
	case "stdio", "local":
		*dst = link.Stdio
	case "sse":
		*dst = link.SSE
	case "http", "streamablehttp", "remote":
		*dst = link.HTTP
	default:
		r.wrong.add(path, "must be stdio, http or sse, not %.40q", word)
	}
}

// listItems returns the elements of an array.
func listItems(v []byte) ([]protocol.Value, error) {
	var items []jsontext.Value
	if err := json.Unmarshal(v, &items); err != nil || items == nil {
		return nil, errors.New("it is not a list")
	}
	out := make([]protocol.Value, len(items))
	for i, item := range items {
		out[i] = protocol.Value(item)
	}
	return out, nil
}

// kindName describes a value without showing it.
func kindName(v protocol.Value) string {
	switch v.Kind() {
	case '{':
		return "a mapping"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 'n':
		return "nothing"
	}
	return "true or false"
}

// ParseServers reads the servers of a file of another MCP client: `.mcp.json`,
// claude_desktop_config.json (mcpServers), VS Code's mcp.json (servers), or a bare
// mapping of ids. The error names each server and field that does not fit, never a value
// that may be secret. Variables stay as they are, in the spelling of this host's config.
func ParseServers(raw []byte) (map[string]ServerOptions, error) {
	part, err := serversIn(raw)
	if err != nil {
		return nil, err
	}
	all, err := readServers(ownVariables(part))
	if err != nil {
		return nil, err
	}
	out := make(map[string]ServerOptions, len(all))
	for _, o := range all {
		out[o.ID] = o
	}
	return out, nil
}

// CheckServer returns what is wrong with one server of the config, given as a JSON value.
func CheckServer(id string, entry any) error {
	raw, err := json.Marshal(map[string]any{id: entry})
	if err == nil {
		_, err = readServers(raw)
	}
	return err
}

// serversIn returns the servers in a file that ParseServers reads: a JSON object of servers by id, or an
// array.
func serversIn(raw []byte) ([]byte, error) {
	obj, err := protocol.ParseObject(bytes.TrimSpace(bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))))
	if known, ok := errors.AsType[*protocol.Error](err); ok {
		return nil, fmt.Errorf("this is not a JSON object: %s", known.Message)
	}
	if err != nil {
		return nil, err
	}
	return serversPart(obj)
}

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
		return nil, errors.New("there are no servers in it; it should look like " +
			"{\"mcpServers\":{\"ID\":{\"command\":\"…\",\"args\":[…]}}}")
	}
	return obj.Raw(), nil
}

// ownVariables replaces the variables of other clients by the spelling of this host.
func ownVariables(raw []byte) []byte {
	raw = bytes.ReplaceAll(raw, []byte("${env:"), []byte("${"))
	raw = bytes.ReplaceAll(raw, []byte("${userHome}"), []byte("${HOME}"))
	return bytes.ReplaceAll(raw, []byte("${workspaceFolder}"), []byte("."))
}

// readServers reads a mapping of ids to servers, or a list of servers with an id each.
func readServers(raw []byte) ([]ServerOptions, error) {
	var all []ServerOptions
	var wrong []error
	take := func(id, place string, v protocol.Value) {
		o, problems := readServer(id, v)
		for _, p := range problems {
			keys := append([]string{place}, strings.Split(strings.Trim(p.Path, "/"), "/")...)
			if p.Path == "/" {
				keys = keys[:1]
			}
			wrong = append(wrong, config.At(errors.New(p.Message), keys...))
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
			take(string(key), protocol.Clip(string(key), maxQuoted), v)
		}
	case '[':
		items, err := listItems(raw)
		if err != nil {
			return nil, err
		}
		for i, v := range items {
			take("", strconv.Itoa(i), v)
		}
	default:
		return nil, errors.New("it should be a mapping of ids to servers, such as {files: {command: mcp-files}}")
	}
	return all, errors.Join(wrong...)
}
