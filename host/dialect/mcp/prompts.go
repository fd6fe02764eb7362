package mcp

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
)

// listPrompts answers prompts/list.
func (s *server) listPrompts(ctx context.Context, r *request, _ mcp.Params) (mcp.Result, error) {
	all, err := s.prompts(ctx)
	if err != nil {
		return nil, err
	}
	s.watch.prompts.saw(all)
	res := new(listed)
	res.Prompts, res.NextCursor, err = page(all, "prompts", r.cursor(), func(p *mcp.Prompt) string { return p.Name })
	return res, err
}

// prompts returns the skills that may be called as prompts, and the prompts of MCP servers,
// by name. A skill comes before a prompt of the same name.
func (s *server) prompts(ctx context.Context) ([]*mcp.Prompt, error) {
	skills, err := s.skills(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]*mcp.Prompt, len(skills))
	for i := range skills {
		all[i] = &mcp.Prompt{Name: skills[i].Name, Description: skills[i].Description, Arguments: promptArguments(&skills[i])}
	}
	behind, err := s.serverPrompts(ctx)
	if err != nil {
		return nil, err
	}
	all = append(all, behind...)
	sortBy(all, func(p *mcp.Prompt) string { return p.Name })
	return slices.CompactFunc(all, func(a, b *mcp.Prompt) bool { return a.Name == b.Name }), nil
}

// skills returns the skills that may be called; none where no plugin has any.
func (s *server) skills(ctx context.Context) ([]protocol.SkillDefinition, error) {
	var resp protocol.SkillDiscoverResponse
	err := host.ServicesOf(ctx).Call(ctx, protocol.TypeSkillDiscoverReq, &protocol.SkillDiscoverRequest{}, &resp, nil)
	switch {
	case dialect.IsMissing(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return slices.DeleteFunc(resp.Skills, func(skill protocol.SkillDefinition) bool {
		return skill.Status == protocol.SkillBlocked || skill.Status == protocol.SkillArchived
	}), nil
}

// inputs is what a skill's input schema says of its arguments.
type inputs struct {
	Properties map[string]struct {
		Type        jsontext.Value `json:"type"`
		Title       string         `json:"title"`
		Description string         `json:"description"`
	} `json:"properties"`
	Required []string `json:"required"`
}

// inputsOf reads a skill's input schema; nothing where it is another than usual.
func inputsOf(skill *protocol.SkillDefinition) (in inputs) {
	if raw, err := json.Marshal(skill.InputSchema); err != nil || json.Unmarshal(raw, &in) != nil {
		return inputs{}
	}
	return in
}

func promptArguments(skill *protocol.SkillDefinition) (all []*mcp.PromptArgument) {
	in := inputsOf(skill)
	for name, p := range in.Properties {
		all = append(all, &mcp.PromptArgument{Name: name, Title: p.Title, Description: p.Description, Required: slices.Contains(in.Required, name)})
	}
	for _, name := range skill.Arguments {
		if _, known := in.Properties[name]; !known {
			all = append(all, &mcp.PromptArgument{Name: name, Description: skill.ArgumentHint, Required: slices.Contains(in.Required, name)})
		}
	}
	sortBy(all, func(a *mcp.PromptArgument) string { return a.Name })
	return all
}

// getPrompt answers prompts/get: what the skill gives is the message of the prompt.
func (s *server) getPrompt(ctx context.Context, r *request, params mcp.Params) (mcp.Result, error) {
	p := params.(*mcp.GetPromptParams)
	skills, err := s.skills(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(skills, func(skill protocol.SkillDefinition) bool { return skill.Name == p.Name })
	if at < 0 {
		return s.getServerPrompt(ctx, p.Name, p.Arguments)
	}
	skill := &skills[at]
	args, err := skillArguments(skill, p.Arguments)
	if err != nil {
		return nil, err
	}
	emit := s.emitter(r, p.Name)
	req := &protocol.SkillCallRequest{Name: p.Name, Arguments: args, Streaming: emit.Streaming(), Timeout: s.timeout()}
	var resp protocol.SkillCallResponse
	if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeSkillCallReq, req, &resp, emit); err != nil {
		return nil, err
	}
	text, err := promptText(p.Name, &resp)
	if err != nil {
		return nil, err
	}
	content := append(protocol.AppendString([]byte(`{"type":"text","text":`), text), '}')
	return &promptResult{Description: skill.Description, Messages: []promptMessage{{Role: "user", Content: content}}}, nil
}

// skillArguments makes a skill's arguments of a prompt's, which are all texts: where the
// skill wants no text, the text is the JSON of the value.
func skillArguments(skill *protocol.SkillDefinition, texts map[string]string) (protocol.Object, error) {
	in := inputsOf(skill)
	members := make(map[string]jsontext.Value, len(texts))
	for name, text := range texts {
		val := jsontext.Value(text)
		if p, ok := in.Properties[name]; !ok || takesText(p.Type) || !val.IsValid() {
			val = protocol.AppendString(nil, text)
		}
		members[name] = val
	}
	raw, err := json.Marshal(members, json.Deterministic(true))
	if err != nil {
		return protocol.Object{}, err
	}
	return protocol.ParseObject(raw)
}

// takesText reports whether the `type` of a schema lets a text in.
func takesText(kind jsontext.Value) bool {
	var some []string
	if kind.Kind() == '[' && json.Unmarshal(kind, &some) == nil {
		return slices.Contains(some, "string")
	}
	return kind.Kind() != '"' || textOf(kind) == "string"
}

// promptText returns what a skill gave, as a text: the rendered instructions where that is
// what it gives, else its result.
func promptText(name string, resp *protocol.SkillCallResponse) (string, error) {
	res := resp.Data
	if res == nil {
		return "", protocol.Errorf(protocol.CodeSkillError, "skill %.64q gave no result", name)
	}
	if !res.Success {
		why := cmp.Or(deref(res.Error), textOf(res.Summary), "it gives no reason")
		return "", protocol.Errorf(cmp.Or(deref(res.ErrorCode), protocol.CodeSkillError), "skill %.64q failed: %s", name, why)
	}
	if text := instructionsOf(res.Data); text != "" {
		return text, nil
	}
	if texts := dataTexts(res.Data); len(texts) > 0 {
		return texts[0], nil
	}
	if text := textOf(res.Summary); text != "" {
		return text, nil
	}
	return "", errors.New("the skill has run and gave nothing back")
}

// instructionsOf returns the instructions of a skill that the client's own model is to carry
// out, and where the skill's files are; "" = it was one that has run.
func instructionsOf(data jsontext.Value) string {
	text := textOf(member(data, "instructions"))
	var files []string
	if list := member(data, "files"); text == "" || list == nil || json.Unmarshal(list, &files) != nil || len(files) == 0 {
		return text
	}
	return text + "\n\nFiles of this skill, for the tool read_file: " + strings.Join(files, ", ")
}
