CREATE TABLE learning_components (
	number        INTEGER PRIMARY KEY,
	kind          TEXT NOT NULL,
	name          TEXT NOT NULL,
	calls         INTEGER NOT NULL DEFAULT 0,
	successes     INTEGER NOT NULL DEFAULT 0,
	duration      INTEGER NOT NULL DEFAULT 0, -- nanoseconds of all calls
	last_called   INTEGER NOT NULL DEFAULT 0,
	rewards       INTEGER NOT NULL DEFAULT 0, -- how many calls had one
	reward_mean   REAL NOT NULL DEFAULT 0,
	reward_m2     REAL NOT NULL DEFAULT 0, -- sum of the squares of the distances from the mean
	feedbacks     INTEGER NOT NULL DEFAULT 0, -- rows of learning_feedback
	score_sum     INTEGER NOT NULL DEFAULT 0, -- their scores, each times its confidence, in billionths
	score_weight  INTEGER NOT NULL DEFAULT 0, -- their confidences, in billionths
	durations     BLOB, -- counted by length, see durations; NULL = of no call
	ppo_calls     INTEGER NOT NULL DEFAULT 0, -- what ppo has learned from: it looks at each call once
	ppo_successes INTEGER NOT NULL DEFAULT 0,
	ppo_score     INTEGER NOT NULL DEFAULT 0, -- score_sum then
	UNIQUE (kind, name)
);
CREATE INDEX learning_components_by_name ON learning_components (name, last_called);
CREATE TABLE learning_calls (
	number INTEGER PRIMARY KEY,
	count  INTEGER NOT NULL,
	calls  TEXT NOT NULL -- JSON: recent calls and their correlations, the oldest first
);
CREATE TABLE learning_feedback (
	number     INTEGER PRIMARY KEY,
	id         TEXT NOT NULL UNIQUE,
	component  INTEGER REFERENCES learning_components (number), -- NULL = of none
	score      REAL NOT NULL,
	confidence REAL NOT NULL,
	size       INTEGER NOT NULL,
	record     TEXT NOT NULL -- as it came
);
CREATE TABLE learning_experiences (
	number INTEGER PRIMARY KEY,
	id     TEXT NOT NULL UNIQUE,
	size   INTEGER NOT NULL,
	record TEXT NOT NULL
);
CREATE TABLE learning_weights (
	kind       TEXT NOT NULL,
	component  TEXT NOT NULL,
	updated_at INTEGER NOT NULL,
	weight     REAL NOT NULL,
	strategy   TEXT NOT NULL, -- what set it
	PRIMARY KEY (kind, component)
) WITHOUT ROWID;
CREATE TABLE learning_weight_history (
	number    INTEGER PRIMARY KEY,
	at        INTEGER NOT NULL,
	kind      TEXT NOT NULL,
	component TEXT NOT NULL,
	weight    REAL NOT NULL,
	score     REAL, -- what the component was worth then, 0 to 1; NULL = nobody looked
	strategy  TEXT NOT NULL,
	UNIQUE (kind, component, at)
);
CREATE TABLE learning_totals (
	name TEXT PRIMARY KEY,
	rows INTEGER NOT NULL,
	size INTEGER NOT NULL
) WITHOUT ROWID;
