package tools

import (
	"context"
	"slices"
	"strings"

	"a2e/host"
	"a2e/host/schema"
	"a2e/protocol"
)

// list answers tool/list/req: by name, or with a query by relevance.
func (s *Set) list(ctx context.Context, req *protocol.ToolListRequest, _ host.Emitter) (*protocol.ToolListResponse, error) {
	resp := &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{}}
	content, _ := s.current(ctx, "")
	if strings.TrimSpace(req.Query) == "" {
		for _, t := range content.listed {
			if t = t.as(s.services); t.wanted(req) {
				resp.Tools = append(resp.Tools, t.Def)
			}
		}
		return resp, nil
	}
	for _, hit := range content.index().search(req.Query, s.services.Weigher()) {
		if t := content.listed[hit.doc].as(s.services); t.wanted(req) {
			resp.Tools = append(resp.Tools, t.Def)
			resp.Scores, resp.Weights = append(resp.Scores, hit.score), append(resp.Weights, hit.weight)
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
// it left out of known, which are its tools. changed reports whether resp is another.
func Narrow(services *host.Services, resp *protocol.ToolListResponse, req *protocol.ToolListRequest, known []protocol.ToolDefinition) (changed bool) {
	unwanted := func(def protocol.ToolDefinition) bool { return !wanted(&def, req) }
	if strings.TrimSpace(req.Query) == "" || len(resp.Scores) > 0 {
		n := len(resp.Tools)
		if len(resp.Scores) == 0 {
			resp.Tools = slices.DeleteFunc(resp.Tools, unwanted)
		}
		return len(resp.Tools) < n
	}
	resp.Tools = slices.DeleteFunc(resp.Tools, unwanted)
	searched := len(resp.Tools) < len(slices.DeleteFunc(known, unwanted))
	var x searchIndex
	for _, def := range resp.Tools {
		x.add(def.Name, def.Description, def.Tags)
	}
	found := make([]bool, len(x.docs))
	var out protocol.ToolListResponse
	take := func(doc int, score, weight float64) {
		found[doc] = true
		out.Tools = append(out.Tools, resp.Tools[doc])
		out.Scores, out.Weights = append(out.Scores, score), append(out.Weights, weight)
	}
	for _, hit := range x.search(req.Query, services.Weigher()) {
		take(hit.doc, hit.score, hit.weight)
	}
	for doc := range found {
		if searched && !found[doc] { // it found these in a way of its own
			take(doc, 0, 0)
		}
	}
	*resp = out
	return true
}

// newIndex makes the search index over some tools, in their order.
func newIndex(listed []*entry) *searchIndex {
	var x searchIndex
	for _, t := range listed {
		x.add(t.Def.Name, t.Def.Description, t.Def.Tags)
	}
	return &x
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
