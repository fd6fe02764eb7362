// Package agent runs the loop of a model and the host's tools, for workers with a model and for skills with agent:
// true.
//
//	agent.go     the types: models, requests, replies
//	talk.go      a conversation, and what may follow it
//	workers.go   the contract of the plugin whose child agents do tasks
//	loop.go      from a prompt to the final answer, round by round
//	compact.go   a long conversation, summarised
//	calls.go     the calls of one round, and the messages of the OpenAI API
//	endpoint.go  the model of a server with that API
//	stream.go    its answers, piece by piece
//	sampling.go  the agent's own model
package agent

import (
	"context"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/config"
	"a2e/protocol"
)

// LLM is the option `llm` of a config: the model of a server with the OpenAI API.
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

// Model is a language model. One Loop does not call Complete twice at the same time. Its error is a
// *protocol.Error, or the cause of ctx.
type Model interface {
	Complete(ctx context.Context, r Request) (*Reply, error)
}

// Request asks a model for its next message.
type Request struct {
	System   string
	Messages []Message
	Tools    []Tool   // that it may call
	Model    string   // another model of the same endpoint; "" = the model's own
	Thinking string   // how much it should think; "" = as its options say
	To       Listener // receives the message as it comes; nil = nobody does
}

// Listener receives a message as it comes.
type Listener interface {
	// Piece receives a piece of text.
	Piece(kind PieceKind, text string)
	// Grew receives by how many bytes the message has grown, including the bytes of its pieces.
	Grew(bytes int)
	// Restart says that the message begins again.
	Restart()
}

// nobody is a Listener that ignores everything.
type nobody struct{}

func (nobody) Piece(PieceKind, string) {}
func (nobody) Grew(int)                {}
func (nobody) Restart()                {}

// listener returns the Listener of the request; it is never nil.
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

// Own is a tool of one run, which the host does not list. Call's error is a *protocol.Error, or that of ctx.
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
	Images []Image    // of the user
	Calls  []ToolCall // of the assistant
	Of     ToolCall   // of RoleTool: the call that Text is the result of, without its arguments
}

// ToolCall is a model's wish to call a tool.
type ToolCall struct {
	ID        string
	Name      string
	WireName  string // as the model names it; "" = Name
	Arguments protocol.Object
	Invalid   string // why the call cannot be made; "" = it can
}

// Reply is a model's next message: text, or calls, or both.
type Reply struct {
	Text    string
	Calls   []ToolCall
	Tokens  Tokens // zero = not reported
	Cut     bool   // the model reached a limit of its own before the end of Text
	Refused bool   // it declines to answer; Text may say why
}

// Tokens counts what a model read and wrote.
type Tokens struct {
	Input     int
	Output    int
	Estimated bool // at least a part was not reported, but counted from the length of the texts
}

// Sum returns Input and Output together.
func (t Tokens) Sum() int { return t.Input + t.Output }

// add returns the sum of both.
func (t Tokens) add(o Tokens) Tokens {
	return Tokens{t.Input + o.Input, t.Output + o.Output, t.Estimated || o.Estimated}
}

// errorf returns the error of a model that does not reply.
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
