CREATE TABLE env_episodes (
	id         TEXT PRIMARY KEY,
	plugin     TEXT NOT NULL,
	env        TEXT NOT NULL,
	seed       INTEGER NOT NULL,
	created_at INTEGER NOT NULL,
	used_at    INTEGER NOT NULL,
	steps      INTEGER NOT NULL,
	done       INTEGER NOT NULL,
	truncated  INTEGER NOT NULL,
	reward     REAL, -- of the last step
	failure    TEXT NOT NULL,
	options    TEXT NOT NULL,
	saved      TEXT NOT NULL -- what the world gave
);
CREATE INDEX env_episodes_by_use ON env_episodes (plugin, used_at);
CREATE TABLE env_experiences (
	number   INTEGER PRIMARY KEY,
	id       TEXT NOT NULL UNIQUE,
	plugin   TEXT NOT NULL,
	at       INTEGER NOT NULL, -- of the last one in data
	count    INTEGER NOT NULL,
	size     INTEGER NOT NULL, -- bytes of episodes and data
	episodes TEXT NOT NULL, -- the ids that are in data
	data     BLOB NOT NULL -- a JSON array, as it is or as gzip
);
CREATE INDEX env_experiences_by_time ON env_experiences (plugin, at, count, size);
