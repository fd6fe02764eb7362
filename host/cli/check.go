package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"a2e/host/audit"
	"a2e/host/snapshot"
	"a2e/plugins"
)

type checkCmd struct {
	File  string `arg:"" optional:"" help:"Read the MCP servers of this .mcp.json, or other client's config, instead."`
	Audit string `placeholder:"FILE" help:"Verify the hash chain of this audit file and of its rotated ones instead."`
	Key   string `name:"key-file" placeholder:"FILE" help:"With --audit: the file with the key that signed the log. Default: the one that the config or the usual place has."`
}

// Run checks the config, as serve would read it, or an audit trail.
func (c checkCmd) Run(cmd *commands, sys *System) error {
	switch {
	case c.Audit != "" && c.File != "":
		return fail(exitUsage, errors.New("give a file of MCP servers or --audit, not both"))
	case c.Key != "" && c.Audit == "":
		return fail(exitUsage, errors.New("--key-file is for --audit"))
	case c.Audit != "":
		return c.checkAudit(cmd, sys)
	case c.File != "":
		raw, err := os.ReadFile(c.File)
		if err != nil {
			return fail(exitConfig, err)
		}
		return checkServers(c.File, raw, sys)
	}
	cfg, err := cmd.load(sys, sys.warn)
	if err != nil {
		return err
	}
	made, err := plugins.New(cfg, plugins.Deps{Log: warnings(sys.warn)})
	if err != nil {
		return fail(exitConfig, err)
	}
	defer closePlugins(made)
	if _, err := plugins.AllowedPrograms(cfg); err != nil { // what exec: strict refuses, it tells of links too
		return fail(exitConfig, err)
	}
	if _, err := snapshot.Open(cfg.SnapshotStore, cfg.StateDir); err != nil { // it opens nothing yet
		return fail(exitConfig, fmt.Errorf("%s: %w", cfg.File, err))
	}
	fmt.Fprintf(sys.Out, "ok: %s\n", cmp.Or(cfg.File, "no config file; the defaults"))
	for _, w := range wallsOf(cfg, "") {
		fmt.Fprintf(sys.Out, "%s %s: %s\n", w.Name, w.Path, w.Note)
	}
	for _, p := range made {
		info := p.Info()
		fmt.Fprintf(sys.Out, "plugin %s: %s, priority %d, exclusive %t\n", info.Name, cmp.Or(info.Capability, "exec"), info.Priority, info.Exclusive)
	}
	if off := cfg.OffNote(); off != "" {
		fmt.Fprintf(sys.Out, "%s\n", off)
	}
	return nil
}

func (c checkCmd) checkAudit(cmd *commands, sys *System) error {
	report, err := audit.Verify(c.Audit, c.sealing(cmd, sys))
	if err != nil {
		return fail(exitFailed, err)
	}
	fmt.Fprintln(sys.Out, report)
	if !report.OK() {
		return fail(exitFailed, errors.New("the audit chain is broken"))
	}
	return nil
}

// sealing finds the key of the log: the one that was named, that of the config when this is
// its log, or the one in its usual place. A config that cannot be read is no obstacle.
func (c checkCmd) sealing(cmd *commands, sys *System) audit.Sealing {
	base, _ := os.UserConfigDir()
	userDir := ""
	if base != "" {
		userDir = filepath.Join(base, "a2e")
	}
	if c.Key == "" {
		path, err := filepath.Abs(c.Audit)
		if cfg, loadErr := cmd.load(sys, func(string) {}); err == nil && loadErr == nil && cfg.Audit.Path == path {
			return sealing(cfg)
		}
	}
	return audit.SealingOf(c.Audit, userDir, "", c.Key)
}
