package middleware

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"a2e/host"
	"a2e/host/schema"
	"a2e/protocol"
)

// listSorter sorts lists of one host.
type listSorter struct {
	*host.Services
	docs searchDocs
}

// weight returns the routing weight of a component; 1 = neutral.
func (s *listSorter) weight(kind, name string) float64 {
	if w := s.Weigher(); w != nil {
		return w.Weight(kind, name)
	}
	return 1
}

// searchTools adds to a list of tools the groups from the config, and details if they are asked for, and applies
// the query to the tools of all plugins. A plugin that has searched itself shows that by a score; tools that only
// the plugin's own search found come last.
func searchTools(services *host.Services, _ host.Target, next host.Handler) host.Handler {
	s, tasks := &listSorter{Services: services}, services.Tasks()
	return func(ctx context.Context, obj protocol.Object, emit host.Emitter) (any, error) {
		query := strings.TrimSpace(obj.Text("query"))
		val, _ := obj.Get("detail")
		detail := string(val) == "true"
		answer, err := next(ctx, obj, emit)
		if err != nil || query == "" && !detail && len(tasks) == 0 {
			return answer, err
		}
		found, err := host.AnswerOf[protocol.ToolListResponse](answer)
		if err != nil {
			return nil, err
		}
		resp := &protocol.ToolListResponse{Tools: slices.Clone(found.Tools)}
		for i := range resp.Tools {
			if task, set := tasks[resp.Tools[i].Name]; set {
				resp.Tools[i].Task = task
			}
		}
		if query != "" {
			s.rankTools(query, resp)
		}
		for i := range resp.Tools {
			if resp.Tools[i].Detail = nil; detail {
				resp.Tools[i].Detail = s.detailOf(&resp.Tools[i])
			}
		}
		return resp, nil
	}
}

// rankTools keeps in a list only the tools that fit a query, the best first.
func (s *listSorter) rankTools(query string, resp *protocol.ToolListResponse) {
	x := searchIndex{shelf: &s.docs}
	for _, def := range resp.Tools {
		x.add(def.Name, def.Description, def.Tags)
	}
	var all []ranked
	for i, score := range x.scores(query) {
		if def := &resp.Tools[i]; score > 0 || def.Score > 0 {
			all = append(all, ranked{def.Task, score, s.weight(host.KindTool, def.Name), i})
		}
	}
	rank(all)
	tools := make([]protocol.ToolDefinition, len(all))
	for i, r := range all {
		tools[i] = resp.Tools[r.at]
		tools[i].Score = 0
	}
	resp.Tools = tools
}

// searchSkills keeps in a list of skills only those that fit the query, the best first. Without a query it keeps
// all skills, those with the most weight first.
func searchSkills(services *host.Services, _ host.Target, next host.Handler) host.Handler {
	s := &listSorter{Services: services}
	return func(ctx context.Context, obj protocol.Object, emit host.Emitter) (any, error) {
		answer, err := next(ctx, obj, emit)
		if err != nil {
			return nil, err
		}
		found, err := host.AnswerOf[protocol.SkillDiscoverResponse](answer)
		if err != nil {
			return nil, err
		}
		if resp := s.rankSkills(strings.TrimSpace(obj.Text("query")), found); resp != nil {
			return resp, nil
		}
		return answer, nil
	}
}

// rankSkills returns the skills that fit a query, sorted; nil = the answer stays as it is.
func (s *listSorter) rankSkills(query string, found *protocol.SkillDiscoverResponse) *protocol.SkillDiscoverResponse {
	x := searchIndex{shelf: &s.docs}
	all := make([]ranked, len(found.Skills))
	for i, def := range found.Skills {
		task, _ := def.Metadata["task"].(string)
		all[i] = ranked{task, 0, s.weight(host.KindSkill, def.Name), i}
		if query != "" {
			x.add(def.Name, def.Description+"\n"+def.WhenToUse+"\n"+strings.Join(def.Triggers, "\n"), def.Tags)
		}
	}
	if query != "" {
		for i, score := range x.scores(query) {
			all[i].score = score
		}
		all = slices.DeleteFunc(all, func(r ranked) bool { return r.score == 0 })
	}
	rank(all)
	if query == "" && slices.IsSortedFunc(all, func(a, b ranked) int { return cmp.Compare(a.at, b.at) }) {
		return nil
	}
	resp := &protocol.SkillDiscoverResponse{Skills: make([]protocol.SkillDefinition, len(all))}
	for i, r := range all {
		resp.Skills[i] = found.Skills[r.at]
	}
	return resp
}

// detailOf returns the details of a tool in the form of the protocol.
func (s *listSorter) detailOf(def *protocol.ToolDefinition) *protocol.ToolDetail {
	d, known := s.Tool(def.Name)
	out := &protocol.ToolDetail{
		Title: d.Title, InputSchema: d.InputSchema, OutputSchema: d.OutputSchema,
		Annotations: d.Annotations, Icons: d.Icons, Meta: d.Meta,
	}
	if len(out.InputSchema) == 0 {
		out.InputSchema = schema.Object(def.InputParameters, false)
	}
	if known {
		out.Hints = &protocol.ToolHints{
			ReadOnly: d.ReadOnly, Destructive: d.Destructive, Idempotent: d.Idempotent, OpenWorld: d.OpenWorld,
		}
	}
	return out
}
