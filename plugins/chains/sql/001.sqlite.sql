CREATE TABLE chains_cache (
	number     INTEGER PRIMARY KEY AUTOINCREMENT, -- grows with the time of storing
	key        BLOB NOT NULL UNIQUE, -- SHA-256
	stored_at  INTEGER NOT NULL, -- microseconds since 1970
	expires_at INTEGER NOT NULL,
	size       INTEGER NOT NULL, -- bytes of the output
	output     BLOB NOT NULL -- JSON
);
CREATE INDEX chains_cache_by_size ON chains_cache (number, size);
CREATE INDEX chains_cache_by_end ON chains_cache (expires_at);
