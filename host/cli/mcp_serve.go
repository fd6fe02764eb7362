package cli

import (
	"path/filepath"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/mcpserve"
)

type mcpServeCmd struct{}

// Help implements kong.HelpProvider.
func (mcpServeCmd) Help() string {
	return "Serves the tools, files, memories and skills of this host to an MCP client, such as an editor, on stdin and stdout; logs go to stderr.\n\nExample, for the client's config:\n" +
		`  {"mcpServers": {"a2e": {"command": "a2e", "args": ["mcp", "serve"]}}}`
}

// Run serves until stdin ends or a signal. Whoever starts the program is the client: it
// needs no token.
func (mcpServeCmd) Run(cmd *commands, sys *System) error {
	return cmd.serveStdio(sys, "a2e mcp serve is for an MCP client, which starts it by itself; Ctrl-D ends it, a2e mcp --help tells more.", onlyMCP)
}

// withMCP has a host speak MCP beside A2E, to a client that has the host's token.
func withMCP(cfg *config.Config, opts *host.Options) {
	mcp := mcpOptions(cfg, opts)
	mcp.Token = opts.Token
	opts.Dialects = append(opts.Dialects, mcpserve.New(mcp))
}

// onlyMCP has a host speak MCP and nothing else.
func onlyMCP(cfg *config.Config, opts *host.Options) {
	opts.Dialects, opts.Only = []host.Dialect{mcpserve.New(mcpOptions(cfg, opts))}, true
}

func mcpOptions(cfg *config.Config, opts *host.Options) mcpserve.Options {
	workspace, err := filepath.Abs(cfg.Workspace)
	if err != nil { // there is no current folder: URIs are relative then
		workspace = ""
	}
	return mcpserve.Options{
		Version: version(), Workspace: workspace, Log: opts.Log,
		MaxParallel: cfg.MaxParallel, MaxQueue: cfg.Limits.MaxQueue, MaxQueueBytes: cfg.Limits.MaxQueueBytes,
	}
}
