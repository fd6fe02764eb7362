package tools

import (
	"a2e/host"
	"a2e/host/schema"
)

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
