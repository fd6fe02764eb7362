package skill

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"a2e/host"
	"a2e/host/agent"
	"a2e/plugins/skill/run"
	"a2e/protocol"

	"github.com/go-json-experiment/json/jsontext"
)

// agent lets a model carry out the skill with its tools.
func (c *skillCall) agent(ctx context.Context) (*run.Result, error) {
	prompt, err := c.skill.render(c.args, c.opts.MaxOutputBytes)
	if err != nil {
		return nil, err
	}
	model, done, err := c.chosenModel()
	if err != nil {
		return nil, err
	}
	defer done()
	system := "You carry out the skill \"" + c.skill.name + "\": " + c.skill.description + "\nFollow the instructions of the user's message. Work with the tools you have, and with no others. " +
		"Nobody answers questions. When you are done, give the result as your last message, without calling a tool."
	turns := agent.Turns{
		Services: c.services, Prompt: prompt, Tools: c.tools, MaxTurns: min(cmp.Or(c.skill.maxTurns, defaultTurns), c.opts.MaxTurns),
		Model: model, Watch: &watcher{emit: c.emit, event: c.event(ctx)},
	}
	r := &run.Result{}
	if c.skill.outputs != nil {
		system += "\nThat message is one JSON object and nothing else. It fits this JSON Schema:\n" + string(c.skill.outputs.raw)
		turns.Accept = func(text string) (err error) {
			r.Data, err = c.object(text)
			return err
		}
	}
	turns.System = system
	end, err := agent.Loop(ctx, turns)
	if err != nil {
		return nil, err
	}
	r.Summary = end.Summary()
	switch {
	case end.End != agent.EndDone:
		r.Data, r.Failed, r.Failure = nil, true, end.Failure
	case turns.Accept == nil:
		var all bool
		r.Data, all = run.Quoted(end.Text, c.opts.MaxOutputBytes)
		r.Truncated = !all || end.Cut
	}
	return r, nil
}

// object reads an answer that should be a JSON object.
func (c *skillCall) object(text string) (jsontext.Value, error) {
	obj, err := protocol.ParseObject([]byte(unfenced(text)))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer should be one JSON object and nothing else, but it cannot be read as one: %w", err)
	case len(obj.Raw()) > c.opts.MaxOutputBytes:
		return nil, fmt.Errorf("the answer has more than %d bytes, the largest result", c.opts.MaxOutputBytes)
	}
	return jsontext.Value(obj.Raw()), nil
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

// watcher makes events of what a model does.
type watcher struct {
	host.Unwatched
	emit  host.Emitter
	event run.EventFunc
	said  strings.Builder // in this round
}

// The bounds of events, in bytes.
const (
	maxEventResult = 4 << 10  // of a tool's result
	maxSaid        = 64 << 10 // of what the model says beside its calls
)

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

// Round implements host.Watcher.
func (w *watcher) Round(round, of int) {
	w.said.Reset()
	w.emit.Status(fmt.Sprintf("turn %d of %d", round, of))
}

// Piece implements host.Watcher.
func (w *watcher) Piece(kind host.PieceKind, text string) {
	if kind == host.PieceAnswer {
		w.said.WriteString(text)
	}
}

// Restart implements host.Watcher.
func (w *watcher) Restart() { w.said.Reset() }

// ToolStarted implements host.Watcher. What the model said before its first call is told with it.
func (w *watcher) ToolStarted(round int, c host.ModelCall) {
	if w.said.Len() > 0 {
		w.emit.Log("info", strings.ToValidUTF8(w.said.String()[:min(w.said.Len(), maxSaid)], ""), "")
		w.said.Reset()
	}
	w.tell("tool_call", &toolCallEvent{round, c.ID, c.Name, c.Arguments})
}

// ToolEnded implements host.Watcher.
func (w *watcher) ToolEnded(round int, c host.ModelCall, r host.ModelResult) {
	text := agent.ResultText(r)
	w.tell("tool_result", &toolResultEvent{round, c.ID, c.Name, r.OK, strings.ToValidUTF8(text[:min(len(text), maxEventResult)], "")})
}

// tell sends an event of a kind of its own.
func (w *watcher) tell(kind string, data any) {
	if text, err := json.Marshal(data); err == nil {
		w.event(kind, text)
	}
}

// chosenModel returns the model of a call: what it names itself, else that of the config, else
// the agent. The caller calls done.
func (c *skillCall) chosenModel() (model agent.Model, done func(), err error) {
	done = func() {}
	switch {
	case c.req.LLMOverride != nil && !c.opts.AllowLLMOverride:
		return nil, nil, protocol.Errorf(protocol.CodeSkillError,
			"llm_override is not allowed here; leave it out, or set allow_llm_override in the options of the plugin")
	case c.req.LLMOverride != nil:
		if model, err = c.overridden(c.req.LLMOverride); err != nil {
			return nil, nil, protocol.Violation(protocol.FieldError{Path: "/llm_override", Message: err.Error()})
		}
		return model, func() { _ = closeModel(model) }, nil // connections that stay open end by themselves
	case c.model != nil && !c.foreign(c.skill):
		return c.model, done, nil
	}
	return agent.NewSampling(c.services), done, nil
}

// overridden returns the model that a call names: provider_config {url or base_url, model} and
// provider_credentials {api_key}. What it leaves out is as in the config, save that the key
// of the config goes to the URL of the config alone. A skill that an agent could have written
// gets nothing of the config.
func (c *skillCall) overridden(l *protocol.LLMConfig) (agent.Model, error) {
	var place protocol.Object
	if l.ProviderConfig != nil {
		place = *l.ProviderConfig
	}
	o := agent.EndpointOptions{
		URL: firstText(place, "url", "base_url", "api_base"), Model: firstText(place, "model", "model_name"),
		APIKey: firstText(l.ProviderCredentials, "api_key", "key", "token"), Now: c.env.Now,
	}
	own := c.opts.LLM
	if c.foreign(c.skill) {
		own = agent.LLM{}
	}
	if own.URL != "" && (o.URL == "" || o.URL == own.URL) {
		o.URL, o.AllowPrivate, o.Thinking, o.Timeout = own.URL, true, own.Thinking, own.Timeout
		if o.APIKey == "" {
			o.APIKey = own.APIKey.Reveal()
		}
	}
	if o.Model == "" {
		o.Model = own.Model
	}
	return agent.NewEndpoint(o)
}

// firstText returns the first of some members that is a text.
func firstText(obj protocol.Object, keys ...string) string {
	for _, key := range keys {
		if v, ok := obj.Get(key); ok {
			if text, ok := v.Str(); ok && text != "" {
				return text
			}
		}
	}
	return ""
}

// closeModel closes the connections that a model keeps; nil has none.
func closeModel(m agent.Model) error {
	if c, ok := m.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
