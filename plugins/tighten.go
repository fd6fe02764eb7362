package plugins

import (
	"github.com/bmatcuk/doublestar/v4"

	"a2e/host/config"
	"a2e/host/sandbox"
)

// Tightening says which options an untrusted config may set, and how; config.Source wants it.
// What has no rule here never counts, a new option neither: nothing that names a program, an
// address, a folder, a file, a variable or a secret, or that opens what is closed. What bounds
// how long records are kept (limits of memory, learning and environments) is not here
// either: the store is the user's, and less of that destroys what is in it.
func Tightening() map[string]config.Tightening {
	all := make(map[string]config.Tightening)
	rules := tighteningRules()
	for name, options := range OptionTypes() {
		all[name] = config.Tightening{Defaults: options, Rules: rules[name]}
	}
	return all
}

// deniable reports whether a text can stand among the denied tools.
func deniable(base *config.Config, pattern string) bool {
	return doublestar.ValidatePattern(pattern) && isTool(toolNames(base), pattern)
}

func tighteningRules() map[string]map[string]config.Rule {
	on, off := config.Only(true), config.Only(false)
	output := config.LowerThan(func(base *config.Config) float64 { return float64(base.Limits.MaxOutputBytes) })
	programs := config.Within(func(base *config.Config) []string {
		shared, _ := sharedAllowance(base) // the plugin itself says what is wrong with its options
		return shared.names
	}, sandbox.DefaultCommands())
	strict := config.Inherited(func(base *config.Config) string {
		shared, _ := sharedAllowance(base)
		return shared.exec
	})
	return map[string]map[string]config.Rule{
		"tools": {
			"allowed_commands": programs, "exec": strict, "deny": config.Longer(deniable), "http_allow_private": off,
			"max_output_bytes": output, "network_disabled": on, "read_only": on, "timeout": config.Lower(0),
		},
		"proc": {
			"allowed_commands": programs, "exec": strict, "max_output_bytes": output, "max_procs": config.Lower(10),
			"network_disabled": on, "timeout": config.Lower(0),
		},
		"toolkits": {"allow_private": off, "locked": on},
		"skill": {
			"allow_llm_override": off, "max_output_bytes": output, "max_turns": config.Lower(0), "memory_bytes": config.Lower(256 << 20),
			"network_disabled": on, "trust_workspace": off, "user_skills": off, "workspace_skills": off,
		},
		"chains": {
			"max_depth": config.Lower(8), "max_items": config.Lower(100000), "max_nodes": config.Lower(10000), "max_parallel": config.Lower(16),
			"max_result_bytes": config.Lower(4 << 20), "max_state_bytes": config.Lower(128 << 20),
		},
		"mcp": {
			"allowed_commands": programs, "exec": strict, "http_allow_private": off, "max_output_bytes": output, "pin": on,
			"register": config.Ordered("any", "allowed", "off"),
		},
		"multi_agent": {"max_depth": config.LowerOrNone(), "max_subagents": config.Lower(0)},
		"env":         {"max_steps": config.Lower(0)},
		"learning":    {"trust_agent_env": off},
		"memory":      {"max_entry_bytes": config.Lower(0)},
	}
}
