// Package mcp is the capability `mcp`: the host as a client of any number of MCP
// servers. Their tools are tools of the host, named SERVER__TOOL; their resources and
// prompts are listed and read by mcp/*; what they ask (a model, the roots, the user) goes
// to the agent, and so do their notifications.
//
//	mcp.go        the plugin and its routes     options.go   the config of servers
//	server.go     one server, what it has and   read.go      the options, as this or another client writes them
//	              what mcp/server/list says     register.go  servers that the agent adds
//	client.go     what a server finds here,     call.go      a call, checked, and its progress; what servers
//	              and whose roots it has                     ask the agent
//	tools.go      what a tool is                refresh.go   its lists, kept up to date
//	tasks.go      what MCP clients ask          lists.go     pages over all servers, prompts
//	resources.go  resources and subscriptions   push.go      notifications, in bounded memory
//	pin.go        tools that changed            entries.go   what servers list, entry by entry
//
// What a server says of its tools is data: nothing in it changes what the host does.
package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/plugins/mcp/link"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// Plugin is one `mcp` plugin. It serves the capability tools as well.
type Plugin struct {
	*tools.Set
	name       string
	opts       Options
	env        host.Env
	configured []ServerOptions
	commands   func() (*sandbox.AllowList, error) // the programs that the agent may start as servers
	firstWait  time.Duration                      // how long requests wait for a new server; tests set more
	clientWait time.Duration                      // how long servers wait for Env.MCPClient; tests set less
	rootsWait  time.Duration                      // how long a server waits for the agent's roots; tests set more
	clientBy   time.Time                          // the end of clientWait; set by Start

	life context.Context // context of the plugin's background work; set by Start
	stop context.CancelFunc
	work sync.WaitGroup // the goroutines of the servers

	mu      sync.Mutex
	servers map[string]*server // by id; guarded by mu
	state   lifeState          // guarded by mu
	learned chan struct{}      // closed and replaced when lists of a server become known; guarded by mu
	// sessions whose agent did not answer for its roots in time; the key nil stands for no known session;
	// guarded by mu
	quiet map[*host.Session]bool

	publishing sync.Mutex        // held while the tools are published
	seen       [sha256.Size]byte // summary of the tools that the agent last saw; guarded by publishing
}

// lifeState is where a plugin is between New and the end of Close.
type lifeState int

const (
	fresh lifeState = iota
	started
	closed
)

// New makes the plugin called name; Start connects its servers. The error says which
// option does not fit.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	env = env.WithDefaults()
	if opts.Register == "" {
		opts.Register = RegisterAllowed
	}
	configured, err := opts.servers()
	if err == nil {
		env.Workspace, err = filepath.Abs(env.Workspace)
	}
	if err == nil && env.StateDir != "" {
		env.StateDir, err = filepath.Abs(env.StateDir)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	case opts.Pin && env.Store == nil:
		return nil, fmt.Errorf("plugin %q: pin: tools need a store to be remembered in", name)
	}
	p := &Plugin{
		name: name, opts: opts, env: env, configured: configured, firstWait: firstWait, clientWait: clientWait,
		rootsWait: rootsWait, servers: make(map[string]*server, len(configured)), learned: make(chan struct{}),
		quiet: make(map[*host.Session]bool),
	}
	p.Set = tools.NewSet(tools.SetOptions{
		Name: name, MaxOutputBytes: cmp.Or(opts.MaxOutputBytes, env.MaxOutputBytes),
		StateDir: env.StateDir, Secrets: env.Secrets, Now: env.Now,
		Await: p.awaitTools,
	})
	p.commands = sync.OnceValues(p.allowList)
	for _, s := range configured {
		s.AddSecrets(env.Secrets) // no answer may show them
	}
	return p, nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{
		Name: p.name, Capability: protocol.CapMCP, Children: true,
		Also: []protocol.Capability{protocol.CapTools},
	}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return append([]host.Route{
		host.List(protocol.TypeMCPServerListReq, p.list, protocol.MergeMCPServers),
		host.Handle(protocol.TypeMCPServerRegisterReq, p.register).Claims(claimsOfRegister),
		host.Handle(protocol.TypeMCPServerUnregisterReq, p.unregister).Claims(claimsOfUnregister),
		host.List(protocol.TypeMCPResourceListReq, p.resources, MergeResources).Claims(claimsOfServer),
		host.Handle(protocol.TypeMCPResourceReadReq, p.read).Claims(claimsOfServer),
		host.Handle(protocol.TypeMCPResourceSubscribeReq, p.subscribe).Claims(claimsOfServer),
		host.List(protocol.TypeMCPPromptListReq, p.prompts, MergePrompts).Claims(claimsOfServer),
		host.Handle(protocol.TypeMCPPromptGetReq, p.get).Claims(claimsOfServer),
	}, p.Set.Routes()...)
}

// Start implements host.Starter: it starts to connect all servers at the same time and waits for none of
// them.
func (p *Plugin) Start(ctx context.Context, s *host.Services) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != fresh {
		return errors.New("the plugin was started before")
	}
	p.state = started
	_ = p.Set.Start(ctx, s) // it never fails
	p.life, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	p.clientBy = time.Now().Add(p.clientWait)
	for _, o := range p.configured {
		p.openLocked(o, byConfig)
	}
	if dir := p.homes(); dir != "" {
		p.work.Go(func() { sandbox.RemoveHomes(p.life, dir, p.env.Now()) })
	}
	return nil
}

// EndSession implements host.SessionEnder: it ends the subscriptions of the session.
func (p *Plugin) EndSession(_ context.Context, sess *host.Session) {
	for _, s := range p.all() {
		s.endSession(sess)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.quiet, sess)
	delete(p.quiet, nil)
}

// CloseTimeout implements host.SlowCloser: servers may take some time to end by themselves.
func (p *Plugin) CloseTimeout() time.Duration { return link.CloseGrace }

// Close implements host.Plugin: it closes all servers at the same time and waits for their goroutines until
// ctx ends.
func (p *Plugin) Close(ctx context.Context) error {
	p.mu.Lock()
	before := p.state
	p.state = closed
	p.mu.Unlock()
	if before == started {
		p.stop()
	}
	var ends sync.WaitGroup
	all := p.all()
	errs := make([]error, len(all))
	for i, s := range all {
		ends.Go(func() { errs[i] = s.close(ctx) })
	}
	ends.Wait()
	done := make(chan struct{})
	go func() {
		p.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		errs = append(errs, ctx.Err())
	}
	return errors.Join(errs...)
}

// all returns the servers: those of the config first, then by id.
func (p *Plugin) all() []*server {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*server, 0, len(p.servers))
	for _, s := range p.servers {
		all = append(all, s)
	}
	slices.SortFunc(all, compareServers)
	return all
}

// find returns the server with an id, or the error of notFound if no server has it.
func (p *Plugin) find(id string) (*server, error) {
	p.mu.Lock()
	s := p.servers[id]
	p.mu.Unlock()
	if s == nil {
		return nil, p.notFound(id)
	}
	return s, nil
}

// notFound is the error for an id that no server has. The router adds the known ids.
func (p *Plugin) notFound(id string) error {
	asked := protocol.Clip(id, maxQuoted)
	unknown := protocol.Errorf(protocol.CodeMCPServerNotFound, "no MCP server is called %q", asked)
	return host.NotKnown(unknown, id, p.ids())
}

// ids returns the ids of all servers.
func (p *Plugin) ids() []string {
	ids := []string{}
	for _, s := range p.all() {
		ids = append(ids, s.opts.ID)
	}
	return ids
}

// some returns the server with the id, or all servers if the id is "".
func (p *Plugin) some(id string) ([]*server, error) {
	if id == "" {
		return p.all(), nil
	}
	s, err := p.find(id)
	if err != nil {
		return nil, err
	}
	return []*server{s}, nil
}

// awaitTools waits a moment for the tools of servers that are being connected: of all servers for a list
// (tool is ""), or of the server whose id begins the name of the tool. The error says that this server
// cannot be asked now.
func (p *Plugin) awaitTools(ctx context.Context, tool string) error {
	if tool == "" && host.WantsKnown(ctx) {
		return nil
	}
	if tool == "" {
		p.await(ctx, p.all(), kindTools, nil)
		return nil
	}
	for _, s := range p.all() {
		if !strings.HasPrefix(tool, protocol.MCPName(s.opts.ID, "")) {
			continue
		}
		p.await(ctx, []*server{s}, kindTools, nil)
		if err := s.unreachable(); err != nil {
			return host.NotOwner(err)
		}
		if !s.judged.isSet() {
			return host.NotOwner(protocol.Errorf(protocol.CodeMCPServerUnavailable, "the MCP server %q has not "+
				"listed its tools yet", s.opts.ID).With("server_id", s.opts.ID))
		}
	}
	return nil
}
