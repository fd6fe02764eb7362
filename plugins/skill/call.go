package skill

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/private"
	"a2e/host/schema"
	"a2e/plugins/skill/run"
	"a2e/protocol"
)

// call answers skill/call/req:
//
//	find the skill ─ may it be called? ─ arguments fit? ─ run it, bounded in time ─ result fits? ─ count the call ─ answer
func (p *Plugin) call(ctx context.Context, req *protocol.SkillCallRequest, emit host.Emitter) (*protocol.SkillCallResponse, error) {
	host.HandOff(ctx) // folders may lie on a slow disk
	s, err := p.find(req.Name)
	if err != nil {
		return nil, err
	}
	if o := p.services.Override(host.KindSkill, s.name); o != nil {
		own := *s
		own.body = o.Text(host.TextInstructions, s.body)
		own.edited, s = own.body != s.body, &own
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
		if !host.CutShort(ctx) {
			p.services.Record(ctx, record)
		}
		return nil, err
	}
	result.DurationMS = record.Duration.Milliseconds()
	record.Success = result.Success
	p.services.Record(ctx, record)
	return &protocol.SkillCallResponse{Name: s.name, Data: result, CreatedAt: float64(end.UnixMicro()) / 1e6}, nil
}

// find returns a skill by its name; the router adds the names that there are to the error.
func (p *Plugin) find(name string) (*skill, error) {
	repository := p.library.current(false)
	if s := repository.byName[name]; s != nil {
		return s, nil
	}
	repository = p.library.current(true)
	if s := repository.byName[name]; s != nil {
		return s, nil
	}
	text := "unknown skill " + quote(name)
	if hint := schema.DidYouMean(name, repository.names); hint != "" {
		text += "; " + hint
	}
	for _, f := range repository.all {
		if f.name == name && len(f.problems) > 0 {
			text = "skill " + quote(name) + " is broken: line " + strconv.Itoa(f.problems[0].Line) + " of its SKILL.md: " + f.problems[0].Text
			break
		}
	}
	return nil, host.NotOwner(protocol.Errorf(protocol.CodeUnknownSkill, "%s", text).With("known", append([]string{}, repository.names...)))
}

// Instructions implements host.Instructor.
func (p *Plugin) Instructions(name string) (text string, ok bool) {
	s := p.library.current(false).byName[name]
	if s == nil || s.front.kind != kindInstructions && s.front.kind != kindAgent {
		return "", false
	}
	return s.body, true
}

// callable returns the tools of a skill that may be called now. The error says why one may not.
func (p *Plugin) callable(ctx context.Context, s *skill) ([]protocol.ToolDefinition, error) {
	switch s.status {
	case protocol.SkillArchived:
		return nil, protocol.Errorf(protocol.CodeSkillError, "skill %q is archived: its front matter says so (status)", s.name)
	case protocol.SkillCreated:
		return nil, protocol.Errorf(protocol.CodeSkillError, "skill %q is not published yet: its front matter says so (status)", s.name)
	}
	found, blocked, err := p.look(ctx, s, &inventory{})
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
	Files        []string                  `json:"files"`  // URIs, for read_file
	Folder       string                    `json:"folder"` // that paths in the instructions begin at
	MoreFiles    bool                      `json:"more_files,omitzero"`
	OutputSchema map[string]any            `json:"output_schema,omitempty"`
}

// instructions returns the text of the skill, with what belongs to it.
func (c *skillCall) instructions() (*protocol.SkillResult, error) {
	text, err := c.skill.render(c.args, c.opts.MaxOutputBytes)
	if err != nil {
		return nil, err
	}
	data := instructionsData{Instructions: text, Tools: c.tools, Folder: c.skill.dir, OutputSchema: c.skill.outputs.definition()}
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

// modulesFolder is where compiled modules are kept, in the state folder.
const modulesFolder = "modules"

// execute runs a script, a module or an agent.
func (c *skillCall) execute(ctx context.Context) (*run.Result, error) {
	if c.skill.front.kind == kindAgent {
		return c.agent(ctx)
	}
	job, err := c.job()
	if err != nil {
		return nil, err
	}
	if c.env.Launcher == nil {
		return nil, protocol.Errorf(protocol.CodeSkillError, "skill %q cannot be run: this host starts no programs", c.skill.name)
	}
	launcher, err := c.env.Launcher()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeSkillError, "skill %q cannot be run: %w", c.skill.name, err)
	}
	if c.skill.front.kind == kindWasm {
		return run.Wasm(ctx, launcher, job, c.emit, c.event(ctx))
	}
	return run.Script(ctx, launcher, job, c.emit, c.event(ctx))
}

// job describes the run of a script or a module.
func (c *skillCall) job() (run.Job, error) {
	dir, err := c.skill.place()
	if err != nil {
		return run.Job{}, err
	}
	job := run.Job{
		Name: c.skill.name, Dir: dir, File: c.skill.file, Args: c.args.raw, Write: c.skill.write,
		Hidden: c.env.Wall.Hides(dir), Network: c.skill.network && !c.opts.NetworkDisabled && !c.foreign(c.skill), MaxOutputBytes: c.opts.MaxOutputBytes,
	}
	if c.skill.front.kind == kindWasm {
		job.MemoryBytes = c.opts.MemoryBytes
		if c.env.StateDir != "" {
			// What lies there runs in the host: it must be a folder of its own.
			folder, err := private.MakeSub(c.env.StateDir, modulesFolder)
			if err != nil {
				return job, protocol.Errorf(protocol.CodeSkillError, "the folder for compiled modules: %w", err)
			}
			job.CacheDir = folder.Path()
			_ = folder.Close() // it was only looked at
		}
	}
	if c.env.Workspace != "" {
		if job.Workspace, err = filepath.Abs(c.env.Workspace); err != nil {
			return job, protocol.Errorf(protocol.CodeSkillError, "the workspace: %w", err)
		}
	}
	return job, nil
}

// event passes on events of kinds that an Emitter has no method for. Their data are objects
// on the wire.
func (c *skillCall) event(ctx context.Context) run.EventFunc {
	return func(kind string, data jsontext.Value) {
		if !c.emit.Streaming() {
			return
		}
		body := &protocol.EventOf[jsontext.Value]{Kind: protocol.EventKind(kind), Data: data}
		if data.Kind() != '{' {
			body.Data = append(append([]byte(`{"value":`), data...), '}')
		}
		host.Emit(ctx, "", func(seq int) any {
			body.Seq = seq
			return body
		})
	}
}
