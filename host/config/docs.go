package config

// docs returns the descriptions that are too long for a tag, by key.
func docs() map[string]string {
	return map[string]string{
		"host_id": "Name of this host; the audit log shows it when session_id_source is host_id.",
		"auth_token": "Token that agents must present; empty = open, unless auth has tokens. An agent with it names " +
			"itself. Best as a variable: ${A2E_AUTH_TOKEN:-}.",
		"auth": "Tokens that are for one agent each, so that no other one can be it and read its memory. With " +
			"auth_token as well, either is taken, but not for an agent named here.",
		"workspace": "The folder the agent works in, relative to the current folder. It must exist.",
		"state_dir": "Where the host keeps its files: spilled output, the audit log, stores.",
		"state": "Where the state of plugins and sessions is kept: sqlite: = in a file in state_dir, the default; " +
			"postgres://user:password@host/database?sslmode=require&schema=team = in a schema of a PostgreSQL " +
			"server (a2e without ?schema), which hosts on many machines may share. Best as a variable: " +
			"${A2E_STATE}, which also counts without this key.",
		"events": "Name of streamed events: invoke/event, or tool/event and skill/event.",
		"audit":  "The audit log. It is off without this section, and on with it unless enabled is false.",
		"checkpoints": "Whether the files of the workspace are saved before an agent changes them, so that it can be " +
			"undone (a2e undo): true, or a mapping with more settings.",
		"http": "How clients that cannot spawn a child are served: a2e serve --http ADDRESS.",
		"groups": "Tools that serve the same purpose, by the name of the purpose: {search: [brave__search, " +
			"ddg__search]}. A call of that name goes to one of these tools, chosen by what is known about each; " +
			"only they compete for weights.",
		"sandbox": "How child processes are confined. Default: required for skills, best_effort for the rest.",
		"children": "What child processes may see and use beyond that. It has no effect where sandbox is off, save " +
			"for the bounds that are set.",
		"plugins": "What the host offers. Without this key every plugin of this build is on. A mapping changes that: " +
			"under a type its options, or false to switch it off; under another name the options of a plugin in " +
			"place of the default one, with its type among them. A list names exactly what is on; an empty list " +
			"offers nothing.",
		"mcpServers": "The MCP servers, as every MCP client writes them: an option of the plugin mcp, which " +
			"takes it from here.",
		// for auth and children
		"token": "Token that the agent must present. Best as a variable: ${A2E_TOKEN_OF_ALICE}.",
		"read":  "Further files and folders that they may read, relative to the current folder. They must exist.",
		"memory_bytes": "Memory of a child and all that it starts, together; 0 = half of the machine's, but at least " +
			"4 GiB; -1 = no bound.",
		"address_bytes": "Address space of each process. Some programs reserve far more than they use. 0 or -1 = no " +
			"bound.",
		"open_files": "Open files of each process; 0 = 16384, -1 = what the host may have.",
	}
}
