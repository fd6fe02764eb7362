package agent

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema"
	"a2e/protocol"
)

// The bounds of calls.
const (
	maxCalls      = 16       // in one round
	maxArguments  = 64 << 10 // bytes of the arguments of one call
	maxCallID     = 8 << 10  // bytes of a call's id, in which some servers keep more; a longer one is replaced
	maxName       = 64       // bytes of the name of a tool that does not exist
	maxToolResult = 32 << 10 // bytes of a result that the model gets
	toolTimeout   = 120      // seconds that one call may take; the whole run may end before
)

// toolsOf returns the tools of a run as a model sees them.
func toolsOf(t *Turns) []Tool {
	tools := make([]Tool, 0, len(t.Tools))
	for _, def := range t.Tools {
		if !t.Agent.Grants(def.Name) && !t.Agent.Grants(string(protocol.CapTools)) {
			continue
		}
		tool := Tool{Name: def.Name, Description: def.Description, Schema: schema.Object(def.InputParameters, false)}
		if detail, known := t.Services.Tool(def.Name); known {
			if tool.ReadOnly = detail.ReadOnly; len(detail.InputSchema) > 0 {
				tool.Schema = detail.InputSchema
			}
		}
		tools = append(tools, tool)
	}
	for _, own := range t.Own {
		tools = append(tools, own.Tool)
	}
	return tools
}

// tool returns a tool that may be called; false = there is no such tool.
func (l *loop) tool(name string) (Tool, bool) {
	i := slices.IndexFunc(l.tools, func(t Tool) bool { return t.Name == name })
	if i < 0 {
		return Tool{}, false
	}
	return l.tools[i], true
}

// callAll makes the calls of one round, in the order of the model.
func (l *loop) callAll(ctx context.Context, round int, reply *Reply) error {
	said := Message{Role: RoleAssistant, Text: head(l.Text, maxTurnText), Calls: reply.Calls}
	if len(said.Calls) > maxCalls {
		said.Calls = said.Calls[:maxCalls]
		said.Text += fmt.Sprintf("\n(only the first %d of the tool calls were made)", maxCalls)
	}
	calls := make([]ModelCall, len(said.Calls))
	for i := range said.Calls {
		calls[i] = l.checked(&said.Calls[i], calls[:i])
	}
	l.messages = append(l.messages, said)
	results := make([]ModelResult, len(calls))
	var seen []string
	var begun []chan callOutcome
	defer l.reading.Wait()
	for i, c := range calls {
		l.Watch.ToolStarted(round, c)
		if len(begun) == 0 {
			begun = l.begin(ctx, said.Calls[i:])
		}
		o := <-begun[0]
		if o.err != nil {
			return o.err
		}
		begun, results[i] = begun[1:], o.result
		l.Watch.ToolEnded(round, c, o.result)
		text := ResultText(o.result)
		l.messages = append(l.messages, Message{Role: RoleTool, Text: text, Of: ToolCall{ID: c.ID, Name: c.Name}})
		seen = append(seen, c.Name+string(c.Arguments)+"\x00"+text)
	}
	l.Watch.Calls(round, calls, results)
	if l.repeats.see(seen) {
		l.messages[len(l.messages)-1].Text += fmt.Sprintf("\n(This is the same call with the same result as before, "+
			"%d times now. Do something else, or give your final answer.)", l.repeats.rounds)
	}
	return nil
}

// checked returns a call in the form that Watch gets. It replaces an id that is missing, too long or that of an
// earlier call, shortens an unknown name, and drops arguments that are too long.
func (l *loop) checked(c *ToolCall, earlier []ModelCall) ModelCall {
	if l.asked++; c.ID == "" || len(c.ID) > maxCallID || slices.ContainsFunc(earlier,
		func(other ModelCall) bool { return other.ID == c.ID }) {
		c.ID = fmt.Sprintf("call_%d", l.asked)
	}
	if _, known := l.tool(c.Name); !known {
		c.Name = head(c.Name, maxName)
	}
	if len(c.Arguments.Raw()) > maxArguments {
		c.Arguments, c.Invalid = protocol.Object{}, fmt.Sprintf("the arguments have more than %d bytes", maxArguments)
	}
	wire := c.WireName
	if wire == "" || len(wire) > schema.LongestName {
		wire = c.Name
	}
	return ModelCall{ID: c.ID, Name: c.Name, WireName: wire, Arguments: jsontext.Value(c.Arguments.Raw())}
}

// callOutcome is the outcome of a call.
type callOutcome struct {
	result ModelResult
	err    error // the cause of a ctx that ended
}

// begin makes the first call, or all first calls that only read, at the same time. It returns a channel for each
// outcome.
func (l *loop) begin(ctx context.Context, calls []ToolCall) []chan callOutcome {
	n := 0
	for ; n < len(calls) && (n == 0 || l.reads(calls[n-1]) && l.reads(calls[n])); n++ {
	}
	begun := make([]chan callOutcome, n)
	for i := range begun {
		begun[i] = make(chan callOutcome, 1)
		l.Calls++
		run := func() {
			result, err := l.call(ctx, calls[i])
			begun[i] <- callOutcome{result, err}
		}
		if n == 1 {
			run()
		} else {
			l.reading.Go(run)
		}
	}
	return begun
}

// reads reports whether a call changes nothing.
func (l *loop) reads(c ToolCall) bool {
	t, known := l.tool(c.Name)
	return !known || t.ReadOnly || c.Invalid != ""
}

// refusal returns the result of a call that is not made, or that failed.
func refusal(format string, args ...any) ModelResult {
	return ModelResult{Error: head(fmt.Sprintf(format, args...), maxToolResult)}
}

// call makes one call. The error is the cause of a ctx that ended.
func (l *loop) call(ctx context.Context, c ToolCall) (ModelResult, error) {
	if c.Invalid != "" {
		return refusal("%s", c.Invalid), nil
	}
	tool, known := l.tool(c.Name)
	if !known {
		var names []string
		for _, t := range l.tools {
			names = append(names, t.Name)
		}
		return refusal("there is no tool %q here; these are: %s", head(c.Name, maxName), strings.Join(names, ", ")), nil
	}
	if n := l.steps.Add(1); l.Agent != nil && l.Agent.MaxSteps > 0 && n > int64(l.Agent.MaxSteps) {
		return refusal("%s: the child agent %.64q has used its max_steps of %d", protocol.CodeToolDenied,
			l.Agent.AgentID, l.Agent.MaxSteps), nil
	}
	if l.Permit != nil && !tool.ReadOnly {
		err := l.Permit(ctx, ModelCall{ID: c.ID, Name: c.Name, Arguments: jsontext.Value(c.Arguments.Raw())})
		if ctx.Err() != nil {
			return ModelResult{}, context.Cause(ctx)
		}
		if err != nil {
			return refusal("%s: %v", protocol.CodeToolDenied, err), nil
		}
	}
	data, err := l.made(ctx, c)
	if ctx.Err() != nil {
		return ModelResult{}, context.Cause(ctx)
	}
	if err != nil {
		refused := (*protocol.Error)(nil)
		if errors.As(err, &refused) {
			result := refusal("%s: %s", refused.Code, refused.Message)
			if _, printed := refused.Detail["stdout"]; printed { // by a program that was stopped
				result.Result, _ = protocol.AppendJSON(nil, refused.Detail)
			}
			return result, nil
		}
		return refusal("%v", err), nil
	}
	result := ModelResult{OK: data.Success, Result: data.Data}
	if len(result.Result) == 0 {
		result.Result = jsontext.Value("null")
	}
	if data.Truncated != nil && *data.Truncated {
		result.Cut = "the result was cut"
		if why, _ := protocol.Value(data.Summary).Str(); why != "" {
			result.Cut += ": " + head(why, maxShown)
		}
	}
	if !result.OK {
		result.Error = "it failed"
		if data.Error != nil {
			result.Error = head(*data.Error, maxToolResult)
		}
	}
	return result, nil
}

// made lets the run itself, the box or the host make a call.
func (l *loop) made(ctx context.Context, c ToolCall) (*protocol.ToolResult, error) {
	if i := slices.IndexFunc(l.Own, func(o Own) bool { return o.Name == c.Name }); i >= 0 {
		return l.Own[i].Call(ctx, c.Arguments)
	}
	if l.Box != nil && slices.ContainsFunc(l.Box.Tools(),
		func(def protocol.ToolDefinition) bool { return def.Name == c.Name }) {
		within, cancel := context.WithTimeout(ctx, toolTimeout*time.Second)
		defer cancel()
		return l.Box.Call(within, c.Name, c.Arguments)
	}
	var resp protocol.ToolCallResponse
	err := l.Services.Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{
		ToolName:  c.Name,
		Arguments: c.Arguments, Timeout: toolTimeout,
	}, &resp, nil)
	return &resp.Data, err
}

// ResultText returns the text of a result for a model.
func ResultText(r ModelResult) string {
	text := string(r.Result)
	if s, ok := protocol.Value(r.Result).Str(); ok {
		text = s
	}
	if !r.OK {
		text = strings.TrimSuffix("error: "+r.Error+"\n"+text, "\n")
	}
	if short := head(text, maxToolResult); len(short) < len(text) {
		text = fmt.Sprintf("%s\n(cut: %d more bytes)", short, len(text)-len(short))
	}
	if r.Cut != "" {
		text += "\n(" + r.Cut + ")"
	}
	return text
}

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

// chat returns a request in the form of the API.
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

// contentOf returns the content of a message: its text, or a list of parts if there are images.
func contentOf(m *Message) any {
	text := strings.ToValidUTF8(m.Text, "\uFFFD")
	switch {
	case len(m.Images) > 0:
		var parts []chatPart
		if text != "" {
			parts = append(parts, chatPart{Type: "text", Text: text})
		}
		for _, i := range m.Images {
			parts = append(parts, chatPart{
				Type:  "image_url",
				Image: &chatImage{"data:" + i.MIME + ";base64," + base64.StdEncoding.EncodeToString(i.Data)},
			})
		}
		return parts
	case text == "" && len(m.Calls) > 0:
		return nil
	}
	return text
}
