package run

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

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
