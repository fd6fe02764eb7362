CREATE TABLE mcp_pins (
	server      TEXT NOT NULL,
	tool        TEXT NOT NULL,
	hash        TEXT NOT NULL, -- SHA-256 of the definition, in hex
	approved_at INTEGER NOT NULL, -- microseconds since 1970
	definition  TEXT NOT NULL, -- canonical JSON
	PRIMARY KEY (server, tool)
) WITHOUT ROWID;
