ALTER TABLE planning_plans ADD COLUMN done_column TEXT NOT NULL DEFAULT '';
ALTER TABLE planning_plans ADD COLUMN done INTEGER NOT NULL DEFAULT 0; -- tasks in that column
ALTER TABLE planning_tasks ADD COLUMN done INTEGER NOT NULL DEFAULT 0; -- it stands in the plan's done_column
ALTER TABLE planning_tasks ADD COLUMN version INTEGER NOT NULL DEFAULT 1; -- changes, its beginning among them
ALTER TABLE planning_tasks ADD COLUMN priority INTEGER NOT NULL DEFAULT 0; -- see priority
ALTER TABLE planning_tasks ADD COLUMN due INTEGER NOT NULL DEFAULT 9223372036854775807; -- that = never
ALTER TABLE planning_tasks ADD COLUMN estimate INTEGER NOT NULL DEFAULT 0; -- seconds, 0 = none
ALTER TABLE planning_tasks ADD COLUMN claimed_by TEXT NOT NULL DEFAULT '';
ALTER TABLE planning_tasks ADD COLUMN claimed_until INTEGER NOT NULL DEFAULT 0; -- 0 = nobody has claimed it
ALTER TABLE planning_tasks ADD COLUMN comments TEXT NOT NULL DEFAULT '[]';
UPDATE planning_plans SET done_column = CASE WHEN EXISTS (SELECT 1 FROM json_each(columns) WHERE value = 'done') THEN 'done' ELSE json_extract(columns, '$[#-1]') END;
UPDATE planning_tasks SET done = 1 WHERE status = (SELECT done_column FROM planning_plans p WHERE p.id = plan_id);
UPDATE planning_plans SET done = (SELECT count(*) FROM planning_tasks t WHERE t.plan_id = planning_plans.id AND t.done = 1);
CREATE INDEX planning_tasks_to_do ON planning_tasks (plan_id, priority, due, created_at, place) WHERE done = 0;
