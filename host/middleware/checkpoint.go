package middleware

import (
	"context"
	"slices"

	"a2e/host"
	"a2e/protocol"
)

// keepFiles makes a checkpoint before a request that may change the workspace.
func keepFiles(s *host.Services, next host.Handler) host.Handler {
	if !s.KeepsCheckpoints() {
		return next
	}
	return func(ctx context.Context, r host.Request) (any, error) {
		if what := changer(s, r); what != "" {
			if err := s.Checkpoint(ctx, what); err != nil {
				return nil, err
			}
		}
		return next(ctx, r)
	}
}

// changer names a request that may change files of the workspace; "" = it does not. That is a tool that
// does not say that it only reads, whatever runs a program, and what the protocol does not know.
func changer(s *host.Services, r host.Request) string {
	switch r.Type {
	case protocol.TypeToolCallReq:
		return changingTool(s, r)
	case protocol.TypeSkillCallReq:
		return "skill " + r.Object.Text("name")
	case protocol.TypeChainReq:
		return "chain " + r.Object.Text("chain_id")
	case protocol.TypeProcSpawnReq:
		return "process " + program(r.Object)
	case protocol.TypeProcWriteReq:
		return "input of process " + r.Object.Text("proc_id")
	case protocol.TypeEnvResetReq, protocol.TypeEnvStepReq, protocol.TypeEnvBatchStepReq:
		if slices.ContainsFunc(s.Plugins(), runsEnvironments) {
			return "environment " + r.Object.Text("env_name")
		}
	}
	if _, known := protocol.Lookup(r.Type); !known {
		return "request " + string(r.Type)
	}
	return ""
}

func runsEnvironments(p host.Plugin) bool {
	info := p.Info()
	return info.Capability == protocol.CapEnv && info.Children
}

// changingTool is changer for calls of tools. Those that a ToolDescriber serves are its own concern: it
// alone knows, maybe only after it has waited for them, which there are and what they do.
func changingTool(s *host.Services, r host.Request) string {
	foreign := func(p host.Plugin) bool {
		_, describes := host.As[host.ToolDescriber](p)
		return !describes && r.ServedBy(p)
	}
	name := r.Object.Text("tool_name")
	if detail, known := s.Tool(name); known && detail.ReadOnly || !slices.ContainsFunc(s.Plugins(), foreign) {
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
