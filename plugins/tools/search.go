package tools

import (
	"context"
	"slices"
	"strings"

	"a2e/host"
	"a2e/host/schema"
	"a2e/protocol"
)

// list answers tool/list/req, by name: the host applies the query.
func (s *Set) list(ctx context.Context, req *protocol.ToolListRequest, _ host.Emitter) (*protocol.ToolListResponse, error) {
	resp := &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{}}
	content, _ := s.current(ctx, "")
	for _, t := range content.listed {
		if t.wanted(req) {
			resp.Tools = append(resp.Tools, t.Def)
		}
	}
	return resp, nil
}

// kindNative is what the public Python SDK's pages call the built-in tools.
const kindNative = "native"

// wanted reports whether a tool passes the filters of a request.
func (t *entry) wanted(req *protocol.ToolListRequest) bool {
	kind := req.FilterKind
	if strings.EqualFold(kind, kindNative) {
		kind = string(KindBuiltin)
	}
	return (kind == "" || strings.EqualFold(kind, string(t.Kind))) && wanted(&t.Def, req)
}

// wanted looks at what a definition tells, so not at the kind.
func wanted(def *protocol.ToolDefinition, req *protocol.ToolListRequest) bool {
	if def.DeferLoading && !req.IncludeDeferred {
		return false
	}
	for _, tag := range req.FilterTags {
		if !slices.ContainsFunc(def.Tags, func(own string) bool { return strings.EqualFold(own, tag) }) {
			return false
		}
	}
	return true
}

// Narrow leaves in a list of another program's tools what a request asks for, as far as the
// program has not looked at that itself. That it has searched is seen by scores, or by what
// it left out of known, which are its tools: then each of them gets a score. changed reports
// whether resp is another.
func Narrow(resp *protocol.ToolListResponse, req *protocol.ToolListRequest, known []protocol.ToolDefinition) (changed bool) {
	unwanted := func(def protocol.ToolDefinition) bool { return !wanted(&def, req) }
	n := len(resp.Tools)
	resp.Tools = slices.DeleteFunc(resp.Tools, unwanted)
	changed = len(resp.Tools) < n
	if strings.TrimSpace(req.Query) == "" || len(resp.Tools) == len(slices.DeleteFunc(known, unwanted)) {
		return changed
	}
	for i := range resp.Tools {
		if def := &resp.Tools[i]; def.Score == 0 {
			def.Score, changed = 1, true
		}
	}
	return changed
}

// DescribeTool implements host.ToolDescriber.
func (p *Plugin) DescribeTool(name string) (host.ToolDetail, bool) { return p.set.DescribeTool(name) }

// DescribeTool tells of a tool that may be called; false = there is none of that name.
func (s *Set) DescribeTool(name string) (host.ToolDetail, bool) {
	t := s.content.Load().tools[name]
	if t == nil || t.Denied != "" {
		return host.ToolDetail{}, false
	}
	d := t.Detail
	d.Idempotent = d.Idempotent || t.Def.Idempotent
	if len(d.InputSchema) == 0 {
		d.InputSchema = schema.Object(t.Def.InputParameters, true)
	}
	return d, true
}
