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
	"a2e/protocol"
)

// probeTimeout limits the start of one child that does nothing, on a busy machine.
const probeTimeout = 30 * time.Second

type doctorCmd struct {
	Live    bool    `help:"Try things out too: start and connect MCP servers, plugins and environments, ask models, databases and web APIs."`
	Timeout float64 `placeholder:"SECONDS" help:"With --live: seconds that each trial may take. Default: as long as the start of that thing may take, or 10."`
	All     bool    `help:"Show each allowed program and each mechanism of the sandbox too."`
	JSON    bool    `name:"json" help:"Print one JSON object instead of the text."`
}

// Run looks at everything first and prints once, so that a reader that closes the pipe leaves nothing half done.
func (o doctorCmd) Run(cmd *commands, sys *System) error {
	if o.Timeout > 0 && !o.Live {
		return fail(exitUsage, errors.New("--timeout is for --live"))
	}
	// a closed pipe is an error here, also for lines that are printed after this returns
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := interruptible()
	defer stop()
	d := &diagnosis{
		Version: version(), Protocol: protocol.Version, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		d.Kernel = strings.TrimSpace(string(release))
	}
	configured := o.diagnose(ctx, d, cmd, sys)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.conclude()
	var err error
	if o.JSON {
		err = printJSON(sys.Out, d)
	} else {
		_, err = sys.Out.WriteString(d.text(o.All, sys.colors(sys.Out.File), sys.columns()))
	}
	switch {
	case err != nil:
		return fail(exitTransport, fmt.Errorf("the report cannot be printed: %w", err))
	case !configured:
		return fail(exitConfig, errors.New("the config is wrong"))
	case !d.OK:
		return fail(exitFailed, errors.New("something does not work"))
	}
	return nil
}

// diagnosis is the report. Its JSON form is the output of --json.
type diagnosis struct {
	OK       bool          `json:"ok"` // everything works that the config asks for
	Summary  map[level]int `json:"summary"`
	Version  string        `json:"version"`
	Protocol string        `json:"protocol"`
	Go       string        `json:"go"`
	Platform string        `json:"platform"` // GOOS/GOARCH
	Kernel   string        `json:"kernel"`   // release of Linux; "" on other systems
	Checks   []check       `json:"checks"`
}

// level says how well something works.
type level string

const (
	levelNote    level = "note" // neither good nor bad
	levelFine    level = "fine"
	levelWarning level = "warning"
	levelError   level = "error"
)

// levelShown has the word and the color of each level in the text.
var levelShown = map[level][2]string{
	levelNote: {"note", ""}, levelFine: {"ok", "32"}, levelWarning: {"warning", "33"}, levelError: {"wrong", "31"},
}

// check is one line of the report.
type check struct {
	// Section is config, folders, walls, store, needs, untrusted, servers, programs, path or sandbox.
	Section string `json:"section"`

	Level level  `json:"level"`
	Name  string `json:"name"`  // what was looked at, such as "state_dir" or "MCP server files"
	Place string `json:"place"` // FILE:LINE:COLUMN of the config; "" = not in the file
	Text  string `json:"text"`  // what was found, or what is wrong
	Fix   string `json:"fix"`   // the command, or the line of the config, that fixes it; "" = unknown
	Live  bool   `json:"live"`  // it was tried out
	MS    int64  `json:"ms"`    // how long the trial took, in milliseconds

	detail bool      // the text shows this line only with --all
	need   host.Need // the need to try out with --live
}

// add adds a line to the report. The returned pointer is valid until the next call of add.
func (d *diagnosis) add(section string, l level, name, text string) *check {
	d.Checks = append(d.Checks, check{Section: section, Level: l, Name: name, Text: text})
	return &d.Checks[len(d.Checks)-1]
}

// conclude counts the checks by level and makes their texts single lines.
func (d *diagnosis) conclude() {
	d.Summary = map[level]int{levelFine: 0, levelWarning: 0, levelError: 0}
	for i := range d.Checks {
		c := &d.Checks[i]
		c.Text, c.Fix = oneLine(c.Text), oneLine(c.Fix)
		if c.Level != levelNote {
			d.Summary[c.Level]++
		}
	}
	d.OK = d.Summary[levelError] == 0
}

// text returns the report for a person. all also shows the detail lines.
func (d *diagnosis) text(all, colors bool, columns int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "a2e %s, protocol %s, %s, %s", d.Version, d.Protocol, d.Go, d.Platform)
	if d.Kernel != "" {
		fmt.Fprintf(&b, ", kernel %s", d.Kernel)
	}
	b.WriteString("\n\n")
	name := func(c check) string {
		if c.Section == "untrusted" {
			return oneLine(c.Name) + " (not trusted)"
		}
		return oneLine(c.Name)
	}
	shown := slices.DeleteFunc(slices.Clone(d.Checks), func(c check) bool { return c.detail && !all })
	wide := 0
	for _, c := range shown {
		wide = max(wide, textWidth(name(c)))
	}
	wide = min(wide, max(columns/3, leastColumns))
	for _, c := range shown {
		word, color := levelShown[c.Level][0], levelShown[c.Level][1]
		text := c.Text
		if c.Live {
			text += fmt.Sprintf(" (%d ms)", c.MS)
		}
		if c.Place != "" && c.Level != levelFine {
			text = c.Place + ": " + text
		}
		gap := strings.Repeat(" ", len("warning")-len(word)) + columnGap
		if colors {
			word = painted(color, word)
		}
		at := len("warning") + wide + 2*len(columnGap)
		b.WriteString(word + gap + padded(name(c), wide) + columnGap + wrap(text, at, columns) + "\n")
		if c.Fix != "" {
			b.WriteString("         fix: " + c.Fix + "\n")
		}
	}
	fmt.Fprintf(&b, "\n%d fine, %s, %s", d.Summary[levelFine],
		protocol.Count(d.Summary[levelWarning], "warning"), protocol.Count(d.Summary[levelError], "error"))
	if hidden := len(d.Checks) - len(shown); hidden > 0 {
		fmt.Fprintf(&b, "; --all shows %d more lines", hidden)
	}
	return b.String() + "\n"
}

// wrap breaks a text into lines of at most the given number of columns. The text begins in column
// at, and so do its further lines.
func wrap(text string, at, columns int) string {
	var b strings.Builder
	from := at
	for i, word := range strings.Fields(text) {
		switch n := textWidth(word); {
		case i == 0:
			at += n
		case at+1+n > columns:
			b.WriteString("\n" + strings.Repeat(" ", from))
			at = from + n
		default:
			b.WriteString(" ")
			at += 1 + n
		}
		b.WriteString(word)
	}
	return b.String()
}

// diagnose checks everything and reports whether the config is valid. If it is not, the checks that
// depend on it are left out, and the sandbox is checked with the default config.
func (o doctorCmd) diagnose(ctx context.Context, d *diagnosis, cmd *commands, sys *System) bool {
	cfg, made, err := d.checkConfig(cmd, sys)
	defer closePlugins(made)
	if err != nil {
		d.checkUntrusted(cmd, sys, cfg)
		d.checkSandbox(cfg, probe(ctx, cfg), false)
		return false
	}
	d.checkFolders(cfg, cmd.LogFile)
	found := probe(ctx, cfg)
	walls, kept := wallsOf(cfg, found.lacks("mount_namespace"))
	d.Checks = append(d.Checks, walls...)
	d.checkStore(ctx, cfg)
	needs := lookAtNeeds("needs", cfg, made)
	if o.Live {
		o.try(ctx, needs, cfg, sys)
	}
	d.Checks = append(d.Checks, needs...)
	d.checkUntrusted(cmd, sys, cfg)
	d.checkServers(made)
	d.checkPrograms(cfg)
	d.checkSandbox(cfg, found, !kept)
	return true
}

// checkConfig reads the config and creates its plugins, which check their options.
func (d *diagnosis) checkConfig(cmd *commands, sys *System) (*config.Config, []host.Plugin, error) {
	warn := func(text string) {
		c := d.add("config", levelWarning, "config", text)
		if strings.Contains(text, "`a2e trust`") {
			c.Fix = "a2e trust"
		}
	}
	cfg, err := cmd.load(sys, warn)
	var made []host.Plugin
	if err == nil {
		made, err = tryConfig(cfg, warn)
	}
	if err != nil {
		for problem := range strings.SplitSeq(err.Error(), "\n") {
			d.add("config", levelError, "config", problem)
		}
		d.Checks[len(d.Checks)-1].Fix = fixOf(err)
		return config.Default(config.Source{Dir: ".", Getenv: sys.getenv}), made, err
	}
	none := "no config file; using the defaults (a2e init writes a file)"
	d.add("config", levelFine, "config", cmp.Or(cfg.File, none))
	if off := cfg.OffNote(); off != "" {
		d.add("config", levelNote, "plugins", off)
	}
	return cfg, made, nil
}

// checkFolders checks the folders that the host writes to.
func (d *diagnosis) checkFolders(cfg *config.Config, logFile string) {
	d.checkFolder("workspace", cfg.Workspace)
	d.checkFolder("state_dir", cfg.StateDir)
	if cfg.Audit.Enabled {
		d.checkFolder("audit.path", filepath.Dir(cfg.Audit.Path))
	}
	if logFile != "" {
		d.checkFolder("--log-file", filepath.Dir(logFile))
	}
}

// fewBytes is the free space in bytes below which a disk counts as nearly full.
const fewBytes = 256 << 20

// checkFolder tries to write where the host would write: in the folder, or in its nearest parent that exists.
func (d *diagnosis) checkFolder(name, path string) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	dir := path
	info, err := os.Stat(dir)
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
	c := d.add("folders", levelFine, name, path)
	free, known := freeBytes(dir)
	switch {
	case err != nil:
		c.Level, c.Fix = levelError, fixOf(err)
		c.Text += " (cannot be written: " + err.Error() + ")"
	case known && free < fewBytes:
		c.Level, c.Fix = levelWarning, "df -h "+quoted(dir)
		c.Text += fmt.Sprintf(" (only %d MiB are free on its disk)", free>>20)
	case dir != path:
		c.Text += " (does not exist yet; it is made when it is needed)"
	}
}

// checkServers adds a note for each MCP server that is installed when it first starts.
func (d *diagnosis) checkServers(made []host.Plugin) {
	for _, plugin := range made {
		if p, ok := asMCP(plugin); ok {
			for _, i := range p.Installations() {
				text := fmt.Sprintf("%s: %s is installed when it first starts", i.State, i.Command)
				if i.Home != "" {
					text += ", in " + i.Home
				}
				d.add("servers", levelNote, "MCP server "+i.ID, text)
			}
		}
	}
}

// checkPrograms looks up the allowed programs. Plugins with the same list share one check.
func (d *diagnosis) checkPrograms(cfg *config.Config) {
	dirs, left := sandbox.SortPath(os.Getenv("PATH"), cfg.Workspace)
	lists, _ := plugins.AllowedPrograms(cfg) // checkConfig has already reported an error
	plugin := map[string][]string{}
	content := func(l plugins.Programs) string {
		return fmt.Sprintf("%t %q %q", l.Default, l.List.Names(), l.List.Missing())
	}
	for _, l := range lists {
		plugin[content(l)] = append(plugin[content(l)], l.Plugin)
	}
	for _, l := range lists {
		if who := plugin[content(l)]; who[0] == l.Plugin {
			d.checkList(l, strings.Join(who, ", "), dirs, cfg.Workspace)
		}
	}
	for _, l := range left {
		d.add("path", levelNote, "PATH", cmp.Or(l.Dir, `""`)+" is left out for children: it "+l.Reason)
	}
}

// checkList checks one allow list. Programs of the default list may be missing.
func (d *diagnosis) checkList(l plugins.Programs, who string, dirs []string, workspace string) {
	c := d.add("programs", levelFine, "programs", who+" may start "+strings.Join(l.List.Names(), ", "))
	if l.Default {
		c.Text += " (the default list, as far as it is here)"
	}
	if all := strings.Join(l.List.Wrappers(), ", "); all != "" {
		text := "These start any program or run any code, whatever else is on the list: " + all +
			". exec: strict allows them only with what they shall run."
		d.add("programs", levelNote, "programs", text).detail = true
	}
	for _, name := range l.List.Names() {
		if path, err := l.List.Resolve(".", strings.Fields(name)...); err == nil {
			d.add("programs", levelFine, name, path).detail = true
		}
	}
	for _, name := range l.List.Missing() {
		if l.Default {
			d.add("programs", levelNote, name, "not found").detail = true
			continue
		}
		_, err := sandbox.LookPath(strings.Fields(name)[0], dirs, workspace)
		c := d.add("programs", levelError, name, "not found, and "+who+" may start it")
		c.Fix = cmp.Or(fixOf(err), "allowed_commands: leave "+name+" out")
	}
}

// probed is what a child found out about the sandbox. The child is started in mode best_effort,
// whatever the config says.
type probed struct {
	findings []sandbox.Finding
	err      error
}

func probe(ctx context.Context, cfg *config.Config) (p probed) {
	ctx, stop := context.WithTimeout(ctx, probeTimeout)
	defer stop()
	tried := *cfg
	tried.Sandbox = string(sandbox.BestEffort)
	l, err := plugins.NewLauncher(&tried, nil)
	if err != nil {
		return probed{err: err}
	}
	p.findings, p.err = l.Probe(ctx)
	p.err = errors.Join(p.err, l.Close())
	return p
}

// lacks returns why this machine does not have a mechanism, or "" if it has it.
func (p probed) lacks(mechanism string) string {
	for _, f := range p.findings {
		if f.Name == mechanism && !f.OK {
			return f.Reason
		}
	}
	return ""
}

// checkSandbox reports the effect of each mode on this machine, and the state of each mechanism.
// open means that files of the host lie in the workspace and this machine cannot hide them.
func (d *diagnosis) checkSandbox(cfg *config.Config, p probed, open bool) {
	mode := plugins.Mode(cfg)
	if p.err != nil {
		d.add("sandbox", levelError, "sandbox", "it could not be tried: "+p.err.Error())
		return
	}
	for _, v := range p.verdicts(open) {
		switch {
		case v.mode != mode:
			d.add("sandbox", levelNote, "sandbox", "mode "+string(v.mode)+": "+v.text).detail = true
		case v.starts:
			d.add("sandbox", levelFine, "sandbox", "mode "+string(mode)+" (as configured): "+v.text)
		default:
			d.add("sandbox", levelError, "sandbox", "mode "+string(mode)+" (as configured): "+v.text)
		}
	}
	lacking := map[sandbox.Mode]level{
		sandbox.Required: levelError, sandbox.BestEffort: levelWarning, sandbox.Off: levelNote,
	}
	for _, f := range p.findings {
		c := d.add("sandbox", levelFine, f.Name, f.Effect)
		if !f.OK {
			c.Level, c.Fix = lacking[mode], fixSandbox(f.Name)
			c.Text = "Not available: " + strings.TrimSuffix(f.Effect, ".") + " (" + f.Reason + ")"
		}
		if f.Optional {
			c.Name += " (optional)"
		}
		if f.Optional && !f.OK {
			c.Level = levelNote
		}
		c.detail = c.Level == levelFine || c.Level == levelNote
	}
}

// verdict is the effect of a sandbox mode on this machine.
type verdict struct {
	mode   sandbox.Mode
	starts bool // child processes start
	text   string
}

func (p probed) verdicts(open bool) []verdict {
	var missing, optional []string
	for _, f := range p.findings {
		switch {
		case !f.OK && f.Optional:
			optional = append(optional, f.Name)
		case !f.OK:
			missing = append(missing, f.Name)
		}
	}
	all := "children start, with every mechanism of the sandbox"
	if len(optional) > 0 {
		all += " but the optional " + strings.Join(optional, ", ")
	}
	required, bestEffort := verdict{sandbox.Required, true, all}, verdict{sandbox.BestEffort, true, all}
	if len(missing) > 0 {
		required.starts = false
		required.text = "children do not start, since this machine lacks " + strings.Join(missing, ", ")
		bestEffort.text = "children start without " + strings.Join(append(missing, optional...), ", ")
	}
	if unheld := sandbox.Unheld(p.findings); unheld != nil {
		err := &sandbox.MissingError{Missing: unheld, Mode: sandbox.BestEffort}
		bestEffort.starts, bestEffort.text = false, "children do not start: "+err.Error()
	}
	if open {
		bestEffort.starts = false
		bestEffort.text = "children do not start, as files of the host lie in the workspace and this machine cannot " +
			"keep them out; otherwise " + bestEffort.text
	}
	off := verdict{sandbox.Off, true, "children start with the host's own access to files, network and memory"}
	return []verdict{required, bestEffort, off}
}
