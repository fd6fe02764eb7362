ALTER TABLE learning_edits ADD COLUMN version BIGINT NOT NULL DEFAULT 0; -- of the target, from 1; 0 = of an older build
CREATE TABLE learning_trials (
	refinement BIGINT NOT NULL REFERENCES learning_refinements (number),
	kind       TEXT COLLATE "C" NOT NULL,
	component  TEXT COLLATE "C" NOT NULL,
	verdict    TEXT COLLATE "C" NOT NULL, -- '' = open
	note       TEXT COLLATE "C" NOT NULL,
	calls      BIGINT NOT NULL, -- since then
	successes  BIGINT NOT NULL,
	before     TEXT COLLATE "C" NOT NULL, -- JSON: what it did until then
	since      TEXT COLLATE "C" NOT NULL, -- JSON: what it did since, once the trial is closed
	start      TEXT COLLATE "C" NOT NULL, -- JSON: the sums of its feedback then
	PRIMARY KEY (refinement, kind, component)
);
CREATE INDEX learning_trials_open ON learning_trials (kind, component) WHERE verdict = '';
