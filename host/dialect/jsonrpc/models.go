package jsonrpc

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/agent"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// modelID returns the id of a worker's model: as the config says, else the worker's name. A worker is a provider of
// models, by its name.
func modelID(w agent.WorkerInfo) string { return cmp.Or(w.Model, w.Name) }

// levels returns the thinking levels that a worker can be asked for.
func levels(w agent.WorkerInfo) []string {
	if w.Thinking == "" {
		return []string{thinkingOff}
	}
	return each(agent.ThinkingLevels(), strings.ToUpper)
}

// usualLevel returns the level for a worker if the client asks for none that it knows: that of its config.
func usualLevel(w agent.WorkerInfo) string { return strings.ToUpper(cmp.Or(w.Thinking, thinkingOff)) }

// workers returns the configured workers, or none if there is no pool.
func (f *Front) workers() []agent.WorkerInfo {
	if pool := agent.Workers(host.ServicesOf(f.ctx)); pool != nil {
		return pool.Workers()
	}
	return nil
}

func those(workers []agent.WorkerInfo, match func(agent.WorkerInfo) bool) (some []agent.WorkerInfo) {
	for _, w := range workers {
		if match(w) {
			some = append(some, w)
		}
	}
	return some
}

// prefer returns the workers that match, or all of them if none matches.
func prefer(workers []agent.WorkerInfo, match func(agent.WorkerInfo) bool) []agent.WorkerInfo {
	if some := those(workers, match); len(some) > 0 {
		return some
	}
	return workers
}

func called[T ~string](name T) func(agent.WorkerInfo) bool {
	return func(w agent.WorkerInfo) bool { return w.Name == string(name) }
}

// with returns the workers that have a model. If workers have this text as their name, it returns only these.
func with(workers []agent.WorkerInfo, model text) []agent.WorkerInfo {
	named := called(model)
	able := func(w agent.WorkerInfo) bool { return named(w) || modelID(w) == string(model) }
	return prefer(those(workers, able), named)
}

// of returns the workers of the provider that a request names; "" = all.
func (f *Front) of(c *call, provider text) ([]agent.WorkerInfo, error) {
	workers := f.workers()
	if provider != "" {
		workers = those(workers, called(provider))
	}
	if provider != "" && len(workers) == 0 {
		return nil, c.wrong("provider", "must be one of the workers that model.list lists")
	}
	return workers, nil
}

// selection is the model that the client has selected. It is kept beyond the end of the host.
type selection struct {
	Worker   string `json:"worker"` // "" = none, and the pool chooses
	Model    string `json:"-"`
	Thinking string `json:"thinking"`

	asked string // Thinking if the client selected it; "" = as the config says
}

// chosen returns the selection. If there is none, Model and Thinking are those of the first worker.
func (f *Front) chosen(ctx context.Context) selection {
	f.mu.Lock()
	kept := f.selected
	f.mu.Unlock()
	if kept == nil {
		kept = new(selection)
		text, err := f.history.setting(ctx, settingModel)
		_ = json.Unmarshal([]byte(text), kept) // a value of another version may not decode; then nothing is selected
		f.mu.Lock()
		if err == nil {
			f.selected = cmp.Or(f.selected, kept)
		}
		f.mu.Unlock()
	}
	sel, workers := *kept, f.workers()
	if named := those(workers, called(sel.Worker)); len(named) > 0 {
		sel.Model, sel.asked = modelID(named[0]), sel.Thinking
		return sel
	}
	var first agent.WorkerInfo
	if len(workers) > 0 {
		first = workers[0]
	}
	return selection{Model: modelID(first), Thinking: usualLevel(first)}
}

// provider returns the name of the selected worker, or nil.
func (sel selection) provider() any {
	if sel.Worker == "" {
		return nil
	}
	return sel.Worker
}

// tell adds the selection to a result.
func (sel selection) tell(told map[string]any) map[string]any {
	told["selected_model"], told["selected_thinking"] = sel.Model, sel.Thinking
	told["selected_provider"], told["selected_openrouter_provider"] = sel.provider(), anyRouting
	return told
}

// modelOption returns a worker as an entry of the list of models.
func modelOption(w agent.WorkerInfo) map[string]any {
	label := modelID(w)
	if label != w.Name {
		label = w.Name + ": " + label
	}
	what := map[string]string{"llm": "a model", "fleet": "a worker of the fleet protocol"}[w.Mode]
	told := map[string]any{
		"id": modelID(w), "provider": w.Name, "displayProvider": w.Name, "label": label,
		"description":             strings.TrimSpace(cmp.Or(what, "a program") + " " + w.ModelTier),
		"supportedThinkingLevels": levels(w), "defaultThinkingLevel": usualLevel(w),
		"healthy": w.Healthy, "reason": w.Reason,
	}
	return add(told, "contextWindowTokens", w.ContextWindow)
}

func modelList(f *Front, ctx context.Context, c *call, req *struct {
	Provider text `json:"provider"`
},
) (any, error) {
	workers, err := f.of(c, req.Provider)
	return f.chosen(ctx).tell(listed(workers)), err
}

// listed returns the workers as model.list shows them.
func listed(workers []agent.WorkerInfo) map[string]any {
	names := each(workers, func(w agent.WorkerInfo) string { return w.Name })
	return map[string]any{"providers": names, "models": each(workers, modelOption)}
}

func modelSelect(f *Front, ctx context.Context, c *call, req *struct {
	Model    text `json:"model_id"`
	Provider text `json:"provider"`
	Thinking text `json:"thinking_level"`
	Routing  text `json:"openrouter_provider"` // ignored: the host does not choose among providers
	Session  text `json:"session_id"`
	Compress bool `json:"compress_immediately"`
},
) (any, error) {
	workers, err := f.of(c, req.Provider)
	workers = with(workers, req.Model)
	switch {
	case err != nil:
		return nil, err
	case len(workers) == 0:
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "unknown model for provider %s: %s", quoted(req.Provider),
			quoted(req.Model))
	case req.Compress && req.Session == "":
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "session_id is required when compress_immediately is true")
	}
	w := workers[0]
	told := map[string]any{}
	if req.Compress {
		if told["compression"], err = f.compressed(ctx, string(req.Session), w); err != nil {
			return nil, err
		}
	}
	sel := selection{Worker: w.Name, Model: modelID(w), Thinking: strings.ToUpper(string(req.Thinking))}
	if !slices.Contains(levels(w), sel.Thinking) {
		sel.Thinking = usualLevel(w)
	}
	c.reason = "model_selected"
	return sel.tell(told), f.choose(ctx, sel)
}

func (f *Front) choose(ctx context.Context, sel selection) error {
	text, err := protocol.AppendJSON(nil, sel)
	if err == nil {
		err = f.history.set(ctx, settingModel, string(text))
	}
	if err == nil {
		f.mu.Lock()
		f.selected = &sel
		f.mu.Unlock()
	}
	return err
}

// keyed returns the workers whose endpoints take a stored key.
func (f *Front) keyed() []agent.WorkerInfo {
	return those(f.workers(), func(w agent.WorkerInfo) bool { return w.KeyFor != "" && f.opts.StateDir != "" })
}

// setKey stores a key for the endpoint of one of the workers that take a stored key: the selected worker, else the
// first.
func setKey(f *Front, ctx context.Context, c *call, req *struct {
	Key text `json:"api_key"`
},
) (any, error) {
	if strings.ContainsFunc(string(req.Key), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, c.wrong("api_key", "must be a key of printable ASCII characters, without spaces")
	}
	keyed := f.keyed()
	if len(keyed) == 0 {
		return nil, jsonrpc.Refused("not_supported",
			"no worker here takes a stored key: one with an llm endpoint and no api_key of its own would")
	}
	origin := prefer(keyed, called(f.chosen(ctx).Worker))[0].KeyFor
	f.opts.Secrets.AddSecret(string(req.Key))
	err := agent.StoreKey(f.opts.StateDir, origin, string(req.Key))
	c.reason = "openrouter_key_updated"
	workers := those(keyed, func(w agent.WorkerInfo) bool { return w.KeyFor == origin })
	return map[string]any{"configured": true, "model_count": len(workers), "source": "config"}, err
}

// routed returns the workers whose endpoints may tell which providers serve a model.
func (f *Front) routed() []agent.WorkerInfo {
	return those(f.workers(), func(w agent.WorkerInfo) bool { return w.ServedBy != nil })
}

// routingProviders asks an endpoint which providers serve a model behind it. Of the workers with the model, or of all
// if none has it, it asks the selected one, else the first.
func routingProviders(f *Front, ctx context.Context, _ *call, req *struct {
	Model text `json:"model_id"`
},
) (any, error) {
	workers := prefer(f.routed(), func(w agent.WorkerInfo) bool { return w.Model == string(req.Model) })
	if len(workers) == 0 {
		return nil, jsonrpc.Refused("not_supported",
			"no worker here has an llm endpoint to ask who serves a model; model.list shows the workers")
	}
	w := prefer(workers, called(f.chosen(ctx).Worker))[0]
	providers, none, err := w.ServedBy(ctx, string(req.Model))
	switch {
	case err != nil:
		return nil, err
	case none:
		return nil, jsonrpc.Refused("not_supported", "the endpoint of the worker %s does not tell who serves %s "+
			"behind it; routers such as OpenRouter do", quoted(w.Name), quoted(req.Model))
	}
	return map[string]any{"model_id": req.Model, "providers": providers}, nil
}
