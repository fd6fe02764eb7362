package host

import (
	"context"
	"slices"

	"a2e/protocol"
)

// Checkpoint keeps the state of the workspace before something changes it: what plugins do without a
// request that says so, or for tools of their own (see ToolDescriber). before says what comes next. Where no checkpoints are kept it does nothing;
// one that fails stops what comes next only where the config says so.
func (s *Services) Checkpoint(ctx context.Context, before string) error {
	if !s.KeepsCheckpoints() {
		return nil
	}
	HandOff(ctx)
	_, err := s.host.opts.Checkpoints.Take(ctx, before)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.host.opts.NeedCheckpoints:
		return protocol.Errorf(protocol.CodeRuntimeError, "the request was refused, since no checkpoint could be "+
			"made before it (checkpoints.required): %w", err)
	}
	s.host.opts.Log.Warn().Err(err).Str("before", before).Msg("no checkpoint was made; the next changes cannot be " +
		"undone")
	return nil
}

// KeepsCheckpoints reports whether Checkpoint does anything.
func (s *Services) KeepsCheckpoints() bool { return s != nil && s.host.opts.Checkpoints != nil }

// keepFiles makes a checkpoint before a request that may change the workspace.
func (h *Host) keepFiles(next handler) handler {
	return func(ctx context.Context, d *destination, obj protocol.Object, emit Emitter) (any, error) {
		if what := h.changer(d, obj); what != "" {
			if err := h.services.Checkpoint(ctx, what); err != nil {
				return nil, err
			}
		}
		return next(ctx, d, obj, emit)
	}
}

// changer names a request that may change files of the workspace; "" = it does not. That is a tool that
// does not say that it only reads, whatever runs a program, and what the protocol does not know.
func (h *Host) changer(d *destination, obj protocol.Object) string {
	word := func(key string) string {
		return obj.Text(key)
	}
	switch d.typ {
	case protocol.TypeToolCallReq:
		return h.changingTool(d, obj)
	case protocol.TypeSkillCallReq:
		return "skill " + word("name")
	case protocol.TypeChainReq:
		return "chain " + word("chain_id")
	case protocol.TypeProcSpawnReq:
		return "process " + program(obj, "cmd")
	case protocol.TypeProcWriteReq:
		return "input of process " + word("proc_id")
	case protocol.TypeEnvResetReq, protocol.TypeEnvStepReq, protocol.TypeEnvBatchStepReq:
		if slices.ContainsFunc(h.opts.Plugins, func(p Plugin) bool { i := p.Info(); return i.Capability == protocol.CapEnv && i.Children }) {
			return "environment " + word("env_name")
		}
	}
	if _, known := protocol.Lookup(d.typ); !known {
		return "request " + string(d.typ)
	}
	return ""
}

// changingTool is changer for calls of tools. Those that a ToolDescriber serves are its own concern: it
// alone knows, maybe only after it has waited for them, which there are and what they do.
func (h *Host) changingTool(d *destination, obj protocol.Object) string {
	own := func(p Plugin) bool {
		_, describes := As[ToolDescriber](p)
		return describes || !slices.ContainsFunc(d.routes, func(r boundRoute) bool { return r.plugin == p.Info().Name })
	}
	name := toolName(obj)
	if detail, known := h.services.Tool(name); known && detail.ReadOnly || !slices.ContainsFunc(h.opts.Plugins, func(p Plugin) bool { return !own(p) }) {
		return ""
	}
	return "tool " + name
}

// program returns the name of a program, without its arguments: those may be secret.
func program(obj protocol.Object, key string) string {
	val, _ := obj.Get(key)
	if words, ok := val.Strings(); ok && len(words) > 0 {
		return words[0]
	}
	return ""
}
