package skill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/protocol"
)

// room has the limits of one answer, in bytes.
type room struct {
	text  int // of the instructions of one skill; longer ones are only in the answer to a call
	texts int // of all instructions together
	all   int // of all definitions without instructions; further skills are listed in brief
}

// briefBytes is how many bytes of a description a brief definition has.
const briefBytes = 200

// discover answers skill/discover/req. A skill passes a filter if it has one of the filter's
// tags or categories, in any letter case; all skills pass an empty filter.
func (p *Plugin) discover(ctx context.Context, req *protocol.SkillDiscoverRequest,
	_ host.Emitter,
) (*protocol.SkillDiscoverResponse, error) {
	host.HandOff(ctx) // folders may be on a slow disk
	resp := &protocol.SkillDiscoverResponse{Skills: []protocol.SkillDefinition{}}
	weigher := p.services.Weigher()
	left, all := p.room, &inventory{}
	for _, s := range p.library.current(false).skills {
		if !s.wanted(req) {
			continue
		}
		found, blocked, err := p.look(ctx, s, all)
		if err != nil {
			return nil, err
		}
		def := s.definition(blocked)
		if found.unknown != nil {
			def.Metadata["unknown_tools"] = found.unknown
		}
		if left.all -= s.size; left.all < 0 {
			def = brief(def)
		} else if len(s.body) <= min(left.text, left.texts) {
			left.texts -= len(s.body)
			def.Instructions = &s.body
		}
		if weigher != nil {
			if w := weigher.Weight(host.KindSkill, s.name); w != 1 {
				def.Metadata["routing_weight"] = w
			}
		}
		resp.Skills = append(resp.Skills, def)
	}
	return resp, nil
}

// wanted reports whether a skill passes the filters of a request.
func (s *skill) wanted(req *protocol.SkillDiscoverRequest) bool {
	one := func(filter []string, has ...string) bool {
		return len(filter) == 0 || slices.ContainsFunc(filter, func(want string) bool {
			return slices.ContainsFunc(has, func(own string) bool { return own != "" && strings.EqualFold(own, want) })
		})
	}
	return one(req.FilterTags, s.tags...) && one(req.FilterCategories, s.category)
}

// definition returns the definition of a skill for skill/discover, without its instructions. blocked is why
// it is blocked; "" = it is not.
func (s *skill) definition(blocked string) protocol.SkillDefinition {
	def := protocol.SkillDefinition{
		Name: s.name, Version: s.version, Description: s.description, Triggers: s.triggers,
		Tools: texts(s.front.tools), Toolkits: texts(s.toolkits), Status: s.status,
		InputSchema: s.inputs.definition(), OutputSchema: s.outputs.definition(),
		FilePath:  new(filepath.Join(s.dir, s.doc)),
		Arguments: append([]string{}, s.inputs.names...), WhenToUse: s.whenToUse, ArgumentHint: s.argumentHint,
		Source: s.root.source, Tags: append([]string{}, s.tags...),
		Metadata: protocol.NullableMap[any](maps.Clone(s.metadata)),
	}
	if s.category != "" {
		def.Category = &s.category
	}
	if s.task != "" {
		def.Metadata["task"] = s.task
	}
	if s.icon != "" {
		def.Icon = &s.icon
	}
	if s.maxTurns > 0 {
		def.MaxTurns = &s.maxTurns
	}
	if s.timeout > 0 {
		def.TimeoutSeconds = &s.timeout
	}
	def.Metadata["kind"], def.Metadata["uri"] = s.front.kind, s.uri("")
	if blocked != "" && s.status != protocol.SkillArchived {
		def.Status, def.Metadata["blocked_reason"] = protocol.SkillBlocked, blocked
	}
	return def
}

// brief returns the parts of a definition that are needed to choose a skill.
func brief(def protocol.SkillDefinition) protocol.SkillDefinition {
	return protocol.SkillDefinition{
		Name: def.Name, Version: protocol.Head(def.Version, briefBytes), Description: protocol.Head(def.Description,
			briefBytes), Status: def.Status, Source: def.Source,
		Tools: []jsontext.Value{}, Toolkits: []jsontext.Value{}, Arguments: []string{}, Tags: []string{},
		Metadata: protocol.NullableMap[any]{"brief": true},
	}
}

// texts returns names as a list of JSON strings.
func texts(names []string) protocol.NullableList[jsontext.Value] {
	all := protocol.NullableList[jsontext.Value]{}
	for _, name := range names {
		all = append(all, protocol.AppendString(nil, name))
	}
	return all
}

// inventory has the tools and toolkits of this host, for one request.
type inventory struct {
	tools map[string]protocol.ToolDefinition // nil = not asked yet
	names []string
	kits  map[string]protocol.ToolkitDefinition
}

// ask lists the tools and toolkits of the host at its first call.
func (all *inventory) ask(ctx context.Context, s *host.Services) error {
	if all.tools != nil {
		return nil
	}
	var tools protocol.ToolListResponse
	if err := list(ctx, s, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true},
		&tools); err != nil {
		return fmt.Errorf("the tools of this host cannot be listed: %w", err)
	}
	var kits protocol.ToolkitListResponse
	if err := list(ctx, s, protocol.TypeToolkitListReq, &protocol.ToolkitListRequest{}, &kits); err != nil {
		return fmt.Errorf("the toolkits of this host cannot be listed: %w", err)
	}
	all.tools, all.kits = map[string]protocol.ToolDefinition{}, map[string]protocol.ToolkitDefinition{}
	for _, def := range tools.Tools {
		all.tools[def.Name] = def
		all.names = append(all.names, def.Name)
	}
	slices.Sort(all.names)
	for _, kit := range kits.Toolkits {
		all.kits[kit.Name] = kit
	}
	return nil
}

// list sends a request for a list; if no plugin serves the request, the list stays empty.
func list(ctx context.Context, s *host.Services, typ protocol.Type, req, resp any) error {
	err := s.Call(ctx, typ, req, resp, nil)
	if refused, ok := errors.AsType[*protocol.Error](err); ok && refused.Code == protocol.CodeCapabilityMissing {
		return nil
	}
	return err
}

// needs reports whether a skill names tools or toolkits that have to be looked up.
func (f *front) needs() bool { return len(f.tools)+len(f.toolkits)+len(f.allowed) > 0 }

// resolved is the result of looking up the tools and toolkits in a skill's front matter.
type resolved struct {
	tools   []protocol.ToolDefinition // ordered by name; never nil
	missing []string                  // reasons why the skill cannot be called
	unknown []string                  // names in allowed-tools that no tool has
}

// resolve looks up the tools and toolkits of a skill.
func (f *front) resolve(all *inventory) resolved {
	r := resolved{tools: []protocol.ToolDefinition{}}
	chosen := map[string]bool{}
	choose := func(names []string) bool {
		for _, name := range names {
			chosen[name] = true
		}
		return len(names) > 0
	}
	for _, name := range f.tools {
		switch {
		case choose(all.find(name)):
		case strings.Contains(name, "("):
			r.missing = append(r.missing, fmt.Sprintf("the tool %s has a rule that this host cannot keep", quote(name)))
		default:
			r.missing = append(r.missing, fmt.Sprintf("there is no tool %s", quote(name)))
		}
	}
	for _, name := range f.toolkits {
		switch kit, there := all.kits[name]; {
		case !there:
			r.missing = append(r.missing, fmt.Sprintf("there is no toolkit %s", quote(name)))
		case !kit.Configured:
			r.missing = append(r.missing, fmt.Sprintf("the toolkit %s is not configured", quote(name)))
		default:
			choose(all.of(kit))
		}
	}
	needed := chosen
	chosen = map[string]bool{}
	for _, name := range f.allowed {
		if !choose(all.find(name)) {
			r.unknown = append(r.unknown, name)
		}
	}
	if f.allowed == nil {
		chosen = needed
	}
	for _, tool := range all.names {
		if chosen[tool] {
			r.tools = append(r.tools, all.tools[tool])
		}
	}
	return r
}

// of returns the tools of a toolkit.
func (all *inventory) of(kit protocol.ToolkitDefinition) (found []string) {
	for _, tool := range all.names {
		owner := all.tools[tool].Toolkit
		if slices.Contains(kit.Tools, tool) || owner != nil && *owner == kit.Name {
			found = append(found, tool)
		}
	}
	return found
}

// find returns the tools that a name stands for: the tool with the name, the tools that match it as a
// pattern, or the tool that other hosts call by the name.
func (all *inventory) find(name string) []string {
	if _, there := all.tools[name]; there {
		return []string{name}
	}
	if strings.Contains(name, "*") && !strings.Contains(name, "(") {
		var found []string
		for _, tool := range all.names {
			if ok, err := path.Match(strings.TrimPrefix(name, "mcp__"), tool); err == nil && ok {
				found = append(found, tool)
			}
		}
		return found
	}
	own := elsewhere()[name]
	if rest, ok := strings.CutPrefix(name, "mcp__"); ok { // SERVER__TOOL of an MCP server
		own = rest
	}
	if _, there := all.tools[own]; there {
		return []string{own}
	}
	return nil
}

// elsewhere maps the names of tools in other hosts to those in this host.
func elsewhere() map[string]string {
	return map[string]string{
		"Read": "read_file", "Write": "write_file", "Edit": "edit_file", "MultiEdit": "edit_file", "Glob": "glob",
		"Grep": "grep",
		"LS":   "list_dir", "Bash": "run_command", "WebFetch": "http_get",
	}
}

// look returns the tools of a skill, and why it cannot be called now; "" = it can be called.
func (p *Plugin) look(ctx context.Context, s *skill, all *inventory) (r resolved, blocked string, err error) {
	r.tools = []protocol.ToolDefinition{}
	reasons := p.refused(s)
	if s.needs() {
		if err := all.ask(ctx, p.services); err != nil {
			if ctx.Err() != nil {
				return r, "", context.Cause(ctx)
			}
			return r, strings.Join(append(reasons, err.Error()), "; "), nil
		}
		r = s.resolve(all)
	}
	return r, strings.Join(append(reasons, r.missing...), "; "), nil
}

// refused returns the reasons in the config or the front matter why a skill cannot be called.
func (p *Plugin) refused(s *skill) (reasons []string) {
	if s.status == protocol.SkillBlocked {
		reasons = append(reasons, "its front matter says so (status)")
	}
	if s.network && p.opts.NetworkDisabled {
		reasons = append(reasons, "it asks for the network, which network_disabled in the options of the plugin "+
			"keeps from skills")
	} else if s.network && p.foreign(s) {
		reasons = append(reasons, "it asks for the network and lies in the workspace, where an agent can write it: "+
			"put it into a2e/skills of the user's config folder, or set trust_workspace in the options of the plugin")
	}
	return reasons
}

// foreign reports whether an agent could have written the skill; such a skill must not get more
// rights than the agent. Agents cannot write to the user's config folder.
func (p *Plugin) foreign(s *skill) bool {
	switch {
	case p.opts.TrustWorkspace:
		return false
	case s.edited || s.root.source == sourceProject && p.env.Workspace != "":
		return true
	case p.env.Workspace == "" || s.root.source == sourceUser:
		return false
	}
	return wall.Within(wall.Canonical(p.env.Workspace), wall.Canonical(s.dir))
}
