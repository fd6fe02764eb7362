package mcp

import (
	"cmp"
	"errors"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
)

// callResult is the result of tools/call. The go-sdk's own would drop what it does not
// know of blocks that are passed on, and texts that are empty.
type callResult struct {
	mcp.ResultBase
	kind
	Content    []jsontext.Value `json:"content"`
	Structured jsontext.Value   `json:"structuredContent,omitempty"`
	IsError    bool             `json:"isError,omitempty"`
}

func (c *callResult) addText(text string) {
	block := protocol.AppendString([]byte(`{"type":"text","text":`), text)
	c.Content = append(c.Content, append(block, '}'))
}

// failedCall tells of a tool that could not run: the model where it can do something
// about it, else the client.
func failedCall(err error) (mcp.Result, error) {
	var own *protocol.Error
	if !errors.As(err, &own) {
		return nil, err
	}
	switch own.Code {
	case protocol.CodeToolError, protocol.CodeSchemaViolation, protocol.CodeToolDenied, protocol.CodeTimeout,
		protocol.CodeMCPServerUnavailable, protocol.CodeMCPTransportError, protocol.CodeMCPProtocolError:
		out := &callResult{IsError: true}
		out.addText(own.Message)
		return out, nil
	}
	return nil, err
}

// toolResult makes MCP's result of a tool that ran. checked says that clients hold it
// against a schema.
func toolResult(res *protocol.ToolResult, checked bool) *callResult {
	cut := deref(res.Truncated)
	out := passedOn(res.Data)
	words := textOf(res.Summary)
	switch {
	case out == nil:
		out = ownResult(res.Data)
		if !res.Success && res.Error != nil {
			words = *res.Error
		}
	case !cut:
		words = "" // the blocks say it themselves
	}
	if words != "" {
		out.addText(words)
	}
	out.IsError = !res.Success || cut && checked // what was cut need not fit the schema any more
	return out
}

// ownResult is the result of a tool that knows nothing of MCP.
func ownResult(data jsontext.Value) *callResult {
	out := &callResult{Content: []jsontext.Value{}}
	for _, text := range dataTexts(data) {
		out.addText(text)
	}
	if data.Kind() == '{' {
		out.Structured = data
	}
	return out
}

// passedOn returns the result of a tool of an MCP server as that server gave it: data of
// the shape {"content": [blocks], "structuredContent": {…}}. Nil is any other data.
func passedOn(data jsontext.Value) *callResult {
	if data.Kind() != '{' {
		return nil
	}
	obj, err := protocol.ParseObject(data)
	if err != nil {
		return nil
	}
	out := &callResult{}
	for key, val := range obj.All() {
		switch string(key) {
		case "content":
			if out.Content = blocks(jsontext.Value(val)); out.Content == nil {
				return nil
			}
		case "structuredContent":
			if val.Kind() == '{' {
				out.Structured = jsontext.Value(val)
			}
		case "isError", "_meta", "spilled":
		default:
			return nil
		}
	}
	if out.Content == nil {
		return nil
	}
	return out
}

// blocks returns the elements of an array of content blocks; nil = it is something else.
func blocks(list jsontext.Value) []jsontext.Value {
	if list.Kind() != '[' {
		return nil
	}
	all := []jsontext.Value{}
	if json.Unmarshal(list, &all) != nil {
		return nil
	}
	for _, block := range all {
		switch textOf(member(block, "type")) {
		case "text", "image", "audio", "resource", "resource_link":
		default:
			return nil
		}
	}
	return all
}

// dataTexts returns a result's data as texts for a model: a text as it is, a member
// "content" that is a text without JSON's escapes and the other members behind it,
// anything else as JSON.
func dataTexts(data jsontext.Value) []string {
	switch data.Kind() {
	case 0, 'n':
		return nil
	case '"':
		return []string{textOf(data)}
	case '{':
		if obj, err := protocol.ParseObject(data); err == nil {
			if texts := contentTexts(obj); texts != nil {
				return texts
			}
		}
	}
	return []string{string(data)}
}

func contentTexts(obj protocol.Object) []string {
	var rest []byte
	var content protocol.Value
	only := obj.Len() == 1
	for key, val := range obj.All() {
		if val.Kind() == '"' && (only || string(key) == "content") {
			content = val
			continue
		}
		rest = append(protocol.AppendString(append(rest, ','), key), ':')
		rest = append(rest, val...)
	}
	text, ok := content.Str()
	switch {
	case !ok:
		return nil
	case rest == nil:
		return []string{text}
	}
	rest[0] = '{'
	return []string{text, string(append(rest, '}'))}
}

// textOf returns a JSON text; "" for anything else.
func textOf(raw jsontext.Value) string {
	text, _ := protocol.Value(raw).Str()
	return text
}

func sortBy[T any](all []T, name func(T) string) {
	slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(name(a), name(b)) })
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
