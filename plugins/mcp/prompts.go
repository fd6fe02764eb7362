package mcp

import (
	"context"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// prompts answers mcp/prompt/list/req, page by page.
func (p *Plugin) prompts(ctx context.Context, req *protocol.MCPPromptListRequest, _ host.Emitter) (*protocol.MCPPromptListResponse, error) {
	const list = "prompts"
	servers, err := p.some(req.ServerID)
	if err != nil {
		return nil, err
	}
	from, over, err := p.readCursor(req.Cursor, list, req.ServerID)
	if err != nil || over {
		return &protocol.MCPPromptListResponse{Prompts: []map[string]any{}}, err
	}
	p.await(ctx, servers, kindAll, nil)
	rows, next, err := p.page(servers, from, list, req.ServerID, (*server).promptEntries)
	if err != nil {
		return nil, err
	}
	return &protocol.MCPPromptListResponse{Prompts: rows, NextCursor: next}, nil
}

// MergePrompts adds the prompts of a plugin of lower priority, for host.List.
func MergePrompts(dst, src *protocol.MCPPromptListResponse) {
	dst.Prompts = append(dst.Prompts, src.Prompts...)
	dst.NextCursor = joinCursors(dst.NextCursor, src.NextCursor)
}

func (s *server) promptEntries() []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]entry, 0, len(s.prompts))
	for _, pr := range s.prompts {
		args := []map[string]any{}
		for _, a := range pr.Arguments {
			if a != nil {
				arg := map[string]any{"name": a.Name, "description": a.Description, "required": a.Required}
				if a.Title != "" {
					arg["title"] = a.Title
				}
				args = append(args, arg)
			}
		}
		row := map[string]any{"server_id": s.opts.ID, "name": pr.Name, "description": pr.Description, "arguments": args}
		if pr.Title != "" {
			row["title"] = pr.Title
		}
		out = append(out, entry{pr.Name, row})
	}
	return out
}

// promptServer finds the server of a prompt: the one that is named, else the first that
// lists it.
func (p *Plugin) promptServer(ctx context.Context, name, id string) (*server, error) {
	if id != "" {
		return p.find(id)
	}
	all := p.all()
	at := -1
	p.await(ctx, all, kindAll, func() bool {
		at = slices.IndexFunc(all, func(s *server) bool { return s.hasPrompt(name) })
		return at >= 0
	})
	if at >= 0 {
		return all[at], nil
	}
	known := []string{}
	for _, s := range all {
		for _, e := range s.promptEntries() {
			known = append(known, e.key)
		}
	}
	return nil, host.NotMine(protocol.Errorf(protocol.CodeMCPPromptNotFound, "no MCP server has a prompt %q", shortened(name)).With("known", known))
}

// get answers mcp/prompt/get/req.
func (p *Plugin) get(ctx context.Context, req *protocol.MCPPromptGetRequest, _ host.Emitter) (*protocol.MCPPromptGetResponse, error) {
	var wrong problems
	if req.Name == "" {
		wrong.add("/name", "is empty; should be the name of a prompt")
	}
	args := make(map[string]string, req.Arguments.Len())
	for key, v := range req.Arguments.All() {
		text, ok := scalarText(v)
		if !ok {
			wrong.add("/arguments/"+shortened(string(key)), "is %s; prompts take texts", kindName(v))
		}
		args[string(key)] = text
	}
	if wrong != nil {
		return nil, protocol.Violation(wrong...)
	}
	s, err := p.promptServer(ctx, req.Name, req.ServerID)
	if err != nil {
		return nil, err
	}
	if err := s.usable(); err != nil {
		return nil, err
	}
	var res *sdk.GetPromptResult
	err = s.asked(ctx, func(ctx context.Context, cs *sdk.ClientSession) (err error) {
		res, err = cs.GetPrompt(ctx, &sdk.GetPromptParams{Name: req.Name, Arguments: args})
		return err
	})
	if _, ok := answeredCode(err); ok && !s.hasPrompt(req.Name) {
		err = withCode(err, protocol.CodeMCPPromptNotFound)
	}
	if err != nil {
		return nil, err
	}
	resp := &protocol.MCPPromptGetResponse{Description: res.Description, ServerID: s.opts.ID, Messages: []map[string]any{}}
	for _, m := range res.Messages {
		if m == nil {
			continue
		}
		content, err := encode(m.Content)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeMCPProtocolError, "the prompt of the MCP server %q cannot be read: %w", s.opts.ID, err)
		}
		resp.Messages = append(resp.Messages, map[string]any{"role": string(m.Role), "content": content})
	}
	return resp, nil
}

func (s *server) hasPrompt(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.prompts, func(pr *sdk.Prompt) bool { return pr.Name == name })
}
