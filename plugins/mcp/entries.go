package mcp

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
)

// Lists of servers are read entry by entry, and each entry member by member. A required member of MCP that
// does not fit drops its entry; any other member of MCP that does not fit is left out. Everything else
// keeps the bytes of the server.

// rule returns the part of a value that fits, or nil if the value does not fit.
type rule func(protocol.Value) protocol.Value

// shape describes an object of MCP by the rules of its members. Members without a rule are kept as they
// are.
type shape struct {
	required []string // the names of the members that must be there
	members  map[string]rule
}

// fit returns an object without the members that do not fit. The error is the end of a sentence
// about the object.
func (s shape) fit(raw []byte) (protocol.Object, error) {
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return obj, errors.New("is not a JSON object")
	}
	obj = remade(obj, func(name string, val protocol.Value) protocol.Value {
		if check := s.members[name]; check != nil {
			return check(val)
		}
		return val
	})
	for _, name := range s.required {
		if _, there := obj.Get(name); !there {
			return obj, fmt.Errorf("has no member %q that fits", name)
		}
	}
	return obj, nil
}

// remade returns an object with each member replaced by the result of change; nil leaves a member out. If
// nothing changes, the bytes are the same.
func remade(obj protocol.Object, change func(name string, val protocol.Value) protocol.Value) protocol.Object {
	out, same := []byte{'{'}, true
	for key, val := range obj.All() {
		now := change(string(key), val)
		if same = same && bytes.Equal(now, val); now == nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(protocol.AppendString(out, key), ':'), now...)
	}
	if same {
		return obj
	}
	other, err := protocol.ParseObject(append(out, '}'))
	if err != nil {
		return obj // cannot be: change returns JSON
	}
	return other
}

// within returns the shape as a rule.
func (s shape) within(v protocol.Value) protocol.Value {
	obj, err := s.fit(v)
	if err != nil {
		return nil
	}
	return obj.Raw()
}

// The rules of members.
func isText(v protocol.Value) protocol.Value   { return ifKind(v, '"') }
func isObject(v protocol.Value) protocol.Value { return ifKind(v, '{') }

func ifKind(v protocol.Value, kind jsontext.Kind) protocol.Value {
	if jsontext.Value(v).Kind() != kind {
		return nil
	}
	return v
}

func isFlag(v protocol.Value) protocol.Value {
	if kind := v.Kind(); kind != 't' && kind != 'f' {
		return nil
	}
	return v
}

// isNumber refuses numbers that overflow to infinity at clients, which read them as IEEE 754 doubles.
func isNumber(v protocol.Value) protocol.Value {
	if n, err := strconv.ParseFloat(string(v), 64); v.Kind() != '0' || err != nil || math.IsInf(n, 0) {
		return nil
	}
	return v
}

// isShare accepts a number from 0 to 1.
func isShare(v protocol.Value) protocol.Value {
	if n, err := strconv.ParseFloat(string(v), 64); v.Kind() != '0' || err != nil || n < 0 || n > 1 {
		return nil
	}
	return v
}

func isTime(v protocol.Value) protocol.Value {
	text, _ := v.Str()
	if _, err := time.Parse(time.RFC3339, text); err != nil {
		return nil
	}
	return v
}

func isBase64(v protocol.Value) protocol.Value {
	text, is := v.Str()
	if _, err := base64.StdEncoding.DecodeString(text); !is || err != nil {
		return nil
	}
	return v
}

// oneOf returns a rule that accepts these texts only.
func oneOf(words ...string) rule {
	return func(v protocol.Value) protocol.Value {
		if text, is := v.Str(); !is || !slices.Contains(words, text) {
			return nil
		}
		return v
	}
}

// listOf returns a rule that accepts an array and leaves out the elements that do not fit. If none is left,
// the array does not fit.
func listOf(each rule) rule {
	return func(v protocol.Value) protocol.Value {
		items, err := listItems(v)
		if err != nil {
			return nil
		}
		out, same := []byte{'['}, true
		for _, item := range items {
			kept := each(item)
			if same = same && len(kept) == len(item); kept != nil {
				if len(out) > 1 {
					out = append(out, ',')
				}
				out = append(out, kept...)
			}
		}
		switch {
		case same:
			return v
		case len(out) == 1:
			return nil
		}
		return append(out, ']')
	}
}

// annotations returns the shape of the annotations of resources and of blocks.
func annotations() shape {
	return shape{members: map[string]rule{
		"audience": listOf(oneOf("user", "assistant")), "priority": isShare, "lastModified": isTime,
	}}
}

// hints returns the shape of the annotations of tools.
func hints() shape {
	return shape{members: map[string]rule{
		"title": isText, "readOnlyHint": isFlag, "destructiveHint": isFlag, "idempotentHint": isFlag,
		"openWorldHint": isFlag,
	}}
}

func icon() shape {
	return shape{required: []string{"src"}, members: map[string]rule{
		"src": isText, "mimeType": isText, "sizes": listOf(isText), "theme": oneOf("light", "dark"),
	}}
}

// described returns the shape of the entries of a list: the members that entries of all lists may have, one
// required text, and the rules of this list.
func described(required string, more map[string]rule) shape {
	s := shape{required: []string{required}, members: map[string]rule{
		"name": isText, "title": isText, "description": isText, "icons": listOf(icon().within), "_meta": isObject,
		required: isText,
	}}
	for name, check := range more {
		s.members[name] = check
	}
	return s
}

func toolShape() shape {
	return described("name", map[string]rule{"annotations": hints().within, "execution": isObject})
}

// listed is one entry of a list of a server.
type listed struct {
	protocol.Object
}

// raw returns a member as the server wrote it, or nil if it is missing or null.
func (l listed) raw(name string) jsontext.Value {
	v, _ := l.Get(name)
	if v.Kind() == 'n' {
		return nil
	}
	return jsontext.Value(v)
}

// serverTool is an entry of tools/list.
type serverTool struct {
	listed
	name, title, description string
	input, output            jsontext.Value       // schemas as the server wrote them; nil = none
	annotations              *sdk.ToolAnnotations // nil = none
}

// readTool reads an entry of tools/list. The error is the end of a sentence about the entry.
func readTool(raw []byte) (*serverTool, error) {
	obj, err := toolShape().fit(raw)
	if err != nil {
		return nil, err
	}
	t := &serverTool{listed: listed{obj}, name: obj.Text("name"), title: obj.Text("title")}
	t.description = obj.Text("description")
	t.input, t.output = t.raw("inputSchema"), t.raw("outputSchema")
	if said := t.raw("annotations"); said != nil {
		t.annotations = new(sdk.ToolAnnotations)
		if err := json.Unmarshal(said, t.annotations); err != nil {
			return nil, errors.New("has annotations that cannot be read")
		}
	}
	return t, nil
}

// taskSupport returns what the tool says about tasks: required, optional, or "" if it cannot run as a task.
func (t *serverTool) taskSupport() string {
	execution, _ := t.Child("execution")
	switch support := execution.Text("taskSupport"); support {
	case taskRequired, "optional":
		return support
	}
	return ""
}

func promptShape() shape {
	argument := shape{required: []string{"name"}, members: map[string]rule{
		"name": isText, "title": isText, "description": isText, "required": isFlag,
	}}
	return described("name", map[string]rule{"arguments": listOf(argument.within)})
}

func resourceShape() shape {
	return described("uri", map[string]rule{"mimeType": isText, "size": isNumber, "annotations": annotations().within})
}

func templateShape() shape {
	return described("uriTemplate", map[string]rule{"mimeType": isText, "annotations": annotations().within})
}

// row returns the members that the rows of all lists have.
func (l listed) row(server string) map[string]any {
	row := map[string]any{"server_id": server, "name": l.Text("name"), "description": l.Text("description")}
	if title := l.Text("title"); title != "" {
		row["title"] = title
	}
	for _, name := range []string{"icons", "_meta"} {
		if v := l.raw(name); v != nil {
			row[name] = v
		}
	}
	return row
}

// take reads the entries of a list. Entries that cannot be read are logged and stored in s.unfit.
func (s *server) take(list string, shape shape, found []jsontext.Value) (good []listed) {
	var bad []Withheld
	for i, raw := range found {
		obj, err := shape.fit(raw)
		if err != nil {
			bad = append(bad, Withheld{Tool: entryName(i, raw), Reason: err.Error()})
			continue
		}
		good = append(good, listed{obj})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unfit == nil {
		s.unfit = make(map[string][]Withheld)
	}
	same := func(a, b Withheld) bool { return a.Tool == b.Tool && a.Reason == b.Reason }
	if !slices.EqualFunc(s.unfit[list], bad, same) {
		for _, w := range bad {
			s.p.env.Log.Warn().Str("mcp_server", s.opts.ID).Str("list", list).Str("entry", w.Tool).
				Msg("an entry of a list of the MCP server is withheld: it " + w.Reason)
		}
	}
	s.unfit[list] = bad
	return good
}
