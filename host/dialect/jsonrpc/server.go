package jsonrpc

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/dialect"
	"a2e/host/guard/auth"
	"a2e/host/schema"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

func handshake(f *Front, ctx context.Context, c *call, req *struct {
	Client  string `json:"client_name"`
	Version text   `json:"protocol_version"`
	Strict  bool   `json:"strict"`
	Token   string `json:"auth_token"`
	Answers []text `json:"questions"` // the kinds of questions that the client answers
},
) (any, error) {
	if wrong := auth.WrongName(req.Client); wrong != "" {
		return nil, c.wrong("client_name", wrong)
	}
	agent, admitted := f.opts.Tokens.AdmitClient(req.Token, cmp.Or(protocol.Clip(req.Client, maxClient), nameless))
	if !f.guard.Checked(ctx, admitted) {
		f.opts.Log.Warn().Msg("rpc.handshake refused: the token is missing or wrong")
		return nil, unauthorized("rpc.handshake needs the host's token as auth_token")
	}
	if req.Strict && req.Version != "" && req.Version != jsonrpc.Protocol {
		e := jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "unsupported protocol_version: %s",
			protocol.Clip(req.Version, maxClient))
		return nil, e.With("reason", "unsupported_protocol_version").With("supported", jsonrpc.Protocol)
	}
	if !f.enrol(agent, protocol.Clip(req.Client, maxClient)) {
		return nil, unauthorized("this pipe is another agent's, by its first token; an agent needs a host of its own")
	}
	f.mu.Lock()
	f.answers = req.Answers
	f.mu.Unlock()
	works := []string{}
	for _, name := range slices.Sorted(maps.Keys(f.methods)) {
		if m := f.methods[name]; m.works == nil || len(m.works(f)) > 0 {
			works = append(works, name)
		}
	}
	return map[string]any{
		"protocol_version": jsonrpc.Protocol, "server_name": "a2e", "methods": works,
		"capabilities": map[string]any{
			"events": true, "command_execute": true, "multi_session": true,
			"image_inputs": []string{"path", "data_url"},
		},
	}, nil
}

func unauthorized(why string) error {
	return jsonrpc.Errorf(jsonrpc.CodeUnauthorized, "unauthorized: %s", why)
}

// enrol stores who was let in. It returns false if another agent was let in before: sessions stay with the agent for
// which they were begun.
func (f *Front) enrol(agent, client string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	agent, apart := f.opts.Tokens.Apart(agent)
	if f.admitted && agent != f.agent {
		return false
	}
	f.admitted, f.agent, f.client = true, agent, client
	if apart {
		f.history.only.Store(&agent)
	}
	return true
}

func ping(f *Front, _ context.Context, _ *call) (any, error) {
	return map[string]any{"ok": true, "time": stamp(f.opts.Now()), "uptime_seconds": f.uptime()}, nil
}

func (f *Front) uptime() float64 { return f.opts.Now().Sub(f.begun).Seconds() }

func shutdown(f *Front, ctx context.Context, c *call, req *struct {
	Reason  text     `json:"reason"`
	Timeout *float64 `json:"timeout"` // seconds that running work may take to finish
},
) (any, error) {
	timeout := host.DrainTimeout
	if req.Timeout != nil {
		if *req.Timeout < 0 || *req.Timeout > maxShutdown.Seconds() {
			return nil, c.wrong("timeout", "must be seconds, 0 to 3600, that running work gets to finish")
		}
		timeout = time.Duration(*req.Timeout * float64(time.Second))
	}
	c.reason = cmp.Or(string(req.Reason), "shutdown")
	c.then = func() { host.Shutdown(f.ctx, timeout) }
	return add(map[string]any{"accepted": true}, "reason", req.Reason), nil
}

// connect answers requests to log in to accounts of vendors, which are not supported.
func connect(*Front, context.Context, *call) (any, error) {
	return nil, jsonrpc.Refused("not_supported", "a login by a browser is not supported: models here are the workers "+
		"of the host's config, with keys of their endpoints; set llm with url, model and api_key for a worker, or "+
		"give its key by auth.set.openrouter_key")
}

func toolsList(f *Front, ctx context.Context, c *call) (any, error) {
	var resp protocol.ToolListResponse
	ctx = dialect.Merge(f.enter(&f.none), ctx)
	err := host.ServicesOf(f.ctx).Call(ctx, protocol.TypeToolListReq, c.params, &resp, nil)
	if err != nil && !dialect.IsMissing(err) {
		return nil, err
	}
	return map[string]any{"tools": each(resp.Tools, func(t protocol.ToolDefinition) map[string]any {
		input := schema.Object(t.InputParameters, true)
		if detail, _ := host.ServicesOf(f.ctx).Tool(t.Name); len(detail.InputSchema) > 0 {
			input = detail.InputSchema
		}
		return map[string]any{"name": t.Name, "description": t.Description, "input_schema": input}
	})}, nil
}

func skillsList(f *Front, ctx context.Context, c *call) (any, error) {
	f.awaitPlugins()
	skills, folders, err := f.skills(ctx, c.params)
	if err != nil {
		return nil, err
	}
	list := each(skills, func(s protocol.SkillDefinition) map[string]any {
		return map[string]any{
			"name": s.Name, "description": s.Description, "description_preview": titleOf(s.Description),
			"source_path": value(s.FilePath),
		}
	})
	return map[string]any{"directories": folders, "errors": []string{}, "skills": list}, nil
}

// skills returns the skills and the folders in which they lie. filters are those of the request.
func (f *Front) skills(ctx context.Context, filters any) ([]protocol.SkillDefinition, []string, error) {
	var resp protocol.SkillDiscoverResponse
	ctx = dialect.Merge(f.inside(&f.none), ctx)
	err := host.ServicesOf(f.ctx).Call(ctx, protocol.TypeSkillDiscoverReq, filters, &resp, nil)
	if err != nil && !dialect.IsMissing(err) {
		return nil, nil, err
	}
	folders := []string{}
	for _, s := range resp.Skills {
		if at := value(s.FilePath); at != "" {
			folders = append(folders, filepath.Dir(filepath.Dir(at)))
		}
	}
	slices.Sort(folders)
	return resp.Skills, slices.Compact(folders), nil
}

// value returns what p points to, or the zero value if p is nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// add adds a member to a result unless its value is zero.
func add[T comparable](told map[string]any, name string, v T) map[string]any {
	if v != *new(T) {
		told[name] = v
	}
	return told
}

// each returns the results of fn for the elements of a list.
func each[T, R any](list []T, fn func(T) R) []R {
	all := make([]R, 0, len(list))
	for _, v := range list {
		all = append(all, fn(v))
	}
	return all
}

func stateGet(f *Front, ctx context.Context, _ *call) (any, error) {
	f.awaitPlugins()
	state, err := f.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	state["server"] = map[string]any{
		"name": "a2e", "version": f.opts.Version, "protocol_version": jsonrpc.Protocol, "uptime_seconds": f.uptime(),
	}
	state["workspace"], state["capabilities"], state["super_debug"] = f.opts.Workspace, f.capabilities(), f.debug.Load()
	return state, nil
}

// snapshot returns the state that all sessions share.
func (f *Front) snapshot(ctx context.Context) (map[string]any, error) {
	onboarded, err := f.history.setting(ctx, settingOnboarded)
	if err != nil {
		return nil, err
	}
	skills, folders, err := f.skills(ctx, protocol.SkillDiscoverRequest{})
	if err != nil {
		return nil, err
	}
	sel, auth := f.chosen(ctx), f.auth()
	f.mu.Lock()
	defer f.mu.Unlock()
	return map[string]any{
		"auth": map[string]any{
			"enabledProviders": auth["enabled_providers"], "hasOpenRouterKey": auth["has_openrouter_key"],
			"hasOpenAiToken": false, "hasAntigravityToken": false, "antigravityProfile": nil,
		},
		"onboarding": map[string]any{"completed": onboarded != ""},
		"model": map[string]any{
			"selectedModel": sel.Model, "selectedProvider": sel.provider(), "selectedThinking": sel.Thinking,
			"selectedOpenRouterProvider": anyRouting,
		},
		"sessions": map[string]any{"count": len(f.sessions), "ids": slices.Sorted(maps.Keys(f.sessions))},
		"skills":   map[string]any{"count": len(skills), "directories": folders},
	}, nil
}

// changed tells the client that a request has changed the state.
func (f *Front) changed(ctx context.Context, c *call) {
	ctx, cancel := context.WithTimeout(ctx, f.opts.StoreWait) // a shutdown must not wait longer
	defer cancel()
	state, err := f.snapshot(ctx)
	if err != nil {
		f.opts.Log.Warn().Err(err).Msg("a change of the state is not told")
		return
	}
	told := map[string]any{"reason": c.reason, "snapshot": state}
	f.event(jsonrpc.StateChanged, add(told, "session_id", c.created))
}

// capabilities returns the capabilities that the host's plugins serve.
func (f *Front) capabilities() []string {
	all := []string{}
	for _, p := range host.ServicesOf(f.ctx).Plugins() {
		info := p.Info()
		for _, c := range append([]protocol.Capability{info.Capability}, info.Also...) {
			all = append(all, string(c))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// use is a limit and how much of it is used.
type use struct {
	Limit int `json:"limit"`
	Used  int `json:"used"`
}

func limitsGet(f *Front, ctx context.Context, _ *call) (any, error) {
	kept, err := f.history.count(ctx, "")
	if err != nil {
		return nil, err
	}
	workers := each(f.workers(), func(w agent.WorkerInfo) map[string]any {
		return map[string]any{"name": w.Name, "limit": w.MaxTasks, "used": w.Active, "waiting": w.Waiting}
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	parallel, limits := host.ServicesOf(f.ctx).Bounds()
	bytes, commands, turns := 0, 0, 0
	for c := range f.open {
		if bytes += c.size; c.runs && c.method == jsonrpc.CommandExecute {
			commands++
		}
	}
	for _, s := range f.sessions {
		if s.turn != nil {
			turns++
		}
	}
	return map[string]any{
		"openai": nil, "antigravity": nil, // the host knows no accounts of vendors
		"sessions":      use{maxSessions, len(f.sessions)},
		"history":       use{f.opts.MaxKept, kept},
		"requests":      use{limits.Queue, len(f.open)},
		"request_bytes": use{limits.QueueBytes, bytes},
		"commands":      use{parallel, commands},
		"waiting_bytes": use{limits.QueueBytes, f.heldLocked()},
		"line_bytes":    limits.LineBytes, "text_bytes": f.opts.MaxText, "context_bytes": f.opts.MaxContext,
		"history_messages": maxMessages, "history_bytes": maxHistory, "waiting_per_session": f.opts.MaxWaiting,
		"images_per_message": maxImages, "image_bytes": maxImageBytes, "images_bytes": maxAllImages,
		"turns_running": turns, "workers": workers,
	}, nil
}

func debugSet(f *Front, _ context.Context, c *call, req *struct {
	Super *bool `json:"super_debug"` // turns and errors tell more
},
) (any, error) {
	if req.Super == nil {
		return nil, c.wrong("super_debug", "must be a boolean")
	}
	f.debug.Store(*req.Super)
	return map[string]any{"super_debug": *req.Super}, nil
}

func onboardingStatus(f *Front, ctx context.Context, _ *call) (any, error) {
	at, err := f.history.setting(ctx, settingOnboarded)
	return map[string]any{"completed": at != ""}, err
}

func onboardingComplete(f *Front, ctx context.Context, c *call) (any, error) {
	c.reason = "onboarding_complete"
	return map[string]any{"completed": true}, f.history.set(ctx, settingOnboarded, stamp(f.opts.Now()))
}

func authStatus(f *Front, _ context.Context, _ *call) (any, error) { return f.auth(), nil }

// auth returns what the client and the workers may use.
func (f *Front) auth() map[string]any {
	providers, key := []string{}, false
	for _, w := range f.workers() {
		providers = append(providers, w.Name)
		key = key || w.KeyFor != "" && agent.StoredKey(f.opts.StateDir, w.KeyFor) != ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return map[string]any{
		"enabled_providers": providers, "has_openrouter_key": key,
		"has_openai_token": false, "has_antigravity_token": false, "antigravity_profile": nil,
		"required": len(f.opts.Tokens) > 0, "authenticated": f.admitted,
	}
}

// setExaKey takes the key of a search that this host does not have. It accepts only the value skip.
func setExaKey(_ *Front, _ context.Context, c *call, req *struct {
	Key text `json:"api_key"`
},
) (any, error) {
	if !strings.EqualFold(string(req.Key), "skip") {
		return nil, jsonrpc.Refused("not_supported", "this host uses no Exa key; only the value skip is accepted")
	}
	c.reason = "exa_key_skipped"
	return map[string]any{"configured": false, "skipped": true}, nil
}

// or returns a value, or none if the value is empty.
func or(v jsontext.Value, none string) jsontext.Value {
	if len(v) == 0 {
		return jsontext.Value(none)
	}
	return v
}
