package mcp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/plugins/mcp/link"
	"a2e/protocol"
)

// registerWait is how long the answer to a registration waits for the server: clients wait
// 20 seconds.
const registerWait = 15 * time.Second

// closeWait bounds the end of one server that is removed.
const closeWait = 5 * time.Second

// allowList returns the list of the programs that the agent may start as servers.
func (p *Plugin) allowList() (*sandbox.AllowList, error) {
	dirs := sandbox.SafePath(os.Getenv("PATH"), p.env.Workspace)
	return sandbox.NewAllowList(p.opts.AllowedCommands, dirs, p.env.Workspace, p.opts.Exec == sandbox.ExecStrict)
}

// register answers mcp/server/register/req: it connects to a server and answers with its row. A server that
// cannot be connected is removed again.
func (p *Plugin) register(ctx context.Context, req *protocol.MCPServerRegisterRequest,
	_ host.Emitter,
) (*protocol.MCPServerRegisterResponse, error) {
	o, err := readRegistration(req.Config)
	refused := func(err error) (*protocol.MCPServerRegisterResponse, error) {
		return &protocol.MCPServerRegisterResponse{Server: p.failedRow(o, err), Error: err.Error()}, nil
	}
	if p.opts.Register == RegisterOff {
		answer, _ := refused(errors.New("the config does not let agents register servers (register: off)"))
		return nil, host.NotOwnerBut(answer)
	}
	if err != nil {
		return nil, err
	}
	if p.opts.Register != RegisterAny {
		if err := p.permit(&o); err != nil {
			return refused(err)
		}
	}
	host.HandOff(ctx)
	s, err := p.open(o)
	if err != nil {
		return refused(err)
	}
	if err := s.arrive(ctx); err != nil {
		p.remove(s)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return refused(err)
	}
	return &protocol.MCPServerRegisterResponse{OK: true, Server: s.row()}, nil
}

// failedRow returns the row of a server that was not registered, with all members, as clients expect it.
func (p *Plugin) failedRow(o ServerOptions, err error) map[string]any {
	s := &server{p: p, opts: o, origin: byAgent}
	s.push = newPusher(s)
	row := s.row()
	row["status"], row["state"], row["error"], row["last_error"] = "error", string(link.Failed), err.Error(), err.Error()
	return row
}

// readRegistration reads the config of a server that an agent registers. It refuses variables: an agent
// must not read the host's environment.
func readRegistration(config protocol.Object) (ServerOptions, error) {
	var r optionReader
	if bytes.Contains(config.Raw(), []byte("${")) {
		return r.o, protocol.Violation(protocol.FieldError{Path: "/config", Message: "has a variable ${…} in it; " +
			"variables are for the config file alone: write the value"})
	}
	r.object(config)
	if r.o.ID == "" && r.o.Name != "" {
		r.o.ID = asID(r.o.Name)
	} else if r.o.ID == "" {
		var random [4]byte
		_, _ = rand.Read(random[:]) // never fails
		r.o.ID = hex.EncodeToString(random[:])
	}
	if r.wrong == nil {
		r.wrong = r.o.check()
	}
	if r.wrong == nil {
		return r.o, nil
	}
	for i := range r.wrong {
		r.wrong[i].Path = "/config" + r.wrong[i].Path
	}
	return r.o, protocol.Violation(r.wrong...)
}

// claimsOfRegister returns the claims of a registration, which adds the tools of a server. If the host is
// to choose the id, the claim is for all tools.
func claimsOfRegister(register protocol.Object) []protocol.Claim {
	config, _ := register.Child("config")
	id := cmp.Or(config.Text("server_id"), config.Text("id"))
	if name := config.Text("name"); id == "" && name != "" {
		id = asID(name)
	}
	return []protocol.Claim{toolsOf(id, protocol.Exclusive), {Key: protocol.KeyWorkspace, Access: protocol.Follows}}
}

// claimsOfUnregister returns the claims of a request that removes the tools of a server.
func claimsOfUnregister(unregister protocol.Object) []protocol.Claim {
	return []protocol.Claim{toolsOf(unregister.Text("server_id"), protocol.Exclusive)}
}

// claimsOfServer returns the claims of a request about the resources or prompts of one server, or of all
// servers if it names none.
func claimsOfServer(obj protocol.Object) []protocol.Claim {
	return []protocol.Claim{toolsOf(obj.Text("server_id"), protocol.Follows)}
}

// toolsOf returns the claim for the tools of a server, or for all tools if the id is "".
func toolsOf(id string, access protocol.Access) protocol.Claim {
	if id == "" {
		return protocol.Claim{Key: protocol.KeyTools, Access: access}
	}
	return protocol.Claim{Key: protocol.KeyTools + protocol.MCPName(id, ""), Access: access}
}

// permit refuses a server that an agent may not register, and replaces the name of its program by the real
// path. The address behind a URL is checked when it is dialed.
func (p *Plugin) permit(o *ServerOptions) error {
	const hint = "; register: any in the config allows it"
	switch {
	case o.URL != "":
		return nil
	case o.Network != nil && *o.Network:
		return errors.New("a server that an agent registers does not get the network" + hint)
	case len(o.Read) > 0:
		return errors.New("a server that an agent registers reads no further paths" + hint)
	case o.Dir != "" && !filepath.IsLocal(o.Dir):
		inside, ok := sandbox.Relative(p.env.Workspace, o.Dir)
		if !ok || !filepath.IsAbs(o.Dir) {
			return errors.New("cwd should be a folder within the workspace" + hint)
		}
		o.Dir = inside
	}
	for name, value := range o.Env {
		if err := sandbox.CheckEnv(name, value); err != nil {
			return err
		}
	}
	list, err := p.commands()
	if err != nil {
		return err
	}
	path, err := list.Resolve(o.Dir, append([]string{o.Command}, o.Args...)...)
	if err != nil {
		return err
	}
	o.Command = path
	return nil
}

// open adds a server of the agent and starts to connect it.
func (p *Plugin) open(o ServerOptions) (*server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.state != started:
		return nil, errors.New("the host is ending")
	case p.servers[o.ID] != nil:
		return nil, fmt.Errorf("there is a server %q already; unregister it first, or give this one another server_id",
			o.ID)
	case len(p.servers) >= maxServers:
		return nil, fmt.Errorf("there are %d servers already, and no more are possible", len(p.servers))
	}
	return p.openLocked(o, byAgent), nil
}

// arrive waits until a server is connected and has sent its lists, at most registerWait. Lists that are
// late are no error, nor is a server that is still being installed.
func (s *server) arrive(request context.Context) error {
	if s.link == nil {
		return errors.New("the server is disabled; leave that out")
	}
	ctx, cancel := context.WithTimeoutCause(request, registerWait, fmt.Errorf("the server did not complete the MCP "+
		"handshake within %s", registerWait))
	defer cancel()
	if _, err := s.link.Session(ctx); err != nil {
		if st := s.link.State(); st.Installing && request.Err() == nil {
			return nil // its row says so; an installation should not be interrupted
		} else if st.LastError != "" {
			return fmt.Errorf("the server could not be connected: %s", st.LastError)
		}
		return err
	}
	select {
	case <-s.listed.c:
	case <-ctx.Done():
	}
	return request.Err() // the caller removes the server of a cancelled request
}

// remove removes a server with its tools and subscriptions, and closes it.
func (p *Plugin) remove(s *server) {
	p.mu.Lock()
	if p.servers[s.opts.ID] == s {
		delete(p.servers, s.opts.ID)
	}
	p.mu.Unlock()
	p.publish()
	var feeds []*host.Stream
	s.forget(func(_ string, f *host.Stream) bool {
		feeds = append(feeds, f)
		return true
	})
	for _, f := range feeds {
		f.Close()
	}
	ctx, cancel := context.WithTimeout(p.life, closeWait)
	defer cancel()
	if err := s.close(ctx); err != nil {
		p.env.Log.Warn().Err(err).Str("mcp_server", s.opts.ID).Msg("the MCP server did not end cleanly")
	}
}

// unregister answers mcp/server/unregister/req. Servers of the config cannot be unregistered: an agent
// could then register another server under the same name.
func (p *Plugin) unregister(ctx context.Context, req *protocol.MCPServerUnregisterRequest,
	_ host.Emitter,
) (*protocol.MCPServerUnregisterResponse, error) {
	s, err := p.find(req.ServerID)
	if err != nil {
		return nil, err
	}
	if s.origin == byConfig {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "the MCP server %q is in the host's config and cannot "+
			"be unregistered; only what was registered by mcp/server/register/req can be "+
			"unregistered", req.ServerID).With("server_id", req.ServerID)
	}
	host.HandOff(ctx)
	p.remove(s)
	return &protocol.MCPServerUnregisterResponse{OK: true, ServerID: req.ServerID}, nil
}

// list answers mcp/server/list/req.
func (p *Plugin) list(_ context.Context, req *protocol.MCPServerListRequest,
	_ host.Emitter,
) (*protocol.MCPServerListResponse, error) {
	resp := &protocol.MCPServerListResponse{Servers: []map[string]any{}}
	for _, s := range p.all() {
		row := s.row()
		if slices.Contains([]any{"", row["status"], row["state"]}, any(req.StatusFilter)) {
			resp.Servers = append(resp.Servers, row)
		}
	}
	return resp, nil
}
