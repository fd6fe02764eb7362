package cli

import (
	"cmp"
	"context"
	"path/filepath"
	"sync/atomic"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/fleet"
	"a2e/host/dialect/jsonrpc"
	"a2e/host/dialect/mcp"
	"a2e/plugins"
	wire "a2e/protocol/fleet"
)

// speaker adds the protocols to a host that it speaks beside A2E, or in its place, before its
// plugins are made.
type speaker func(cfg *config.Config, opts *host.Options, shared *plugins.Shared)

// speakA2E has a host speak A2E alone.
func speakA2E(*config.Config, *host.Options, *plugins.Shared) {}

// speakAll has a host speak MCP, JSON-RPC sessions and the fleet protocol beside A2E, to
// whoever has its token. MCP comes first: it takes the JSON-RPC lines once a client has
// sent its initialize.
func speakAll(cfg *config.Config, opts *host.Options, shared *plugins.Shared) {
	agents := mcpOptions(cfg, opts)
	agents.Tokens = opts.Tokens
	opts.Dialects = append(opts.Dialects, mcp.New(agents), jsonrpc.New(rpcOptions(cfg, opts, shared)), fleet.New(fleetOptions(cfg, opts, shared)))
}

// speakMCP has a host speak MCP and nothing else. Whoever starts the program is the client:
// it needs no token.
func speakMCP(cfg *config.Config, opts *host.Options, shared *plugins.Shared) {
	own := mcpOptions(cfg, opts)
	var can atomic.Pointer[sdk.ClientCapabilities]
	greeted := make(chan struct{})
	own.Greeted = func(said *sdk.ClientCapabilities) {
		if can.CompareAndSwap(nil, said) {
			close(greeted)
		}
	}
	shared.MCPClient = func(ctx context.Context) *sdk.ClientCapabilities {
		select {
		case <-greeted:
		case <-ctx.Done():
		}
		return can.Load()
	}
	opts.Dialects, opts.Only = []host.Dialect{mcp.New(own)}, true
}

func mcpOptions(cfg *config.Config, opts *host.Options) mcp.Options {
	return mcp.Options{
		Version: version(), Workspace: absolute(cfg.Workspace), Log: opts.Log,
		MaxParallel: cfg.MaxParallel, MaxQueue: cfg.Limits.MaxQueue, MaxQueueBytes: cfg.Limits.MaxQueueBytes,
	}
}

func rpcOptions(cfg *config.Config, opts *host.Options, shared *plugins.Shared) jsonrpc.Options {
	return jsonrpc.Options{
		Version: version(), Tokens: opts.Tokens, Store: shared.Store, Workspace: absolute(cfg.Workspace), Wall: cfg.Wall, Log: opts.Log,
		MaxParallel: cfg.MaxParallel, MaxQueue: cfg.Limits.MaxQueue, MaxQueueBytes: cfg.Limits.MaxQueueBytes, MaxLine: cfg.Limits.MaxLineBytes,
	}
}

func fleetOptions(cfg *config.Config, opts *host.Options, shared *plugins.Shared) fleet.Options {
	return fleet.Options{
		Worker: wire.Worker{
			AgentID: cmp.Or(cfg.Fleet.AgentID, cfg.HostID), Model: cfg.Fleet.Model, ModelTier: cfg.Fleet.ModelTier, ContextWindow: cfg.Fleet.ContextWindow,
		},
		AtStartup: cfg.Fleet.Announce == config.AnnounceStartup, MaxTasks: cfg.Fleet.MaxTasks, Tokens: opts.Tokens,
		Workspace: absolute(cfg.Workspace), Launcher: shared.Launcher, Store: shared.Store,
		MaxQueue: cfg.Limits.MaxQueue, MaxQueueBytes: cfg.Limits.MaxQueueBytes, Log: opts.Log,
	}
}

// absolute gives the absolute path of the workspace; "" where there is no current folder.
func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	return abs
}
