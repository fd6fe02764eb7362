package cli

type mcpServeCmd struct{}

// Run serves until stdin ends or a signal.
func (mcpServeCmd) Run(cmd *commands, sys *System) error {
	return cmd.serveStdio(sys, "a2e mcp serve is for an MCP client, which starts it by itself; Ctrl-D ends it, a2e mcp --help tells more.", speakMCP)
}
