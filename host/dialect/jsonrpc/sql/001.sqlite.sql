CREATE TABLE rpc_sessions (
	id      TEXT PRIMARY KEY,
	title   TEXT NOT NULL,
	titled  INTEGER NOT NULL, -- 1 = the client gave the title
	model   TEXT NOT NULL,
	created REAL NOT NULL,
	updated REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX rpc_sessions_updated ON rpc_sessions (updated);
CREATE TABLE rpc_messages (
	number  INTEGER PRIMARY KEY AUTOINCREMENT,
	session TEXT NOT NULL,
	message TEXT NOT NULL
);
CREATE INDEX rpc_messages_session ON rpc_messages (session, number);
CREATE TABLE rpc_settings (
	name  TEXT PRIMARY KEY,
	value TEXT NOT NULL
) WITHOUT ROWID;
