package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// Override takes the place of what a component says of itself. It does not change.
type Override struct {
	// Timeout bounds a call of a tool in place of the tool's own limit; 0 = that one. The
	// request's limit holds beside it.
	Timeout time.Duration
	// Deferred says whether a tool is left out where deferred tools are not asked for; nil = as
	// the tool says.
	Deferred *bool
	Texts    map[string]Text // by name: one of the constants below
}

// The names of texts that an Override can have.
const (
	TextDescription  = "description"  // of a tool, of a prompt
	TextInstructions = "instructions" // of a skill
	TextPrompt       = "text"         // of a prompt that takes no arguments and is one message
)

// Text takes the place of another text, as long as the component has that.
type Text struct {
	Of [sha256.Size]byte // SHA-256 of the text that it was made for
	To string
}

// Text returns what stands in the place of a text of the component: the text itself where
// nothing was made for it. A nil Override has nothing.
func (o *Override) Text(name, original string) string {
	if o != nil {
		if t, ok := o.Texts[name]; ok && t.Of == sha256.Sum256([]byte(original)) {
			return t.To
		}
	}
	return original
}

// Overrider is a plugin that keeps overrides. Find finds it.
type Overrider interface {
	// Overrides returns those of the components of a kind, by name. The map does not change.
	// It must be quick: calls ask.
	Overrides(kind string) map[string]*Override
}

// Instructor is a plugin with skills whose instructions follow the overrides. All finds it.
type Instructor interface {
	// Instructions returns those of a skill, as they are by themselves; false = the plugin has no
	// such skill, or one without any.
	Instructions(skill string) (text string, ok bool)
}

// originalKey finds in a context that WithoutOverrides made it.
type originalKey struct{}

// WithoutOverrides returns a context for requests that want to see components as they are by
// themselves.
func WithoutOverrides(ctx context.Context) context.Context {
	return context.WithValue(ctx, originalKey{}, true)
}

// limitedKey finds the tool whose call the host bounds in time.
type limitedKey struct{}

// Limited reports whether the host bounds a call of a tool in time in place of the tool's
// own limit.
func Limited(ctx context.Context, tool string) bool { return ctx.Value(limitedKey{}) == tool }

// asking asks the plugins that a request is for.
type asking func(ctx context.Context, obj protocol.Object) (any, error)

// overriding serves requests of one type with the overrides of a kind of components.
type overriding struct {
	kind  string
	serve serving
}

type serving func(ctx context.Context, all map[string]*Override, obj protocol.Object, ask asking) (any, error)

// overridden lists the requests in which overrides show, whichever plugin serves them.
func overridden() map[protocol.Type]overriding {
	return map[protocol.Type]overriding{
		protocol.TypeToolListReq:      {KindTool, showTools},
		protocol.TypeToolCallReq:      {KindTool, limitCall},
		protocol.TypeSkillDiscoverReq: {KindSkill, showing(showSkills)},
		protocol.TypeMCPPromptListReq: {KindPrompt, showing(listPrompts)},
		protocol.TypeMCPPromptGetReq:  {KindPrompt, showing(getPrompt)},
	}
}

// override shows components, and bounds calls, as they were set.
func (h *Host) override(next handler) handler {
	how := overridden()
	return func(ctx context.Context, d *destination, obj protocol.Object, emit Emitter) (any, error) {
		o, shows := how[d.typ]
		short := d.typ == protocol.TypeToolCallReq && h.short != nil && h.short.ShortTool(toolName(obj))
		if !shows || short { // the first call of a short one does not wait for the store
			return next(ctx, d, obj, emit)
		}
		all := h.services.overrider.Overrides(o.kind)
		if len(all) == 0 || ctx.Value(originalKey{}) != nil {
			return next(ctx, d, obj, emit)
		}
		return o.serve(ctx, all, obj, func(ctx context.Context, obj protocol.Object) (any, error) {
			return next(ctx, d, obj, emit)
		})
	}
}

// toolName returns the name of the tool in a call.
func toolName(obj protocol.Object) string {
	return obj.Text("tool_name")
}

// limitCall bounds a call of a tool in time.
func limitCall(ctx context.Context, all map[string]*Override, obj protocol.Object, ask asking) (any, error) {
	name := toolName(obj)
	o := all[name]
	if o == nil || o.Timeout == 0 {
		return ask(ctx, obj)
	}
	late := protocol.Errorf(protocol.CodeTimeout, "tool %q did not end within its own limit of %s", name, o.Timeout)
	own, cancel := context.WithTimeoutCause(context.WithValue(ctx, limitedKey{}, name), o.Timeout, late)
	defer cancel()
	answer, err := ask(own, obj)
	if err == nil || ctx.Err() != nil || own.Err() == nil { // where the request itself was stopped, the host knows why
		return answer, err
	}
	var known *protocol.Error
	if errors.As(err, &known) {
		late.Detail = known.Detail // what it had printed, for example
	}
	return nil, late
}

// showTools shows tools as they were set. One that is deferred by itself, and set not to be,
// is listed too.
func showTools(ctx context.Context, all map[string]*Override, obj protocol.Object, ask asking) (any, error) {
	var req protocol.ToolListRequest
	if err := protocol.Decode(obj, nil, &req); err != nil {
		return nil, err
	}
	wide := false
	for _, o := range all {
		wide = wide || !req.IncludeDeferred && o.Deferred != nil && !*o.Deferred
	}
	if wide {
		var err error
		if obj, err = with(obj, "include_deferred", jsontext.Value("true")); err != nil {
			return nil, err
		}
	}
	answer, err := ask(ctx, obj)
	if err != nil {
		return nil, err
	}
	found, err := typed[protocol.ToolListResponse](answer)
	if err != nil {
		return nil, err
	}
	resp := &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{}}
	for _, def := range found.Tools {
		o := all[def.Name]
		if def.Description = o.Text(TextDescription, def.Description); o != nil && o.Deferred != nil {
			def.DeferLoading = *o.Deferred
		}
		if def.DeferLoading && !req.IncludeDeferred && (wide || o != nil) {
			continue
		}
		resp.Tools = append(resp.Tools, def)
	}
	return resp, nil
}

// with returns an object with a member set.
func with(obj protocol.Object, key string, val jsontext.Value) (protocol.Object, error) {
	raw := append(make([]byte, 0, len(obj.Raw())+len(key)+len(val)+8), '{')
	for name, v := range obj.All() {
		if string(name) != key {
			raw = append(append(protocol.AppendString(raw, name), ':'), v...)
			raw = append(raw, ',')
		}
	}
	raw = append(append(protocol.AppendString(raw, key), ':'), val...)
	return protocol.ParseObject(append(raw, '}'))
}

// showing serves a request whose answer shows components as they were set.
func showing[T any](show func(all map[string]*Override, obj protocol.Object, resp *T)) serving {
	return func(ctx context.Context, all map[string]*Override, obj protocol.Object, ask asking) (any, error) {
		answer, err := ask(ctx, obj)
		if err != nil {
			return nil, err
		}
		resp, err := typed[T](answer)
		if err != nil {
			return nil, err
		}
		show(all, obj, resp)
		return resp, nil
	}
}

// showSkills shows the instructions of skills as they were set.
func showSkills(all map[string]*Override, _ protocol.Object, resp *protocol.SkillDiscoverResponse) {
	for i := range resp.Skills {
		if def := &resp.Skills[i]; def.Instructions != nil && all[def.Name] != nil {
			def.Instructions = new(all[def.Name].Text(TextInstructions, *def.Instructions))
		}
	}
}

// PromptName is the name of a prompt of an MCP server as a component.
func PromptName(server, prompt string) string { return server + "__" + prompt }

// listPrompts shows the descriptions of prompts as they were set.
func listPrompts(all map[string]*Override, _ protocol.Object, resp *protocol.MCPPromptListResponse) {
	for i, row := range resp.Prompts {
		server, _ := row["server_id"].(string)
		name, _ := row["name"].(string)
		if text, ok := row["description"].(string); ok && all[PromptName(server, name)] != nil {
			row = maps.Clone(row)
			row["description"] = all[PromptName(server, name)].Text(TextDescription, text)
			resp.Prompts[i] = row
		}
	}
}

// getPrompt gives a prompt as it was set.
func getPrompt(all map[string]*Override, obj protocol.Object, resp *protocol.MCPPromptGetResponse) {
	o := all[PromptName(resp.ServerID, obj.Text("name"))]
	resp.Description = o.Text(TextDescription, resp.Description)
	if text, ok := PromptText(resp); ok {
		if to := o.Text(TextPrompt, text); to != text {
			resp.Messages = []map[string]any{{"role": resp.Messages[0]["role"],
				"content": map[string]any{"type": "text", "text": to}}}
		}
	}
}

// PromptText returns the text of a prompt that is one message with nothing but a text;
// false = it is another one.
func PromptText(resp *protocol.MCPPromptGetResponse) (text string, ok bool) {
	if len(resp.Messages) != 1 {
		return "", false
	}
	var content struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	raw, err := json.Marshal(resp.Messages[0]["content"])
	if err != nil || json.Unmarshal(raw, &content) != nil || content.Type != "text" || content.Text == nil {
		return "", false
	}
	return *content.Text, true
}
