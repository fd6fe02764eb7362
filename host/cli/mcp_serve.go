package cli

type mcpServeCmd struct{}

// Help implements kong.HelpProvider.
func (mcpServeCmd) Help() string {
	return "Serves the tools, files, memories and skills of this host to an MCP client, such as an editor, on stdin and stdout; logs go to stderr.\n\nExample, for the client's config:\n" +
		`  {"mcpServers": {"a2e": {"command": "a2e", "args": ["mcp", "serve"]}}}`
}

// Run serves until stdin ends or a signal.
func (mcpServeCmd) Run(cmd *commands, sys *System) error {
	return cmd.serveStdio(sys, "a2e mcp serve is for an MCP client, which starts it by itself; Ctrl-D ends it, a2e mcp --help tells more.", speakMCP)
}
