CREATE TABLE chains_journals (
	number     INTEGER PRIMARY KEY AUTOINCREMENT,
	workspace  TEXT NOT NULL,
	id         TEXT NOT NULL, -- chain_id
	owner      TEXT NOT NULL, -- the host that runs it, by the name of its lock
	state      TEXT NOT NULL,
	definition TEXT NOT NULL, -- digest of its nodes
	input      TEXT NOT NULL, -- digest of its initial input
	request    BLOB NOT NULL, -- JSON
	cancelled  INTEGER NOT NULL DEFAULT 0, -- it is to end
	created_at INTEGER NOT NULL,
	updated_at INTEGER NOT NULL,
	bytes      INTEGER NOT NULL,
	message    TEXT NOT NULL DEFAULT '', -- why it ended
	UNIQUE (workspace, id)
);
CREATE TABLE chains_steps (
	id   INTEGER PRIMARY KEY, -- the journal's number * 2^32 + a number that grows
	body BLOB NOT NULL -- what nodes did, one JSON object after another
);
CREATE TABLE chains_decisions (
	journal  INTEGER NOT NULL,
	path     TEXT NOT NULL,
	approved INTEGER NOT NULL,
	PRIMARY KEY (journal, path)
) WITHOUT ROWID;
