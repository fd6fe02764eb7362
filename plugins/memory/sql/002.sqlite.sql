CREATE VIRTUAL TABLE memory_forms USING fts5(keys, content='', contentless_delete=1, detail=none, tokenize='ascii');
CREATE TRIGGER memory_forms_removed AFTER DELETE ON memory_entries BEGIN DELETE FROM memory_forms WHERE rowid = old.id; END;
INSERT INTO memory_forms (memory_forms, rank) VALUES ('automerge', 0), ('usermerge', 2);
INSERT INTO memory_text (memory_text, rank) VALUES ('automerge', 0), ('usermerge', 2);
CREATE TABLE memory_unkeyed (upto INTEGER NOT NULL);
INSERT INTO memory_unkeyed SELECT max(id) FROM memory_entries HAVING count(*) > 0;
DELETE FROM memory_meta WHERE (SELECT value FROM memory_meta WHERE name = 'model') = 'a2e-hashed-1';
