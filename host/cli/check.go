package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/guard/wall"
	"a2e/host/observe/audit"
	"a2e/host/sandbox"
	"a2e/host/state/store"
	"a2e/plugins"
	"a2e/plugins/memory"
)

type checkCmd struct {
	File  string `arg:"" optional:"" help:"Read the MCP servers of this .mcp.json, or other client's config, instead."`
	Audit string `placeholder:"FILE" help:"Verify the hash chain of this audit file, and of FILE.1 and so on, instead."`
	Key   string `name:"key-file" placeholder:"FILE" help:"With --audit: the file with the key that signed the log. Default: the one that the config or the usual place has."`
}

// Run checks the config as serve would read it, a file of MCP servers, or an audit trail.
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
	walls, _ := wallsOf(cfg, "")
	for _, w := range walls {
		fmt.Fprintf(sys.Out, "%s %s\n", w.Name, w.Text)
	}
	for _, p := range made {
		info := p.Info()
		fmt.Fprintf(sys.Out, "plugin %s: %s, priority %d, exclusive %t\n", info.Name, cmp.Or(info.Capability, "exec"),
			info.Priority, info.Exclusive)
	}
	if off := cfg.OffNote(); off != "" {
		fmt.Fprintf(sys.Out, "%s\n", off)
	}
	return nil
}

// tryConfig creates the plugins that serve would create from a config. The caller closes them.
func tryConfig(cfg *config.Config, warn func(string)) ([]host.Plugin, error) {
	made, err := plugins.New(cfg, plugins.Deps{Log: warnings(warn)})
	if err != nil {
		return nil, fail(exitConfig, err)
	}
	if _, err := plugins.AllowedPrograms(cfg); err != nil { // finds what exec: strict refuses, and also warns of links
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

// key returns the key of the log: the key that --key-file names, the key of the config if this is
// its log, or the key in the usual place. A config that cannot be read is ignored.
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

// wallsOf returns a check for each file or folder of the host that lies in the workspace. lacks
// says why mounts cannot hide it on this machine; "" = they can, or this was not tested. kept is
// false if programs do not start, because nothing keeps them away from such a file.
func wallsOf(cfg *config.Config, lacks string) (all []check, kept bool) {
	kept = true
	w := cfg.Wall
	workspace, err := filepath.Abs(cfg.Workspace)
	if w == nil || err != nil {
		return nil, kept
	}
	add := func(name, path, held string, firm bool) {
		if real := wall.Real(workspace); path == real || !wall.Within(real, path) {
			return
		}
		c := check{Section: "walls", Level: levelFine, Name: name}
		switch {
		case plugins.Mode(cfg) == sandbox.Off:
			c.Level = levelWarning
			held = "file tools cannot reach it; programs can, as the sandbox is off: move it out of the workspace"
		case lacks != "" && w.Loose:
			c.Level = levelWarning
			held = "file tools cannot reach it; programs can, unless the sandbox of the outer host forbids it"
		case lacks != "" && firm:
			kept = false
			held = "programs do not start, as this machine cannot keep them out of it (mount_namespace: " + lacks +
				"): move it out of the workspace"
		case lacks != "":
			c.Level = levelWarning
			held = "file tools cannot change it; programs can, as this machine has no mount namespace (" + lacks +
				"): move it out of the workspace"
		}
		c.Text, c.detail = path+": "+held, c.Level == levelFine && lacks == ""
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
	return all, kept
}

func sameFolder(real, name string) bool {
	abs, err := filepath.Abs(name)
	return err == nil && name != "" && wall.Real(abs) == real
}

// checkStore reads the whole store, if there is one. It does not create one.
func (d *diagnosis) checkStore(ctx context.Context, cfg *config.Config) {
	r, err := lookAtStore(ctx, cfg)
	problems, model, advice := r.Problems, "", ""
	switch {
	case err != nil:
		problems, advice = append(problems, strings.ReplaceAll(err.Error(), "\n", "; ")), storeAdvice(err)
	case len(problems) > 0:
		advice = storeAdvice(store.ErrCorrupt)
	case r.Exists:
		if model, err = storedModel(ctx, cfg); err != nil {
			problems = append(problems, err.Error())
		}
	}
	add := func(l level, text string) { d.add("store", l, "store", text).detail = l == levelNote }
	for _, p := range problems {
		add(levelError, p)
	}
	switch {
	case len(problems) > 0:
		d.Checks[len(d.Checks)-1].Fix = advice
	case r.Exists:
		add(levelFine, fmt.Sprintf("%s (%d KiB)", r.Path, (r.Bytes+1023)/1024))
	default:
		add(levelFine, r.Path+" (does not exist yet; it is made when it is needed)")
	}
	if r.Server != "" {
		add(levelNote, "the server is "+r.Server)
	} else if r.Exists && len(problems) == 0 && !r.Checksums {
		add(levelNote, "its pages have no checksums; export and import gives them some")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Parts)) {
		add(levelNote, fmt.Sprintf("it keeps %s, version %d", name, r.Parts[name]))
	}
	if model != "" {
		add(levelNote, "its vectors were made with "+model)
	}
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

// storedModel returns the name of the model that made the store's vectors. It returns an error if
// the config asks for another model.
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

// storeAdvice returns what to do about a store that cannot be used.
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
		return "stop the hosts that use it and keep a copy of the file; save what can still be read with `a2e state " +
			"export -o FILE`, move the file and those named alike away, then `a2e state import FILE`"
	}
	return "see that this user may read and write the file and its folder, and that there is space left"
}
