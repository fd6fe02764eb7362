ALTER TABLE learning_components ADD COLUMN reward_min REAL NOT NULL DEFAULT 0;
ALTER TABLE learning_components ADD COLUMN reward_max REAL NOT NULL DEFAULT 0;
ALTER TABLE learning_components ADD COLUMN aged_calls REAL NOT NULL DEFAULT 0; -- sums, each call weighted by its age at aged_at
ALTER TABLE learning_components ADD COLUMN aged_successes REAL NOT NULL DEFAULT 0;
ALTER TABLE learning_components ADD COLUMN aged_rewards REAL NOT NULL DEFAULT 0;
ALTER TABLE learning_components ADD COLUMN aged_reward_sum REAL NOT NULL DEFAULT 0;
ALTER TABLE learning_components ADD COLUMN aged_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE learning_components ADD COLUMN ppo_rewards INTEGER NOT NULL DEFAULT 0;
ALTER TABLE learning_components ADD COLUMN ppo_reward_sum REAL NOT NULL DEFAULT 0;
ALTER TABLE learning_components ADD COLUMN ppo_experience INTEGER NOT NULL DEFAULT 0; -- number of the last one
ALTER TABLE learning_feedback ADD COLUMN at INTEGER NOT NULL DEFAULT 0; -- ts of the record
CREATE INDEX learning_feedback_evidence ON learning_feedback (component, at, score, confidence);
CREATE TABLE learning_told ( -- what experiences tell: the last ones of those that name what acted
	number    INTEGER PRIMARY KEY, -- that of the experience
	component INTEGER NOT NULL REFERENCES learning_components (number),
	reward    REAL NOT NULL,
	at        INTEGER NOT NULL
);
CREATE INDEX learning_told_by_component ON learning_told (component, number);
UPDATE learning_components SET reward_min = reward_mean - 2 * sqrt(reward_m2 / max(rewards, 1)), reward_max = reward_mean + 2 * sqrt(reward_m2 / max(rewards, 1)),
	aged_calls = calls, aged_successes = successes, aged_rewards = rewards, aged_reward_sum = rewards * reward_mean, aged_at = last_called,
	ppo_rewards = rewards, ppo_reward_sum = rewards * reward_mean;
UPDATE learning_feedback SET at = CAST(json_extract(record, '$.ts') * 1e6 AS INTEGER) WHERE json_valid(record);
INSERT INTO learning_told SELECT * FROM (SELECT number, (SELECT number FROM learning_components c
		WHERE c.name = coalesce(json_extract(record, '$.action.component_name'), json_extract(record, '$.action.tool_name')) ORDER BY c.last_called DESC, c.number LIMIT 1) AS component,
		json_extract(record, '$.reward') AS reward, CAST(json_extract(record, '$.ts') * 1e6 AS INTEGER)
	FROM learning_experiences WHERE number > (SELECT max(number) - 10000 FROM learning_experiences) AND json_valid(record))
	WHERE component IS NOT NULL AND abs(reward) <= 1e100;
