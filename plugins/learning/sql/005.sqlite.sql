ALTER TABLE learning_components DROP COLUMN aged_calls;
ALTER TABLE learning_components DROP COLUMN aged_successes;
ALTER TABLE learning_components DROP COLUMN aged_rewards;
ALTER TABLE learning_components DROP COLUMN aged_reward_sum;
ALTER TABLE learning_components DROP COLUMN aged_at;
DROP INDEX learning_feedback_evidence;
CREATE INDEX learning_feedback_by_component ON learning_feedback (component);
ALTER TABLE learning_told DROP COLUMN at;
