package mcp

import (
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// callResult is the result of tools/call. The type of the go-sdk would drop unknown members of blocks that are passed
// on, and empty texts.
type callResult struct {
	mcp.ResultBase
	kind
	Content    []jsontext.Value `json:"content"`
	Structured jsontext.Value   `json:"structuredContent,omitzero"`
	IsError    bool             `json:"isError,omitzero"`
	more       []namedValue     // members of a server's result that MCP does not define
}

type namedValue struct {
	name string
	val  jsontext.Value
}

// MarshalJSON implements json.Marshaler.
func (c *callResult) MarshalJSON() ([]byte, error) { return c.text(), nil }

// text returns the result as JSON.
func (c *callResult) text() []byte {
	dst := []byte{'{'}
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

// failedCall returns the answer to a call of a tool that could not run: a result with isError if the model can do
// something about it, else an error for the client.
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

// toolResult converts the result of a tool that ran to one of MCP.
func toolResult(res *protocol.ToolResult, tool *host.ToolDetail) *callResult {
	cut := deref(res.Truncated)
	data, err := protocol.ParseObject(res.Data) // fails if the data is not an object
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
		words = "" // the blocks have it already
	}
	if words != "" {
		out.addText(words)
	}
	// data that was cut may not fit the schema by which clients check it
	out.IsError = !res.Success || cut && structuredSchema(tool.OutputSchema) != nil
	return out
}

// ownResult makes the result of a tool that does not know MCP.
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

// passedOn returns the result of a tool of an MCP server as that server sent it: data of the shape {"content":
// [blocks], "structuredContent": {…}}. It returns nil for any other data.
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

// blocks returns the elements of an array of content blocks, or nil if list is something else. A block of a type that
// clients do not know becomes a text block with its JSON, if it came from an MCP server (foreign).
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

// textsOf is dataTexts for data that is not parsed yet.
func textsOf(data jsontext.Value) []string {
	obj, _ := protocol.ParseObject(data) // fails if the data is not an object
	return dataTexts(data, obj)
}

// dataTexts returns the data of a result as texts for a model. A string is returned as it is. An object whose member
// "content" is a string, or whose only member is one, becomes that string, followed by the other members as JSON.
// Anything else is JSON.
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
