CREATE TABLE memory_loose (space INTEGER NOT NULL, entry INTEGER NOT NULL, PRIMARY KEY (space, entry)) WITHOUT ROWID;
CREATE TABLE memory_segments (
	id INTEGER PRIMARY KEY AUTOINCREMENT, space INTEGER NOT NULL, centre INTEGER NOT NULL, size INTEGER NOT NULL, bytes INTEGER NOT NULL,
	entries BLOB NOT NULL, codes BLOB NOT NULL);
CREATE INDEX memory_segments_of ON memory_segments (space, id, centre, size, bytes);
CREATE TABLE memory_centres (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, centre BLOB NOT NULL, mean REAL NOT NULL, spread REAL NOT NULL);
CREATE TRIGGER memory_unvectored AFTER DELETE ON memory_vectors BEGIN
	DELETE FROM memory_loose WHERE space = old.space AND entry = old.entry;
END;
INSERT INTO memory_loose SELECT space, entry FROM memory_vectors WHERE EXISTS (SELECT 1 FROM memory_meta WHERE name = 'model');
