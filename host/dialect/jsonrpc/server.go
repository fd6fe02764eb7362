package jsonrpc

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

const maxClient = 200 // bytes of the client's name, or of a version in an error

func handshake(f *Front, ctx context.Context, c *call, req *struct {
	Client  string `json:"client_name"`
	Release string `json:"client_version"`
	Version string `json:"protocol_version"`
	Strict  bool   `json:"strict"`
	Token   string `json:"auth_token"`
}) (any, error) {
	agent, admitted := f.opts.Tokens.AdmitClient(req.Token, cmp.Or(dialect.Clip(req.Client, maxClient), nameless))
	if !f.guard.Checked(ctx, admitted) {
		f.logger().Warn().Msg("rpc.handshake refused: the token is missing or wrong")
		return nil, jsonrpc.Errorf(jsonrpc.CodeUnauthorized, "unauthorized: rpc.handshake needs the host's token as auth_token")
	}
	if req.Strict && req.Version != "" && req.Version != jsonrpc.Protocol {
		e := jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "unsupported protocol_version: %s", dialect.Clip(req.Version, maxClient))
		return nil, e.With("reason", "unsupported_protocol_version").With("supported", jsonrpc.Protocol)
	}
	if !f.enrol(agent, dialect.Clip(req.Client, maxClient)) {
		return nil, jsonrpc.Errorf(jsonrpc.CodeUnauthorized, "unauthorized: this pipe is another agent's, by its first token; an agent needs a host of its own")
	}
	return map[string]any{
		"protocol_version": jsonrpc.Protocol, "server_name": "a2e", "methods": slices.Sorted(maps.Keys(f.methods)),
		"capabilities": map[string]any{"events": true, "command_execute": true, "multi_session": true, "image_inputs": []string{"path", "data_url"}},
	}, nil
}

// nameless is the agent of a client that does not say what it is.
const nameless = "rpc"

// enrol notes who is let in. Sessions stay those of the agent that they were begun for, so a
// token for another one comes too late.
func (f *Front) enrol(agent, client string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.opts.Tokens.Name(agent) {
		agent = ""
	}
	if f.admitted && agent != f.agent {
		return false
	}
	f.admitted, f.agent, f.client = true, agent, client
	return true
}

func ping(f *Front, _ context.Context, _ *call) (any, error) {
	return map[string]any{"ok": true, "timestamp": stamp(f.opts.Now()), "uptime_seconds": f.uptime()}, nil
}

func (f *Front) uptime() float64 { return f.opts.Now().Sub(f.begun).Seconds() }

func shutdown(f *Front, _ context.Context, c *call, req *struct {
	Timeout *float64 `json:"timeout"`
}) (any, error) {
	timeout := host.DrainTimeout
	if req.Timeout != nil {
		if *req.Timeout < 0 || *req.Timeout > maxShutdown.Seconds() {
			return nil, jsonrpc.Params("timeout", "must be seconds, 0 to 3600, that running work gets to finish")
		}
		timeout = time.Duration(*req.Timeout * float64(time.Second))
	}
	c.then = func() { host.Shutdown(f.ctx, timeout) }
	return map[string]any{"ok": true, "timeout": timeout.Seconds()}, nil
}

const maxShutdown = time.Hour

func authStatus(f *Front, _ context.Context, _ *call) (any, error) { return f.auth(), nil }

func (f *Front) auth() map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	how := "none"
	if len(f.opts.Tokens) > 0 {
		how = "token"
	}
	return map[string]any{"required": len(f.opts.Tokens) > 0, "authenticated": f.admitted, "method": how}
}

func toolsList(f *Front, ctx context.Context, c *call) (any, error) {
	return f.list(ctx, c, protocol.TypeToolListReq, "tools")
}

func skillsList(f *Front, ctx context.Context, c *call) (any, error) {
	return f.list(ctx, c, protocol.TypeSkillDiscoverReq, "skills")
}

// list returns a list of the host's plugins, whose filters the params are; a host without
// such a plugin has an empty one.
func (f *Front) list(ctx context.Context, c *call, t protocol.Type, member string) (any, error) {
	var answer protocol.Object
	err := host.ServicesOf(f.ctx).Call(dialect.Merge(f.enter(nil), ctx), t, c.params, &answer, nil)
	if err != nil && !dialect.IsMissing(err) {
		return nil, err
	}
	list, ok := answer.Get(member)
	if !ok {
		list = protocol.Value("[]")
	}
	return map[string]any{member: jsontext.Value(list)}, nil
}

func stateGet(f *Front, ctx context.Context, _ *call) (any, error) {
	f.awaitPlugins()
	onboarding, err := f.onboarding(ctx)
	if err != nil {
		return nil, err
	}
	_, kept, err := f.history.list(ctx, 1, 0)
	if err != nil {
		return nil, err
	}
	state := map[string]any{
		"server":        map[string]any{"name": "a2e", "version": f.opts.Version, "protocol_version": jsonrpc.Protocol, "uptime_seconds": f.uptime()},
		"auth":          f.auth(),
		"onboarding":    onboarding,
		"limits":        f.limits(kept),
		"models":        f.modelsOf(f.workers()),
		"workspace":     f.opts.Workspace,
		"sessions_kept": kept,
		"capabilities":  f.capabilities(),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	live := make([]*session, 0, len(f.sessions))
	for _, s := range f.sessions {
		live = append(live, s)
	}
	slices.SortFunc(live, func(x, y *session) int { return cmp.Or(cmp.Compare(y.Updated, x.Updated), cmp.Compare(x.ID, y.ID)) })
	sessions := make([]map[string]any, 0, len(live))
	for _, s := range live {
		sessions = append(sessions, s.describeLocked())
	}
	state["sessions"], state["model"] = sessions, f.model
	state["debug"] = map[string]any{"enabled": f.debug, "level": f.log.GetLevel().String()}
	state["client"] = f.client
	return state, nil
}

// capabilities lists what the host's plugins serve.
func (f *Front) capabilities() []string {
	all := []string{}
	for _, p := range host.ServicesOf(f.ctx).Plugins() {
		info := p.Info()
		for _, c := range append([]protocol.Capability{info.Capability}, info.Also...) {
			if !slices.Contains(all, string(c)) {
				all = append(all, string(c))
			}
		}
	}
	slices.Sort(all)
	return all
}

// use is a limit and what is used of it.
type use struct {
	Limit int `json:"limit"`
	Used  int `json:"used"`
}

func limitsGet(f *Front, ctx context.Context, _ *call) (any, error) {
	_, kept, err := f.history.list(ctx, 1, 0)
	if err != nil {
		return nil, err
	}
	return f.limits(kept), nil
}

// limits shows the limits and their use; kept is how many sessions the history has.
func (f *Front) limits(kept int) map[string]any {
	workers := []map[string]any{}
	for _, w := range f.workers() {
		workers = append(workers, map[string]any{"name": w.Name, "limit": w.MaxTasks, "used": w.Active, "waiting": w.Waiting})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	requests, bytes := f.room.Use()
	turns, commands, parallel := 0, 0, 0
	if t := f.limiters[limitKey{lane: running}]; t != nil {
		parallel = t.active
	}
	for _, s := range f.sessions {
		commands += s.commands
		if s.turn != nil {
			turns++
		}
	}
	return map[string]any{
		"sessions":             use{f.opts.MaxSessions, len(f.sessions)},
		"sessions_kept":        use{f.opts.MaxKept, kept},
		"requests":             use{f.opts.MaxQueue, requests},
		"request_bytes":        use{f.opts.MaxQueueBytes, bytes},
		"parallel":             use{f.opts.MaxParallel, parallel},
		"waiting_bytes":        use{f.opts.MaxQueueBytes, f.heldLocked()},
		"waiting_per_session":  f.opts.MaxWaiting,
		"line_bytes":           f.opts.MaxLine,
		"text_bytes":           f.opts.MaxText,
		"context_bytes":        f.opts.MaxContext,
		"messages_per_session": maxMessages,
		"history_bytes":        maxHistory,
		"images_per_message":   maxImages,
		"image_bytes":          maxImageBytes,
		"turns_running":        turns,
		"commands_running":     commands,
		"workers":              workers,
	}
}

// workers lists the configured workers, none where there is no pool.
func (f *Front) workers() []host.WorkerInfo {
	if pool := host.ServicesOf(f.ctx).Workers(); pool != nil {
		return pool.Workers()
	}
	return nil
}

// worker finds a worker by its name, else by its model.
func (f *Front) worker(name string) (host.WorkerInfo, error) {
	if name == "" {
		return host.WorkerInfo{}, jsonrpc.Params("model", "must be the id of a worker, or its model; model.list shows them")
	}
	workers := f.workers()
	at := slices.IndexFunc(workers, func(w host.WorkerInfo) bool { return w.Name == name })
	if at < 0 {
		at = slices.IndexFunc(workers, func(w host.WorkerInfo) bool { return w.Model == name })
	}
	if at >= 0 {
		return workers[at], nil
	}
	known := []string{}
	for _, w := range workers {
		known = append(known, w.Name)
	}
	return host.WorkerInfo{}, jsonrpc.Params("model", "no worker is or has the model "+quoted(name)+"; model.list shows them").With("known", known)
}

func modelList(f *Front, _ context.Context, _ *call) (any, error) {
	workers := f.workers()
	f.mu.Lock()
	selected := f.model
	f.mu.Unlock()
	if selected == "" && len(workers) > 0 {
		selected = workers[0].Name
	}
	return map[string]any{"models": f.modelsOf(workers), "selected": selected}, nil
}

func (f *Front) modelsOf(workers []host.WorkerInfo) []map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	models := []map[string]any{}
	for i, w := range workers {
		models = append(models, map[string]any{
			"id": w.Name, "model": w.Model, "tier": w.ModelTier, "context_window": w.ContextWindow, "mode": w.Mode,
			"healthy": w.Healthy, "reason": w.Reason, "active": w.Active, "waiting": w.Waiting, "max_tasks": w.MaxTasks,
			"selected": w.Name == f.model || f.model == "" && i == 0,
		})
	}
	return models
}

func modelSelect(f *Front, ctx context.Context, c *call, req *struct {
	Model     string `json:"model"`
	SessionID string `json:"session_id"` // "" = for all sessions without a choice of their own
}) (any, error) {
	w, err := f.worker(req.Model)
	if err != nil {
		return nil, err
	}
	told := map[string]any{"id": w.Name, "model": w.Model, "session_id": nil}
	c.then = func() { f.changed("model") }
	if req.SessionID == "" {
		f.mu.Lock()
		f.model = w.Name
		f.mu.Unlock()
		return told, nil
	}
	s, err := f.get(ctx, req.SessionID)
	if err != nil {
		return nil, err
	}
	defer f.unpin(s)
	told["session_id"] = s.ID
	return told, f.put(ctx, s, func(e *entry) { e.Model = w.Name })
}

func debugSet(f *Front, _ context.Context, c *call, req *struct {
	Enabled *bool  `json:"enabled"` // errors say more
	Level   string `json:"level"`   // of what this side logs
}) (any, error) {
	if req.Enabled == nil && req.Level == "" {
		return nil, jsonrpc.Params("enabled", "is required, or level")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if req.Level != "" {
		level, err := zerolog.ParseLevel(req.Level)
		if err != nil || !slices.Contains([]string{"debug", "info", "warn", "error"}, req.Level) {
			return nil, jsonrpc.Params("level", "must be debug, info, warn or error")
		}
		f.log = f.log.Level(level)
	}
	if req.Enabled != nil {
		f.debug = *req.Enabled
	}
	c.then = func() { f.changed("debug") }
	return map[string]any{"enabled": f.debug, "level": f.log.GetLevel().String()}, nil
}

// settingOnboarded is the setting that says when the user was shown around.
const settingOnboarded = "onboarding.completed_at"

func (f *Front) onboarding(ctx context.Context) (map[string]any, error) {
	at, err := f.history.setting(ctx, settingOnboarded)
	if err != nil {
		return nil, err
	}
	told := map[string]any{"completed": at != "", "completed_at": nil, "steps": []map[string]any{
		{"id": "workspace", "done": f.opts.Workspace != ""},
		{"id": "worker", "done": len(f.workers()) > 0},
		{"id": "auth_token", "done": len(f.opts.Tokens) > 0},
	}}
	if at != "" {
		told["completed_at"] = at
	}
	return told, nil
}

func onboardingStatus(f *Front, ctx context.Context, _ *call) (any, error) { return f.onboarding(ctx) }

func onboardingComplete(f *Front, ctx context.Context, c *call) (any, error) {
	at, err := f.history.setting(ctx, settingOnboarded)
	if err != nil {
		return nil, err
	}
	if at == "" {
		if err := f.history.set(ctx, settingOnboarded, stamp(f.opts.Now())); err != nil {
			return nil, err
		}
		c.then = func() { f.changed("onboarding") }
	}
	return f.onboarding(ctx)
}
