// Package exec is the plugin in any language: a child process that speaks A2E itself.
// The host makes a handshake with the child as an agent does, learns what it serves, and passes
// its requests on to it.
//
//	exec.go      the plugin, its options  messages.go  the message types, what a child serves
//	health.go    keeps a child running    peer.go      one process: requests and answers
//	forward.go   one request              lists.go     what the child owns: its tools and processes
//	event.go     other messages of it     stream.go    messages after an answer
//	session.go   its session
//
// The way of a request and its answer:
//
//	agent ─► route ─ the child's? ─ session ─ place ─ fresh id ─► outbox ─► child
//	agent ◄─ answer, body as it came ◄─ by req_id, in any order ◄─ splitter ◄─┘
package exec

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

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/config"
	"a2e/host/guard/redact"
	"a2e/protocol"
)

// Plugin is one `exec` plugin.
type Plugin struct {
	name      string
	opts      Options
	env       host.Env
	log       zerolog.Logger
	workspace string // absolute
	known     map[protocol.Type]message
	secrets   *redact.Set // given to the child; no log and no error shows them
	times     times

	services *host.Services  // set by Start
	ctx      context.Context // of the children; set by Start
	stop     context.CancelCauseFunc
	goes     sync.WaitGroup // all goroutines
	ready    chan struct{}  // closed when the first start has ended
	settle   func()         // closes ready

	lists lists

	mu       sync.Mutex // guards the fields below
	started  bool
	closed   bool
	child    *peer         // running, after its handshake; nil = none
	offer    *offer        // of the last child; nil = no child yet
	starting chan struct{} // closed when the current start has ended; nil = none
	down     child.Backoff // the last failure, and when the next start is
}

// New makes the plugin called name. It starts nothing. The error says which option is not
// valid.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	fail := func(err error) (*Plugin, error) { return nil, fmt.Errorf("plugin %q: %w", name, err) }
	if err := opts.check(env.Exclusive); err != nil {
		return fail(err)
	}
	if env.Launcher == nil {
		return fail(errors.New("it needs a launcher to start the child with"))
	}
	env = env.WithDefaults()
	workspace, err := filepath.Abs(env.Workspace)
	if err != nil {
		return fail(fmt.Errorf("workspace: %w", err))
	}
	if _, err := os.Stat(workspace); err != nil {
		return fail(fmt.Errorf("workspace: %w", err))
	}
	opts.setDefaults()
	p := &Plugin{
		name: name, opts: opts, env: env, workspace: workspace, known: known(),
		secrets: secretsOf(&opts, env.Secrets), times: usualTimes(&opts),
		log:   env.Log.With().Str("plugin", name).Logger(),
		ready: make(chan struct{}),
	}
	p.settle = sync.OnceFunc(func() { close(p.ready) })
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	return p, nil
}

// Info implements host.Plugin. The plugin serves what its child offered, or, before the first
// handshake, what the config says.
func (p *Plugin) Info() host.PluginInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	info := host.PluginInfo{Name: p.name, Children: true, Also: slices.Clone(p.opts.Capabilities)}
	if p.offer != nil {
		info.Also = slices.Clone(p.offer.caps)
		if names := p.offer.customNames(); len(names) > 0 {
			info.Metadata = map[string]any{customTypes: names}
		}
	} else if len(p.opts.Types) > 0 {
		info.Metadata = map[string]any{customTypes: slices.Clone(p.opts.Types)}
	}
	return info
}

// Routes implements host.Plugin: a route for every request that a child may serve, and one for
// types of the child's own.
func (p *Plugin) Routes() []host.Route {
	var all []host.Route
	for _, info := range protocol.Types() {
		m, ok := p.known[info.Type]
		if ok && (len(p.opts.Capabilities) == 0 || slices.Contains(p.opts.Capabilities, info.Capability)) {
			all = append(all, m.route(info.Type, p.handler(info.Type, m)))
		}
	}
	for _, t := range p.opts.Types {
		all = append(all, host.Raw(protocol.Type(t), p.custom(protocol.Type(t))))
	}
	if !p.env.Exclusive { // an exclusive route would take the types of all other plugins
		all = append(all, host.Raw(host.CatchAll, p.custom("")))
	}
	return all
}

// Start implements host.Starter: it starts the child in the background.
func (p *Plugin) Start(ctx context.Context, s *host.Services) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.started {
		return nil
	}
	p.started, p.services = true, s
	stop := p.stop
	p.ctx, p.stop = context.WithCancelCause(context.WithoutCancel(ctx)) // ctx ends before Close
	stop(nil)
	p.starting = make(chan struct{})
	p.goes.Go(p.supervise)
	return nil
}

// Ready implements host.Readier: without capabilities in the config, the handshake of the host waits
// until the first start of the child has ended.
func (p *Plugin) Ready(ctx context.Context) {
	if len(p.opts.Capabilities) > 0 {
		return
	}
	select {
	case <-p.ready:
	case <-ctx.Done():
	}
}

// errClosed is the reason for the end of a child when the host ends.
var errClosed = errors.New("the host ends")

// Close implements host.Plugin: it tells the child to end, and kills it if it does not.
func (p *Plugin) Close(ctx context.Context) error {
	p.mu.Lock()
	again := p.closed
	p.closed = true
	c, stop := p.child, p.stop
	p.mu.Unlock()
	if again {
		return nil
	}
	if c != nil {
		c.farewell(ctx, p.times.farewell)
	}
	stop(errClosed)
	return child.WaitFor(ctx, fmt.Sprintf("plugin %q: the child", p.name), &p.goes)
}

// secretsOf returns the secrets of the host and those of the child: its token, and the
// variables of its environment that may be secret.
func secretsOf(opts *Options, host *redact.Set) *redact.Set {
	s := redact.New(host)
	s.AddSecret(opts.AuthToken.Reveal())
	for name, value := range opts.Env {
		s.Add(name, value)
	}
	return s
}

// Options are the plugin's options in the config; DefaultOptions returns the defaults.
type Options struct {
	Command      []string              `yaml:"command" doc:"The program that speaks A2E, and its arguments. A bare name is looked up on the PATH, one with a slash is relative to the workspace."`
	Env          map[string]string     `yaml:"env" secret:"yes" doc:"Further environment variables of the program."`
	Cwd          string                `yaml:"cwd" doc:"The folder it runs in, relative to the workspace or absolute; default: the workspace."`
	Network      bool                  `yaml:"network" doc:"Let the program use the network."`
	Read         []string              `yaml:"read" doc:"Further files and folders that it may read, relative to the workspace or absolute."`
	Capabilities []protocol.Capability `yaml:"capabilities" doc:"The capabilities that it may serve; default: all that its handshake names. If they are given, the host's own handshake does not wait for it; exclusive: true needs them."`
	Types        []string              `yaml:"types" doc:"Further message types that it serves, beside those that its handshake names."`
	AuthToken    config.Secret         `yaml:"auth_token" doc:"Token for its handshake. Best as a variable."`
	StartTimeout time.Duration         `yaml:"start_timeout" doc:"Seconds in which it must answer its handshake; 0 = 5."`
	Timeout      time.Duration         `yaml:"timeout" doc:"Seconds for a request whose type has no timeout of its own; 0 = 60."`
	MaxParallel  int                   `yaml:"max_parallel" min:"0" doc:"How many requests it gets at once; 0 = what its handshake says."`
	MaxRestarts  int                   `yaml:"max_restarts" min:"0" doc:"Failures in a row after which it is only started once a minute; 0 = 5."`
}

// DefaultOptions are the options of a config that sets none.
func DefaultOptions() Options { return Options{} }

// The bounds that the config cannot exceed.
const (
	maxSlots    = 1024 // of max_parallel
	maxTypes    = 1000 // of types that one child may name
	maxTypeName = 128  // bytes
)

func (o *Options) setDefaults() {
	o.StartTimeout = cmp.Or(o.StartTimeout, 5*time.Second)
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	o.MaxRestarts = cmp.Or(o.MaxRestarts, 5)
}

// check returns an error for an option that is not valid.
func (o *Options) check(exclusive bool) error {
	if err := child.CheckCommand(o.Command, "the program that speaks A2E, such as [python3, tools.py]"); err != nil {
		return err
	}
	switch {
	case exclusive && len(o.Capabilities) == 0:
		return errors.New("exclusive: true needs capabilities, as what an exclusive plugin answers is settled " +
			"before its child has started; name them, such as capabilities: [tools]")
	case o.StartTimeout < 0 || o.Timeout < 0:
		return errors.New("start_timeout and timeout should be 0 or more seconds")
	case o.MaxParallel < 0 || o.MaxParallel > maxSlots:
		return fmt.Errorf("max_parallel should be 0 to %d", maxSlots)
	case o.MaxRestarts < 0 || o.MaxRestarts > math.MaxInt16:
		return errors.New("max_restarts should be 0 or more")
	}
	for _, name := range o.Capabilities {
		if !slices.Contains(capabilities(), name) {
			return fmt.Errorf("capabilities: there is no %.64q; there are %s", name, joined(capabilities()))
		}
	}
	for i, t := range o.Types {
		switch {
		case !isCustom(protocol.Type(t)):
			return fmt.Errorf("types: %.64q should be a type that the protocol does not have, such as "+
				"\"weather/ask/req\", of printable ASCII characters without quotes", t)
		case slices.Contains(o.Types[:i], t):
			return fmt.Errorf("types: %q appears twice", t)
		}
	}
	return nil
}

// capabilities returns the names that may be negotiated.
func capabilities() []protocol.Capability {
	return append(protocol.PluginCapabilities(), protocol.CapTest)
}

func joined(names []protocol.Capability) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = string(name)
	}
	return strings.Join(texts, ", ")
}

// isCustom reports whether a type can be a plugin's own: it needs no escape in JSON, and neither
// the protocol nor the host has it.
func isCustom(t protocol.Type) bool {
	if t == "" || len(t) > maxTypeName || t == protocol.TypeCancel || t == "*" {
		return false
	}
	if _, standard := protocol.Lookup(t); standard || t == protocol.TypeMCPElicitReq ||
		t == protocol.TypeMCPElicitResp {
		return false
	}
	return !strings.ContainsFunc(string(t), func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
}
