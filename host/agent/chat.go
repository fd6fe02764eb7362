package agent

import (
	"cmp"
	"encoding/base64"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema"
)

// The requests of the chat completions API, as far as they are used.
type (
	chatRequest struct {
		Model         string         `json:"model"`
		Messages      []chatMessage  `json:"messages"`
		Tools         []chatTool     `json:"tools,omitempty"`
		Effort        string         `json:"reasoning_effort,omitempty"`
		Stream        bool           `json:"stream"`
		StreamOptions *streamOptions `json:"stream_options,omitempty"`
	}
	streamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	}
	chatMessage struct {
		Role       string     `json:"role"`
		Content    any        `json:"content"` // a text, []chatPart or nil
		ToolCalls  []chatCall `json:"tool_calls,omitempty"`
		ToolCallID string     `json:"tool_call_id,omitempty"`
	}
	chatPart struct {
		Type  string     `json:"type"`
		Text  string     `json:"text,omitempty"`
		Image *chatImage `json:"image_url,omitempty"`
	}
	chatImage struct {
		URL string `json:"url"`
	}
	chatTool struct {
		Type     string       `json:"type"`
		Function chatFunction `json:"function"`
	}
	chatFunction struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Parameters  jsontext.Value `json:"parameters"`
	}
	chatCall struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	}
)

// chat writes a request in the words of the API.
func (e *endpoint) chat(r *Request, names schema.Names) *chatRequest {
	out := &chatRequest{Model: cmp.Or(r.Model, e.name), Stream: true, Effort: cmp.Or(r.Thinking, e.thinking)}
	if out.Effort == "off" {
		out.Effort = ""
	}
	if r.System != "" {
		out.Messages = append(out.Messages, chatMessage{Role: "system", Content: r.System})
	}
	for i := range r.Messages {
		m := &r.Messages[i]
		msg := chatMessage{Role: string(m.Role), Content: contentOf(m)}
		if m.Role == RoleTool {
			msg.ToolCallID = m.Of.ID
		}
		for _, c := range m.Calls {
			call := chatCall{ID: c.ID, Type: "function"}
			call.Function.Name, call.Function.Arguments = names.There(c.Name), string(c.Arguments.Raw())
			msg.ToolCalls = append(msg.ToolCalls, call)
		}
		out.Messages = append(out.Messages, msg)
	}
	for _, t := range r.Tools {
		out.Tools = append(out.Tools, chatTool{"function", chatFunction{names.There(t.Name), t.Description, t.Schema}})
	}
	return out
}

// contentOf returns the content of a message: its text, in parts where there are images.
func contentOf(m *Message) any {
	text := strings.ToValidUTF8(m.Text, "\uFFFD")
	switch {
	case len(m.Images) > 0:
		var parts []chatPart
		if text != "" {
			parts = append(parts, chatPart{Type: "text", Text: text})
		}
		for _, i := range m.Images {
			parts = append(parts, chatPart{Type: "image_url", Image: &chatImage{"data:" + i.MIME + ";base64," + base64.StdEncoding.EncodeToString(i.Data)}})
		}
		return parts
	case text == "" && len(m.Calls) > 0:
		return nil
	}
	return text
}
