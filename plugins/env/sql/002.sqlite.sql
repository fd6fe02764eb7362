CREATE TABLE env_journal ( -- of store.Journal
	owner TEXT NOT NULL, -- one life of a plugin
	seq   INTEGER NOT NULL, -- grows
	at    INTEGER NOT NULL, -- seconds since 1970, by the clock of the store
	body  BLOB NOT NULL, -- JSON
	PRIMARY KEY (owner, seq)
) WITHOUT ROWID;
