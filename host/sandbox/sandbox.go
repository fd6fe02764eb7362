package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"a2e/host/observe/event"
	"a2e/host/observe/trace"
)

// LauncherName is argv[0] of the re-executed binary.
const LauncherName = "a2e-sandbox"

// Mechanism is what holds a tree of processes together.
type Mechanism string

// The mechanisms, strongest first.
const (
	MechanismPIDNamespace     Mechanism = "pid_namespace"      // the kernel kills the tree
	MechanismUserPIDNamespace Mechanism = "user_pid_namespace" // the same for a host that is not root
	MechanismSubreaper        Mechanism = "subreaper"          // the launcher kills the tree
	MechanismProcessGroup     Mechanism = "process_group"      // only processes that stay in the group are killed
	MechanismProcess          Mechanism = "process"            // only the command itself is killed
)

// ErrKilled is Wait's error for a tree that Kill or Close ended.
var ErrKilled = errors.New("sandbox: killed")

// ErrClosed is returned by Command after Close.
var ErrClosed = errors.New("sandbox: launcher closed")

// ErrMemory is Wait's error for a tree that took more memory than its limit.
var ErrMemory = errors.New("sandbox: more memory was used than children.memory_bytes of the config allows")

// ErrProcesses is Wait's error for a tree that had more processes than its limit, on machines where
// the kernel does not enforce that limit.
var ErrProcesses = errors.New("sandbox: more processes and threads were started than children.processes of the " +
	"config allows")

// ErrLauncher is Wait's error when the launcher itself died or misbehaved, for example because memory ran out.
var ErrLauncher = errors.New("sandbox: launcher failed")

// Options configure a Launcher. The zero value works.
type Options struct {
	// Path lists the folders that make up the children's PATH; nil is
	// SafePath of the host's own PATH without a workspace.
	Path []string
	// Home is the HOME that children without network share; "" = a private folder that is made at the
	// first start and removed by Close.
	Home string
	// Environ is the host's environment, from which only a few harmless variables are passed on; nil = os.Environ().
	Environ []string

	// Launcher is the program that starts and holds the children, on systems that have launchers; it calls
	// MaybeRunLauncher. "" = this program.
	Launcher string

	// Mode says what to do when the machine lacks a mechanism; "" is BestEffort.
	Mode Mode
	// Workspace is the absolute folder that children may change, besides their home and temporary folder; "" = none.
	Workspace string
	// WorkspaceInfo identifies the folder of the workspace; nil = whatever folder has that path. If
	// another folder has taken its place, no child starts. Only Linux checks this. The caller must
	// hold the folder open, so that its inode number is not used again.
	WorkspaceInfo os.FileInfo
	// Hidden lists absolute folders of the host that no child sees although they lie in folders that it
	// may see. The child sees an empty folder in their place. A path in a hidden folder, or the folder
	// itself, stays visible if it is granted separately. Missing folders are made.
	Hidden []string
	// Fixed lists absolute paths that no child may change or replace, although they lie in folders that it
	// may change. Links in Fixed are not followed.
	Fixed []string
	// Firm refuses children where the machine cannot enforce Fixed. Children are always refused where it
	// cannot enforce Hidden.
	Firm bool
	// Loose starts children in both cases, for a host that another host confines.
	Loose bool
	// Read lists further absolute paths that children may read, on top of the
	// system's programs and libraries and the folders of Path.
	Read []string
	// Limits are the limits of every child whose policy does not set its own.
	Limits Limits
	// Disk bounds what children leave in folders; nil = no bound. Counted lists further absolute folders
	// that count towards the bound, besides those of the sandbox; they are never emptied.
	Disk    *Disk
	Counted []string
	// Lacking, if not nil, is called once, when the first child has started on a machine that lacks
	// mechanisms on which mode Required insists. It gets all of these.
	Lacking func([]Finding)
	// Events receives an event at each child's start and end; nil = no events.
	Events *event.Stream
}

// Launcher starts child processes. It is safe for concurrent use.
type Launcher struct {
	env    baseEnv
	mode   Mode
	limits Limits
	start  starter // the platform's way to start a tree

	events  *event.Stream
	first   sync.Once // guards the call of lacking
	lacking func([]Finding)

	disk    *Disk        // nil = no bound
	starts  sync.RWMutex // write-locked while a folder of children is replaced by a new one
	counted []string
	ending  chan struct{} // closed by Close
	watch   sync.WaitGroup

	closing  sync.Once
	closeErr error // set by closing

	mu       sync.Mutex
	closed   bool                  // guarded by mu
	watching bool                  // watchDisk runs; guarded by mu
	running  map[*Process]struct{} // guarded by mu
	full     []string              // kept homes that must be emptied; guarded by mu
	pending  sync.WaitGroup        // Command calls and processes under way; Add under mu
}

// New makes a Launcher. It starts and probes nothing; the first Command does.
func New(opts Options) (*Launcher, error) {
	environ := opts.Environ
	if environ == nil {
		environ = os.Environ()
	}
	path := opts.Path
	if path == nil {
		path = SafePath(lookup(environ, "PATH"), "")
	}
	env, err := newBaseEnv(environ, path, opts.Home)
	if err != nil {
		return nil, err
	}
	if opts.Workspace != "" && opts.Workspace == filepath.Dir(opts.Workspace) {
		return nil, fmt.Errorf("sandbox: the workspace is %s, which holds the whole machine; start in the folder to "+
			"work in, or set workspace in the config", opts.Workspace)
	}
	if opts.Mode == "" {
		opts.Mode = BestEffort
	}
	l := &Launcher{
		env: env, mode: opts.Mode, limits: opts.Limits, lacking: opts.Lacking,
		running: make(map[*Process]struct{}),
	}
	l.events, l.disk, l.counted, l.ending = opts.Events, opts.Disk, opts.Counted, make(chan struct{})
	l.start.opts, l.start.path, l.start.home, l.start.net = opts, path, env.home, env.net
	if l.env.confined = opts.Mode != Off; l.env.confined {
		l.limits = l.limits.or(DefaultLimits())
	}
	return l, nil
}

// Mechanism returns what holds the trees; it is "" until the first tree was started.
func (l *Launcher) Mechanism() Mechanism { return l.start.mechanism() }

// Path lists the folders that make up the children's PATH.
func (l *Launcher) Path() []string { return slices.Clone(l.start.path) }

// Command starts the program of the policy. The tree is killed when ctx ends, also after Command has returned. The
// error is an *EnvError for a refused variable, a *MissingError when the machine lacks required mechanisms, and a
// *StartError when the program cannot be started. The caller may drop the Process: it is reaped anyway.
func (l *Launcher) Command(ctx context.Context, policy Policy) (*Process, error) {
	if err := policy.check(); err != nil {
		return nil, err
	}
	policy.Limits = policy.Limits.or(l.limits)
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if err := l.enter(); err != nil {
		return nil, err
	}
	l.starts.RLock()
	p, err := l.settle(ctx, &policy)
	l.starts.RUnlock()
	if err != nil {
		l.pending.Done()
		return nil, err
	}
	l.first.Do(func() {
		if missing := missingRequired(l.Findings()); missing != nil && l.lacking != nil && l.mode != Off {
			l.lacking(missing)
		}
	})
	return p, nil
}

// Prepare makes in the background what the first command with this network needs, because that start
// takes several times as long as a later one. Close waits for it.
func (l *Launcher) Prepare(network Network) {
	if l.enter() != nil {
		return
	}
	go func() {
		defer l.pending.Done()
		l.starts.RLock()
		defer l.starts.RUnlock()
		l.start.prepare(&Policy{Network: network, Home: HomeShared, Limits: Limits{}.or(l.limits)})
	}()
}

// enter counts one more tree, unless the Launcher is closed.
func (l *Launcher) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.pending.Add(1)
	return nil
}

// envTrace is the variable that tells programs which trace they are part of.
const envTrace = "TRACEPARENT"

// settle prepares the home and the environment of a child and starts its tree.
func (l *Launcher) settle(ctx context.Context, policy *Policy) (*Process, error) {
	leave, err := l.ownHome(policy)
	if err != nil {
		return nil, err
	}
	env, err := l.env.build(policy)
	if parent, own := trace.Parent(ctx), policy.Env[envTrace]; parent != "" && own == "" {
		env = append(env, envTrace+"="+parent)
	}
	if err == nil {
		var p *Process
		if p, err = l.launch(ctx, policy, env, leave); err == nil {
			return p, nil
		}
	}
	leave()
	return nil, err
}

// launch opens the streams, starts the tree and hands it to its own goroutine, which calls leave when
// the tree has ended.
func (l *Launcher) launch(ctx context.Context, policy *Policy, env []string, leave func()) (*Process, error) {
	streams, err := openStreams(policy)
	if err != nil {
		return nil, &StartError{Op: "open its streams", Path: policy.Path, Err: err}
	}
	child, err := l.start.start(ctx, policy, env, streams.child)
	streams.closeChild()
	if err != nil {
		streams.closeHost()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	p := &Process{
		child: child, places: l.countedDirsOf(env), kept: policy.HomeDir, done: make(chan struct{}),
		stdout: streams.answers(),
	}
	l.mu.Lock()
	l.running[p] = struct{}{}
	closed := l.closed
	if !closed {
		l.watchLocked()
	}
	l.mu.Unlock()
	if closed {
		p.Kill()
	}
	ended := l.tell(p, policy.Path)
	streams.run()
	go func() {
		defer l.pending.Done()
		p.supervise(ctx, streams)
		ended()
		l.mu.Lock()
		delete(l.running, p)
		l.mu.Unlock()
		close(p.done)
		child.reaped()
		leave()
	}()
	return p, nil
}

// Running returns the number of running trees.
func (l *Launcher) Running() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.running)
}

// Probe finds out what this machine offers: it sets up a launcher that runs no command.
func (l *Launcher) Probe(ctx context.Context) ([]Finding, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.pending.Done()
	return l.start.probe(ctx, l.limits)
}

// Close kills every tree, waits until all are reaped and removes the private home. It is safe to call again.
func (l *Launcher) Close() error {
	l.mu.Lock()
	l.closed = true
	for p := range l.running {
		p.Kill()
	}
	l.mu.Unlock()
	l.pending.Wait()
	l.closing.Do(func() {
		close(l.ending)
		l.watch.Wait()
		if l.disk != nil {
			l.disk.set(l, nil)
		}
		l.start.close()
		l.closeErr = l.env.home.close()
	})
	return l.closeErr
}

// StartError says why a program could not be started. Err is a syscall.Errno where the system gave one.
type StartError struct {
	Op   string // what failed: "exec", "chdir", …
	Path string // the program
	Err  error
}

// Error implements error.
func (e *StartError) Error() string {
	text := fmt.Sprintf("start %s: %s: %v", e.Path, e.Op, e.Err)
	switch is := func(why error) bool { return errors.Is(e.Err, why) }; {
	case e.Op == "exec" && is(syscall.ENOENT):
		text += "; it, or the interpreter that its first line names, is not there"
	case is(syscall.ENOEXEC):
		text += "; it is for another machine, or a script without a first line such as #!/bin/sh"
	case is(syscall.ETXTBSY):
		text += "; something is writing it, try again"
	case is(syscall.EMFILE):
		text += "; try again when others have ended, or raise `ulimit -n`"
	case is(syscall.EAGAIN):
		text += "; try again when others have ended, or raise `ulimit -u`"
	}
	return text
}

// Unwrap returns the system's error.
func (e *StartError) Unwrap() error { return e.Err }

// State is how a command ended.
type State struct {
	Code   int            // exit status; -1 when a signal ended it
	Signal syscall.Signal // the signal that ended it, 0 if none
}

// String reads "exit status 3" or "signal: killed".
func (s State) String() string {
	if s.Signal != 0 {
		return "signal: " + s.Signal.String()
	}
	return fmt.Sprintf("exit status %d", s.Code)
}
