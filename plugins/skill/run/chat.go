package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/openai"
	"a2e/protocol"
)

const (
	defaultModelTimeout = 120 * time.Second
	maxModelAnswer      = 8 << 20 // bytes
	maxModelTries       = 4
	longestWait         = 30 * time.Second // that an endpoint may ask for before the next try
)

// EndpointOptions say where a model answers: any server that answers the OpenAI way to
// POST {URL}/chat/completions. URL's user info and query and APIKey are sent
// along and shown nowhere.
type EndpointOptions struct {
	URL          string           // such as https://api.example.org/v1
	Model        string           // as the server names it
	APIKey       string           // sent as a bearer token; "" = none
	Timeout      time.Duration    // of one try; 0 = 120 s
	AllowPrivate bool             // the server may be this machine or in a private network; for an URL of the config, not for one of the agent
	Now          func() time.Time // nil = time.Now
}

// NewEndpoint returns the model of an endpoint; it connects at the first use. An error says
// which option is wrong. The model is an io.Closer as well, which closes the connections
// that are kept.
//
// A request that meets a broken connection, 429 or 5xx is tried again, four times in all,
// as long as ctx lasts. A redirect is followed within the same server alone.
func NewEndpoint(o EndpointOptions) (Model, error) {
	server, err := openai.New(openai.Options{
		URL: o.URL, Path: "chat/completions", APIKey: o.APIKey, Timeout: cmp.Or(o.Timeout, defaultModelTimeout),
		Tries: maxModelTries, Pause: 500 * time.Millisecond, LongestPause: 10 * time.Second, LongestWait: longestWait,
		AllowPrivate: o.AllowPrivate, Now: o.Now,
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("llm: %w", err)
	case o.Model == "":
		return nil, errors.New("llm: model is missing: name the model that the endpoint shall use")
	}
	return &endpoint{name: o.Model, server: server}, nil
}

// endpoint asks a server.
type endpoint struct {
	name   string // the model
	server *openai.Client
}

// Close closes the connections that are not in use. The model stays usable.
func (e *endpoint) Close() error { return e.server.Close() }

// Complete implements Model.
func (e *endpoint) Complete(ctx context.Context, r Request) (*Reply, error) {
	names := newWireNames(r.Tools)
	body, err := json.Marshal(e.chat(&r, names))
	if err != nil {
		return nil, errorf("the request to the model cannot be written: %w", err)
	}
	raw, err := e.server.Post(ctx, body, maxModelAnswer)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		refused := errorf("the model at %s: %v", e.server.Where(), err)
		fault := (*openai.Fault)(nil)
		refused.Retryable = !errors.As(err, &fault) || !fault.Lasting
		return nil, refused
	}
	reply, err := readChat(raw, names)
	if err != nil {
		return nil, errorf("the model at %s: %v", e.server.Where(), err)
	}
	return reply, nil
}

// The messages of the chat completions API, as far as they are used.
type (
	chatRequest struct {
		Model    string        `json:"model"`
		Messages []chatMessage `json:"messages"`
		Tools    []chatTool    `json:"tools,omitempty"`
		Stream   bool          `json:"stream"`
	}
	chatMessage struct {
		Role       string     `json:"role"`
		Content    *string    `json:"content"`
		ToolCalls  []chatCall `json:"tool_calls,omitempty"`
		ToolCallID string     `json:"tool_call_id,omitempty"`
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
			Name      string        `json:"name"`
			Arguments chatArguments `json:"arguments"`
		} `json:"function"`
	}
	chatResponse struct {
		Choices []struct {
			Message      chatMessage `json:"message"`
			FinishReason string      `json:"finish_reason"`
		} `json:"choices"`
		Usage struct {
			PromptTokens     int `json:"prompt_tokens"`
			CompletionTokens int `json:"completion_tokens"`
		} `json:"usage"`
	}
)

// chatArguments are JSON in a text, as the API has it. Some servers send the object itself.
type chatArguments string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (a *chatArguments) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if kind := dec.PeekKind(); kind == '"' || kind == 'n' {
		return json.UnmarshalDecode(dec, (*string)(a))
	}
	raw, err := dec.ReadValue()
	*a = chatArguments(raw)
	return err
}

// chat writes a request in the words of the API.
func (e *endpoint) chat(r *Request, names wireNames) *chatRequest {
	out := &chatRequest{Model: e.name}
	if r.System != "" {
		out.Messages = append(out.Messages, chatMessage{Role: "system", Content: &r.System})
	}
	for i := range r.Messages {
		m := &r.Messages[i]
		msg := chatMessage{Role: string(m.Role), Content: new(strings.ToValidUTF8(m.Text, "\uFFFD"))}
		if m.Role == RoleTool {
			msg.ToolCallID = m.Of.ID
		}
		for _, c := range m.Calls {
			call := chatCall{ID: c.ID, Type: "function"}
			call.Function.Name, call.Function.Arguments = names.name(c.Name), chatArguments(c.Arguments.Raw())
			msg.ToolCalls = append(msg.ToolCalls, call)
		}
		if len(m.Calls) > 0 && m.Text == "" {
			msg.Content = nil
		}
		out.Messages = append(out.Messages, msg)
	}
	for _, t := range r.Tools {
		out.Tools = append(out.Tools, chatTool{"function", chatFunction{names.name(t.Name), t.Description, t.Schema}})
	}
	return out
}

// maxWireName is the longest name of a function there.
const maxWireName = 64

// wireNames are names that the API takes, by those of the tools, and back: letters,
// digits, _ and -, each once.
type wireNames struct{ there, here map[string]string }

func newWireNames(tools []Tool) wireNames {
	n := wireNames{make(map[string]string, len(tools)), make(map[string]string, len(tools))}
	for _, t := range tools {
		name := head(strings.Map(func(r rune) rune {
			if r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
				return r
			}
			return '_'
		}, t.Name), maxWireName)
		for i := 2; name == "" || n.here[name] != ""; i++ {
			name = fmt.Sprintf("%s_%d", head(name, maxWireName-len("_9999")), i)
		}
		n.there[t.Name], n.here[name] = name, t.Name
	}
	return n
}

// name returns the name there of a tool; one that is none of them keeps its own.
func (n wireNames) name(tool string) string {
	if name, ok := n.there[tool]; ok {
		return name
	}
	return head(tool, maxWireName)
}

// tool is the way back.
func (n wireNames) tool(name string) string {
	if tool, ok := n.here[name]; ok {
		return tool
	}
	return name
}

// reported returns a count that a server reports, within what can be added up.
func reported(tokens int) int { return min(max(tokens, 0), 1<<40) }

// readChat reads an answer.
func readChat(raw []byte, names wireNames) (*Reply, error) {
	var answer chatResponse
	if err := json.Unmarshal(raw, &answer, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)); err != nil || len(answer.Choices) == 0 {
		return nil, errors.New(`the answer is not of the form {"choices":[{"message":{"role":"assistant","content":"…"}}]}`)
	}
	first := &answer.Choices[0]
	reply := &Reply{Cut: first.FinishReason == "length", Tokens: Tokens{Input: reported(answer.Usage.PromptTokens), Output: reported(answer.Usage.CompletionTokens)}}
	if first.Message.Content != nil {
		reply.Text = *first.Message.Content
	}
	for _, c := range first.Message.ToolCalls {
		call := ToolCall{ID: c.ID, Name: names.tool(c.Function.Name)}
		if text := strings.TrimSpace(string(c.Function.Arguments)); text != "" {
			call.Arguments, call.Invalid = argumentsOf(protocol.Value(text))
		}
		reply.Calls = append(reply.Calls, call)
	}
	return reply, nil
}
