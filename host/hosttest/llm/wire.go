package llm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
)

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func fault(message string) map[string]any {
	return map[string]any{"error": map[string]any{"message": message, "type": "test"}}
}

// chunk is one piece of a stream.
func chunk(delta map[string]any, finish any) map[string]any {
	return map[string]any{
		"object": "chat.completion.chunk", "model": "test",
		"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}},
	}
}

func (r *Reply) finish() string {
	if len(r.Calls) > 0 {
		return cmp.Or(r.Finish, "tool_calls")
	}
	return cmp.Or(r.Finish, "stop")
}

func (r *Reply) usage() any {
	if r.Input == 0 && r.Output == 0 {
		return nil
	}
	return map[string]any{"prompt_tokens": r.Input, "completion_tokens": r.Output, "total_tokens": r.Input + r.Output}
}

// whole returns the reply as one object.
func (r *Reply) whole() map[string]any {
	text, thoughts := "", ""
	for _, piece := range append(append([]string{}, r.Text...), r.Then...) {
		text += piece
	}
	for _, piece := range r.Thoughts {
		thoughts += piece
	}
	message := map[string]any{"role": "assistant", "content": text}
	if thoughts != "" {
		message["reasoning_content"] = thoughts
	}
	if r.Refusal != "" {
		message["refusal"] = r.Refusal
	}
	calls := []any{}
	for i, c := range r.Calls {
		c.Pieces = -1
		calls = append(calls, c.pieces(i)[0])
	}
	if len(calls) > 0 {
		message["tool_calls"] = calls
	}
	answer := map[string]any{
		"id": "chat", "created": 1, "model": "test", "object": "chat.completion",
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": r.finish()}},
	}
	if usage := r.usage(); usage != nil {
		answer["usage"] = usage
	}
	return answer
}

// pieces returns the pieces of call i of a reply: its name first, then its arguments. If Pieces is
// negative, the whole call is one piece.
func (c *Call) pieces(i int) (all []map[string]any) {
	var arguments any = c.Arguments
	if c.Object {
		arguments = json.RawMessage(c.Arguments)
	}
	head := map[string]any{
		"index": i, "id": cmp.Or(c.ID, fmt.Sprintf("call_%d", i+1)), "type": "function",
		"function": map[string]any{"name": c.Name, "arguments": ""},
	}
	all = append(all, head)
	if n := cmp.Or(c.Pieces, 3); n < 0 || c.Object {
		head["function"] = map[string]any{"name": c.Name, "arguments": arguments}
	} else {
		rest := c.Arguments
		for ; n > 0; n-- {
			piece := rest[:(len(rest)+n-1)/n]
			rest = rest[len(piece):]
			all = append(all, map[string]any{"index": i, "function": map[string]any{"arguments": piece}})
		}
	}
	if c.NoIndex {
		for _, piece := range all {
			delete(piece, "index")
		}
	}
	return all
}

// read returns a request, and its members by name.
func read(header http.Header, body []byte) (*Request, map[string]json.RawMessage) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(body, &members)
	var in struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Effort   string `json:"reasoning_effort"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
			CallID  string          `json:"tool_call_id"`
			Calls   []struct {
				ID       string `json:"id"`
				Function struct {
					Name      string `json:"name"`
					Arguments string `json:"arguments"`
				} `json:"function"`
			} `json:"tool_calls"`
		} `json:"messages"`
		Tools []struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		} `json:"tools"`
	}
	_ = json.Unmarshal(body, &in)
	r := &Request{Header: header, Body: string(body), Model: in.Model, Effort: in.Effort, Stream: in.Stream}
	for _, m := range in.Messages {
		msg := Message{Role: m.Role, CallID: m.CallID}
		var parts []struct {
			Text  string `json:"text"`
			Image struct {
				URL string `json:"url"`
			} `json:"image_url"`
		}
		if json.Unmarshal(m.Content, &msg.Text) != nil && json.Unmarshal(m.Content, &parts) == nil {
			for _, p := range parts {
				if msg.Text += p.Text; p.Image.URL != "" {
					msg.Images = append(msg.Images, p.Image.URL)
				}
			}
		}
		for _, c := range m.Calls {
			msg.Calls = append(msg.Calls, Call{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
		r.Messages = append(r.Messages, msg)
	}
	for _, t := range in.Tools {
		r.Tools = append(r.Tools, t.Function.Name)
	}
	return r, members
}
