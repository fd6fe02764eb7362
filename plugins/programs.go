package plugins

import (
	"os"

	"a2e/host/config"
	"a2e/host/sandbox"
)

// Programs is the allow list of one plugin.
type Programs struct {
	Plugin  string // its name
	Default bool   // the config names none; what this machine lacks is no defect
	List    *sandbox.AllowList
}

// AllowedPrograms returns the programs that each enabled plugin may start when a
// request names them.
func AllowedPrograms(cfg *config.Config) ([]Programs, error) {
	dirs := sandbox.SafePath(os.Getenv("PATH"), cfg.Workspace)
	shared, err := sharedAllowance(cfg)
	if err != nil {
		return nil, err
	}
	var all []Programs
	for _, p := range cfg.Plugins {
		own, starts, err := allowanceOf(p)
		if err != nil {
			return nil, err
		}
		if !p.Enabled || !starts {
			continue
		}
		if own.names == nil {
			own.names = shared.names
		}
		one := Programs{Plugin: p.Name, Default: own.names == nil}
		switch {
		case one.Default && shared.strict():
			own.names = sandbox.StrictCommands()
		case one.Default:
			own.names = sandbox.DefaultCommands()
		}
		if one.List, err = sandbox.NewAllowList(own.names, dirs, cfg.Workspace, shared.strict()); err != nil {
			return nil, p.Options.Errorf("allowed_commands", "%v", err)
		}
		all = append(all, one)
	}
	return all, nil
}

// allowance is what the options of a plugin say of the programs that requests name.
type allowance struct {
	names []string // allowed_commands; nil = it says nothing
	exec  string
}

func (a allowance) strict() bool { return a.exec == sandbox.ExecStrict }

// sharedAllowance returns the allowed_commands of plugins that have none themselves:
// those of the first that does. A list that is set for processes would be of
// little use if run_command went around it, and the other way round; so it is
// with exec: strict.
func sharedAllowance(cfg *config.Config) (shared allowance, err error) {
	for _, p := range cfg.Plugins {
		if !p.Enabled {
			continue
		}
		own, _, err := allowanceOf(p)
		if err != nil {
			return shared, err
		}
		if shared.names == nil {
			shared.names = own.names
		}
		if own.strict() {
			shared.exec = own.exec
		}
	}
	return shared, nil
}

// programOptions are options with the programs that requests may name.
type programOptions interface {
	// AllowList returns where allowed_commands and exec stand.
	AllowList() (names *[]string, exec *string)
}

// allowanceOf reads the options of a plugin; starts is false for one without such options.
func allowanceOf(p config.Plugin) (a allowance, starts bool, err error) {
	t, known := typeOf(p.Type)
	if !known {
		return a, false, nil
	}
	opts, err := t.read(p)
	o, starts := opts.(programOptions)
	if !starts {
		return a, false, nil
	}
	names, exec := o.AllowList()
	return allowance{*names, *exec}, true, err
}

// allow puts in place what holds for a plugin that says nothing itself. The
// error names what could be no program, or is none for exec: strict; which of
// them there are is found out later, as that takes a while.
func (b *build) allow(p config.Plugin, opts programOptions) error {
	names, exec := opts.AllowList()
	if b.allowance.strict() {
		*exec = b.allowance.exec
	}
	if _, err := sandbox.NewAllowList(*names, nil, "", b.allowance.strict()); err != nil {
		return p.Options.Errorf("allowed_commands", "%v", err)
	}
	if *names == nil {
		*names = b.allowance.names
	}
	return nil
}
