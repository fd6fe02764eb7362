ALTER TABLE memory_entries ADD COLUMN folder TEXT NOT NULL DEFAULT '';
ALTER TABLE memory_history ADD COLUMN folder TEXT NOT NULL DEFAULT '';
CREATE INDEX memory_folders ON memory_entries (space, folder) WHERE folder <> '';
