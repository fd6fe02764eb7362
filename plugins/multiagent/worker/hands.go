package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/agent"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// hands has the tools of a model in addition to those that the host lists: the host's processes, memory, plans and
// skills, under the names and with the arguments that models know from other agents. It belongs to one task.
type hands struct {
	run    *runner
	task   *task
	box    host.ToolBox // of the task's own workspace; nil = none
	tools  []agent.Own
	shells shells
	todos  todos
}

// toolRun is the tool of the host that runs a program to its end.
const toolRun = "run_command"

// hand is one of these tools.
type hand struct {
	name     string
	about    string
	schema   string // JSON Schema of the arguments
	readOnly bool
	needs    protocol.Capability
	call     func(*hands, context.Context, protocol.Object) (*protocol.ToolResult, error)
}

// fixedHands lists the tools, without bash, whose arguments depend on the task, and skill, whose text lists the skills.
var fixedHands = []hand{
	{
		"bash_output", "Read the output of a command in the background since the last read, and whether the command " +
			"still runs. If unread_bytes is not 0, call it again for the rest.",
		`{"type":"object","properties":{"bash_id":{"type":"string","description":"The id that bash answered."},` +
			`"filter":{"type":"string","description":"A regular expression (RE2): only lines that match are shown, ` +
			`and the others are lost."}},"required":["bash_id"]}`,
		true, protocol.CapProc, (*hands).bashOutput,
	},
	{
		"kill_bash", "Stop a command in the background, with all that it started.",
		`{"type":"object","properties":{"shell_id":{"type":"string","description":"The id that bash answered."}},` +
			`"required":["shell_id"]}`,
		false, protocol.CapProc, (*hands).killBash,
	},
	{
		"todo_write", "Keep the list of the steps of a longer task. Send the whole list each time: what is not in it " +
			"goes. Have one step in_progress, and set it to completed as soon as it is.",
		`{"type":"object","properties":{"todos":{"type":"array","items":{"type":"object","properties":{` +
			`"content":{"type":"string","description":"The step, in a few words."},` +
			`"status":{"type":"string","enum":["pending","in_progress","completed"]},` +
			`"activeForm":{"type":"string","description":"The step as it is told while it is done."}},` +
			`"required":["content","status"]}}},"required":["todos"]}`,
		false, protocol.CapPlanning, (*hands).todoWrite,
	},
	{
		"memory_search", "Search what was remembered in earlier tasks, best matches first.",
		`{"type":"object","properties":{"query":{"type":"string","description":"Words to look for."},` +
			`"tags":{"type":"array","items":{"type":"string"},"description":"Only entries with any of these."},` +
			`"limit":{"type":"integer","minimum":1,"maximum":50,"description":"Default: 10."}},"required":["query"]}`,
		true, protocol.CapMemory, (*hands).memorySearch,
	},
	{
		"memory_store", "Remember something for later tasks. The same key again replaces what was stored under it.",
		`{"type":"object","properties":{"key":{"type":"string","description":"A short name, such as deploy-branch."},` +
			`"content":{"type":"string","description":"What to remember, whole sentences."},` +
			`"tags":{"type":"array","items":{"type":"string"}}},"required":["key","content"]}`,
		false, protocol.CapMemory, (*hands).memoryStore,
	},
}

// hands returns the tools of a task that the worker, the task's agent and the host allow, without names that a
// tool of the host has. The caller must close them.
func (r *runner) hands(ctx context.Context, t *task, box host.ToolBox, listed []protocol.ToolDefinition) *hands {
	h := &hands{run: r, task: t, box: box}
	taken := func(name string) bool {
		return slices.ContainsFunc(listed, func(def protocol.ToolDefinition) bool { return def.Name == name }) ||
			!r.lets(name)
	}
	add := func(one *hand) {
		if !taken(one.name) && h.may(one.name, string(one.needs)) && r.serves(one.needs) {
			h.tools = append(h.tools, agent.Own{
				Tool: agent.Tool{
					Name: one.name, Description: one.about, Schema: jsontext.Value(one.schema),
					ReadOnly: one.readOnly,
				},
				Call: func(ctx context.Context, args protocol.Object) (*protocol.ToolResult, error) {
					return one.call(h, ctx, args)
				},
			})
		}
	}
	if bash := h.bash(); bash != nil {
		add(bash)
	}
	for i := range fixedHands {
		if one := &fixedHands[i]; one.needs != protocol.CapProc || h.background() {
			add(one)
		}
	}
	if skill := h.skill(ctx); skill != nil {
		add(skill)
	}
	return h
}

// may reports whether the task's agent may use any of the names.
func (h *hands) may(names ...string) bool { return slices.ContainsFunc(names, h.task.Agent.Grants) }

// serves reports whether a plugin of the host has a capability.
func (r *runner) serves(c protocol.Capability) bool {
	return slices.ContainsFunc(r.pool.services.Plugins(), func(p host.Plugin) bool {
		info := p.Info()
		return info.Capability == c || slices.Contains(info.Also, c)
	})
}

// remembers returns the context for a memory request. If the task's agent is a proven child agent, the request is
// done as that child. A child does not see the working tier of its parent's session.
func (h *hands) remembers(ctx context.Context) context.Context {
	a, sess := h.task.Agent, host.SessionFrom(ctx)
	if sess == nil || a == nil || !fleet.IsChildID(a.AgentID) || !a.Proven() {
		return ctx
	}
	child := *sess
	child.ID, child.AgentID = a.AgentID, a.AgentID
	return host.InSession(ctx, &child)
}

// ask sends a request to the host's plugins.
func (h *hands) ask(ctx context.Context, t protocol.Type, req, resp any) error {
	return h.run.pool.services.Call(ctx, t, req, resp, nil)
}

// close ends the task's commands in the background, and its plan of steps, see todos.end.
func (h *hands) close(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	h.shells.end(ctx, h)
	h.todos.end(ctx, h)
}

// decode reads the arguments of a call. The error is a schema_violation.
func decode[T any](args protocol.Object) (*T, error) {
	into := new(T)
	if err := json.Unmarshal(args.Raw(), into); err != nil {
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "the arguments do not fit: %v", err)
	}
	return into, nil
}

// told returns the result of a successful call.
func told(data any) (*protocol.ToolResult, error) {
	text, err := protocol.AppendJSON(nil, data)
	if err != nil {
		return nil, err
	}
	return &protocol.ToolResult{Success: true, Data: text}, nil
}

// memory returns the id of the agent's memory.
func (h *hands) memory(ctx context.Context) (string, error) {
	var opened protocol.MemoryInitResponse
	err := h.ask(ctx, protocol.TypeMemoryInitReq, &protocol.MemoryInitRequest{Namespace: "default"}, &opened)
	return opened.MemoryID, err
}

func (h *hands) memorySearch(ctx context.Context, args protocol.Object) (*protocol.ToolResult, error) {
	in, err := decode[struct {
		Query string   `json:"query"`
		Tags  []string `json:"tags"`
		Limit int      `json:"limit"`
	}](args)
	if err != nil {
		return nil, err
	}
	ctx = h.remembers(ctx)
	id, err := h.memory(ctx)
	if err != nil {
		return nil, err
	}
	req := protocol.MemoryRetrieveRequest{MemoryID: id, Query: in.Query, Limit: 10}
	if req.Tags = in.Tags; in.Limit > 0 {
		req.Limit = min(in.Limit, 50)
	}
	var found protocol.MemoryRetrieveResponse
	if err := h.ask(ctx, protocol.TypeMemoryRetrieveReq, &req, &found); err != nil {
		return nil, err
	}
	type entry struct {
		Key     protocol.Object `json:"key"`
		Content jsontext.Value  `json:"content"`
		Tags    []string        `json:"tags"`
		Score   float64         `json:"score"`
	}
	entries := make([]entry, 0, len(found.Entries))
	for _, e := range found.Entries {
		entries = append(entries, entry{e.Key, e.Content, e.Tags, e.Score})
	}
	return told(map[string]any{"entries": entries, "total": found.Total})
}

func (h *hands) memoryStore(ctx context.Context, args protocol.Object) (*protocol.ToolResult, error) {
	in, err := decode[struct {
		Key     string   `json:"key"`
		Content string   `json:"content"`
		Tags    []string `json:"tags"`
	}](args)
	switch {
	case err != nil:
		return nil, err
	case strings.TrimSpace(in.Key) == "" || in.Content == "":
		return nil, protocol.Errorf(protocol.CodeSchemaViolation, "key and content should not be empty")
	}
	ctx = h.remembers(ctx)
	id, err := h.memory(ctx)
	if err != nil {
		return nil, err
	}
	entry, err := protocol.AppendJSON(nil, map[string]any{
		"key": map[string]string{"name": in.Key}, "content": in.Content, "tags": append([]string{}, in.Tags...),
		"tier": protocol.TierEpisodic, "source": "worker " + h.run.Name,
	})
	if err != nil {
		return nil, err
	}
	obj, err := protocol.ParseObject(entry)
	if err != nil {
		return nil, err
	}
	var stored protocol.MemoryStoreResponse
	req := protocol.MemoryStoreRequest{MemoryID: id, Entries: []protocol.Object{obj}}
	if err := h.ask(ctx, protocol.TypeMemoryStoreReq, &req, &stored); err != nil {
		return nil, err
	}
	if len(stored.Errors) > 0 {
		return nil, protocol.Errorf(protocol.CodeToolError, "it was not stored: %s", stored.Errors[0])
	}
	return told(map[string]any{"stored": in.Key})
}

// Limits of the list of skills in the description of the tool skill.
const (
	maxSkills     = 50
	maxSkillAbout = 160 // bytes for each
)

// skill returns the tool that calls skills, or nil if there are no skills.
func (h *hands) skill(ctx context.Context) *hand {
	if !h.run.lets("skill") || !h.run.serves(protocol.CapSkill) || !h.may("skill", string(protocol.CapSkill)) {
		return nil
	}
	var all protocol.SkillDiscoverResponse
	if err := h.ask(ctx, protocol.TypeSkillDiscoverReq, &protocol.SkillDiscoverRequest{}, &all); err != nil {
		if ctx.Err() == nil {
			h.run.pool.env.Log.Warn().Err(err).Msg("the skills cannot be listed; the model gets no tool for them")
		}
		return nil
	}
	var about strings.Builder
	n := 0
	for _, s := range all.Skills {
		if s.Status != protocol.SkillPublished {
			continue
		}
		if n++; n <= maxSkills {
			fmt.Fprintf(&about, "\n- %s: %s", s.Name, protocol.Clip(strings.Join(strings.Fields(s.Description), " "),
				maxSkillAbout))
		}
	}
	if n == 0 {
		return nil
	}
	if n > maxSkills {
		fmt.Fprintf(&about, "\n- and %d more", n-maxSkills)
	}
	return &hand{
		"skill", "Run a skill: a procedure that was written for tasks of a kind. The skills are:" +
			about.String(),
		`{"type":"object","properties":{"skill":{"type":"string","description":"Its name."},` +
			`"arguments":{"type":"object","description":"Its arguments, by name."}},"required":["skill"]}`,
		false, protocol.CapSkill, (*hands).callSkill,
	}
}

func (h *hands) callSkill(ctx context.Context, args protocol.Object) (*protocol.ToolResult, error) {
	in, err := decode[struct {
		Skill     string         `json:"skill"`
		Arguments jsontext.Value `json:"arguments"`
	}](args)
	if err != nil {
		return nil, err
	}
	req := protocol.SkillCallRequest{Name: in.Skill, Timeout: skillTimeout, CorrelationID: h.task.Task.TaskID}
	if len(in.Arguments) > 0 && string(in.Arguments) != "null" {
		if req.Arguments, err = protocol.ParseObject(protocol.Value(in.Arguments)); err != nil {
			return nil, protocol.Errorf(protocol.CodeSchemaViolation, "arguments should be an object")
		}
	}
	var resp protocol.SkillCallResponse
	if err := h.ask(ctx, protocol.TypeSkillCallReq, &req, &resp); err != nil {
		return nil, err
	}
	if resp.Data == nil {
		return nil, protocol.Errorf(protocol.CodeSkillError, "the skill %.64q returned no result", in.Skill)
	}
	return &protocol.ToolResult{
		Success: resp.Data.Success, Data: resp.Data.Data, Summary: resp.Data.Summary, Truncated: resp.Data.Truncated,
		Error: resp.Data.Error,
	}, nil
}

// skillTimeout is how long a skill that a model calls may run, in seconds.
const skillTimeout = 600
