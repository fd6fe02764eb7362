CREATE TABLE env_journal ( -- of store.Journal
	owner TEXT COLLATE "C" NOT NULL, -- one life of a plugin
	seq   BIGINT NOT NULL, -- grows
	at    BIGINT NOT NULL, -- seconds since 1970, by the clock of the store
	body  BYTEA NOT NULL, -- JSON
	PRIMARY KEY (owner, seq)
);
