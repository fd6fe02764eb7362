package skill

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/schema"
	"a2e/plugins/skill/run"
	"a2e/protocol"
)

// call answers skill/call/req:
//
//	find the skill ─ may it be called? ─ arguments fit? ─ run it, bounded in time ─ result fits? ─ count the call ─ answer
func (p *Plugin) call(ctx context.Context, req *protocol.SkillCallRequest, emit host.Emitter) (*protocol.SkillCallResponse, error) {
	host.Detach(ctx) // folders may lie on a slow disk
	s, err := p.find(req.Name)
	if err != nil {
		return nil, err
	}
	c := &skillCall{Plugin: p, skill: s, req: req, emit: emit}
	if c.tools, err = p.callable(ctx, s); err != nil {
		return nil, err
	}
	if c.args, err = s.prepare(req.Arguments); err != nil {
		return nil, err
	}
	start := p.env.Now()
	result, err := c.bounded(ctx)
	end := p.env.Now()
	record := host.CallRecord{Kind: host.KindSkill, Component: s.name, Correlation: req.CorrelationID, Duration: end.Sub(start)}
	if err != nil {
		if !cutShort(ctx) {
			p.services.Record(ctx, record)
		}
		return nil, err
	}
	result.DurationMS = record.Duration.Milliseconds()
	record.Success = result.Success
	p.services.Record(ctx, record)
	return &protocol.SkillCallResponse{Name: s.name, Data: result, CreatedAt: float64(end.UnixMicro()) / 1e6}, nil
}

// cutShort tells whether the agent or the end of the host stopped a call, which says
// nothing of the skill. One whose time was up has failed: the cause says so of a request,
// the error of a call within one.
func cutShort(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// find gives a skill by its name; the router adds the names that there are to the error.
func (p *Plugin) find(name string) (*skill, error) {
	shelf := p.library.current(false)
	if s := shelf.byName[name]; s != nil {
		return s, nil
	}
	shelf = p.library.current(true)
	if s := shelf.byName[name]; s != nil {
		return s, nil
	}
	text := "unknown skill " + quote(name)
	if hint := schema.DidYouMean(name, shelf.names); hint != "" {
		text += "; " + hint
	}
	for _, f := range shelf.all {
		if f.name == name && len(f.problems) > 0 {
			text = "skill " + quote(name) + " is broken: line " + strconv.Itoa(f.problems[0].Line) + " of its SKILL.md: " + f.problems[0].Text
			break
		}
	}
	return nil, host.NotMine(protocol.Errorf(protocol.CodeUnknownSkill, "%s", text).With("known", append([]string{}, shelf.names...)))
}

// callable gives the tools of a skill that may be called now. The error says why one may not.
func (p *Plugin) callable(ctx context.Context, s *skill) ([]protocol.ToolDefinition, error) {
	switch s.status {
	case protocol.SkillArchived:
		return nil, protocol.Errorf(protocol.CodeSkillError, "skill %q is archived: its front matter says so (status)", s.name)
	case protocol.SkillCreated:
		return nil, protocol.Errorf(protocol.CodeSkillError, "skill %q is not published yet: its front matter says so (status)", s.name)
	}
	found, blocked, err := p.look(ctx, s, true)
	if err == nil && blocked != "" {
		err = protocol.Errorf(protocol.CodeSkillError, "skill %q is blocked: %s", s.name, blocked).With("blocked_reason", blocked)
	}
	return found.tools, err
}

// skillCall is one call under way.
type skillCall struct {
	*Plugin
	skill *skill
	req   *protocol.SkillCallRequest
	emit  host.Emitter
	tools []protocol.ToolDefinition
	args  *arguments
}

// bounded runs the skill within its own bound of time; the host keeps the request's.
func (c *skillCall) bounded(ctx context.Context) (*protocol.SkillResult, error) {
	if seconds := c.skill.timeout; seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(seconds)*time.Second, protocol.Errorf(protocol.CodeTimeout,
			"skill %q did not end within its own timeout_seconds of %d", c.skill.name, seconds))
		defer cancel()
	}
	if c.skill.front.kind == kindInstructions {
		return c.instructions()
	}
	r, err := c.execute(ctx)
	if err != nil {
		var known *protocol.Error
		if ctx.Err() != nil && !errors.As(err, &known) {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return c.result(r), nil
}

// instructionsData is the data of a skill that the agent's own model carries out.
type instructionsData struct {
	Instructions string                    `json:"instructions"`
	Tools        []protocol.ToolDefinition `json:"tools"`
	Files        []string                  `json:"files"` // URIs, for read_file
	MoreFiles    bool                      `json:"more_files,omitzero"`
	OutputSchema map[string]any            `json:"output_schema,omitempty"`
}

// instructions gives the text of the skill, with what belongs to it.
func (c *skillCall) instructions() (*protocol.SkillResult, error) {
	text, err := c.skill.render(c.args, c.opts.MaxOutputBytes)
	if err != nil {
		return nil, err
	}
	data := instructionsData{Instructions: text, Tools: c.tools, OutputSchema: c.skill.outputs.definition()}
	if data.Files, data.MoreFiles, err = c.skill.files(); err != nil {
		return nil, err
	}
	raw, err := protocol.AppendJSON(nil, &data)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeSkillError, "the instructions of skill %q cannot be encoded: %w", c.skill.name, err)
	}
	return &protocol.SkillResult{
		Success: true, Data: raw, Truncated: new(false), Events: []protocol.PastEvent{},
		Summary: protocol.AppendString(nil, "instructions of skill "+c.skill.name+", to be followed"),
	}, nil
}

// result makes the answer of what a run gave, and holds that against the outputs.
func (c *skillCall) result(r *run.Result) *protocol.SkillResult {
	result := &protocol.SkillResult{Success: !r.Failed, Data: r.Data, Truncated: &r.Truncated, Events: []protocol.PastEvent{}}
	if r.Summary != "" {
		result.Summary = protocol.AppendString(nil, r.Summary)
	}
	failure := r.Failure
	if c.skill.outputs != nil && !r.Failed {
		data := r.Data
		if data == nil {
			data = jsontext.Value("null")
		}
		if wrong := c.skill.outputs.Check(data, "/data"); len(wrong) > 0 {
			texts := make([]string, len(wrong))
			for i, w := range wrong {
				texts[i] = w.Path + " " + w.Message
			}
			failure = "the result does not fit the outputs of the skill: " + strings.Join(texts, "; ")
			result.Success = false
		}
	}
	if !result.Success {
		result.Error, result.ErrorCode = &failure, new(protocol.CodeSkillError)
	}
	return result
}
