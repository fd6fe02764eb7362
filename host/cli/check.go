package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host"
	"a2e/host/audit"
	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/host/store"
	"a2e/host/wall"
	"a2e/plugins"
	"a2e/plugins/memory"
)

type checkCmd struct {
	File  string `arg:"" optional:"" help:"Read the MCP servers of this .mcp.json, or other client's config, instead."`
	Audit string `placeholder:"FILE" help:"Verify the hash chain of this audit file, and of FILE.1 and so on, instead."`
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
	made, err := tryConfig(cfg, sys.warn)
	defer closePlugins(made)
	if err != nil {
		return err
	}
	fmt.Fprintf(sys.Out, "ok: %s\n", cmp.Or(cfg.File, "no config file; using the defaults"))
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

// tryConfig makes what serve would make of a config, to be closed.
func tryConfig(cfg *config.Config, warn func(string)) ([]host.Plugin, error) {
	made, err := plugins.New(cfg, plugins.Deps{Log: warnings(warn)})
	if err != nil {
		return nil, fail(exitConfig, err)
	}
	if _, err := plugins.AllowedPrograms(cfg); err != nil { // what exec: strict refuses, it tells of links too
		return made, fail(exitConfig, err)
	}
	return made, nil
}

func (c checkCmd) checkAudit(cmd *commands, sys *System) error {
	report, err := audit.Verify(c.Audit, c.key(cmd, sys))
	if err != nil {
		return fail(exitFailed, err)
	}
	fmt.Fprintln(sys.Out, report)
	if !report.OK() {
		return fail(exitFailed, errors.New("the audit chain is broken"))
	}
	return nil
}

// key finds the key of the log: the one that was named, that of the config when this is
// its log, or the one in its usual place. A config that cannot be read is no obstacle.
func (c checkCmd) key(cmd *commands, sys *System) audit.Key {
	base, _ := os.UserConfigDir()
	userDir := ""
	if base != "" {
		userDir = filepath.Join(base, "a2e")
	}
	if c.Key == "" {
		path, err := filepath.Abs(c.Audit)
		if cfg, loadErr := cmd.load(sys, func(string) {}); err == nil && loadErr == nil && cfg.Audit.Path == path {
			return auditKey(cfg)
		}
	}
	return audit.KeyOf(c.Audit, userDir, "", c.Key)
}

// wallCheck is a place of the host's own that lies in the workspace.
type wallCheck struct {
	OK   bool   `json:"ok"` // agents and their programs are kept from it, or do not start
	Name string `json:"name"`
	Path string `json:"path"`
	Note string `json:"note"` // how it is held, or why it is not

	firm bool // programs do not start where it cannot be held
}

// wallsOf lists what of the host's own lies in the workspace. lacks says why mounts cannot
// hide it on this machine; "" = they can, or nobody has looked.
func wallsOf(cfg *config.Config, lacks string) []wallCheck {
	w := cfg.Wall
	workspace, err := filepath.Abs(cfg.Workspace)
	if w == nil || err != nil {
		return nil
	}
	var all []wallCheck
	add := func(name, path, held string, firm bool) {
		if real := wall.Real(workspace); path == real || !wall.Within(real, path) {
			return
		}
		c := wallCheck{OK: true, Name: name, Path: path, Note: held, firm: firm}
		switch {
		case plugins.Mode(cfg) == sandbox.Off:
			c.OK, c.Note = false, "file tools cannot reach it; programs can, as the sandbox is off: move it out of "+
				"the workspace"
		case lacks != "" && w.Loose:
			c.OK, c.firm, c.Note = false, false, "file tools cannot reach it; programs can, unless the sandbox of "+
				"the outer host forbids it"
		case lacks != "" && firm:
			c.Note = "programs do not start, as this machine cannot keep them out of it (mount_namespace: " + lacks +
				"): move it out of the workspace"
		case lacks != "":
			c.OK, c.Note = false, "file tools cannot change it; programs can, as this machine has no mount "+
				"namespace ("+lacks+"): move it out of the workspace"
		}
		all = append(all, c)
	}
	for _, h := range w.Hidden {
		name := "files of the host"
		switch {
		case sameFolder(h, cfg.StateDir):
			name = "state_dir"
		case sameFolder(h, cfg.UserDir):
			name = "the user's config folder"
		}
		add(name, h, "lies in the workspace: hidden from agents and their programs", true)
	}
	for _, f := range w.Fixed {
		if !w.Hides(f) {
			add("config", f, "lies in the workspace: agents and their programs can read it and not change it", w.Firm)
		}
	}
	return all
}

func sameFolder(real, name string) bool {
	abs, err := filepath.Abs(name)
	return err == nil && name != "" && wall.Real(abs) == real
}

// checkWalls adds what the sandbox of this machine makes of them.
func (d *diagnosis) checkWalls(cfg *config.Config) {
	lacks := ""
	for _, f := range d.Sandbox.Findings {
		if f.Name == "mount_namespace" && !f.OK {
			lacks = f.Reason
		}
	}
	d.Walls = append(d.Walls, wallsOf(cfg, lacks)...)
	if lacks == "" || !slices.ContainsFunc(d.Walls, func(w wallCheck) bool { return w.firm }) {
		return
	}
	for i := range d.Sandbox.Verdicts {
		v := &d.Sandbox.Verdicts[i]
		if v.Mode != sandbox.BestEffort {
			continue
		}
		v.OK = false
		v.Text = "children do not start, as files of the host lie in the workspace and this machine cannot keep " +
			"them out; otherwise " + v.Text
		d.Sandbox.OK = d.Sandbox.OK && d.Sandbox.Mode != v.Mode
	}
}

// storeCheck is what is known of the file that plugins keep their state in.
type storeCheck struct {
	OK        bool           `json:"ok"`
	Path      string         `json:"path"`      // or the address of its server
	Server    string         `json:"server"`    // version and extensions of the server; "" = the store is a file
	Exists    bool           `json:"exists"`    // it is made when it is needed, so it is well without
	Bytes     int64          `json:"bytes"`     // with its log
	Parts     map[string]int `json:"parts"`     // the version of what each plugin type keeps
	Checksums bool           `json:"checksums"` // damage of its pages is found when they are read
	Model     string         `json:"model"`     // what made the vectors of the memory; "" = there are none, or the config has no memory
	Problems  []string       `json:"problems"`
	Advice    string         `json:"advice"` // what to do about them, or ""
}

// checkStore reads all of the store, if there is one; it makes none.
func checkStore(ctx context.Context, cfg *config.Config) *storeCheck {
	r, err := lookAtStore(ctx, cfg)
	c := &storeCheck{Path: r.Path, Server: r.Server, Exists: r.Exists, Bytes: r.Bytes, Parts: r.Parts, Checksums: r.Checksums, Problems: r.Problems}
	switch {
	case err != nil:
		c.Problems = append(c.Problems, strings.ReplaceAll(err.Error(), "\n", "; "))
		c.Advice = storeAdvice(err)
	case len(c.Problems) > 0:
		c.Advice = storeAdvice(store.ErrCorrupt)
	case c.Exists:
		if c.Model, err = storedModel(ctx, cfg); err != nil {
			c.Problems = append(c.Problems, err.Error())
		}
	}
	c.OK = len(c.Problems) == 0
	return c
}

func lookAtStore(ctx context.Context, cfg *config.Config) (store.Report, error) {
	opts := store.Options{Parts: plugins.StateParts()}
	if address := cfg.Postgres(); address != "" {
		return store.CheckPostgres(ctx, address, opts)
	}
	path := plugins.StatePath(cfg)
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return store.Check(ctx, path, opts)
}

// storedModel names the model of the store's vectors. The error says that the
// config asks for another.
func storedModel(ctx context.Context, cfg *config.Config) (name string, err error) {
	if !hasMemory(cfg) {
		return "", nil
	}
	embedder, err := plugins.MemoryEmbedder(cfg)
	if err != nil {
		return "", err
	}
	s, err := plugins.OpenState(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	model, err := memory.Stored(ctx, s, embedder.Model())
	return model.Name, err
}

// storeAdvice says what to do about a file that cannot be used.
func storeAdvice(err error) string {
	switch {
	case errors.Is(err, store.ErrUnavailable):
		return "see that the server runs, that this machine reaches it, and that the address (state) is right"
	case errors.Is(err, store.ErrRefused):
		return "see that the user of the address (state) may log in, and may create the schema or owns it"
	case errors.Is(err, store.ErrForeign):
		return "move the file away, or set another state_dir or state"
	case errors.Is(err, store.ErrNewer):
		return "use the newer a2e that wrote it, or set another state_dir or state"
	case errors.Is(err, store.ErrCorrupt):
		return "stop the hosts that use it and keep a copy of the file; save what can still be read with `a2e state export -o FILE`, move the file and those named alike away, then `a2e state import FILE`"
	}
	return "see that this user may read and write the file and its folder, and that there is space left"
}
