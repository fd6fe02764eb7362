package plugins

import (
	"os"

	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/plugins/mcp"
	"a2e/plugins/proc"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// Programs is the allow list of one plugin.
type Programs struct {
	Plugin  string // its name
	Default bool   // the config names none; what this machine lacks is no defect
	List    *sandbox.AllowList
}

// AllowedPrograms gives the programs that each enabled plugin may start when a
// request names them.
func AllowedPrograms(cfg *config.Config) ([]Programs, error) {
	dirs := sandbox.SafePath(os.Getenv("PATH"), cfg.Workspace)
	shared, err := sharedNames(cfg)
	if err != nil {
		return nil, err
	}
	var all []Programs
	for _, p := range cfg.Plugins {
		names, starts, err := allowedNames(p)
		if err != nil {
			return nil, err
		}
		if !p.Enabled || !starts {
			continue
		}
		if names == nil {
			names = shared
		}
		one := Programs{Plugin: p.Name, Default: names == nil}
		if one.Default {
			names = sandbox.DefaultCommands()
		}
		if one.List, err = sandbox.NewAllowList(names, dirs, cfg.Workspace); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// sharedNames gives the allowed_commands of plugins that have none themselves:
// those of the first that does. A list that is set for processes would be of
// little use if run_command went around it, and the other way round. Nil means
// that none is set.
func sharedNames(cfg *config.Config) ([]string, error) {
	for _, p := range cfg.Plugins {
		if !p.Enabled {
			continue
		}
		if names, _, err := allowedNames(p); names != nil || err != nil {
			return names, err
		}
	}
	return nil, nil
}

// allowedNames gives allowed_commands of a plugin; starts is false for one
// without such an option.
func allowedNames(p config.Plugin) (names []string, starts bool, err error) {
	switch protocol.Capability(p.Type) {
	case protocol.CapTools:
		opts := tools.DefaultOptions()
		err := p.Options.Decode(&opts)
		return opts.AllowedCommands, true, err
	case protocol.CapProc:
		opts := proc.DefaultOptions()
		err := p.Options.Decode(&opts)
		return opts.AllowedCommands, true, err
	case protocol.CapMCP:
		opts := mcp.DefaultOptions()
		err := p.Options.Decode(&opts)
		return opts.AllowedCommands, true, err
	}
	return nil, false, nil
}

// allowed gives the allow list of a plugin, or what holds where it has none. The
// error names what could be no program; which of them there are is found out
// later, as that takes a while.
func (b *build) allowed(p config.Plugin, names []string) ([]string, error) {
	if _, err := sandbox.NewAllowList(names, nil, ""); err != nil {
		return nil, p.Options.Errorf("allowed_commands", "%v", err)
	}
	if names == nil {
		return b.commands, nil
	}
	return names, nil
}
