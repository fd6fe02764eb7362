CREATE TABLE planning_plans (
	number      INTEGER PRIMARY KEY,
	id          TEXT NOT NULL UNIQUE,
	created_at  INTEGER NOT NULL,
	size        INTEGER NOT NULL, -- bytes of its own text
	tasks       INTEGER NOT NULL DEFAULT 0,
	tasks_size  INTEGER NOT NULL DEFAULT 0, -- bytes of text of its tasks
	name        TEXT NOT NULL,
	columns     TEXT NOT NULL,
	description TEXT NOT NULL
);
CREATE TABLE planning_tasks (
	number      INTEGER PRIMARY KEY,
	id          TEXT NOT NULL UNIQUE,
	plan_id     TEXT NOT NULL REFERENCES planning_plans (id),
	created_at  INTEGER NOT NULL,
	place       INTEGER NOT NULL, -- among those of one microsecond: tasks that the plan had before
	updated_at  INTEGER NOT NULL,
	status      TEXT NOT NULL,
	assignee    TEXT NOT NULL,
	title       TEXT NOT NULL,
	deps        TEXT NOT NULL,
	description TEXT NOT NULL,
	metadata    TEXT NOT NULL
);
CREATE INDEX planning_tasks_by_age ON planning_tasks (created_at, place);
CREATE INDEX planning_tasks_by_plan ON planning_tasks (plan_id, created_at, place);
CREATE INDEX planning_tasks_by_status ON planning_tasks (status, created_at, place);
CREATE INDEX planning_tasks_by_plan_and_status ON planning_tasks (plan_id, status, created_at, place);
