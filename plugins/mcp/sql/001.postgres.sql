CREATE TABLE mcp_pins (
	server      TEXT COLLATE "C" NOT NULL,
	tool        TEXT COLLATE "C" NOT NULL,
	hash        TEXT COLLATE "C" NOT NULL, -- SHA-256 of the definition, in hex
	approved_at BIGINT NOT NULL, -- microseconds since 1970
	definition  TEXT COLLATE "C" NOT NULL, -- canonical JSON
	PRIMARY KEY (server, tool)
);
