ALTER TABLE learning_settings RENAME TO learning_settings_before;
CREATE TABLE learning_settings (
	kind       TEXT NOT NULL,
	component  TEXT NOT NULL,
	name       TEXT NOT NULL,
	updated_at INTEGER NOT NULL,
	value      TEXT, -- NULL = the row is a weight
	weight     REAL, -- of the name routing_weight
	strategy   TEXT NOT NULL DEFAULT '', -- what set the weight
	PRIMARY KEY (kind, component, name)
) WITHOUT ROWID;
INSERT INTO learning_settings (kind, component, name, updated_at, value) SELECT kind, component, name, updated_at, value FROM learning_settings_before;
INSERT INTO learning_settings (kind, component, name, updated_at, weight, strategy) SELECT kind, component, 'routing_weight', updated_at, weight, strategy FROM learning_weights;
DROP TABLE learning_settings_before;
DROP TABLE learning_weights;
