CREATE TABLE learning_settings (
	kind       TEXT NOT NULL,
	component  TEXT NOT NULL,
	name       TEXT NOT NULL,
	updated_at INTEGER NOT NULL,
	value      TEXT NOT NULL,
	PRIMARY KEY (kind, component, name)
) WITHOUT ROWID;
CREATE TABLE learning_refinements (
	number         INTEGER PRIMARY KEY,
	id             TEXT NOT NULL UNIQUE,
	proposal_id    TEXT NOT NULL,
	applied_at     INTEGER NOT NULL,
	rolled_back_at INTEGER, -- NULL = in force
	proposal       TEXT NOT NULL
);
CREATE INDEX learning_refinements_by_proposal ON learning_refinements (proposal_id);
CREATE TABLE learning_edits (
	refinement INTEGER NOT NULL REFERENCES learning_refinements (number),
	place      INTEGER NOT NULL,
	target     TEXT NOT NULL,
	kind       TEXT NOT NULL,
	component  TEXT NOT NULL,
	name       TEXT NOT NULL,
	before     TEXT NOT NULL, -- the row as it was, null where there was none
	after      TEXT NOT NULL,
	PRIMARY KEY (refinement, place)
) WITHOUT ROWID;
CREATE INDEX learning_edits_by_target ON learning_edits (target, kind, component, name);
