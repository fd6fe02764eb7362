CREATE TABLE memory_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE memory_names (memory_id TEXT PRIMARY KEY, namespace TEXT NOT NULL, scope TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE memory_agents (agent TEXT PRIMARY KEY, uses TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE memory_spaces (
	id INTEGER PRIMARY KEY AUTOINCREMENT, memory_id TEXT NOT NULL, tier TEXT NOT NULL, owner TEXT NOT NULL,
	entries INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, UNIQUE (memory_id, tier, owner));
CREATE INDEX memory_owners ON memory_spaces (tier, owner);
CREATE TABLE memory_entries (
	id INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, key TEXT NOT NULL, sent TEXT NOT NULL,
	tags TEXT NOT NULL, source TEXT NOT NULL, weight REAL NOT NULL, ttl REAL NOT NULL,
	created_at REAL NOT NULL, updated_at REAL NOT NULL, expires_at REAL, bytes INTEGER NOT NULL, content TEXT NOT NULL);
CREATE UNIQUE INDEX memory_keys ON memory_entries (space, key);
CREATE INDEX memory_newest ON memory_entries (space);
CREATE INDEX memory_expiry ON memory_entries (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE memory_tags (space INTEGER NOT NULL, tag TEXT NOT NULL, entry INTEGER NOT NULL, PRIMARY KEY (space, tag, entry)) WITHOUT ROWID;
CREATE TABLE memory_vectors (seq INTEGER PRIMARY KEY AUTOINCREMENT, entry INTEGER NOT NULL UNIQUE, space INTEGER NOT NULL, sketch BLOB NOT NULL, vector BLOB);
CREATE TABLE memory_waiting (entry INTEGER PRIMARY KEY);
CREATE VIRTUAL TABLE memory_text USING fts5(words, content='', contentless_delete=1, tokenize='porter ascii');
CREATE TRIGGER memory_added AFTER INSERT ON memory_entries BEGIN
	UPDATE memory_spaces SET entries = entries + 1, bytes = bytes + new.bytes WHERE id = new.space;
	INSERT INTO memory_tags SELECT new.space, value, new.id FROM json_each(new.tags);
END;
CREATE TRIGGER memory_removed AFTER DELETE ON memory_entries BEGIN
	UPDATE memory_spaces SET entries = entries - 1, bytes = bytes - old.bytes WHERE id = old.space;
	DELETE FROM memory_tags WHERE space = old.space AND tag IN (SELECT value FROM json_each(old.tags)) AND entry = old.id;
	DELETE FROM memory_text WHERE rowid = old.id;
	DELETE FROM memory_vectors WHERE entry = old.id;
	DELETE FROM memory_waiting WHERE entry = old.id;
END;
