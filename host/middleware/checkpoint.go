package middleware

import (
	"context"
	"slices"

	"a2e/host"
	"a2e/protocol"
)

// keepFiles makes a checkpoint before a request that may change the workspace.
func keepFiles(s *host.Services, to host.Target, next host.Handler) host.Handler {
	if !s.KeepsCheckpoints() {
		return next
	}
	return func(ctx context.Context, obj protocol.Object, emit host.Emitter) (any, error) {
		if what := changer(s, to, obj); what != "" {
			if err := s.Checkpoint(ctx, what); err != nil {
				return nil, err
			}
		}
		return next(ctx, obj, emit)
	}
}

// changer returns a description of a request that may change files of the workspace; "" = it changes none. Such a
// request calls a tool that is not declared read-only, runs a program, or has a type that the protocol does not
// know.
func changer(s *host.Services, to host.Target, obj protocol.Object) string {
	switch to.Type {
	case protocol.TypeToolCallReq:
		return changingTool(s, to, obj)
	case protocol.TypeSkillCallReq:
		return "skill " + obj.Text("name")
	case protocol.TypeChainReq:
		return "chain " + obj.Text("chain_id")
	case protocol.TypeProcSpawnReq:
		return "process " + program(obj)
	case protocol.TypeProcWriteReq:
		return "input of process " + obj.Text("proc_id")
	case protocol.TypeEnvResetReq, protocol.TypeEnvStepReq, protocol.TypeEnvBatchStepReq:
		if slices.ContainsFunc(s.Plugins(), runsEnvironments) {
			return "environment " + obj.Text("env_name")
		}
	}
	if _, known := protocol.Lookup(to.Type); !known {
		return "request " + string(to.Type)
	}
	return ""
}

func runsEnvironments(p host.Plugin) bool {
	info := p.Info()
	return info.Capability == protocol.CapEnv && info.Children
}

// changingTool is changer for calls of tools. It leaves the tools of a ToolDescriber to that plugin: only the
// plugin knows, maybe after it has waited for them, which tools there are and what they do.
func changingTool(s *host.Services, to host.Target, obj protocol.Object) string {
	foreign := func(p host.Plugin) bool {
		_, describes := host.As[host.ToolDescriber](p)
		return !describes
	}
	name := obj.Text("tool_name")
	if detail, known := s.Tool(name); known && detail.ReadOnly || !slices.ContainsFunc(to.Plugins, foreign) {
		return ""
	}
	return "tool " + name
}

// program returns the name of a program to start, without its arguments: those may be secret.
func program(obj protocol.Object) string {
	val, _ := obj.Get("cmd")
	if words, ok := val.Strings(); ok && len(words) > 0 {
		return words[0]
	}
	return ""
}
