package skill

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// room is what one answer holds, in bytes.
type room struct {
	text  int // of the instructions of one skill; a call gives all of them
	texts int // of all instructions together
	all   int // of all definitions without them; what is beyond is listed in brief
}

func usualRoom() room { return room{text: 16 << 10, texts: 1 << 20, all: 8 << 20} }

// briefBytes is how much of a description stands in brief.
const briefBytes = 200

// discover answers skill/discover/req. A skill passes a filter when it has one of its tags
// or categories, letter case aside; an empty filter lets all pass.
func (p *Plugin) discover(ctx context.Context, req *protocol.SkillDiscoverRequest, _ host.Emitter) (*protocol.SkillDiscoverResponse, error) {
	host.Detach(ctx) // folders may lie on a slow disk
	resp := &protocol.SkillDiscoverResponse{Skills: []protocol.SkillDefinition{}}
	weigher := p.services.Weigher()
	left := p.room
	for _, s := range p.library.current(false).skills {
		if !s.wanted(req) {
			continue
		}
		found, blocked, err := p.look(ctx, s, false)
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

// wanted tells whether a skill passes the filters of a request.
func (s *skill) wanted(req *protocol.SkillDiscoverRequest) bool {
	one := func(filter []string, has ...string) bool {
		return len(filter) == 0 || slices.ContainsFunc(filter, func(want string) bool {
			return slices.ContainsFunc(has, func(own string) bool { return own != "" && strings.EqualFold(own, want) })
		})
	}
	return one(req.FilterTags, s.tags...) && one(req.FilterCategories, s.category)
}

// definition is what skill/discover says of a skill, without its instructions.
func (s *skill) definition(blocked string) protocol.SkillDefinition {
	def := protocol.SkillDefinition{
		Name: s.name, Version: s.version, Description: s.description, Triggers: s.triggers,
		Tools: texts(s.front.tools), Toolkits: texts(s.toolkits), Status: s.status,
		InputSchema: s.inputs.definition(), OutputSchema: s.outputs.definition(), FilePath: new(filepath.Join(s.dir, s.doc)),
		Arguments: append([]string{}, s.inputs.names...), WhenToUse: s.whenToUse, ArgumentHint: s.argumentHint,
		Source: s.root.source, Tags: append([]string{}, s.tags...), Metadata: protocol.NullableMap[any](maps.Clone(s.metadata)),
	}
	if s.category != "" {
		def.Category = &s.category
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

// brief leaves of a definition what is needed to choose a skill.
func brief(def protocol.SkillDefinition) protocol.SkillDefinition {
	return protocol.SkillDefinition{
		Name: def.Name, Version: cutText(def.Version, briefBytes), Description: cutText(def.Description, briefBytes), Status: def.Status, Source: def.Source,
		Tools: []jsontext.Value{}, Toolkits: []jsontext.Value{}, Arguments: []string{}, Tags: []string{},
		Metadata: protocol.NullableMap[any]{"brief": true},
	}
}

// texts gives names as a list of any JSON values has them.
func texts(names []string) protocol.NullableList[jsontext.Value] {
	all := protocol.NullableList[jsontext.Value]{}
	for _, name := range names {
		all = append(all, protocol.AppendString(nil, name))
	}
	return all
}

// MergeSkills adds the skills of src, a plugin of lower priority, to dst, except those
// whose name dst has. All stay ordered by name.
func MergeSkills(dst, src *protocol.SkillDiscoverResponse) {
	taken := make(map[string]bool, len(dst.Skills))
	for _, s := range dst.Skills {
		taken[s.Name] = true
	}
	for _, s := range src.Skills {
		if !taken[s.Name] {
			dst.Skills = append(dst.Skills, s)
		}
	}
	slices.SortStableFunc(dst.Skills, func(a, b protocol.SkillDefinition) int { return strings.Compare(a.Name, b.Name) })
}
