CREATE TABLE env_journals ( -- of store.Journals
	number       INTEGER PRIMARY KEY,
	owner        TEXT NOT NULL, -- one life of a plugin
	leased_until INTEGER NOT NULL -- seconds since 1970, by the clock of the store
);
CREATE TABLE env_lines (
	id   INTEGER PRIMARY KEY, -- the journal's number * 2^32 + a number that grows
	body BLOB NOT NULL -- JSON
);
INSERT INTO env_journals (owner, leased_until) SELECT owner, max(at) + 60 FROM env_journal GROUP BY owner;
INSERT INTO env_lines SELECT number * 4294967296 + seq, body FROM env_journal JOIN env_journals USING (owner);
DROP TABLE env_journal;
