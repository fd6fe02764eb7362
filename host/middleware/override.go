package middleware

import (
	"context"
	"errors"
	"maps"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// showFunc serves a request by next, and applies the overrides of one kind of components.
type showFunc func(ctx context.Context, all map[string]*host.Override, obj protocol.Object, next askFunc) (any, error)

// askFunc passes a request to the plugins.
type askFunc func(ctx context.Context, obj protocol.Object) (any, error)

// shows returns the kind of components whose overrides apply to requests of type t, and the function that applies
// them; nil = none do.
func shows(t protocol.Type) (kind string, show showFunc) {
	switch t {
	case protocol.TypeToolListReq:
		return host.KindTool, showTools
	case protocol.TypeToolCallReq:
		return host.KindTool, limitCall
	case protocol.TypeSkillDiscoverReq:
		return host.KindSkill, showing(showSkills)
	case protocol.TypeMCPPromptListReq:
		return host.KindPrompt, showing(listPrompts)
	case protocol.TypeMCPPromptGetReq:
		return host.KindPrompt, showing(getPrompt)
	}
	return "", nil
}

// override applies overrides to the components in answers, and to the time limits of calls.
func override(s *host.Services, to host.Target, next host.Handler) host.Handler {
	kind, show := shows(to.Type)
	if show == nil || !s.KeepsOverrides() {
		return next
	}
	calls := to.Type == protocol.TypeToolCallReq
	return func(ctx context.Context, obj protocol.Object, emit host.Emitter) (any, error) {
		if calls && s.ShortTool(obj.Text("tool_name")) { // so its first call does not wait for the store
			return next(ctx, obj, emit)
		}
		all := s.Overrides(kind)
		if len(all) == 0 || host.WantsOriginals(ctx) {
			return next(ctx, obj, emit)
		}
		return show(ctx, all, obj, func(ctx context.Context, obj protocol.Object) (any, error) {
			return next(ctx, obj, emit)
		})
	}
}

// limitCall bounds a call of a tool by the time limit of its override.
func limitCall(ctx context.Context, all map[string]*host.Override, obj protocol.Object, next askFunc) (any, error) {
	name := obj.Text("tool_name")
	o := all[name]
	if o == nil || o.Timeout == 0 {
		return next(ctx, obj)
	}
	late := protocol.Errorf(protocol.CodeTimeout, "tool %q did not end within its own limit of %s", name, o.Timeout)
	own, cancel := context.WithTimeoutCause(host.WithLimit(ctx, name), o.Timeout, late)
	defer cancel()
	answer, err := next(own, obj)
	if err == nil || ctx.Err() != nil || own.Err() == nil { // if the request itself was stopped, the host knows why
		return answer, err
	}
	var known *protocol.Error
	if errors.As(err, &known) {
		late.Detail = known.Detail // what it had printed, for example
	}
	return nil, late
}

// showTools lists tools with their overrides. A tool that is deferred by itself, but not by its override, is listed
// too.
func showTools(ctx context.Context, all map[string]*host.Override, obj protocol.Object, next askFunc) (any, error) {
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
		if obj, err = obj.With("include_deferred", jsontext.Value("true")); err != nil {
			return nil, err
		}
	}
	answer, err := next(ctx, obj)
	if err != nil {
		return nil, err
	}
	found, err := host.AnswerOf[protocol.ToolListResponse](answer)
	if err != nil {
		return nil, err
	}
	resp := &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{}}
	for _, def := range found.Tools {
		o := all[def.Name]
		if def.Description = o.Text(host.TextDescription, def.Description); o != nil && o.Deferred != nil {
			def.DeferLoading = *o.Deferred
		}
		if def.DeferLoading && !req.IncludeDeferred && (wide || o != nil) {
			continue
		}
		resp.Tools = append(resp.Tools, def)
	}
	return resp, nil
}

// showing returns a showFunc that applies show to the decoded answer.
func showing[T any](show func(all map[string]*host.Override, obj protocol.Object, resp *T)) showFunc {
	return func(ctx context.Context, all map[string]*host.Override, obj protocol.Object, next askFunc) (any, error) {
		answer, err := next(ctx, obj)
		if err != nil {
			return nil, err
		}
		resp, err := host.AnswerOf[T](answer)
		if err != nil {
			return nil, err
		}
		show(all, obj, resp)
		return resp, nil
	}
}

// showSkills applies the overrides of skills to their instructions.
func showSkills(all map[string]*host.Override, _ protocol.Object, resp *protocol.SkillDiscoverResponse) {
	for i := range resp.Skills {
		if def := &resp.Skills[i]; def.Instructions != nil && all[def.Name] != nil {
			def.Instructions = new(all[def.Name].Text(host.TextInstructions, *def.Instructions))
		}
	}
}

// listPrompts applies the overrides of prompts to their descriptions.
func listPrompts(all map[string]*host.Override, _ protocol.Object, resp *protocol.MCPPromptListResponse) {
	for i, row := range resp.Prompts {
		server, _ := row["server_id"].(string)
		name, _ := row["name"].(string)
		if text, ok := row["description"].(string); ok && all[protocol.MCPName(server, name)] != nil {
			row = maps.Clone(row)
			row["description"] = all[protocol.MCPName(server, name)].Text(host.TextDescription, text)
			resp.Prompts[i] = row
		}
	}
}

// getPrompt applies the override of a prompt to its description and text.
func getPrompt(all map[string]*host.Override, obj protocol.Object, resp *protocol.MCPPromptGetResponse) {
	o := all[protocol.MCPName(resp.ServerID, obj.Text("name"))]
	resp.Description = o.Text(host.TextDescription, resp.Description)
	if text, ok := resp.SingleText(); ok {
		if to := o.Text(host.TextPrompt, text); to != text {
			resp.Messages = []map[string]any{{
				"role":    resp.Messages[0]["role"],
				"content": map[string]any{"type": "text", "text": to},
			}}
		}
	}
}
