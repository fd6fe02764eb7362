// Package cli is the command line of a2e, with one file per subcommand. It connects the parts of
// the program and holds no logic of its own.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"a2e/host/config"
	"a2e/host/guard/redact"
	"a2e/host/schema"
	"a2e/plugins"
	"a2e/plugins/mcp"
	"a2e/protocol"
)

// Exit codes.
const (
	exitOK        = 0
	exitFailed    = 1 // the tool or the check failed
	exitUsage     = 2
	exitConfig    = 3
	exitTransport = 4 // the streams or the handshake failed
	exitSignal    = 130
)

// System holds what a command gets from the process. Out is the real stdout: serve takes it for
// itself and points file descriptor 1 at stderr.
type System struct {
	In      *os.File
	Out     *Output
	Err     *os.File
	Environ []string
	Exit    func(code int) // ends the process at once
	Pages   fs.FS          // the README.md files of the project, by their paths; nil = no files

	secrets *redact.Set     // the secrets of the config, once it was read
	screen  *drawing        // what is drawn on stderr; nil = nothing is ever drawn
	over    <-chan struct{} // closed once the command has received a signal that ends it; nil = it receives no signals
}

// getenv returns the value of a variable of Environ, or "" if it is not set. The last entry with the name counts.
func (s *System) getenv(name string) string {
	for _, entry := range slices.Backward(s.Environ) {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			return value
		}
	}
	return ""
}

// globals holds the flags of every command.
type globals struct {
	Config   string  `short:"c" placeholder:"FILE" help:"Config file. Default: $$A2E_CONFIG, ./a2e.yaml once it is trusted (a2e trust), a2e/config.yaml in the user's config folder, or none at all."`
	LogLevel *string `enum:"trace,debug,info,warn,error" placeholder:"LEVEL" help:"What is logged: trace, debug, info, warn or error. Default: warn, and nothing by commands that ask a host in this process for one answer."`
	LogFile  string  `placeholder:"FILE" help:"Write the log to this file instead of stderr."`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`
}

// logLevel returns the log level of a host that serves.
func (g *globals) logLevel() string {
	if g.LogLevel == nil {
		return zerolog.LevelWarnValue
	}
	return *g.LogLevel
}

// commands is the command line. The help of each command contains an example.
type commands struct {
	globals `group:"all"`

	Init   initCmd   `cmd:"" group:"setup" help:"Write a config for this folder, or a plugin."`
	Trust  trustCmd  `cmd:"" group:"setup" help:"Show what this folder's files do, and trust them."`
	Doctor doctorCmd `cmd:"" group:"setup" help:"Check what the config needs on this machine."`
	Check  checkCmd  `cmd:"" group:"setup" help:"Check the config, an audit file or a .mcp.json."`

	Serve    serveCmd    `cmd:"" default:"1" group:"serve" help:"Serve an agent on stdin and stdout (the default)."`
	MCP      mcpCmd      `cmd:"" name:"mcp" group:"serve" help:"List, add and approve MCP servers, or serve as one."`
	Worker   workerCmd   `cmd:"" group:"serve" help:"Run tasks of the fleet protocol, from stdin or a fleet."`
	Dispatch dispatchCmd `cmd:"" group:"serve" help:"Run the tasks in a file with local workers or a fleet."`
	Fleet    fleetCmd    `cmd:"" group:"serve" help:"Show the workers and tasks of a fleet, or drain workers."`

	Tools  toolsCmd  `cmd:"" group:"try" help:"List, call or export the tools."`
	Skills skillsCmd `cmd:"" group:"try" help:"List, check, show or run skills."`
	Chain  chainCmd  `cmd:"" group:"try" help:"Run, check, draw, list, resume and approve chains."`
	Env    envCmd    `cmd:"" group:"try" help:"Start episodes of environments and take actions."`
	Agents agentsCmd `cmd:"" group:"try" help:"List the workers that child agents are made of."`
	Chat   chatCmd   `cmd:"" group:"try" help:"Talk to a worker of the config, or to a model."`

	Memory      memoryCmd      `cmd:"" group:"state" help:"Search, list, add or forget what agents remember."`
	Plan        planCmd        `cmd:"" group:"state" help:"Show, make and work on plans."`
	Learn       learnCmd       `cmd:"" group:"state" help:"Show or export statistics of tools and environments."`
	Checkpoints checkpointsCmd `cmd:"" group:"state" help:"List and compare checkpoints, and restore files."`
	Undo        undoCmd        `cmd:"" group:"state" help:"Undo the last changes to the workspace."`
	State       stateCmd       `cmd:"" group:"state" help:"Export or import what the plugins keep."`

	Call    callCmd    `cmd:"" group:"debug" help:"Send a request of any type and print the answer."`
	Inspect inspectCmd `cmd:"" group:"debug" help:"Show the messages of a host or a record in the browser."`
	Replay  replayCmd  `cmd:"" group:"debug" help:"Send a record to a host again and report what differs."`

	Schema     schemaCmd     `cmd:"" help:"Print the JSON Schemas of the protocol or of the config."`
	Help       helpCmd       `cmd:"" help:"Print a page of the documentation, or list the pages."`
	Man        manCmd        `cmd:"" help:"Print the manual page, for man -l."`
	Completion completionCmd `cmd:"" help:"Print the completion script of a shell."`
	Version    versionCmd    `cmd:"" help:"Print the version."`

	only   string // the only type of plugin to create; "" = all types
	record bool   // calls count in the statistics of learning, like calls of agents

	person *person // who answers questions of the host; nil = the person at the command's terminal
}

// exitError carries an exit code along with an error.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return e.err.Error() }
func (e exitError) Unwrap() error { return e.err }

func fail(code int, err error) error {
	if err == nil {
		return nil
	}
	return exitError{code, err}
}

// stop ends the parser when kong wants to exit, for example after --help.
type stop struct{ code int }

// Main runs one command line, given without the program's name, and returns the exit code.
func Main(args []string, sys System) (code int) {
	defer func() {
		switch s := recover().(type) {
		case nil:
		case stop:
			if code = s.code; code == exitOK {
				code = finish(nil, &sys)
			}
		default:
			say(sys.Err, "a2e: this is an error of a2e itself: %v\n%s", s, debug.Stack())
			code = exitFailed
		}
	}()
	var cmd commands
	sys.secrets, sys.screen = redact.New(nil), new(drawing)
	watchParent(&sys)
	if len(args) == 0 || len(args) == 1 && args[0] == "serve" {
		// agents start it like this, and even a parser for one command would cost them a millisecond
		return finish(cmd.Serve.Run(&cmd, &sys), &sys)
	}
	if args[0] == completeWord {
		if parser, err := newParser(&cmd, &sys); err == nil {
			complete(parser, &cmd, &sys, args[1:])
		}
		return exitOK
	}
	ctx, err := parse(&cmd, &sys, args)
	if err == nil {
		return finish(inWords(ctx.Run(&cmd, &sys), ctx.Selected()), &sys)
	}
	if sys.Out.failed() != nil {
		return finish(err, &sys)
	}
	command := "a2e" // the deepest command that the line has reached
	if wrong, ok := errors.AsType[*kong.ParseError](err); ok && wrong.Context.Selected() != nil {
		command = wrong.Context.Selected().FullPath()
	}
	name, is := strings.CutPrefix(err.Error(), "unexpected argument ")
	if name, _, _ = strings.Cut(name, ","); is && command == "a2e" && gone[name] != "" {
		err = fmt.Errorf("there is no command %s any more: %s", name, gone[name])
	}
	fmt.Fprintf(sys.Err, "a2e: %v; see %s --help\n", err, command)
	return exitUsage
}

// gone has the commands of earlier versions, with what to do instead.
var gone = map[string]string{
	"snapshot": "`a2e state export -o FILE` saves the state, `a2e state import --replace FILE` restores it",
	"bench":    "in a clone of the source, `make bench` measures a host",
}

// parse reads the command line. kong takes 5 ms to build a parser of all commands, and whoever
// spawns `a2e mcp serve` or `a2e -c FILE` waits for it. So all commands are built only for help and
// for errors.
func parse(cmd *commands, sys *System, args []string) (*kong.Context, error) {
	if others, some := unneeded(args); some {
		parser, err := newParser(cmd, sys, kong.IgnoreFields(others))
		if err != nil {
			return nil, err
		}
		if ctx, err := parser.Parse(args); err == nil {
			return ctx, nil
		}
	}
	parser, err := newParser(cmd, sys)
	if err != nil {
		return nil, err
	}
	return parser.Parse(args)
}

// unneeded returns a regular expression for the fields of the commands that a line does not name.
// some is false if all commands are needed.
func unneeded(args []string) (others string, some bool) {
	words := args[:1]
	if strings.HasPrefix(args[0], "-") { // the flags of every command, then perhaps a command
		words = append([]string{"serve"}, args...)
	}
	var names []string
	for f := range reflect.TypeFor[commands]().Fields() {
		switch _, command := f.Tag.Lookup("cmd"); {
		case !command:
		case slices.Contains(words, strings.ToLower(f.Name)):
			some = true
		default:
			names = append(names, f.Name)
		}
	}
	helps := func(word string) bool {
		short := strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--")
		return word == "--help" || short && strings.Contains(word, "h")
	}
	some = some && !slices.ContainsFunc(words, helps)
	return `^commands\.(` + strings.Join(names, "|") + `)$`, some
}

// newParser builds the parser of the commands.
func newParser(cmd *commands, sys *System, options ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(cmd, append(options,
		kong.Name("a2e"),
		kong.Description("The agent-to-environment host: NDJSON requests on stdin, answers on stdout."),
		kong.Writers(sys.Out, sys.Err),
		kong.Vars{"version": versionLine()},
		kong.Exit(func(code int) { panic(stop{code}) }),
		kong.Help(printHelp),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, FlagsLast: true}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "setup", Title: "Set up"},
			{Key: "serve", Title: "Serve"},
			{Key: "try", Title: "Try"},
			{Key: "state", Title: "State"},
			{Key: "debug", Title: "Debug"},
			{Key: "all", Title: "Flags of every command:"},
		}),
	)...)
	if err != nil {
		return nil, err
	}
	parser.Model.HelpFlag.Group = parser.Model.Flags[len(parser.Model.Flags)-1].Group
	for _, group := range parser.Model.Children { // otherwise they would show the group of their parent
		for _, command := range group.Children {
			command.Group = &kong.Group{Key: "commands", Title: "Commands:"}
		}
	}
	return parser, nil
}

// AfterApply refuses numbers that make no sense. All flags with a number are counts or times: a
// count must be at least 1, a time above 0. The tag least sets another minimum.
func (*commands) AfterApply(ctx *kong.Context) error {
	for _, f := range ctx.Flags() {
		n, least := 0.0, 1.0
		switch kind := f.Target.Kind(); {
		case !f.Set || f.Tag.Enum != "":
			continue
		case f.Target.Type() == reflect.TypeFor[time.Duration]():
			n, least = time.Duration(f.Target.Int()).Seconds(), math.SmallestNonzeroFloat64
		case f.Target.CanInt():
			n = float64(f.Target.Int())
		case kind == reflect.Float64:
			n, least = f.Target.Float(), math.SmallestNonzeroFloat64
		default:
			continue
		}
		if text := f.Tag.Get("least"); text != "" {
			least, _ = strconv.ParseFloat(text, 64)
		}
		if !(n >= least && n < math.MaxInt64/1e9) || f.Target.CanInt() && n > math.MaxInt32 {
			return fmt.Errorf("--%s=%v is out of range: it must be %s", f.Name, f.Target, atLeast(least))
		}
	}
	return nil
}

func atLeast(n float64) string {
	if n == math.SmallestNonzeroFloat64 {
		return "above 0"
	}
	return fmt.Sprintf("%v or more", n)
}

// unknown returns the error for a name that is not in the list. what is the kind of thing.
func unknown(what, name string, known []string) error { return unknownAs(what, name, known, known) }

// unknownAs is unknown for names that are shown in another form.
func unknownAs(what, name string, known, as []string) error {
	shown := each(as, func(k string) string { return cut(oneLine(k), usualColumns/2) })
	slices.Sort(shown)
	shown = slices.Compact(shown)
	hint := schema.DidYouMean(name, known)
	if hint != "" {
		hint += " "
	}
	if len(shown) == 0 {
		shown = []string{"none"}
	}
	if more := len(shown) - maxOffered; more > 0 {
		shown = append(shown[:maxOffered], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf(`there is no %s "%s"; %sthere are: %s`, what, oneLine(name), hint, strings.Join(shown, ", "))
}

// unknownOf returns a usage error for the first name that is not in the list, or nil if all names
// are known. Letter case does not count.
func unknownOf(what string, names, known []string) error {
	slices.Sort(known)
	known = slices.Compact(known)
	for _, name := range names {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, name) }) {
			return fail(exitUsage, unknown(what, name, known))
		}
	}
	return nil
}

// finish prints a command's error and returns the exit code.
func finish(err error, sys *System) int {
	code := exitFailed
	if exit, ok := errors.AsType[exitError](err); ok {
		code = exit.code
	}
	if errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) { // only a signal cancels a command
		code, err = exitSignal, errInterrupted
	}
	if failed := sys.Out.failed(); failed != nil { // most commands leave this check to finish
		code = exitTransport
		if err == nil || errors.Is(err, failed) {
			err = fmt.Errorf("stdout: %w", failed)
		}
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(sys.Err, "a2e:", sys.secrets.Text(err.Error()))
	return code
}

// load reads the config and passes its warnings to warn.
func (c *commands) load(sys *System, warn func(string)) (*config.Config, error) {
	cfg, warnings, err := config.Load(c.source(sys))
	for _, w := range warnings {
		warn(w.String())
	}
	if c.only != "" && err == nil {
		cfg.Plugins = slices.DeleteFunc(slices.Clone(cfg.Plugins),
			func(p config.Plugin) bool { return p.Type != c.only })
	}
	return cfg, fail(exitConfig, err)
}

// loadAloud is load for a command that needs the plugins: it prints to stderr the warnings, and a
// note about plugins that are off because a list does not name them.
func (c *commands) loadAloud(sys *System) (*config.Config, error) {
	cfg, err := c.load(sys, sys.warn)
	if err == nil && cfg.OffNote() != "" {
		say(sys.Err, "note: %s", cfg.OffNote())
	}
	return cfg, err
}

// source says where to look for the config, and which files of the folder are trusted. The trust
// list is read only if the folder has such a file.
func (c *commands) source(sys *System) config.Source {
	src := config.Source{Path: c.Config, Getenv: sys.getenv, Dir: ".", Available: plugins.Types(), Secrets: sys.secrets}
	src.UserConfigDir, _ = os.UserConfigDir()
	src.Trust, src.Server = trusted(src).Check, mcp.CheckServer
	return src
}

// errInterrupted is the error of a command that a signal ended.
var errInterrupted = errors.New("interrupted")

// endSignals returns the signals that end the program in order. SIGHUP is left out if the program
// was started to outlive its terminal, for example by nohup.
func endSignals() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return []os.Signal{os.Interrupt, syscall.SIGTERM}
	}
	return []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
}

// interruptible returns a context that one of endSignals cancels with the cause errInterrupted.
func interruptible() (context.Context, context.CancelFunc) {
	signaled, stop := signal.NotifyContext(context.Background(), endSignals()...)
	ctx, cancel := context.WithCancelCause(context.Background())
	unhook := context.AfterFunc(signaled, func() { cancel(errInterrupted) })
	return ctx, func() {
		unhook()
		stop()
		cancel(nil)
	}
}

// warn prints a warning to stderr.
func (s *System) warn(text string) { say(s.Err, "warning: %s", text) }

// warnings returns a log that passes only the texts of its warnings to warn.
func warnings(warn func(string)) zerolog.Logger {
	return zerolog.New(io.Discard).Level(zerolog.WarnLevel).Hook(zerolog.HookFunc(func(_ *zerolog.Event,
		_ zerolog.Level, text string,
	) {
		warn(text)
	}))
}

// say writes one line to stderr for the person there.
func say(w io.Writer, format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

type versionCmd struct {
	JSON bool `name:"json" help:"Print it as JSON."`
}

// Run prints the same as --version.
func (v versionCmd) Run(sys *System) error {
	if v.JSON {
		return printJSON(sys.Out, map[string]string{
			"version": version(), "protocol": protocol.Version, "go": runtime.Version(),
			"os": runtime.GOOS, "arch": runtime.GOARCH,
		})
	}
	_, err := fmt.Fprintln(sys.Out, versionLine())
	return err
}

// versionLine returns the versions of a2e, the protocol and Go, and the platform.
func versionLine() string {
	return fmt.Sprintf("a2e %s protocol %s %s %s/%s", version(), protocol.Version, runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}

// release is set by the linker: the tag or commit that `make dist` builds.
var release string

// version returns the release, or else the tag or commit that the binary was built from.
var version = sync.OnceValue(func() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	switch {
	case !ok || info.Main.Version == "(devel)":
		return "dev" // built without git
	}
	return info.Main.Version
})
