package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/schema"
	"a2e/protocol"
)

// Model is a language model. Complete is not called twice at the same time by one Loop;
// its error is a *protocol.Error, or the cause of ctx.
type Model interface {
	Complete(ctx context.Context, r Request) (*Reply, error)
}

// Request asks a model for its next message.
type Request struct {
	System   string
	Messages []Message
	Tools    []Tool // that it may call
}

// Tool is a tool as a model sees it.
type Tool struct {
	Name        string
	Description string
	Schema      jsontext.Value // JSON Schema of the arguments, an object
}

// Role says whose a message is.
type Role string

// The roles.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant" // the model's
	RoleTool      Role = "tool"      // the result of a tool call
)

// Message is one message of a conversation.
type Message struct {
	Role  Role
	Text  string
	Calls []ToolCall // of the assistant
	Of    ToolCall   // of RoleTool: the call that Text is the result of, without its arguments
}

// ToolCall is a model's wish to call a tool.
type ToolCall struct {
	ID        string
	Name      string
	Arguments protocol.Object
	Invalid   string // what is wrong with it, where it cannot be made
}

// Reply is a model's next message: text, or calls, or both.
type Reply struct {
	Text   string
	Calls  []ToolCall
	Tokens Tokens // zero = not reported
	Cut    bool   // the model came to a limit of its own before the end of Text
}

// The bounds of a loop.
const (
	defaultTurns   = 10
	mostTurns      = 200
	maxCalls       = 16       // tool calls in one turn
	maxArguments   = 64 << 10 // bytes of one call's
	maxCallID      = 8 << 10  // bytes of a call's id, in which some servers keep more; a longer one is replaced
	maxToolResult  = 32 << 10 // bytes that the model gets of one
	maxTurnText    = 64 << 10 // bytes of what the model says beside its calls
	maxContext     = 1 << 20  // bytes of a conversation; what is oldest is shortened first
	maxEventResult = 4 << 10  // bytes of a tool's result in an event
	bytesPerToken  = 4        // for an estimate
)

// Turns is one run of the loop.
type Turns struct {
	System, Prompt string
	Tools          []protocol.ToolDefinition // the only ones that may be called
	MaxTurns       int                       // answers of the model; 0 = 10, at most 200
	MaxOutputBytes int                       // largest result, in bytes of JSON; 0 = 1 MiB
	Object         bool                      // the final answer should be a JSON object, which becomes the result
	Model          Model
	Services       *host.Services // make the calls
}

// toolCallEvent and toolResultEvent are the data of events of these kinds.
type toolCallEvent struct {
	Turn      int            `json:"turn"`
	ID        string         `json:"id"`
	ToolName  string         `json:"tool_name"`
	Arguments jsontext.Value `json:"arguments"`
}

type toolResultEvent struct {
	Turn     int    `json:"turn"`
	ID       string `json:"id"`
	ToolName string `json:"tool_name"`
	Success  bool   `json:"success"`
	Result   string `json:"result"` // its beginning
}

// loop is a run under way.
type loop struct {
	Turns
	emit     host.Emitter
	event    EventFunc
	tools    []Tool
	messages []Message
	tokens   Tokens
	turns    int // begun
	calls    int // made in all: gives ids to those without
}

// Loop lets a model work on a prompt: it answers, its tool calls are made by t.Services,
// and it gets their results, until it answers without a call. That text is the result.
// Each turn is a status event, each call an event tool_call and one tool_result. A tool
// that fails, or that is not among t.Tools, is an answer to the model and no error. The
// summary of the result tells what the run took: its turns, calls and tokens.
//
// A model that does not come to an end within MaxTurns is a Result that failed. The
// error is that of the model, or the cause of ctx.
func Loop(ctx context.Context, t Turns, emit host.Emitter, event EventFunc) (*Result, error) {
	emit, event = orMute(emit, event)
	if t.MaxTurns <= 0 {
		t.MaxTurns = defaultTurns
	}
	t.MaxTurns = min(t.MaxTurns, mostTurns)
	if t.MaxOutputBytes <= 0 {
		t.MaxOutputBytes = defaultOutputBytes
	}
	l := &loop{Turns: t, emit: emit, event: event, tools: toolsOf(t.Services, t.Tools), messages: []Message{{Role: RoleUser, Text: t.Prompt}}}
	r, err := l.run(ctx)
	if err != nil {
		return nil, err
	}
	r.Tokens, r.Summary = l.tokens, l.account()
	return r, nil
}

// run goes from turn to turn.
func (l *loop) run(ctx context.Context) (*Result, error) {
	for turn := 1; turn <= l.MaxTurns; turn++ {
		l.emit.Status(fmt.Sprintf("turn %d of %d", turn, l.MaxTurns))
		l.turns = turn
		reply, err := l.ask(ctx)
		if err != nil {
			return nil, err
		}
		if len(reply.Calls) > 0 {
			if err := l.callAll(ctx, turn, reply); err != nil {
				return nil, err
			}
			continue
		}
		if r := l.finish(reply, turn); r != nil {
			return r, nil
		}
	}
	return l.failed(fmt.Sprintf("the model did not come to an end within %d turns (max_turns)", l.MaxTurns)), nil
}

func (l *loop) failed(why string) *Result {
	return &Result{Failed: true, Failure: why}
}

// account tells a person what the run took.
func (l *loop) account() string {
	about := ""
	if l.tokens.Estimated {
		about = "about "
	}
	return fmt.Sprintf("turns: %d, tool calls: %d, tokens read: %s%d, written: %s%d", l.turns, l.calls, about, l.tokens.Input, about, l.tokens.Output)
}

// ask gets the model's next message.
func (l *loop) ask(ctx context.Context) (*Reply, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	shorten(l.messages, maxContext)
	reply, err := l.Model.Complete(ctx, Request{System: l.System, Messages: l.messages, Tools: l.tools})
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	used := reply.Tokens
	if used.Input == 0 {
		used.Estimated, used.Input = true, estimate(len(l.System)+sizeOf(l.messages)+l.toolBytes())
	}
	if used.Output == 0 {
		used.Estimated, used.Output = true, estimate(sizeOf([]Message{{Text: reply.Text, Calls: reply.Calls}}))
	}
	l.tokens = Tokens{l.tokens.Input + used.Input, l.tokens.Output + used.Output, l.tokens.Estimated || used.Estimated}
	return reply, nil
}

// estimate returns about how many tokens a text of so many bytes is.
func estimate(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

func (l *loop) toolBytes() (n int) {
	for _, t := range l.tools {
		n += len(t.Name) + len(t.Description) + len(t.Schema)
	}
	return n
}

// finish returns the result of a final answer; nil = the model shall try again.
func (l *loop) finish(reply *Reply, turn int) *Result {
	text := strings.ToValidUTF8(reply.Text, "\uFFFD")
	if !l.Object {
		value, all := quoted(text, l.MaxOutputBytes)
		return &Result{Data: value, Truncated: !all || reply.Cut}
	}
	obj, err := protocol.ParseObject([]byte(unfenced(text)))
	switch {
	case err == nil && len(obj.Raw()) <= l.MaxOutputBytes:
		return &Result{Data: jsontext.Value(obj.Raw())}
	case err == nil:
		return l.failed(fmt.Sprintf("the model's answer has more than %d bytes, the largest result", l.MaxOutputBytes))
	case turn == l.MaxTurns:
		return l.failed("the model's answer should be a JSON object, and is not: " + head(text, shownStderr))
	}
	l.messages = append(l.messages, Message{Role: RoleAssistant, Text: head(text, maxTurnText)},
		Message{Role: RoleUser, Text: "Your answer should be one JSON object and nothing else, but it cannot be read as one: " + err.Error()})
	return nil
}

// unfenced takes the fence of a code block away.
func unfenced(text string) string {
	text = strings.TrimSpace(text)
	if inner, ok := strings.CutSuffix(text, "```"); ok && strings.HasPrefix(inner, "```") {
		if _, body, ok := strings.Cut(inner, "\n"); ok {
			return strings.TrimSpace(body)
		}
	}
	return text
}

// callAll makes the calls of one turn, one after the other.
func (l *loop) callAll(ctx context.Context, turn int, reply *Reply) error {
	said := Message{Role: RoleAssistant, Text: head(strings.ToValidUTF8(reply.Text, "\uFFFD"), maxTurnText)}
	if said.Text != "" {
		l.emit.Log("info", said.Text, "")
	}
	calls := reply.Calls
	if len(calls) > maxCalls {
		calls = calls[:maxCalls]
		said.Text += fmt.Sprintf("\n(only the first %d of the tool calls were made)", maxCalls)
	}
	for i := range calls {
		l.calls++
		c := &calls[i]
		if c.ID == "" || len(c.ID) > maxCallID {
			c.ID = fmt.Sprintf("call_%d", l.calls)
		}
		if !l.has(c.Name) {
			c.Name = head(c.Name, maxKind)
		}
		if len(c.Arguments.Raw()) > maxArguments {
			c.Arguments, c.Invalid = protocol.Object{}, fmt.Sprintf("the arguments have more than %d bytes", maxArguments)
		}
	}
	said.Calls = calls
	l.messages = append(l.messages, said)
	for _, c := range calls {
		l.tell("tool_call", &toolCallEvent{turn, c.ID, c.Name, jsontext.Value(c.Arguments.Raw())})
		result, err := l.call(ctx, c)
		if err != nil {
			return err
		}
		l.tell("tool_result", &toolResultEvent{turn, c.ID, c.Name, result.well, head(result.text, maxEventResult)})
		l.messages = append(l.messages, Message{Role: RoleTool, Text: result.text, Of: ToolCall{ID: c.ID, Name: c.Name}})
	}
	return nil
}

// has reports whether a tool may be called.
func (l *loop) has(name string) bool {
	return slices.ContainsFunc(l.tools, func(t Tool) bool { return t.Name == name })
}

// tell sends an event of a kind of its own.
func (l *loop) tell(kind string, data any) {
	if text, err := json.Marshal(data); err == nil {
		l.event(kind, text)
	}
}

// sizeOf counts the bytes of messages.
func sizeOf(messages []Message) (n int) {
	for i := range messages {
		n += len(messages[i].Text)
		for _, c := range messages[i].Calls {
			n += len(c.Name) + len(c.Arguments.Raw())
		}
	}
	return n
}

// shorten keeps a conversation within a size: results of tools give way first, the oldest
// before others, then what the model said. The prompt stays.
func shorten(messages []Message, size int) {
	const note = "(left out to save room)"
	over := sizeOf(messages) - size
	for i := 1; i < len(messages) && over > 0; i++ {
		if m := &messages[i]; m.Role == RoleTool && len(m.Text) > len(note) {
			over -= len(m.Text) - len(note)
			m.Text = note
		}
	}
	for i := 1; i < len(messages) && over > 0; i++ {
		m := &messages[i]
		if short := head(m.Text, shownStderr); len(short) < len(m.Text) {
			over -= len(m.Text) - len(short)
			m.Text = short
		}
		for j := range m.Calls {
			over -= len(m.Calls[j].Arguments.Raw()) - len("{}")
			m.Calls[j].Arguments = protocol.Object{}
		}
	}
}

// toolTimeout bounds one tool call of a loop, in seconds; the whole run may end before.
const toolTimeout = 120

// toolsOf returns tools as a model sees them.
func toolsOf(services *host.Services, defs []protocol.ToolDefinition) []Tool {
	tools := make([]Tool, 0, len(defs))
	for _, def := range defs {
		t := Tool{Name: def.Name, Description: def.Description, Schema: schema.Object(def.InputParameters, false)}
		if detail, _ := services.Tool(def.Name); len(detail.InputSchema) > 0 {
			t.Schema = detail.InputSchema
		}
		tools = append(tools, t)
	}
	return tools
}

// toolResult is what the model gets of a call.
type toolResult struct {
	well bool
	text string
}

func refusal(format string, args ...any) toolResult {
	return toolResult{text: "error: " + fmt.Sprintf(format, args...)}
}

// call makes one call. The error is the cause of a ctx that ended.
func (l *loop) call(ctx context.Context, c ToolCall) (toolResult, error) {
	switch {
	case c.Invalid != "":
		return refusal("%s", head(c.Invalid, maxToolResult)), nil
	case !l.has(c.Name):
		var names []string
		for _, t := range l.tools {
			names = append(names, t.Name)
		}
		return refusal("there is no tool %q here; these are: %s", head(c.Name, maxKind), strings.Join(names, ", ")), nil
	}
	var resp protocol.ToolCallResponse
	err := l.Services.Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{ToolName: c.Name, Arguments: c.Arguments, Timeout: toolTimeout}, &resp, nil)
	if ctx.Err() != nil {
		return toolResult{}, context.Cause(ctx)
	}
	if err != nil {
		refused := (*protocol.Error)(nil)
		if errors.As(err, &refused) {
			return refusal("%s: %s", refused.Code, head(refused.Message, maxToolResult)), nil
		}
		return refusal("%s", head(err.Error(), maxToolResult)), nil
	}
	text := "null"
	if len(resp.Data.Data) > 0 {
		text = string(resp.Data.Data)
		if s, ok := protocol.Value(resp.Data.Data).Str(); ok {
			text = s
		}
	}
	if !resp.Data.Success {
		why := "it failed"
		if resp.Data.Error != nil {
			why = *resp.Data.Error
		}
		text = "error: " + head(why, maxToolResult) + "\n" + text
	}
	if short := head(text, maxToolResult); len(short) < len(text) {
		text = fmt.Sprintf("%s\n(cut: %d more bytes)", short, len(text)-len(short))
	}
	return toolResult{resp.Data.Success, text}, nil
}
