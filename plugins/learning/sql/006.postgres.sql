ALTER TABLE learning_settings ALTER COLUMN value DROP NOT NULL; -- NULL = the row is a weight
ALTER TABLE learning_settings ADD COLUMN weight DOUBLE PRECISION; -- of the name routing_weight
ALTER TABLE learning_settings ADD COLUMN strategy TEXT COLLATE "C" NOT NULL DEFAULT ''; -- what set the weight
INSERT INTO learning_settings (kind, component, name, updated_at, weight, strategy) SELECT kind, component, 'routing_weight', updated_at, weight, strategy FROM learning_weights;
DROP TABLE learning_weights;
