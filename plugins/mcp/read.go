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

// readServer reads one entry; id is the key that it stands under, "" in a list.
func readServer(id string, v protocol.Value) (ServerOptions, problems) {
	r := optionReader{o: ServerOptions{ID: id}}
	obj, err := protocol.ParseObject(v)
	if err != nil {
		r.wrong.add("/", "should be a mapping such as {command: …, args: […]}")
		return r.o, r.wrong
	}
	r.object(obj)
	if id != "" && r.o.ID != id {
		r.wrong.add("/server_id", "is %.64q, but the entry stands under %.64q", r.o.ID, id)
	}
	r.wrong = append(r.wrong, r.o.check()...)
	return r.o, r.wrong
}

// optionReader reads the options of one server and gathers what is wrong.
type optionReader struct {
	o     ServerOptions
	first []string // arguments that stand in the command, as a list
	wrong problems
}

func (r *optionReader) object(obj protocol.Object) {
	for key, v := range obj.All() {
		name := string(key)
		switch {
		case slices.Contains(foreignKeys(), name) || v.Kind() == 'n':
		case bytes.Contains(v, []byte("${input:")):
			r.wrong.add("/"+name, "has a variable ${input:…}, which only its own client asks for; write ${VAR}, or the value")
		case !r.field(name, v):
			r.wrong.add("/"+shortened(name), "is no option of a server; there are %s", strings.Join(optionNames(), ", "))
		}
	}
	r.o.Args = append(r.first, r.o.Args...)
}

// foreignKeys are those that other clients keep beside the options, without a meaning here.
func foreignKeys() []string {
	return []string{"autoApprove", "alwaysAllow", "description", "icon", "gallery", "version", "dev", "auto_reconnect", "source"}
}

func optionNames() []string {
	return []string{
		"server_id", "name", "type", "command", "args", "env", "cwd", "network", "read", "url", "headers", "timeout", "start_timeout", "disabled", "allow", "deny",
		"resource_allow_list", "sampling", "roots", "elicitation",
	}
}

// field reads one option; false = there is none of that name.
func (r *optionReader) field(name string, v protocol.Value) bool {
	path := "/" + name
	switch name {
	case "server_id", "id":
		r.text(path, v, &r.o.ID)
	case "name":
		r.text(path, v, &r.o.Name)
	case "type", "transport":
		r.transport(path, v)
	case "command", "cmd":
		r.command(path, v)
	case "args":
		r.texts(path, v, &r.o.Args)
	case "env":
		r.secrets(path, v, &r.o.Env)
	case "cwd":
		r.text(path, v, &r.o.Cwd)
	case "network":
		r.flag(path, v, &r.o.Network)
	case "read":
		r.texts(path, v, &r.o.Read)
	case "url":
		r.text(path, v, &r.o.URL)
	case "headers":
		r.secrets(path, v, &r.o.Headers)
	case "timeout":
		r.seconds(path, v, &r.o.Timeout)
	case "start_timeout":
		r.seconds(path, v, &r.o.StartTimeout)
	default:
		return r.bound(name, v)
	}
	return true
}

// bound reads an option that says what the server may do.
func (r *optionReader) bound(name string, v protocol.Value) bool {
	path := "/" + name
	switch name {
	case "disabled", "enabled":
		var on *bool
		if r.flag(path, v, &on); on != nil {
			r.o.Disabled = *on == (name == "disabled")
		}
	case "allow", "tool_allow_list":
		r.texts(path, v, &r.o.Allow)
	case "deny":
		r.texts(path, v, &r.o.Deny)
	case "resource_allow_list":
		r.texts(path, v, &r.o.Resources)
	case "sampling":
		r.flag(path, v, &r.o.Sampling)
	case "roots":
		r.flag(path, v, &r.o.Roots)
	case "elicitation":
		r.flag(path, v, &r.o.Elicitation)
	default:
		return false
	}
	return true
}

func (r *optionReader) text(path string, v protocol.Value, dst *string) {
	text, ok := scalarText(v)
	if !ok {
		r.wrong.add(path, "should be a text; here is %s", kindName(v))
		return
	}
	*dst = text
}

// texts takes a list of texts; one text alone counts as a list of it.
func (r *optionReader) texts(path string, v protocol.Value, dst *[]string) {
	items, err := listItems(v)
	if err != nil {
		r.wrong.add(path, "should be a list of texts; here is %s", kindName(v))
		return
	}
	list := make([]string, len(items))
	for i, item := range items {
		r.text(fmt.Sprintf("%s/%d", path, i), item, &list[i])
	}
	*dst = list
}

func (r *optionReader) secrets(path string, v protocol.Value, dst *map[string]config.Secret) {
	obj, err := protocol.ParseObject(v)
	if err != nil {
		r.wrong.add(path, "should be a mapping of names to texts; here is %s", kindName(v))
		return
	}
	out := make(map[string]config.Secret, obj.Len())
	for key, item := range obj.All() {
		var text string
		r.text(path+"/"+shortened(string(key)), item, &text)
		out[string(key)] = config.NewSecret(text)
	}
	*dst = out
}

func (r *optionReader) flag(path string, v protocol.Value, dst **bool) {
	if k := v.Kind(); k != 't' && k != 'f' {
		r.wrong.add(path, "should be true or false; here is %s", kindName(v))
		return
	}
	on := v.Kind() == 't'
	*dst = &on
}

func (r *optionReader) seconds(path string, v protocol.Value, dst *time.Duration) {
	n, err := strconv.ParseFloat(string(v), 64)
	if v.Kind() != '0' || err != nil || n <= 0 || n > maxTimeout {
		r.wrong.add(path, "should be a number of seconds, more than 0 and at most %d", maxTimeout)
		return
	}
	*dst = time.Duration(n * float64(time.Second))
}

// command takes a program, or a list of it and its first arguments.
func (r *optionReader) command(path string, v protocol.Value) {
	if v.Kind() == '"' {
		r.text(path, v, &r.o.Command)
		return
	}
	var list []string
	if r.texts(path, v, &list); len(list) > 0 {
		r.o.Command, r.first = list[0], list[1:]
	}
}

func (r *optionReader) transport(path string, v protocol.Value) {
	var word string
	r.text(path, v, &word)
	switch strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(word)) {
	case "":
	case "stdio", "local":
		r.o.Transport = link.Stdio
	case "sse":
		r.o.Transport = link.SSE
	case "http", "streamablehttp", "remote":
		r.o.Transport = link.HTTP
	default:
		r.wrong.add(path, "is %.40q; there are stdio, http and sse", word)
	}
}

// listItems gives the elements of an array.
func listItems(v []byte) ([]protocol.Value, error) {
	var items []jsontext.Value
	if err := json.Unmarshal(v, &items); err != nil || items == nil {
		return nil, errors.New("it is no list")
	}
	out := make([]protocol.Value, len(items))
	for i, item := range items {
		out[i] = protocol.Value(item)
	}
	return out, nil
}

// scalarText gives a text, or a number or truth value as it is written.
func scalarText(v protocol.Value) (string, bool) {
	switch v.Kind() {
	case '"':
		return v.Str()
	case '0', 't', 'f':
		return string(v), true
	}
	return "", false
}

// kindName describes a value without showing it.
func kindName(v protocol.Value) string {
	switch v.Kind() {
	case '{':
		return "a mapping"
	case '[':
		return "a list"
	case '"':
		return "a text"
	case '0':
		return "a number"
	case 'n':
		return "nothing"
	}
	return "true or false"
}

// shortened is a name as a message quotes it.
func shortened(name string) string {
	const most = 64
	if len(name) <= most {
		return name
	}
	return strings.ToValidUTF8(name[:most], "") + "…"
}
