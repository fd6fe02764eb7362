package mcp

import (
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// callResult is the result of tools/call. The go-sdk's own would drop what it does not
// know of blocks that are passed on, and texts that are empty.
type callResult struct {
	mcp.ResultBase
	kind
	Content    []jsontext.Value `json:"content"`
	Structured jsontext.Value   `json:"structuredContent,omitzero"`
	IsError    bool             `json:"isError,omitzero"`
	more       []namedValue     // members that MCP does not know, of a server behind
}

type namedValue struct {
	name string
	val  jsontext.Value
}

// MarshalJSON implements json.Marshaler.
func (c *callResult) MarshalJSON() ([]byte, error) { return c.append(nil), nil }

// append appends the result as JSON.
func (c *callResult) append(dst []byte) []byte {
	dst = append(dst, '{')
	if c.ResultType != "" {
		dst = append(protocol.AppendString(append(dst, `"resultType":`...), c.ResultType), ',')
	}
	dst = append(dst, `"content":[`...)
	for i, block := range c.Content {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, block...)
	}
	dst = append(dst, ']')
	if len(c.Structured) > 0 {
		dst = append(append(dst, `,"structuredContent":`...), c.Structured...)
	}
	if c.IsError {
		dst = append(dst, `,"isError":true`...)
	}
	for _, m := range c.more {
		dst = append(append(protocol.AppendString(append(dst, ','), m.name), ':'), m.val...)
	}
	return append(dst, '}')
}

func (c *callResult) addText(text string) {
	block := protocol.AppendString([]byte(`{"type":"text","text":`), text)
	c.Content = append(c.Content, append(block, '}'))
}

// failedCall tells of a tool that could not run: the model where it can do something
// about it, else the client.
func failedCall(err error) (*callResult, error) {
	var own *protocol.Error
	if err = passed(err); !errors.As(err, &own) {
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

// toolResult makes MCP's result of a tool that ran.
func toolResult(res *protocol.ToolResult, tool *host.ToolDetail) *callResult {
	cut := deref(res.Truncated)
	data, err := protocol.ParseObject(res.Data) // fails where it is something else
	var out *callResult
	if err == nil {
		out = passedOn(data, tool.Foreign)
	}
	words := textOf(res.Summary)
	switch {
	case out == nil:
		out = ownResult(res.Data, data)
		if !res.Success && res.Error != nil {
			words = *res.Error
		}
	case !cut:
		words = "" // the blocks say it themselves
	}
	if words != "" {
		out.addText(words)
	}
	// what was cut need not fit any more the schema that clients hold it against
	out.IsError = !res.Success || cut && structuredSchema(tool.OutputSchema) != nil
	return out
}

// ownResult is the result of a tool that knows nothing of MCP.
func ownResult(data jsontext.Value, obj protocol.Object) *callResult {
	out := &callResult{Content: []jsontext.Value{}}
	for _, text := range dataTexts(data, obj) {
		out.addText(text)
	}
	if data.Kind() == '{' {
		out.Structured = data
	}
	return out
}

// passedOn returns the result of a tool of an MCP server as that server gave it: data of
// the shape {"content": [blocks], "structuredContent": {…}}. Nil is any other data.
func passedOn(obj protocol.Object, foreign bool) *callResult {
	out := &callResult{}
	for key, val := range obj.All() {
		switch string(key) {
		case "content":
			if out.Content = blocks(jsontext.Value(val), foreign); out.Content == nil {
				return nil
			}
		case "structuredContent":
			if val.Kind() == '{' {
				out.Structured = jsontext.Value(val)
			}
		case "isError", "spilled":
		default:
			if !foreign && string(key) != "_meta" {
				return nil
			}
			out.more = append(out.more, namedValue{string(key), jsontext.Value(val)})
		}
	}
	if out.Content == nil {
		return nil
	}
	return out
}

// blocks returns the elements of an array of content blocks; nil = it is something else. A block of a
// type that clients do not know, which an MCP server gave, is a text with its JSON.
func blocks(list jsontext.Value, foreign bool) []jsontext.Value {
	if list.Kind() != '[' {
		return nil
	}
	all := []jsontext.Value{}
	if json.Unmarshal(list, &all) != nil {
		return nil
	}
	for i, block := range all {
		switch textOf(member(block, "type")) {
		case "text", "image", "audio", "resource", "resource_link":
		default:
			if !foreign {
				return nil
			}
			all[i] = append(protocol.AppendString([]byte(`{"type":"text","text":`), block), '}')
		}
	}
	return all
}

// textsOf is dataTexts of data that was not parsed yet.
func textsOf(data jsontext.Value) []string {
	obj, _ := protocol.ParseObject(data) // fails where it is something else
	return dataTexts(data, obj)
}

// dataTexts returns a result's data as texts for a model: a text as it is, a member
// "content" that is a text without JSON's escapes and the other members behind it,
// anything else as JSON.
func dataTexts(data jsontext.Value, obj protocol.Object) []string {
	switch data.Kind() {
	case 0, 'n':
		return nil
	case '"':
		return []string{textOf(data)}
	case '{':
		if texts := contentTexts(obj); texts != nil {
			return texts
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
