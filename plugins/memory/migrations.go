package memory

// migrations are the part's. What both engines run has a name.
func migrations() []string {
	return []string{tables + `CREATE VIRTUAL TABLE memory_text USING fts5(words, content='', contentless_delete=1, tokenize='porter ascii');
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
END;`, `
CREATE VIRTUAL TABLE memory_forms USING fts5(keys, content='', contentless_delete=1, detail=none, tokenize='ascii');
CREATE TRIGGER memory_forms_removed AFTER DELETE ON memory_entries BEGIN DELETE FROM memory_forms WHERE rowid = old.id; END;
INSERT INTO memory_forms (memory_forms, rank) VALUES ('automerge', 0), ('usermerge', 2);
INSERT INTO memory_text (memory_text, rank) VALUES ('automerge', 0), ('usermerge', 2);
CREATE TABLE memory_unkeyed (upto INTEGER NOT NULL);
INSERT INTO memory_unkeyed SELECT max(id) FROM memory_entries HAVING count(*) > 0;
DELETE FROM memory_meta WHERE (SELECT value FROM memory_meta WHERE name = 'model') = '` + wordModel + `';`, segmentTables + `CREATE TRIGGER memory_unvectored AFTER DELETE ON memory_vectors BEGIN
	DELETE FROM memory_loose WHERE space = old.space AND entry = old.entry;
END;
INSERT INTO memory_loose SELECT space, entry FROM memory_vectors WHERE EXISTS (SELECT 1 FROM memory_meta WHERE name = 'model');`, historyTables + `CREATE TRIGGER memory_past_added AFTER INSERT ON memory_history BEGIN
	UPDATE memory_spaces SET past_bytes = past_bytes + new.bytes WHERE id = new.space;
END;
CREATE TRIGGER memory_past_removed AFTER DELETE ON memory_history BEGIN
	UPDATE memory_spaces SET past_bytes = past_bytes - old.bytes WHERE id = old.space;
END;
CREATE TABLE memory_secret (secret BLOB NOT NULL);
INSERT INTO memory_secret VALUES (randomblob(32));`, `
CREATE INDEX memory_large ON memory_entries (space) WHERE bytes > 8192;
CREATE INDEX memory_exponents ON memory_entries (space) WHERE content GLOB '*[0-9][eE][-+0-9]*';`, `
INSERT INTO memory_unkeyed SELECT max(id) FROM memory_entries WHERE content || sent || tags GLOB '*[ؠ-ۿ]*' OR content || sent || tags LIKE '%\u06__%' HAVING count(*) > 0;
DELETE FROM memory_unkeyed WHERE upto < (SELECT max(upto) FROM memory_unkeyed);`, `
ALTER TABLE memory_entries ADD COLUMN folder TEXT NOT NULL DEFAULT '';
ALTER TABLE memory_history ADD COLUMN folder TEXT NOT NULL DEFAULT '';
CREATE INDEX memory_folders ON memory_entries (space, folder) WHERE folder <> '';`,
		"-- SQLite has nothing to change here"}
}

const tables = `
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
`

const segmentTables = `
CREATE TABLE memory_loose (space INTEGER NOT NULL, entry INTEGER NOT NULL, PRIMARY KEY (space, entry)) WITHOUT ROWID;
CREATE TABLE memory_segments (
	id INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, centre INTEGER NOT NULL, size INTEGER NOT NULL, bytes INTEGER NOT NULL,
	entries BLOB NOT NULL, codes BLOB NOT NULL);
CREATE INDEX memory_segments_of ON memory_segments (space, id, centre, size, bytes);
CREATE TABLE memory_centres (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, centre BLOB NOT NULL, mean REAL NOT NULL, spread REAL NOT NULL);
`

const historyTables = `
ALTER TABLE memory_entries ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
CREATE INDEX memory_updated ON memory_entries (space, updated_at);
CREATE INDEX memory_sources ON memory_entries (space, source) WHERE source <> '';
ALTER TABLE memory_spaces ADD COLUMN past_bytes INTEGER NOT NULL DEFAULT 0;
CREATE TABLE memory_history (
	id INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,
	tags TEXT NOT NULL, source TEXT NOT NULL, weight REAL NOT NULL, ttl REAL NOT NULL,
	created_at REAL NOT NULL, updated_at REAL NOT NULL, bytes INTEGER NOT NULL, content TEXT NOT NULL);
CREATE UNIQUE INDEX memory_versions ON memory_history (space, key, version);
`

// postgresMigrations are those that PostgreSQL runs in place of the others. An index has ids where SQLite
// has them without saying, and the beginning of keys.
func postgresMigrations() map[int]string {
	return map[int]string{0: tables + `
DROP INDEX memory_keys, memory_newest;
CREATE INDEX memory_keys ON memory_entries (space, substr(key, 1, 500));
CREATE INDEX memory_newest ON memory_entries (space, id);
CREATE TABLE memory_text (rowid INTEGER PRIMARY KEY, words tsvector NOT NULL);
CREATE INDEX memory_text_words ON memory_text USING gin (words);
CREATE FUNCTION memory_added() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF current_setting('a2e.importing', true) IS DISTINCT FROM 'on' THEN
		UPDATE memory_spaces SET entries = entries + 1, bytes = bytes + new.bytes WHERE id = new.space;
	END IF;
	INSERT INTO memory_tags SELECT new.space, value, new.id FROM json_items(new.tags);
	RETURN NULL;
END $$;
CREATE TRIGGER memory_added AFTER INSERT ON memory_entries FOR EACH ROW EXECUTE FUNCTION memory_added();
CREATE FUNCTION memory_removed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF current_setting('a2e.importing', true) IS DISTINCT FROM 'on' THEN
		UPDATE memory_spaces SET entries = entries - 1, bytes = bytes - old.bytes WHERE id = old.space;
	END IF;
	DELETE FROM memory_tags WHERE space = old.space AND tag IN (SELECT value FROM json_items(old.tags)) AND entry = old.id;
	DELETE FROM memory_text WHERE rowid = old.id;
	DELETE FROM memory_forms WHERE rowid = old.id;
	DELETE FROM memory_vectors WHERE entry = old.id;
	DELETE FROM memory_waiting WHERE entry = old.id;
	RETURN NULL;
END $$;
CREATE TRIGGER memory_removed AFTER DELETE ON memory_entries FOR EACH ROW EXECUTE FUNCTION memory_removed();`, 1: `
CREATE TABLE memory_forms (rowid INTEGER PRIMARY KEY, keys tsvector NOT NULL);
CREATE INDEX memory_forms_keys ON memory_forms USING gin (keys);
CREATE TABLE memory_unkeyed (upto INTEGER NOT NULL);`, 2: segmentTables + `
CREATE FUNCTION memory_unvectored() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	DELETE FROM memory_loose WHERE space = old.space AND entry = old.entry;
	RETURN NULL;
END $$;
CREATE TRIGGER memory_unvectored AFTER DELETE ON memory_vectors FOR EACH ROW EXECUTE FUNCTION memory_unvectored();`, 3: historyTables + `
DROP INDEX memory_versions;
CREATE INDEX memory_versions ON memory_history (space, substr(key, 1, 500), version);
CREATE FUNCTION memory_past() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF current_setting('a2e.importing', true) = 'on' THEN
		NULL;
	ELSIF TG_OP = 'INSERT' THEN
		UPDATE memory_spaces SET past_bytes = past_bytes + new.bytes WHERE id = new.space;
	ELSE
		UPDATE memory_spaces SET past_bytes = past_bytes - old.bytes WHERE id = old.space;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER memory_past AFTER INSERT OR DELETE ON memory_history FOR EACH ROW EXECUTE FUNCTION memory_past();
CREATE TABLE memory_secret (secret BLOB NOT NULL);
INSERT INTO memory_secret VALUES (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));`, 4: `
CREATE INDEX memory_large ON memory_entries (space) WHERE bytes > 8192;
CREATE INDEX memory_exponents ON memory_entries (space) WHERE glob('*[0-9][eE][-+0-9]*', content);`, 5: "", 7: `
-- each search reads all of what an index has not taken in yet, 4 MB by default
ALTER INDEX memory_text_words SET (gin_pending_list_limit = 64);
ALTER INDEX memory_forms_keys SET (gin_pending_list_limit = 64);`}
}

// recount counts the entries of an import, as postgresMigrations' triggers did not.
const recount = `UPDATE memory_spaces s SET (entries, bytes) = (SELECT count(*), coalesce(sum(bytes), 0) FROM memory_entries e WHERE e.space = s.id),
	past_bytes = (SELECT coalesce(sum(bytes), 0) FROM memory_history h WHERE h.space = s.id)`
