package skill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/child/spill"
	"a2e/host/guard/private"
	"a2e/plugins/skill/run"
	"a2e/protocol"
)

// call answers skill/call/req:
//
// find the skill ─ may it be called? ─ arguments fit? ─ run it, bounded in time ─ result fits? ─ count the call ─
// answer
func (p *Plugin) call(ctx context.Context, req *protocol.SkillCallRequest,
	emit host.Emitter,
) (*protocol.SkillCallResponse, error) {
	if req.Name == "" {
		return nil, protocol.Wrong("/name", "is required: the name of a skill")
	}
	host.HandOff(ctx) // folders may be on a slow disk
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
	record := host.CallOutcome{
		Kind: host.KindSkill, Component: s.name, Correlation: req.CorrelationID,
		Duration: end.Sub(start),
	}
	if err != nil {
		if !host.CutShort(ctx) {
			p.services.CountCall(ctx, record)
		}
		return nil, err
	}
	result.DurationMS = record.Duration.Milliseconds()
	record.Success = result.Success
	p.services.CountCall(ctx, record)
	return &protocol.SkillCallResponse{Name: s.name, Data: result, CreatedAt: float64(end.UnixMicro()) / 1e6}, nil
}

// find returns a skill by its name. The error has the names of the known skills.
func (p *Plugin) find(name string) (*skill, error) {
	repository := p.library.current(false)
	if s := repository.byName[name]; s != nil {
		return s, nil
	}
	repository = p.library.current(true)
	if s := repository.byName[name]; s != nil {
		return s, nil
	}
	text, asked := "unknown skill "+quote(name), name
	for _, f := range repository.all {
		if (f.name == name || f.folder == name) && len(f.problems) > 0 {
			text, asked = "skill "+quote(name)+" is broken: "+f.problems[0].in("its SKILL.md"), ""
			break
		}
	}
	unknown := protocol.Errorf(protocol.CodeUnknownSkill, "%s", text)
	return nil, host.NotKnown(unknown, asked, append([]string{}, repository.names...))
}

// Instructions implements host.Instructor.
func (p *Plugin) Instructions(name string) (text string, ok bool) {
	s := p.library.current(false).byName[name]
	if s == nil || s.front.kind != kindInstructions && s.front.kind != kindAgent {
		return "", false
	}
	return s.body, true
}

// callable returns the tools of a skill that may be called now. The error says why it may not be called.
func (p *Plugin) callable(ctx context.Context, s *skill) ([]protocol.ToolDefinition, error) {
	switch s.status {
	case protocol.SkillArchived:
		return nil, protocol.Errorf(protocol.CodeSkillError, "skill %q is archived: its front matter says so (status)",
			s.name)
	case protocol.SkillCreated:
		return nil, protocol.Errorf(protocol.CodeSkillError, "skill %q is not published yet: its front matter says "+
			"so (status)", s.name)
	}
	found, blocked, err := p.look(ctx, s, &inventory{})
	if err == nil && blocked != "" {
		err = protocol.Errorf(protocol.CodeSkillError, "skill %q is blocked: %s", s.name,
			blocked).With("blocked_reason", blocked)
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

// bounded runs the skill within its own timeout; the host enforces that of the request.
func (c *skillCall) bounded(ctx context.Context) (*protocol.SkillResult, error) {
	if seconds := c.skill.timeout; seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(seconds)*time.Second,
			protocol.Errorf(protocol.CodeTimeout,
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

// instructionsData is the result data of a skill that the agent's own model carries out.
type instructionsData struct {
	Instructions string                    `json:"instructions"`
	Tools        []protocol.ToolDefinition `json:"tools"`
	Files        []string                  `json:"files"`  // URIs, for read_file
	Folder       string                    `json:"folder"` // base of relative paths in the instructions
	MoreFiles    bool                      `json:"more_files,omitzero"`
	OutputSchema map[string]any            `json:"output_schema,omitempty"`
}

// instructions returns the text of the skill with its tools and files.
func (c *skillCall) instructions() (*protocol.SkillResult, error) {
	text, err := c.skill.render(c.args, c.opts.MaxOutputBytes)
	if err != nil {
		return nil, err
	}
	data := instructionsData{
		Instructions: text, Tools: c.tools, Folder: c.skill.dir,
		OutputSchema: c.skill.outputs.definition(),
	}
	if data.Files, data.MoreFiles, err = c.skill.files(); err != nil {
		return nil, err
	}
	raw, err := protocol.AppendJSON(nil, &data)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeSkillError, "the instructions of skill %q cannot be encoded: %w",
			c.skill.name, err)
	}
	return &protocol.SkillResult{
		Success: true, Data: raw, Truncated: new(false), Events: []protocol.PastEvent{},
		Summary: protocol.AppendString(nil, "instructions of skill "+c.skill.name+", to be followed"),
	}, nil
}

// result turns the result of a run into an answer, and checks it against the outputs of the skill.
func (c *skillCall) result(r *run.Result) *protocol.SkillResult {
	result := &protocol.SkillResult{
		Success: !r.Failed, Data: r.Data, Truncated: &r.Truncated,
		Events: []protocol.PastEvent{},
	}
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

// modulesFolder is the folder for compiled modules, below the state folder.
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
		return nil, protocol.Errorf(protocol.CodeSkillError, "skill %q cannot be run: this host starts no programs",
			c.skill.name)
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
		Hidden: c.env.Wall.Hides(dir), Network: c.skill.network && !c.opts.NetworkDisabled && !c.foreign(c.skill),
		MaxOutputBytes: c.opts.MaxOutputBytes,
	}
	job.Spill = spill.New(c.env.StateDir, c.env.Secrets)
	if c.skill.front.kind == kindWasm {
		job.MemoryBytes = c.opts.MemoryBytes
		if c.env.StateDir != "" {
			// The code in it is executed, so the folder must be private.
			folder, err := private.MakeSub(c.env.StateDir, modulesFolder)
			if err != nil {
				return job, protocol.Errorf(protocol.CodeSkillError, "the folder for compiled modules: %w", err)
			}
			job.CacheDir = folder.Path()
			_ = folder.Close() // only its path is needed
		}
	}
	if c.env.Workspace != "" {
		if job.Workspace, err = filepath.Abs(c.env.Workspace); err != nil {
			return job, protocol.Errorf(protocol.CodeSkillError, "the workspace: %w", err)
		}
	}
	return job, nil
}

// event returns a function that sends events of kinds for which an Emitter has no method. On the wire
// their data must be objects; other data is sent as {"value":…}.
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

// agent lets a model carry out the skill with its tools.
func (c *skillCall) agent(ctx context.Context) (*run.Result, error) {
	prompt, err := c.skill.render(c.args, c.opts.MaxOutputBytes)
	if err != nil {
		return nil, err
	}
	model, done, err := c.chosenModel()
	if err != nil {
		return nil, err
	}
	defer done()
	system := "You carry out the skill \"" + c.skill.name + "\": " + c.skill.description +
		"\nFollow the instructions of the user's message. Work with the tools you have, and with no others. " +
		"Nobody answers questions. When you are done, give the result as your last message, without calling a tool."
	turns := agent.Turns{
		Services: c.services, Prompt: prompt, Tools: c.tools, MaxTurns: min(cmp.Or(c.skill.maxTurns, defaultTurns),
			c.opts.MaxTurns),
		Model: model, Watch: &watcher{emit: c.emit, event: c.event(ctx)},
	}
	r := &run.Result{}
	if c.skill.outputs != nil {
		system += "\nThat message is one JSON object and nothing else. It fits this JSON Schema:\n" +
			string(c.skill.outputs.raw)
		turns.Accept = func(text string) (err error) {
			r.Data, err = c.object(text)
			return err
		}
	}
	turns.System = system
	end, err := agent.Loop(ctx, turns)
	if err != nil {
		return nil, err
	}
	r.Summary = end.Summary()
	switch {
	case end.End != agent.EndDone:
		r.Data, r.Failed, r.Failure = nil, true, end.Failure
	case turns.Accept == nil:
		text := spill.Shorten(end.Text, c.opts.MaxOutputBytes-len(`""`), "")
		r.Data, r.Truncated = protocol.AppendString(nil, text), text != end.Text || end.Cut
	}
	return r, nil
}

// object reads an answer that should be a JSON object.
func (c *skillCall) object(text string) (jsontext.Value, error) {
	obj, err := protocol.ParseObject([]byte(unfenced(text)))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer should be one JSON object and nothing else, but it cannot be read as "+
			"one: %w", err)
	case len(obj.Raw()) > c.opts.MaxOutputBytes:
		return nil, fmt.Errorf("the answer has more than %d bytes, the largest result", c.opts.MaxOutputBytes)
	}
	return jsontext.Value(obj.Raw()), nil
}

// unfenced returns a text without the fence of a code block around it.
func unfenced(text string) string {
	text = strings.TrimSpace(text)
	if inner, ok := strings.CutSuffix(text, "```"); ok && strings.HasPrefix(inner, "```") {
		if _, body, ok := strings.Cut(inner, "\n"); ok {
			return strings.TrimSpace(body)
		}
	}
	return text
}

// watcher sends events about what a model does.
type watcher struct {
	agent.Unwatched
	emit  host.Emitter
	event run.EventFunc
	said  strings.Builder // text of the model in this round
}

// Limits of events, in bytes.
const (
	maxEventResult = 4 << 10  // of a tool's result
	maxSaid        = 64 << 10 // of the model's text before its calls
)

// toolCallEvent and toolResultEvent are the data of events of these kinds.
type toolCallEvent struct {
	Turn      int            `json:"turn"`
	ID        string         `json:"id"`
	ToolName  string         `json:"tool_name"`
	Arguments jsontext.Value `json:"arguments"`
}

type toolResultEvent struct {
	Turn     int    `json:"turn"`
	ID       string `json:"id"`
	ToolName string `json:"tool_name"`
	Success  bool   `json:"success"`
	Result   string `json:"result"` // its beginning
}

// Round implements agent.Watcher.
func (w *watcher) Round(round, of int) {
	w.said.Reset()
	w.emit.Status(fmt.Sprintf("turn %d of %d", round, of))
}

// Piece implements agent.Watcher.
func (w *watcher) Piece(kind agent.PieceKind, text string) {
	if kind == agent.PieceAnswer {
		w.said.WriteString(text)
	}
}

// Restart implements agent.Watcher.
func (w *watcher) Restart() { w.said.Reset() }

// ToolStarted implements agent.Watcher. Before a call it sends the text that the model wrote so far.
func (w *watcher) ToolStarted(round int, c agent.ModelCall) {
	if w.said.Len() > 0 {
		w.emit.Log("info", strings.ToValidUTF8(w.said.String()[:min(w.said.Len(), maxSaid)], ""), "")
		w.said.Reset()
	}
	w.tell("tool_call", &toolCallEvent{round, c.ID, c.Name, c.Arguments})
}

// ToolEnded implements agent.Watcher.
func (w *watcher) ToolEnded(round int, c agent.ModelCall, r agent.ModelResult) {
	text := agent.ResultText(r)
	w.tell("tool_result", &toolResultEvent{
		round, c.ID, c.Name, r.OK,
		strings.ToValidUTF8(text[:min(len(text), maxEventResult)], ""),
	})
}

// tell sends an event with the data as JSON.
func (w *watcher) tell(kind string, data any) {
	if text, err := json.Marshal(data); err == nil {
		w.event(kind, text)
	}
}

// chosenModel returns the model for a call: the model that the call names, else that of the config, else
// the agent's. The caller must call done.
func (c *skillCall) chosenModel() (model agent.Model, done func(), err error) {
	done = func() {}
	switch {
	case c.req.LLMOverride != nil && !c.opts.AllowLLMOverride:
		return nil, nil, protocol.Errorf(protocol.CodeSkillError,
			"llm_override is not allowed here; leave it out, or set allow_llm_override in the options of the plugin")
	case c.req.LLMOverride != nil:
		if model, err = c.overridden(c.req.LLMOverride); err != nil {
			return nil, nil, protocol.Wrong("/llm_override", "%s", err)
		}
		return model, func() { _ = closeModel(model) }, nil // connections that stay open time out by themselves
	case c.model != nil && !c.foreign(c.skill):
		return c.model, done, nil
	}
	return agent.NewSampling(c.services), done, nil
}

// overridden returns the model that a call names: provider_config {url or base_url, model} and
// provider_credentials {api_key}. Missing values come from the config, but the key
// of the config is sent only to the URL of the config. A skill that an agent could have written
// gets nothing from the config.
func (c *skillCall) overridden(l *protocol.LLMConfig) (agent.Model, error) {
	var place protocol.Object
	if l.ProviderConfig != nil {
		place = *l.ProviderConfig
	}
	o := agent.EndpointOptions{
		URL: firstText(place, "url", "base_url", "api_base"), Model: firstText(place, "model", "model_name"),
		APIKey: firstText(l.ProviderCredentials, "api_key", "key", "token"), Now: c.env.Now,
	}
	own := c.opts.LLM
	if c.foreign(c.skill) {
		own = agent.LLM{}
	}
	if own.URL != "" && (o.URL == "" || o.URL == own.URL) {
		o.URL, o.AllowPrivate, o.Thinking, o.Timeout = own.URL, true, own.Thinking, own.Timeout
		if o.APIKey == "" {
			o.APIKey = own.APIKey.Reveal()
		}
	}
	if o.Model == "" {
		o.Model = own.Model
	}
	return agent.NewEndpoint(o)
}

// firstText returns the first of the members that is a string and not empty.
func firstText(obj protocol.Object, keys ...string) string {
	for _, key := range keys {
		if v, ok := obj.Get(key); ok {
			if text, ok := v.Str(); ok && text != "" {
				return text
			}
		}
	}
	return ""
}

// closeModel closes the idle connections of a model, which may be nil.
func closeModel(m agent.Model) error {
	if c, ok := m.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
