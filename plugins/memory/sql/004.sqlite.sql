ALTER TABLE memory_entries ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
CREATE INDEX memory_updated ON memory_entries (space, updated_at);
CREATE INDEX memory_sources ON memory_entries (space, source) WHERE source <> '';
ALTER TABLE memory_spaces ADD COLUMN past_bytes INTEGER NOT NULL DEFAULT 0;
CREATE TABLE memory_history (
	id INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,
	tags TEXT NOT NULL, source TEXT NOT NULL, weight REAL NOT NULL, ttl REAL NOT NULL,
	created_at REAL NOT NULL, updated_at REAL NOT NULL, bytes INTEGER NOT NULL, content TEXT NOT NULL);
CREATE UNIQUE INDEX memory_versions ON memory_history (space, key, version);
CREATE TRIGGER memory_past_added AFTER INSERT ON memory_history BEGIN
	UPDATE memory_spaces SET past_bytes = past_bytes + new.bytes WHERE id = new.space;
END;
CREATE TRIGGER memory_past_removed AFTER DELETE ON memory_history BEGIN
	UPDATE memory_spaces SET past_bytes = past_bytes - old.bytes WHERE id = old.space;
END;
CREATE TABLE memory_secret (secret BLOB NOT NULL);
INSERT INTO memory_secret VALUES (randomblob(32));
