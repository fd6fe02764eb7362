ALTER TABLE planning_plans ADD COLUMN done_column TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE planning_plans ADD COLUMN done BIGINT NOT NULL DEFAULT 0; -- tasks in that column
ALTER TABLE planning_tasks ADD COLUMN done BIGINT NOT NULL DEFAULT 0; -- it stands in the plan's done_column
ALTER TABLE planning_tasks ADD COLUMN version BIGINT NOT NULL DEFAULT 1; -- changes, its beginning among them
ALTER TABLE planning_tasks ADD COLUMN priority BIGINT NOT NULL DEFAULT 0; -- see priority
ALTER TABLE planning_tasks ADD COLUMN due BIGINT NOT NULL DEFAULT 9223372036854775807; -- that = never
ALTER TABLE planning_tasks ADD COLUMN estimate BIGINT NOT NULL DEFAULT 0; -- seconds, 0 = none
ALTER TABLE planning_tasks ADD COLUMN claimed_by TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE planning_tasks ADD COLUMN claimed_until BIGINT NOT NULL DEFAULT 0; -- 0 = nobody has claimed it
ALTER TABLE planning_tasks ADD COLUMN comments TEXT COLLATE "C" NOT NULL DEFAULT '[]';
CREATE INDEX planning_tasks_to_do ON planning_tasks (plan_id, priority, due, created_at, place) WHERE done = 0;
