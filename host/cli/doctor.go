package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/plugins"
	"a2e/plugins/mcp"
	"a2e/protocol"
)

// probeTimeout bounds the start of one child that does nothing, on a machine that is busy.
const probeTimeout = 30 * time.Second

type doctorCmd struct {
	Live    bool    `help:"Try things out too: start and connect MCP servers, plugins and environments, ask models, databases and web APIs."`
	Timeout float64 `placeholder:"SECONDS" help:"With --live: seconds that each trial may take. Default: as long as the start of that thing may take, or 10."`
	JSON    bool    `name:"json" help:"Print one JSON object instead of the text."`
}

// Run looks at everything first and prints once, so that a reader that goes away
// leaves nothing half done.
func (d doctorCmd) Run(cmd *commands, sys *System) error {
	if d.Timeout > 0 && !d.Live {
		return fail(exitUsage, errors.New("--timeout is for --live"))
	}
	// a closed pipe is an error here, also for what is said after this returns
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := interruptible()
	defer stop()
	r := d.diagnose(ctx, cmd, sys)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	sections := r.sections()
	r.conclude(sections)
	var err error
	if d.JSON {
		err = printJSON(sys.Out, r)
	} else {
		_, err = sys.Out.WriteString(r.text(sections, paint{sys.colors(sys.Out.File)}, sys.columns()))
	}
	switch {
	case err != nil:
		return fail(exitTransport, fmt.Errorf("the report cannot be printed: %w", err))
	case !r.Config.OK:
		return fail(exitConfig, errors.New("the config is wrong"))
	case !r.OK:
		return fail(exitFailed, errors.New("something does not work"))
	}
	return nil
}

// diagnosis is the report; its JSON form is what --json prints. Checks is all of it, the other
// members hold more of some.
type diagnosis struct {
	OK        bool               `json:"ok"` // all works that the config asks for
	Summary   map[level]int      `json:"summary"`
	Version   string             `json:"version"`
	Protocol  string             `json:"protocol"`
	Go        string             `json:"go"`
	Platform  string             `json:"platform"` // GOOS/GOARCH
	Kernel    string             `json:"kernel"`   // release of Linux; "" elsewhere
	Checks    []check            `json:"checks"`
	Config    configCheck        `json:"config"`
	Folders   []folderCheck      `json:"folders"`
	Walls     []wallCheck        `json:"walls"`     // what of the host's own lies in the workspace
	Store     *storeCheck        `json:"store"`     // null where the config is wrong
	Needs     []needCheck        `json:"needs"`     // programs, folders and addresses that options name
	Untrusted []needCheck        `json:"untrusted"` // likewise, of the folder's a2e.yaml that nobody has trusted
	Programs  []programsCheck    `json:"programs"`
	LeftOut   []sandbox.LeftOut  `json:"left_out"` // folders of PATH that children do not get
	Sandbox   sandboxCheck       `json:"sandbox"`
	Servers   []mcp.Installation `json:"servers"` // MCP servers that are installed when they first start
}

// level is how well something is.
type level string

const (
	levelNote    level = "note" // neither well nor not
	levelFine    level = "fine"
	levelWarning level = "warning"
	levelError   level = "error"
)

// check is one line of the report.
type check struct {
	Section string `json:"section"`
	Level   level  `json:"level"`
	Text    string `json:"text"`
	Fix     string `json:"fix"` // the command, or the line of the config, that fixes it; "" = nobody knows
}

type configCheck struct {
	OK       bool     `json:"ok"`
	File     string   `json:"file"` // "" = none, all defaults
	Problems []string `json:"problems"`
	Warnings []string `json:"warnings"`
	Off      []string `json:"off"` // plugin types that a list of plugins leaves off

	offNote string
	fix     string // of the problems
}

type folderCheck struct {
	OK   bool   `json:"ok"`
	Name string `json:"name"` // the key of the config
	Path string `json:"path"`
	Note string `json:"note"`       // what is wrong, or ""
	Free int64  `json:"free_bytes"` // of its disk; -1 = not known

	fix string
}

// programsCheck is one allow list, with the plugins that have it.
type programsCheck struct {
	OK        bool      `json:"ok"`
	Plugins   []string  `json:"plugins"`
	Default   bool      `json:"default"` // the config names none, so none has to be there
	Programs  []program `json:"programs"`
	Launchers []string  `json:"launchers"` // of these, those that can start any other
}

type program struct {
	OK   bool   `json:"ok"`
	Name string `json:"name"`
	Path string `json:"path"` // "" = not found

	fix string
}

type sandboxCheck struct {
	OK       bool              `json:"ok"`
	Mode     sandbox.Mode      `json:"mode"`  // what the config asks for
	Error    string            `json:"error"` // why it could not be tried, or ""
	Findings []sandbox.Finding `json:"findings"`
	Verdicts []verdict         `json:"verdicts"`
}

// verdict is what a mode does on this machine.
type verdict struct {
	OK   bool         `json:"ok"` // children start
	Mode sandbox.Mode `json:"mode"`
	Text string       `json:"text"`
}

// diagnose looks at everything. Without a good config, what depends on it is
// left out and the sandbox is that of the defaults.
func (o doctorCmd) diagnose(ctx context.Context, cmd *commands, sys *System) *diagnosis {
	d := &diagnosis{
		Version: version(), Protocol: protocol.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Needs: []needCheck{}, Untrusted: []needCheck{},
		Folders: []folderCheck{}, Walls: []wallCheck{}, Programs: []programsCheck{}, LeftOut: []sandbox.LeftOut{}, Servers: []mcp.Installation{},
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		d.Kernel = strings.TrimSpace(string(release))
	}
	cfg, made := d.checkConfig(cmd, sys)
	defer closePlugins(made)
	if d.Config.OK {
		d.checkFolders(cfg, cmd.LogFile)
		d.Store = checkStore(ctx, cfg)
		d.Needs = lookAtNeeds(cfg, made)
		if d.checkPrograms(cfg); o.Live {
			o.try(ctx, d.Needs, cfg, sys)
		}
	}
	d.checkUntrusted(cmd, sys, cfg)
	d.checkSandbox(ctx, cfg)
	if d.Config.OK {
		d.checkWalls(cfg)
	}
	return d
}

// checkConfig reads the config and makes its plugins, which check their options.
func (d *diagnosis) checkConfig(cmd *commands, sys *System) (*config.Config, []host.Plugin) {
	c := &d.Config
	c.Problems, c.Warnings, c.Off = []string{}, []string{}, []string{}
	warn := func(w string) { c.Warnings = append(c.Warnings, w) }
	cfg, err := cmd.load(sys, warn)
	var made []host.Plugin
	if err == nil {
		c.File, c.Off, c.offNote = cfg.File, append(c.Off, cfg.Off...), cfg.OffNote()
		made, err = plugins.New(cfg, plugins.Deps{Log: warnings(warn)})
		for _, plugin := range made {
			if p, ok := asMCP(plugin); ok {
				d.Servers = append(d.Servers, p.Installations()...)
			}
		}
	}
	if err != nil {
		c.Problems, c.fix = strings.Split(err.Error(), "\n"), fixOf(err)
	}
	if c.OK = err == nil; !c.OK {
		return config.Default(config.Source{Dir: ".", Getenv: sys.getenv}), nil
	}
	return cfg, made
}

// checkFolders looks at the folders that the host writes in.
func (d *diagnosis) checkFolders(cfg *config.Config, logFile string) {
	d.Folders = []folderCheck{checkFolder("workspace", cfg.Workspace), checkFolder("state_dir", cfg.StateDir)}
	if cfg.Audit.Enabled {
		d.Folders = append(d.Folders, checkFolder("audit.path", filepath.Dir(cfg.Audit.Path)))
	}
	if logFile != "" {
		d.Folders = append(d.Folders, checkFolder("--log-file", filepath.Dir(logFile)))
	}
}

// checkFolder tries to write where the host would.
func checkFolder(name, path string) folderCheck {
	f := folderCheck{Name: name, Path: path, Free: -1}
	if abs, err := filepath.Abs(path); err == nil {
		f.Path = abs
	}
	info, err := os.Stat(f.Path)
	dir := f.Path
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a folder", dir)
	}
	if err == nil {
		err = host.TryWriting(dir)
	}
	if free, known := freeBytes(dir); known {
		f.Free = free
	}
	switch f.OK = err == nil; {
	case !f.OK:
		f.Note, f.fix = "cannot be written: "+err.Error(), fixOf(err)
	case f.scarce():
		f.Note, f.fix = fmt.Sprintf("only %d MiB are free on its disk", f.Free>>20), "df -h "+quoted(dir)
	case dir != f.Path:
		f.Note = "does not exist yet; it is made when it is needed"
	}
	return f
}

// fewBytes is when a disk is nearly full.
const fewBytes = 256 << 20

// scarce reports whether the disk is nearly full.
func (f *folderCheck) scarce() bool { return f.Free >= 0 && f.Free < fewBytes }

// checkPrograms looks the allowed programs up; plugins with the same list share it.
func (d *diagnosis) checkPrograms(cfg *config.Config) {
	dirs, left := sandbox.SortPath(os.Getenv("PATH"), cfg.Workspace)
	d.LeftOut = append(d.LeftOut, left...)
	lists, err := plugins.AllowedPrograms(cfg)
	if err != nil { // making the plugins would have failed before
		d.Config.OK, d.Config.Problems = false, strings.Split(err.Error(), "\n")
		return
	}
	for _, l := range lists {
		c := programsCheck{OK: true, Plugins: []string{l.Plugin}, Default: l.Default, Launchers: l.List.Launchers()}
		for _, name := range l.List.Names() {
			path, err := l.List.Resolve(".", strings.Fields(name)...)
			c.Programs = append(c.Programs, program{OK: err == nil, Name: name, Path: path})
		}
		for _, name := range l.List.Missing() {
			missing := program{Name: name}
			if c.OK = c.OK && l.Default; !l.Default {
				_, err := sandbox.LookPath(strings.Fields(name)[0], dirs, cfg.Workspace)
				missing.fix = cmp.Or(fixOf(err), "allowed_commands: leave "+name+" out")
			}
			c.Programs = append(c.Programs, missing)
		}
		slices.SortFunc(c.Programs, func(a, b program) int { return strings.Compare(a.Name, b.Name) })
		same := slices.IndexFunc(d.Programs, func(o programsCheck) bool {
			return o.Default == c.Default && slices.Equal(o.Programs, c.Programs)
		})
		if same >= 0 {
			d.Programs[same].Plugins = append(d.Programs[same].Plugins, l.Plugin)
		} else {
			d.Programs = append(d.Programs, c)
		}
	}
}

// checkSandbox sets a child up as best_effort does, whatever the config says,
// and tells what each mode makes of what that found.
func (d *diagnosis) checkSandbox(ctx context.Context, cfg *config.Config) {
	s := &d.Sandbox
	s.Mode, s.Findings, s.Verdicts = plugins.Mode(cfg), []sandbox.Finding{}, []verdict{}
	found, err := probe(ctx, cfg)
	if err != nil {
		s.Error = err.Error()
		return
	}
	s.Findings = append(s.Findings, found...)
	var missing, optional []string
	for _, f := range found {
		switch {
		case !f.OK && f.Optional:
			optional = append(optional, f.Name)
		case !f.OK:
			missing = append(missing, f.Name)
		}
	}
	s.Verdicts = verdicts(missing, optional, sandbox.Unheld(found))
	s.OK = slices.ContainsFunc(s.Verdicts, func(v verdict) bool { return v.Mode == s.Mode && v.OK })
}

func probe(ctx context.Context, cfg *config.Config) ([]sandbox.Finding, error) {
	ctx, stop := context.WithTimeout(ctx, probeTimeout)
	defer stop()
	tried := *cfg
	tried.Sandbox = string(sandbox.BestEffort)
	l, err := plugins.NewLauncher(&tried, nil)
	if err != nil {
		return nil, err
	}
	found, err := l.Probe(ctx)
	return found, errors.Join(err, l.Close())
}

func verdicts(missing, optional []string, unheld []sandbox.Finding) []verdict {
	all := "children start, with all of the above"
	if len(optional) > 0 {
		all = "children start, with all of the above but the optional " + strings.Join(optional, ", ")
	}
	required, bestEffort := verdict{true, sandbox.Required, all}, verdict{true, sandbox.BestEffort, all}
	if len(missing) > 0 {
		required = verdict{false, sandbox.Required, "children do not start, since this machine lacks " + strings.Join(missing, ", ")}
		bestEffort.Text = "children start without " + strings.Join(append(missing, optional...), ", ")
	}
	if unheld != nil {
		err := &sandbox.MissingError{Missing: unheld, Mode: sandbox.BestEffort}
		bestEffort = verdict{false, sandbox.BestEffort, "children do not start: " + err.Error()}
	}
	off := verdict{true, sandbox.Off, "children start with the host's own access to files, network and memory"}
	return []verdict{required, bestEffort, off}
}
