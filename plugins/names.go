package plugins

import (
	"fmt"
	"slices"

	"github.com/bmatcuk/doublestar/v4"

	"a2e/host/config"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// toolNames lists the tools of the plugins of type tools, those that are denied too. What
// MCP servers, toolkits and plugins of type exec have is not known before they run.
func toolNames(cfg *config.Config) []string {
	names := tools.BuiltinNames()
	for _, p := range cfg.Plugins {
		opts := tools.DefaultOptions()
		if p.Type != string(protocol.CapTools) || p.Options.Decode(&opts) != nil {
			continue // the plugin itself says what is wrong
		}
		for _, c := range opts.Commands {
			names = append(names, c.Name)
		}
	}
	return names
}

// isTool reports whether a name or glob is that of a tool.
func isTool(names []string, pattern string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return doublestar.MatchUnvalidated(pattern, name) })
}

// checkTools refuses names and globs of an option that are those of no tool.
func (b *build) checkTools(p config.Plugin, key string, patterns []string) error {
	if len(patterns) == 0 {
		return nil
	}
	names := toolNames(b.Config)
	for i, pattern := range patterns {
		if doublestar.ValidatePattern(pattern) && !isTool(names, pattern) {
			return p.Options.Errorf(fmt.Sprintf("%s[%d]", key, i),
				"%.64q matches no built-in tool and none of commands: %s (tools of an MCP server are denied in the entry of the server)", pattern, config.Suggest(pattern, names))
		}
	}
	return nil
}
