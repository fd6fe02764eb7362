ALTER TABLE learning_edits ADD COLUMN version INTEGER NOT NULL DEFAULT 0; -- of the target, from 1; 0 = of an older build
CREATE TABLE learning_trials (
	refinement INTEGER NOT NULL REFERENCES learning_refinements (number),
	kind       TEXT NOT NULL,
	component  TEXT NOT NULL,
	verdict    TEXT NOT NULL, -- '' = open
	note       TEXT NOT NULL,
	calls      INTEGER NOT NULL, -- since then
	successes  INTEGER NOT NULL,
	before     TEXT NOT NULL, -- JSON: what it did until then
	since      TEXT NOT NULL, -- JSON: what it did since, once the trial is closed
	start      TEXT NOT NULL, -- JSON: the sums of its feedback then
	PRIMARY KEY (refinement, kind, component)
) WITHOUT ROWID;
CREATE INDEX learning_trials_open ON learning_trials (kind, component) WHERE verdict = '';
