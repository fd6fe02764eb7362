package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/cli/record"
	"a2e/host/config"
	"a2e/host/dialect/fleet"
	"a2e/host/dialect/jsonrpc"
	"a2e/host/dialect/mcp"
	"a2e/host/guard/auth"
	"a2e/host/middleware"
	"a2e/host/observe/audit"
	"a2e/host/observe/event"
	"a2e/host/observe/trace"
	"a2e/plugins"
	wire "a2e/protocol/fleet"
)

type serveCmd struct {
	recordFlag
	HTTP string `name:"http" xor:"pipe" placeholder:"HOST:PORT" help:"Serve clients over HTTP at this address, such as 127.0.0.1:8765, each with its own session, instead of stdin and stdout. Addresses of other machines need http.token in the config."`
}

// recordFlag is the flag --record of the commands that serve.
type recordFlag struct {
	Record string `placeholder:"FILE" xor:"pipe" help:"Record all that goes over the pipe, without secrets, for a2e inspect and a2e replay. A record that is there is kept as FILE.1."`
}

// Run serves until stdin ends, the agent sends a shutdown, or a signal arrives.
func (c serveCmd) Run(cmd *commands, sys *System) error {
	if c.HTTP != "" {
		return cmd.serveHTTP(sys, c.HTTP, false)
	}
	return cmd.serveStdio(sys, c.recordFlag, `a2e reads one JSON request per line, such as {"type":"ping","id":"1"}; Ctrl-D ends it, a2e --help tells more.`, speakAll)
}

// serveStdio serves on stdin and stdout. A person at a terminal sees hint. The functions of adapt
// change the config after it was read.
func (cmd *commands) serveStdio(sys *System, rec recordFlag, hint string, speak speaker,
	adapt ...func(*config.Config) error,
) error {
	unread := thrownAway(sys.Out.File)
	out, err := takeStdout(sys)
	if err != nil {
		return fail(exitTransport, fmt.Errorf("stdout: %w", err))
	}
	log, closeLog, err := cmd.openLog(sys)
	if err != nil {
		return err
	}
	defer closeLog()
	if unread {
		log.Warn().Msg(unreadNote)
	}
	cfg, err := cmd.load(sys, func(w string) { log.Warn().Msg(w) })
	if err != nil {
		return err
	}
	for _, change := range adapt {
		if err := change(cfg); err != nil {
			return fail(exitConfig, err)
		}
	}
	cfg.Workspace = cmp.Or(absolute(cfg.Workspace), cfg.Workspace) // or each part that needs it would look it up
	if isatty.IsTerminal(sys.In.Fd()) {
		say(sys.Err, "%s", hint)
	}
	enlargePipes(sys.In, out)
	opts := hostOptions(cfg, log)
	if rec.Record != "" {
		taken, err := record.Open(record.Options{
			Path: rec.Record, Version: version(), Workspace: absolute(cfg.Workspace), MaxLine: cfg.Limits.MaxLineBytes,
			Secrets: cfg.Secrets, Environ: sys.Environ, Warn: func(line string) { log.Warn().Msg(line) },
		})
		if err != nil {
			return fail(exitConfig, err)
		}
		defer taken.Close()
		opts.Events = opts.Events.With(taken, event.In|event.Out)
	}
	return serveWith(cfg, opts, speak, sys, sys.In, out)
}

// unreadNote is the warning for an output that thrownAway reports.
const unreadNote = "stdout is closed, or the null device: nobody reads the answers"

// serveWith runs a host with the config's plugins on the streams in and out.
func serveWith(cfg *config.Config, opts host.Options, speak speaker, sys *System, in io.Reader,
	out io.Writer,
) (err error) {
	shared, closeShared, err := equip(&opts, cfg, sys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeShared()) }()
	h, err := newHost(cfg, opts, speak, shared)
	if err != nil {
		return err
	}
	defer handleSignals(func() {
		if sys.over != nil {
			<-sys.over // otherwise whoever sent a request would report the end of the host as an error
		}
		h.Interrupt()
	}, sys.Exit)()
	if file, ok := out.(*os.File); ok {
		if from, ok := in.(*os.File); ok {
			go watchPeer(from, file, h.InputClosed, h.OutputClosed) // until the process ends
		}
	}
	if err := h.Serve(in, out); err != nil && !errors.Is(err,
		host.ErrOutputClosed) { // nobody is left to report a closed output to
		return fail(exitTransport, err)
	}
	return nil
}

// newHost creates a host with the config's plugins.
func newHost(cfg *config.Config, opts host.Options, speak speaker, shared *plugins.Shared) (h *host.Host, err error) {
	deps := plugins.Deps{Log: opts.Log, Shared: shared}
	speak(cfg, &opts, &deps)
	if opts.Plugins, err = plugins.New(cfg, deps); err != nil {
		return nil, fail(exitConfig, err)
	}
	opts.Checkpoints, opts.NeedCheckpoints = shared.Checkpoints, cfg.Checkpoints.Required
	h, err = host.New(opts)
	return h, fail(exitConfig, err)
}

// equip makes the hosts of a command write the audit trail, if the config has one, and send traces,
// if the environment asks for them. shared is what the plugins of these hosts have in common.
// closeAll closes all of this.
func equip(opts *host.Options, cfg *config.Config, sys *System) (shared *plugins.Shared, closeAll func() error,
	err error,
) {
	warn := func(line string) { opts.Log.Warn().Msg(line) }
	closeAudit := func() error { return nil }
	if cfg.Audit.Enabled {
		session := ""
		if cfg.Audit.SessionIDSource == config.SessionIDFromHost {
			session = cfg.HostID
		}
		trail, err := audit.Open(audit.Options{
			Path: cfg.Audit.Path, Key: auditKey(cfg), Session: session, Logger: warn,
		})
		if err != nil {
			return nil, nil, fail(exitConfig, err)
		}
		opts.Events = opts.Events.With(trail, event.Request)
		closeAudit = func() error { return fail(exitFailed, trail.Close()) } // also reports lost entries
	}
	tracer := trace.New(trace.Options{Version: version(), Secrets: cfg.Secrets, Warn: warn})
	opts.Tracer, shared = tracer, plugins.NewShared(cfg, opts.Log, opts.Events)
	return shared, func() error {
		tracer.Close()
		return errors.Join(closeAudit(), shared.Close())
	}, nil
}

// hostOptions translates the config into the options of a host.
func hostOptions(cfg *config.Config, log zerolog.Logger) host.Options {
	opts := host.Options{
		MaxParallel: cfg.MaxParallel,
		Namespaced:  cfg.Events == config.EventsNamespaced,
		Log:         log,
		Events:      event.New(cfg.Secrets).WithLog(log),
		Secrets:     cfg.Secrets,
		Groups:      host.Groups(cfg.Groups),
		Middleware:  middleware.All(),
		Limits: host.Limits{
			LineBytes: cfg.Limits.MaxLineBytes, Queue: cfg.Limits.MaxQueue, QueueBytes: cfg.Limits.MaxQueueBytes,
		},
	}
	if token := cfg.AuthToken.Reveal(); token != "" {
		opts.Tokens = append(opts.Tokens, auth.New(token, ""))
	}
	for _, a := range cfg.Auth {
		opts.Tokens = append(opts.Tokens, auth.New(a.Token.Reveal(), a.AgentID))
	}
	if cfg.Agent != nil {
		opts.AgentID = cfg.Agent.AgentID
	}
	return opts
}

// auditKey returns the key that signs the entries of the config's audit log.
func auditKey(cfg *config.Config) audit.Key {
	return audit.KeyOf(cfg.Audit.Path, cfg.UserDir, cfg.Audit.Key.Reveal(), cfg.Audit.KeyFile)
}

// handleSignals calls interrupt at the first of endSignals, and exit at the second. A SIGPIPE from
// the log does not end the process.
func handleSignals(interrupt func(), exit func(int)) (restore func()) {
	sigs := make(chan os.Signal, 2)
	signal.Notify(sigs, endSignals()...)
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		for second := false; ; second = true {
			select {
			case <-sigs:
			case <-done:
				return
			}
			if second {
				exit(exitSignal) // the child processes die with this process
			}
			interrupt()
		}
	}()
	return func() {
		signal.Stop(sigs)
		signal.Stop(pipes)
		close(done)
	}
}

// speaker sets up the protocols that a host speaks in addition to A2E, or instead of it. It runs
// before the host's plugins are created.
type speaker func(cfg *config.Config, opts *host.Options, deps *plugins.Deps)

// speakA2E makes a host speak only A2E.
func speakA2E(*config.Config, *host.Options, *plugins.Deps) {}

// speakAll makes a host speak MCP, JSON-RPC sessions and the fleet protocol in addition to A2E, to
// clients that have its token. MCP comes first: it takes the JSON-RPC lines once a client has sent
// its initialize.
func speakAll(cfg *config.Config, opts *host.Options, deps *plugins.Deps) {
	agents := mcpOptions(cfg, opts)
	agents.Tokens = opts.Tokens
	opts.Dialects = append(opts.Dialects, mcp.New(agents), jsonrpc.New(rpcOptions(cfg, opts, deps.Shared)),
		fleet.New(fleetOptions(cfg, opts, deps.Shared)))
}

// mcpParallel is how many requests of an MCP client run at once, unless the config sets another number.
const mcpParallel = 16

// speakMCP makes a host speak only MCP. The client is the process that started this program, so it needs no token.
func speakMCP(cfg *config.Config, opts *host.Options, deps *plugins.Deps) {
	speakOnlyMCP(mcpOptions(cfg, opts), opts, deps)
}

// speakWebMCP returns a speaker like speakMCP for clients over HTTP. It has no tasks, because the
// transport of the go-sdk does not support them. A client needs a token of the host, unless it had
// to send http.token. The hosts share the tables.
func speakWebMCP(tables *mcp.Tables) speaker {
	return func(cfg *config.Config, opts *host.Options, deps *plugins.Deps) {
		own := mcpOptions(cfg, opts)
		own.Tokens, own.Vouched, own.NoTasks, own.Tables = opts.Tokens, cfg.HTTP.Token.Reveal() != "", true, tables
		speakOnlyMCP(own, opts, deps)
	}
}

// speakCall makes a host speak only A2E. A client needs a token, unless it had to send http.token.
func speakCall(cfg *config.Config, opts *host.Options, _ *plugins.Deps) {
	if cfg.HTTP.Token.Reveal() != "" {
		opts.Tokens = nil
	}
}

// speakFleet makes a host speak only the fleet protocol.
func speakFleet(cfg *config.Config, opts *host.Options, deps *plugins.Deps) {
	opts.Dialects, opts.Only = []host.Dialect{fleet.New(fleetOptions(cfg, opts, deps.Shared))}, true
}

func speakOnlyMCP(own mcp.Options, opts *host.Options, deps *plugins.Deps) {
	var can atomic.Pointer[jsontext.Value]
	greeted := make(chan struct{})
	own.Greeted = func(said jsontext.Value) {
		if can.CompareAndSwap(nil, &said) {
			close(greeted)
		}
	}
	deps.MCPClient = func(ctx context.Context) jsontext.Value {
		select {
		case <-greeted:
		case <-ctx.Done():
			return nil
		}
		return *can.Load()
	}
	opts.Dialects, opts.Only = []host.Dialect{mcp.New(own)}, true
	opts.MaxParallel = cmp.Or(opts.MaxParallel, mcpParallel)
}

func mcpOptions(cfg *config.Config, opts *host.Options) mcp.Options {
	return mcp.Options{
		Version: version(), Workspace: absolute(cfg.Workspace), Log: opts.Log,
	}
}

func rpcOptions(cfg *config.Config, opts *host.Options, shared *plugins.Shared) jsonrpc.Options {
	return jsonrpc.Options{
		Version: version(), Tokens: opts.Tokens, Store: shared.Store, Workspace: absolute(cfg.Workspace),
		Wall: cfg.Wall, Log: opts.Log, StateDir: cfg.StateDir, Secrets: cfg.Secrets,
	}
}

func fleetOptions(cfg *config.Config, opts *host.Options, shared *plugins.Shared) fleet.Options {
	return fleet.Options{
		Worker: wire.Worker{
			AgentID: cmp.Or(cfg.Fleet.AgentID, cfg.HostID), Model: cfg.Fleet.Model, ModelTier: cfg.Fleet.ModelTier,
			ContextWindow: cfg.Fleet.ContextWindow,
		},
		AtStartup: cfg.Fleet.Announce == config.AnnounceStartup, MaxTasks: cfg.Fleet.MaxTasks, Tokens: opts.Tokens,
		Isolated: cfg.Fleet.Isolation == wire.IsolationWorktree, RequireClean: cfg.Fleet.RequireClean,
		Workspace: absolute(cfg.Workspace), StateDir: absolute(cfg.StateDir), Launcher: shared.Launcher,
		Store: shared.Store,
		Log:   opts.Log,
	}
}

// absolute returns the absolute form of path, or "" if there is no current folder.
func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	return abs
}
