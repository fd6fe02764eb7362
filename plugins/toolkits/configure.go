package toolkits

import (
	"context"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/protocol"
)

// list answers toolkit/list/req. filter_kind is a toolkit's name or category.
func (p *Plugin) list(_ context.Context, req *protocol.ToolkitListRequest, _ host.Emitter) (*protocol.ToolkitListResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resp := &protocol.ToolkitListResponse{Toolkits: []protocol.ToolkitDefinition{}}
	for _, k := range p.kits {
		if !k.wanted(req) {
			continue
		}
		def, err := k.definition()
		if err != nil {
			return nil, err
		}
		resp.Toolkits = append(resp.Toolkits, def)
	}
	return resp, nil
}

// wanted tells whether a toolkit passes the filters of a request.
func (k *kit) wanted(req *protocol.ToolkitListRequest) bool {
	if req.FilterKind != "" && !strings.EqualFold(req.FilterKind, k.name) && !strings.EqualFold(req.FilterKind, k.category) {
		return false
	}
	return !slices.ContainsFunc(req.FilterTags, func(tag string) bool {
		return !slices.ContainsFunc(k.tags, func(own string) bool { return strings.EqualFold(own, tag) })
	})
}

// definition says what the toolkit is. One that is not configured names the tools that it
// would have.
func (k *kit) definition() (protocol.ToolkitDefinition, error) {
	schema, err := k.schema()
	if err != nil {
		return protocol.ToolkitDefinition{}, err
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		return protocol.ToolkitDefinition{}, err
	}
	def := protocol.ToolkitDefinition{
		Name: k.name, Alias: k.alias, Description: k.description, Category: k.category,
		Tags: k.tags, Tools: k.tools, Configured: k.made != nil, Version: version,
	}
	if k.made != nil {
		def.Tools = names(k.made)
	}
	return def, json.Unmarshal(raw, &def.Schema)
}

// mergeKits adds the toolkits of src whose name dst does not have.
func mergeKits(dst, src *protocol.ToolkitListResponse) {
	for _, def := range src.Toolkits {
		if !slices.ContainsFunc(dst.Toolkits, func(own protocol.ToolkitDefinition) bool { return own.Name == def.Name }) {
			dst.Toolkits = append(dst.Toolkits, def)
		}
	}
	slices.SortStableFunc(dst.Toolkits, func(a, b protocol.ToolkitDefinition) int { return strings.Compare(a.Name, b.Name) })
}

// configure answers toolkit/configure/req: what was configured before is there until the
// new one is. An empty config takes the toolkit's tools away.
func (p *Plugin) configure(ctx context.Context, req *protocol.ToolkitConfigureRequest, _ host.Emitter) (*protocol.ToolkitConfigureResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.kits, func(k *kit) bool { return k.name == req.ToolkitName })
	if i < 0 {
		return nil, p.unknown(req.ToolkitName)
	}
	if p.opts.Locked {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "toolkits are configured by the host's config alone (locked)")
	}
	host.Detach(ctx)
	k := p.kits[i]
	resp := &protocol.ToolkitConfigureResponse{ToolkitName: k.name, Status: "ok"}
	if req.Config.Len() == 0 {
		k.replace(nil, host.SessionFrom(ctx))
		p.refreshLocked()
		resp.Message = new("the toolkit is not configured any more; its tools are gone")
		return resp, nil
	}
	if err := k.fits(req.Config); err != nil {
		return nil, err
	}
	m, err := k.make(p, req.Config)
	if err != nil {
		return nil, err
	}
	k.replace(m, host.SessionFrom(ctx))
	p.refreshLocked()
	resp.Message = new(strings.Join(names(m), ", "))
	return resp, nil
}

// names lists the tools of a toolkit.
func names(m *made) []string {
	all := make([]string, len(m.tools))
	for i := range m.tools {
		all[i] = m.tools[i].Def.Name
	}
	return all
}

// unknown is the answer to a toolkit that this plugin does not have.
func (p *Plugin) unknown(name string) error {
	var known []string
	for _, k := range p.kits {
		known = append(known, k.name)
	}
	e := protocol.Violation(protocol.FieldError{Path: "/toolkit_name", Message: "there is no such toolkit"})
	return host.NotMine(e.With("known", known))
}
