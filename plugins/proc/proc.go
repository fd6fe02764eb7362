// Package proc is the capability `proc`: processes that go on after the request
// that started them, several at once (see Options.MaxProcs).
//
//	proc.go      the plugin, its routes,      output.go    lines, their events, and output
//	             what may be started                       that is not sent yet
//	spawn.go     start one; run one to its    control.go   write, kill, status
//	             end, for others; a pty
//	process.go   one process from start to    system_*.go  signals and terminals of the systems
//	             end; the processes of sessions
//
// The way of the output of one process:
//
//	child ── pipe ──► pump ── Write ──► backlog ── sender ──► host.Stream ──► agent
//	child ◄── pipe ── feeder ◄── queue ◄── proc/write
//
// A pump and a feeder are goroutines that may wait for the child, a sender is
// one that may wait for the agent. The backlog is between them; when it is full,
// the oldest output is dropped. So an agent that does not read loses output of
// its processes, but never blocks a child forever.
package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/child/spill"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/protocol"
)

const defaultMaxProcs = 10

// Options are the plugin's options in the config; DefaultOptions returns the
// defaults.
type Options struct {
	AllowedCommands []string `yaml:"allowed_commands" doc:"Programs that may be started, as bare names; by default the usual ones that this machine has. An entry may have fixed first arguments (python3 tools/run.py). The list is about the first program only: an interpreter or launcher on it, such as sh, env, xargs, python3, git, find or make, starts anything (see exec)."`
	Exec            string   `yaml:"exec" enum:"allowed,strict" doc:"strict: no interpreter or launcher (sh, python3, env, git, find, make, …) may be among allowed_commands except with the script that it may run; set for one plugin, it holds for tools, proc and mcp."`
	Timeout         float64  `yaml:"timeout" min:"0" doc:"Seconds that a process may run when its request does not say; 0 = no bound."`
	MaxProcs        int      `yaml:"max_procs" min:"0" doc:"Processes that may run at once; 0 = 10."`
	MaxOutputBytes  int      `yaml:"max_output_bytes" min:"0" doc:"Bytes of output kept for an agent that reads slowly, per process; then the oldest is dropped. 0 = limits.max_output_bytes."`
	EnvAllow        []string `yaml:"env_allow" doc:"Environment variables that a request may set; by default all that change no program's code."`
	NetworkDisabled bool     `yaml:"network_disabled" doc:"Keep the network from the processes."`
}

// DefaultOptions are the options of a config that sets none.
func DefaultOptions() Options { return Options{MaxProcs: defaultMaxProcs, NetworkDisabled: true} }

// AllowList returns pointers to the options allowed_commands and exec.
func (o *Options) AllowList() (names *[]string, exec *string) { return &o.AllowedCommands, &o.Exec }

// Plugin is one `proc` plugin.
type Plugin struct {
	name      string
	opts      Options
	env       host.Env
	workspace string // absolute
	folder    *wall.Folder
	maxOutput int
	spill     *spill.Keeper // keeps output of RunProc that is too long
	endWait   time.Duration // see endTimeout; tests set more
	mildWait  time.Duration // see signalWait; tests set more
	allow     func() (*sandbox.AllowList, error)

	ctx    context.Context // of all processes
	cancel context.CancelCauseFunc
	goes   sync.WaitGroup // all goroutines; Add under procs.mu while it is open

	procs registry
}

// New makes the plugin called name. The error says which option does not fit.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	env = env.WithDefaults()
	if opts.MaxProcs <= 0 {
		opts.MaxProcs = defaultMaxProcs
	}
	if err := check(opts, env); err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	workspace, err := filepath.Abs(env.Workspace)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: workspace: %w", name, err)
	}
	folder, err := wall.OpenFolder(workspace)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: workspace: %w", name, err)
	}
	p := &Plugin{
		name: name, opts: opts, env: env, workspace: workspace, folder: folder,
		endWait: endTimeout, mildWait: signalWait,
	}
	p.spill = spill.New(env.StateDir, env.Secrets)
	p.maxOutput = cmp.Or(max(opts.MaxOutputBytes, 0), env.MaxOutputBytes)
	// programs are looked up at the first use: that takes longer than all else here
	p.allow = sync.OnceValues(func() (*sandbox.AllowList, error) {
		return sandbox.NewAllowList(opts.AllowedCommands, sandbox.SafePath(os.Getenv("PATH"), workspace), workspace,
			opts.Exec == sandbox.ExecStrict)
	})
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.procs.init(name, opts.MaxProcs)
	return p, nil
}

// check returns an error for an option that is not valid.
func check(opts Options, env host.Env) error {
	if env.Launcher == nil {
		return errors.New("it needs a launcher to start processes with")
	}
	if _, err := sandbox.NewAllowList(opts.AllowedCommands, nil, "", opts.Exec == sandbox.ExecStrict); err != nil {
		return fmt.Errorf("allowed_commands: %w", err)
	}
	for _, name := range opts.EnvAllow {
		if err := sandbox.CheckEnv(name, ""); err != nil {
			return fmt.Errorf("env_allow: %w", err)
		}
	}
	if opts.Timeout < 0 || math.IsNaN(opts.Timeout) {
		return errors.New("timeout: should be 0 or more seconds")
	}
	return nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapProc, Children: true}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeProcSpawnReq, p.spawn),
		host.Handle(protocol.TypeProcWriteReq, p.write),
		host.Handle(protocol.TypeProcKillReq, p.kill),
		host.List(protocol.TypeProcStatusReq, p.status, protocol.MergeProcStatus),
	}
}

// endTimeout bounds how long the end of a session waits for an agent that does
// not read the last events.
const endTimeout = 2 * time.Second

// EndSession implements host.SessionEnder: it kills the session's processes and
// waits until their last events are sent, at most until endTimeout or the end of ctx.
func (p *Plugin) EndSession(ctx context.Context, s *host.Session) {
	all := p.procs.end(s)
	for _, r := range all {
		r.stop(errSessionEnded)
	}
	for _, r := range all {
		select {
		case <-r.done:
		case <-ctx.Done():
		}
	}
	ctx, stop := context.WithTimeout(ctx, p.endWait) // the processes have ended; from here on it waits for the agent
	defer stop()
	for _, r := range all {
		select {
		case <-r.sent:
		case <-ctx.Done():
			r.drop()
		}
	}
}

// Close implements host.Plugin: it kills every process and waits until all have
// ended. When ctx ends, it drops events that are not sent yet.
func (p *Plugin) Close(ctx context.Context) error {
	p.procs.close()
	p.cancel(errClosed)
	err := child.WaitFor(ctx, fmt.Sprintf("plugin %q: processes", p.name), &p.goes)
	if err != nil {
		for _, r := range p.procs.all() {
			r.drop()
		}
	}
	return errors.Join(err, p.folder.Close())
}

// refusal is an error that a spawn answers with ok false and the text of the error.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// policy makes the policy to run cmd in the folder cwd of the workspace. release
// closes the folder. The error is a refusal.
func (p *Plugin) policy(cmd []string, cwd string, env map[string]string) (policy sandbox.Policy, release func(),
	err error,
) {
	if len(cmd) == 0 {
		return policy, nil, refuse("cmd is empty; it needs at least the bare name of a program")
	}
	for i, word := range cmd {
		if strings.ContainsRune(word, 0) {
			return policy, nil, refuse("word %d of cmd has a NUL character in it", i)
		}
	}
	allowed, err := p.allow()
	if err != nil {
		return policy, nil, refusal{err}
	}
	path, err := allowed.Resolve(cwd, cmd...)
	if err != nil {
		return policy, nil, refusal{err}
	}
	if err := p.checkEnv(env); err != nil {
		return policy, nil, refusal{err}
	}
	dir, abs, err := sandbox.OpenWorkdir(p.folder.Root(), p.workspace, cwd)
	if err != nil {
		return policy, nil, refuse("cwd: %w", err)
	}
	policy = sandbox.Policy{Path: path, Args: cmd, Dir: abs, DirFile: dir, Env: env, Home: sandbox.HomeShared}
	if !p.opts.NetworkDisabled {
		policy.Network = sandbox.NetworkHost
	}
	return policy, func() { dir.Close() }, nil
}

// checkEnv returns an error for a variable that a request may not set.
func (p *Plugin) checkEnv(env map[string]string) error {
	for name, value := range env {
		if err := sandbox.CheckEnv(name, value); err != nil {
			return err
		}
		if p.opts.EnvAllow != nil && !slices.Contains(p.opts.EnvAllow, name) {
			return &sandbox.EnvError{Name: name, Reason: "it is not in env_allow of the config, which has: " +
				strings.Join(p.opts.EnvAllow, ", ")}
		}
	}
	return nil
}

// command starts a child, unless ctx, the request's, ends first. The child is killed
// when own ends. The error is a refusal if the child cannot be started.
func (p *Plugin) command(ctx, own context.Context, policy sandbox.Policy) (*sandbox.Process, error) {
	launcher, err := p.env.Launcher()
	if err != nil {
		return nil, refuse("processes cannot be started: %w", err)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	started, err := launcher.Command(own, policy)
	switch {
	case err == nil:
		return started, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case own.Err() != nil:
		return nil, context.Cause(own)
	}
	return nil, refuse("the process was not started: %w", err)
}
