// Package agent is the loop of a model and the host's tools, which workers with a model and
// skills with agent: true use.
//
//	agent.go     the words: models, requests, replies
//	loop.go      from a prompt to the final answer, round by round
//	compact.go   a long conversation, summarised
//	calls.go     the calls of one round, and the messages of the OpenAI API
//	endpoint.go  the model of a server that answers that way
//	stream.go    its answers, piece by piece
//	sampling.go  the model of the agent in front
package agent

import (
	"context"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/config"
	"a2e/protocol"
)

// LLM is the option `llm` of a config: the model of a server that answers the OpenAI way.
type LLM struct {
	URL      string        `yaml:"url" doc:"Such as https://api.example.org/v1 or http://127.0.0.1:11434/v1."`
	Model    string        `yaml:"model" shown:"yes" doc:"The model, as the endpoint names it."`
	APIKey   config.Secret `yaml:"api_key" doc:"Sent as a bearer token. Best as a variable."`
	Thinking string        `yaml:"thinking" enum:"off,minimal,low,medium,high,xhigh" shown:"yes" doc:"How much the model should think, sent as reasoning_effort; off and nothing send nothing."`
	Timeout  time.Duration `yaml:"timeout" doc:"Seconds that the endpoint may be silent, before its answer and between the parts of it; 0 = 120."`
}

// IsZero reports whether nothing is set.
func (l LLM) IsZero() bool {
	return l.URL == "" && l.Model == "" && l.APIKey.Reveal() == "" && l.Thinking == "" && l.Timeout == 0
}

// Endpoint returns the options of NewEndpoint for a URL of the config.
func (l LLM) Endpoint(now func() time.Time) EndpointOptions {
	return EndpointOptions{
		URL: l.URL, Model: l.Model, APIKey: l.APIKey.Reveal(), Thinking: l.Thinking,
		Timeout: l.Timeout, AllowPrivate: true, Now: now,
	}
}

// Model is a language model. Complete is not called twice at the same time by one Loop;
// its error is a *protocol.Error, or the cause of ctx.
type Model interface {
	Complete(ctx context.Context, r Request) (*Reply, error)
}

// Request asks a model for its next message.
type Request struct {
	System   string
	Messages []Message
	Tools    []Tool   // that it may call
	Model    string   // another one of the same endpoint; "" = its own
	Thinking string   // how much it shall think; "" = as its options say
	To       Listener // told of the message as it comes; nil = nobody
}

// Listener is told of a message as it comes.
type Listener interface {
	// Piece is a piece of text.
	Piece(kind host.PieceKind, text string)
	// Grew tells how many bytes the message has more; those of its pieces count here too.
	Grew(bytes int)
	// Restart has the message begin again.
	Restart()
}

// nobody is told of nothing.
type nobody struct{}

func (nobody) Piece(host.PieceKind, string) {}
func (nobody) Grew(int)                     {}
func (nobody) Restart()                     {}

// listener returns whom to tell.
func (r *Request) listener() Listener {
	if r.To == nil {
		return nobody{}
	}
	return r.To
}

// Tool is a tool as a model sees it.
type Tool struct {
	Name        string
	Description string
	Schema      jsontext.Value // JSON Schema of the arguments, an object
	ReadOnly    bool           // it changes nothing
}

func (t *Tool) size() int { return len(t.Name) + len(t.Description) + len(t.Schema) }

// Own is a tool that a run has for itself, and the host does not list. Call's error is a *protocol.Error, or that of
// ctx.
type Own struct {
	Tool
	Call func(ctx context.Context, args protocol.Object) (*protocol.ToolResult, error)
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
	Role   Role
	Text   string
	Images []host.Image // of the user
	Calls  []ToolCall   // of the assistant
	Of     ToolCall     // of RoleTool: the call that Text is the result of, without its arguments
}

// ToolCall is a model's wish to call a tool.
type ToolCall struct {
	ID        string
	Name      string
	WireName  string // as the model has it; "" = the same
	Arguments protocol.Object
	Invalid   string // what is wrong with it, where it cannot be made
}

// Reply is a model's next message: text, or calls, or both.
type Reply struct {
	Text    string
	Calls   []ToolCall
	Tokens  Tokens // zero = not reported
	Cut     bool   // the model came to a limit of its own before the end of Text
	Refused bool   // it declines to answer; Text may say why
}

// Tokens counts what a model read and wrote.
type Tokens struct {
	Input     int
	Output    int
	Estimated bool // at least a part was not reported, but counted from the length of the texts
}

// Sum returns all of them.
func (t Tokens) Sum() int { return t.Input + t.Output }

// add returns the tokens of both.
func (t Tokens) add(o Tokens) Tokens {
	return Tokens{t.Input + o.Input, t.Output + o.Output, t.Estimated || o.Estimated}
}

// errorf makes the error of a model that gives no reply.
func errorf(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.CodeSkillError, format, args...)
}

// head returns at most the first size bytes of a text, not ending inside a character.
func head(text string, size int) string {
	if len(text) <= size {
		return text
	}
	return strings.ToValidUTF8(text[:size], "")
}
