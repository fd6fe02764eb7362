package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"a2e/host"
	"a2e/protocol"
)

const (
	sampleTokens   = 4096
	sampleServerID = "skill" // what stands in place of an MCP server's id
)

// NewSampling returns the agent's own model, which is asked by mcp/sample/req.
//
// Such a request has no field for tools. They are in its metadata (`tools`, each with name, description and
// input_schema), and in the system prompt with the way to call them: an answer of only objects
// {"tool":"NAME","arguments":{…}}, one on each line, maybe in a code block, maybe after a few words. The result
// comes back as a message of the user, {"tool":"NAME","result":"…"}. A content of type tool_use with name and input
// is understood as well.
//
// If the agent refuses, or has no model, the error is mcp_sampling_refused.
func NewSampling(services *host.Services) Model { return sampling{services} }

type sampling struct{ services *host.Services }

// Complete implements Model.
func (s sampling) Complete(ctx context.Context, r Request) (*Reply, error) {
	req := &protocol.MCPSampleRequest{ServerID: sampleServerID, MCPRequestID: uuid.NewString()}
	req.SetDefaults()
	req.MaxTokens, req.SystemPrompt, req.StopSequences = sampleTokens, r.System, []string{}
	if len(r.Tools) > 0 {
		text, err := sampleTools(r.Tools)
		if err != nil {
			return nil, err
		}
		if req.Metadata, err = protocol.ParseObject(text); err != nil {
			return nil, err
		}
		req.SystemPrompt = strings.TrimSpace(r.System + "\n\n" + toolPrompt(r.Tools))
	}
	for _, m := range r.Messages {
		msg, err := sampleMessage(m)
		if err != nil {
			return nil, err
		}
		req.Messages = append(req.Messages, msg)
	}
	var resp protocol.MCPSampleResponse
	resp.SetDefaults()
	if err := s.services.Ask(ctx, protocol.TypeMCPSampleReq, req, &resp); err != nil {
		return nil, samplingError(ctx, err)
	}
	if resp.Error != "" {
		return nil, refusedSampling(resp.Error)
	}
	reply, err := readSample(&resp, r.Tools)
	if err == nil && reply.Text != "" {
		r.listener().Piece(PieceAnswer, reply.Text)
	}
	return reply, err
}

// samplingError returns the error for an agent that did not answer.
func samplingError(ctx context.Context, err error) error {
	refused := (*protocol.Error)(nil)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &refused):
		return refusedSampling(refused.Message)
	}
	return refusedSampling(err.Error())
}

func refusedSampling(why string) error {
	return protocol.Errorf(protocol.CodeMCPSamplingRefused,
		"the agent did not answer %s: %s; answer it, or name an endpoint under llm in the config of the skill plugin",
		protocol.TypeMCPSampleReq, head(why, maxShown))
}

// sampleTools encodes tools for the metadata.
func sampleTools(tools []Tool) ([]byte, error) {
	type entry struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		InputSchema any    `json:"input_schema"`
	}
	list := struct {
		Tools []entry `json:"tools"`
	}{}
	for _, t := range tools {
		list.Tools = append(list.Tools, entry{t.Name, t.Description, t.Schema})
	}
	return json.Marshal(list)
}

// toolPrompt returns the text that tells a model which tools there are and how to call them.
func toolPrompt(tools []Tool) string {
	var b strings.Builder
	b.WriteString("You may call these tools:\n")
	for _, t := range tools {
		fmt.Fprintf(&b, "- %s: %s Arguments: %s\n", t.Name, strings.Join(strings.Fields(t.Description), " "), t.Schema)
	}
	b.WriteString("To call one, answer with nothing but a JSON object such as {\"tool\":\"" + tools[0].Name +
		"\",\"arguments\":{}} on one line, or several of them, a line each. " +
		"The results come with the next message. When you are done, answer with the result and without such an object.")
	return b.String()
}

// sampleMessage returns a message in the form of mcp/sample/req.
func sampleMessage(m Message) (protocol.Object, error) {
	role, text := m.Role, m.Text
	switch m.Role {
	case RoleTool:
		role = RoleUser
		line, err := json.Marshal(struct {
			Tool   string `json:"tool"`
			Result string `json:"result"`
		}{m.Of.Name, m.Text})
		if err != nil {
			return protocol.Object{}, err
		}
		text = string(line)
	case RoleAssistant:
		for _, c := range m.Calls {
			name := protocol.AppendString(nil, c.Name)
			text += fmt.Sprintf("\n{\"tool\":%s,\"arguments\":%s}", name, c.Arguments.Raw())
		}
		text = strings.TrimSpace(text)
	}
	raw, err := json.Marshal(map[string]any{"role": string(role), "content": map[string]string{
		"type": "text",
		"text": text,
	}}, json.Deterministic(true))
	if err != nil {
		return protocol.Object{}, err
	}
	return protocol.ParseObject(raw)
}

// readSample returns the reply of the agent's model.
func readSample(resp *protocol.MCPSampleResponse, tools []Tool) (*Reply, error) {
	kind := resp.Content.Text("type")
	switch kind {
	case "tool_use":
		name := resp.Content.Text("name")
		id := resp.Content.Text("id")
		input, _ := resp.Content.Get("input")
		args, err := argumentsOf(input)
		return &Reply{Calls: []ToolCall{{ID: id, Name: name, Arguments: args, Invalid: err}}}, nil
	case "text":
		val, _ := resp.Content.Get("text")
		text, ok := val.Str()
		if !ok {
			break
		}
		reply := &Reply{Text: text, Cut: resp.StopReason == "maxTokens"}
		if len(tools) > 0 {
			reply.Text, reply.Calls = callsIn(text)
		}
		return reply, nil
	}
	return nil, refusedSampling(fmt.Sprintf("the content of its answer should be "+
		"{\"type\":\"text\",\"text\":\"…\"}, and is of type %q", head(kind, maxName)))
}

// argumentsOf parses the arguments of a call; wrong says what is wrong with them, "" = nothing.
func argumentsOf(raw protocol.Value) (args protocol.Object, wrong string) {
	if raw.Kind() == 0 || raw.Kind() == 'n' {
		return protocol.Object{}, ""
	}
	args, err := protocol.ParseObject(raw)
	if err != nil {
		return protocol.Object{}, "the arguments should be a JSON object: " + err.Error()
	}
	return args.Clone(), ""
}

// callsIn returns the tool calls in a text, and the text before them. The calls are the whole text, or its last
// lines, maybe in a code block. It returns at most one call more than maxCalls.
func callsIn(text string) (said string, calls []ToolCall) {
	rest := strings.TrimSpace(text)
	if at := strings.LastIndexByte(rest, '\n') + 1; strings.TrimSpace(rest[at:]) == "```" {
		rest = rest[:at]
	}
	start := len(rest)
	for start > 0 { // a text may have millions of lines, so none is kept
		at := strings.LastIndexByte(rest[:start-1], '\n') + 1
		if line := strings.TrimSpace(rest[at:start]); line != "" {
			if _, ok := callIn(line); !ok {
				break
			}
		}
		start = at
	}
	for line := range strings.Lines(rest[start:]) {
		if call, ok := callIn(strings.TrimSpace(line)); ok && len(calls) <= maxCalls {
			calls = append(calls, call)
		}
	}
	if len(calls) == 0 { // one object over several lines
		if at := strings.Index(text, "{"); at >= 0 {
			body, _ := strings.CutSuffix(strings.TrimSpace(text[at:]), "```")
			if call, ok := callIn(strings.TrimSpace(body)); ok {
				return strings.TrimSpace(dropFence(text[:at])), []ToolCall{call}
			}
		}
		return text, nil
	}
	return strings.TrimSpace(dropFence(rest[:start])), calls
}

// dropFence removes the beginning of a code block from the end of a text.
func dropFence(text string) string {
	text = strings.TrimSpace(text)
	at := strings.LastIndex(text, "\n") + 1
	if strings.HasPrefix(text[at:], "```") {
		return text[:at]
	}
	return text
}

// callIn parses one call; false = the text is no call.
func callIn(text string) (ToolCall, bool) {
	if !strings.HasPrefix(text, "{") {
		return ToolCall{}, false
	}
	obj, err := protocol.ParseObject([]byte(text))
	if err != nil {
		return ToolCall{}, false
	}
	val, _ := obj.Get("tool")
	name, ok := val.Str()
	if !ok {
		return ToolCall{}, false
	}
	raw, _ := obj.Get("arguments")
	args, wrong := argumentsOf(raw)
	return ToolCall{Name: name, Arguments: args, Invalid: wrong}, true
}
