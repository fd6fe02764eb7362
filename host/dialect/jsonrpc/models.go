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

// A worker is a provider of models, by its name. modelID is the id of its model: as the config
// says, else the worker's name.
func modelID(w host.WorkerInfo) string { return cmp.Or(w.Model, w.Name) }

const thinkingOff = "OFF"

// levels lists how much a worker can be asked to think.
func levels(w host.WorkerInfo) []string {
	if w.Thinking == "" {
		return []string{thinkingOff}
	}
	return strings.Fields(strings.ToUpper(strings.Join(agent.ThinkingLevels(), " ")))
}

// usualLevel is the level of a worker where none that it knows was asked for: that of its config.
func usualLevel(w host.WorkerInfo) string { return strings.ToUpper(cmp.Or(w.Thinking, thinkingOff)) }

// workers lists the configured workers, none where there is no pool.
func (f *Front) workers() []host.WorkerInfo {
	if pool := host.ServicesOf(f.ctx).Workers(); pool != nil {
		return pool.Workers()
	}
	return nil
}

// option finds a worker by a model or its own name; provider is its name, "" = any.
func (f *Front) option(provider, model string) (host.WorkerInfo, bool) {
	workers := f.workers()
	for _, same := range []func(w host.WorkerInfo) bool{
		func(w host.WorkerInfo) bool { return w.Name == model }, func(w host.WorkerInfo) bool { return modelID(w) == model },
	} {
		for _, w := range workers {
			if (provider == "" || provider == w.Name) && same(w) {
				return w, true
			}
		}
	}
	return host.WorkerInfo{}, false
}

// selection is the model that the client has selected. It is kept over the end of the host.
type selection struct {
	Worker   string `json:"worker"` // "" = none; the pool chooses
	Model    string `json:"-"`
	Thinking string `json:"thinking"`

	asked string // Thinking, where the client asked for it; "" = as the config says
}

const settingModel = "model.selected"

// chosen returns the selection, with that of the first worker where there is none.
func (f *Front) chosen(ctx context.Context) selection {
	f.mu.Lock()
	sel, known := f.selected, f.knows
	f.mu.Unlock()
	if !known {
		within, cancel := context.WithTimeout(ctx, f.opts.StoreWait)
		kept, err := f.history.setting(within, settingModel)
		cancel()
		if kept != "" {
			_ = json.Unmarshal([]byte(kept), &sel) // what another version wrote is no selection
		}
		f.mu.Lock()
		if f.knows = f.knows || err == nil; f.selected.Worker == "" {
			f.selected = sel
		}
		f.mu.Unlock()
	}
	w, there := f.option(sel.Worker, sel.Worker)
	if there {
		sel.asked = sel.Thinking
	} else {
		if workers := f.workers(); len(workers) > 0 {
			w = workers[0]
		}
		sel = selection{Thinking: usualLevel(w)}
	}
	sel.Model = modelID(w)
	return sel
}

// provider is the name of the selected worker, or null.
func (sel selection) provider() any {
	if sel.Worker == "" {
		return nil
	}
	return sel.Worker
}

// modelOption is a worker as a model to choose.
func modelOption(w host.WorkerInfo) map[string]any {
	label := modelID(w)
	if label != w.Name {
		label = w.Name + ": " + label
	}
	what := "a program"
	switch w.Mode {
	case "llm":
		what = "a model"
	case "fleet":
		what = "a worker of the fleet protocol"
	}
	told := map[string]any{
		"id": modelID(w), "provider": w.Name, "label": label, "description": strings.TrimSpace(what + " " + w.ModelTier), "displayProvider": w.Name,
		"supportedThinkingLevels": levels(w), "defaultThinkingLevel": usualLevel(w), "healthy": w.Healthy, "reason": w.Reason,
	}
	if w.ContextWindow > 0 {
		told["contextWindowTokens"] = w.ContextWindow
	}
	return told
}

func modelList(f *Front, ctx context.Context, c *call, req *struct {
	Provider text `json:"provider"`
}) (any, error) {
	told := f.models(ctx, string(req.Provider))
	if req.Provider != "" && len(told["providers"].([]string)) == 0 {
		return nil, c.wrong("provider", "must be one of the workers that model.list lists")
	}
	return told, nil
}

func (f *Front) models(ctx context.Context, provider string) map[string]any {
	providers, models := []string{}, []map[string]any{}
	for _, w := range f.workers() {
		if provider == "" || provider == w.Name {
			providers, models = append(providers, w.Name), append(models, modelOption(w))
		}
	}
	sel := f.chosen(ctx)
	return map[string]any{
		"providers": providers, "models": models,
		"selected_model": sel.Model, "selected_provider": sel.provider(), "selected_thinking": sel.Thinking, "selected_openrouter_provider": anyRouting,
	}
}

// anyRouting is what clients take for no choice among the providers behind an endpoint.
const anyRouting = "any"

func modelSelect(f *Front, ctx context.Context, c *call, req *struct {
	Model    text `json:"model_id"`
	Provider text `json:"provider"`
	Thinking text `json:"thinking_level"`
	Routing  text `json:"openrouter_provider"` // nothing here chooses among those
	Session  text `json:"session_id"`
	Compress bool `json:"compress_immediately"`
}) (any, error) {
	w, ok := f.option(string(req.Provider), string(req.Model))
	if !ok {
		if !slices.ContainsFunc(f.workers(), func(w host.WorkerInfo) bool { return w.Name == string(req.Provider) }) {
			return nil, c.wrong("provider", "must be one of the workers that model.list lists")
		}
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "unknown model for provider %s: %s", quoted(string(req.Provider)), quoted(string(req.Model)))
	}
	told := map[string]any{}
	if req.Compress {
		if req.Session == "" {
			return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "session_id is required when compress_immediately is true")
		}
		s, err := f.get(ctx, string(req.Session))
		if err != nil {
			return nil, err
		}
		f.unpin(s)
		told["compression"] = map[string]any{ // a worker is told the end of a conversation, whatever its length
			"requested": true, "applied": false, "reason": "none", "estimated_tokens_before": 0, "estimated_tokens_after": 0,
			"model_context_window": w.ContextWindow, "auto_limit": 0,
		}
	}
	sel := selection{Worker: w.Name, Thinking: strings.ToUpper(string(req.Thinking))}
	if !slices.Contains(levels(w), sel.Thinking) {
		sel.Thinking = usualLevel(w)
	}
	if err := f.choose(ctx, sel); err != nil {
		return nil, err
	}
	f.changed(ctx, "model_selected", "")
	told["selected_model"], told["selected_provider"], told["selected_thinking"], told["selected_openrouter_provider"] = modelID(w), w.Name, sel.Thinking, anyRouting
	return told, nil
}

// choose keeps a selection.
func (f *Front) choose(ctx context.Context, sel selection) error {
	text, err := protocol.AppendJSON(nil, sel)
	if err == nil {
		err = f.history.set(ctx, settingModel, string(text))
	}
	if err == nil {
		f.mu.Lock()
		f.selected, f.knows = sel, true
		f.mu.Unlock()
	}
	return err
}

// keyed finds the workers of the endpoint that a key is for: that of the selected worker, else
// that of the first one, of those without a key of their own.
func (f *Front) keyed(ctx context.Context) (origin string, workers []host.WorkerInfo) {
	sel := f.chosen(ctx)
	for _, w := range f.workers() {
		if w.KeyFor != "" && (origin == "" || w.Name == sel.Worker) {
			origin = w.KeyFor
		}
	}
	return origin, slices.DeleteFunc(f.workers(), func(w host.WorkerInfo) bool { return origin == "" || w.KeyFor != origin })
}

// takesKey reports whether a worker is there whose endpoint takes a stored key.
func (f *Front) takesKey() bool {
	return f.opts.StateDir != "" && slices.ContainsFunc(f.workers(), func(w host.WorkerInfo) bool { return w.KeyFor != "" })
}

func setKey(f *Front, ctx context.Context, c *call, req *struct {
	Key text `json:"api_key"`
}) (any, error) {
	if strings.ContainsFunc(string(req.Key), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, c.wrong("api_key", "must be a key of printable ASCII characters, without spaces")
	}
	origin, workers := f.keyed(ctx)
	if !f.takesKey() {
		return nil, jsonrpc.Refused("not_supported", "no worker here takes a stored key: one with an llm endpoint and no api_key of its own would")
	}
	f.opts.Secrets.AddSecret(string(req.Key))
	if err := agent.StoreKey(f.opts.StateDir, origin, string(req.Key)); err != nil {
		return nil, err
	}
	f.changed(ctx, "openrouter_key_updated", "")
	return map[string]any{"configured": true, "model_count": len(workers), "source": "config"}, nil
}

// tellsRouting reports whether a worker is there whose endpoint may tell who serves a model.
func (f *Front) tellsRouting() bool {
	return slices.ContainsFunc(f.workers(), func(w host.WorkerInfo) bool { return w.ServedBy != nil })
}

// routingProviders asks the endpoint of the worker with the model, else that of the selected one, else the
// first, who serves the model behind it.
func routingProviders(f *Front, ctx context.Context, _ *call, req *struct {
	Model text `json:"model_id"`
}) (any, error) {
	asked := slices.DeleteFunc(f.workers(), func(w host.WorkerInfo) bool { return w.ServedBy == nil })
	if len(asked) == 0 {
		return nil, jsonrpc.Refused("not_supported", "no worker here has an llm endpoint to ask who serves a model; model.list shows the workers")
	}
	selected := f.chosen(ctx).Worker
	w := slices.MaxFunc(asked, func(a, b host.WorkerInfo) int {
		rank := func(w host.WorkerInfo) (n int) {
			if w.Model == string(req.Model) {
				n += 2
			}
			if w.Name == selected {
				n++
			}
			return n
		}
		return rank(a) - rank(b)
	})
	providers, none, err := w.ServedBy(ctx, string(req.Model))
	switch {
	case err != nil:
		return nil, err
	case none:
		return nil, jsonrpc.Refused("not_supported", "the endpoint of the worker %s does not tell who serves %s behind it; routers such as OpenRouter do", quoted(w.Name), quoted(string(req.Model)))
	}
	return map[string]any{"model_id": req.Model, "providers": append([]string{}, providers...)}, nil
}
