CREATE TABLE fleet_results (
	number    INTEGER PRIMARY KEY AUTOINCREMENT,
	workspace TEXT NOT NULL,     -- the folder that the task was done in
	task_id   TEXT NOT NULL,
	result    TEXT NOT NULL,     -- the TASK_RESULT
	size      INTEGER NOT NULL,  -- of result, in bytes
	UNIQUE (workspace, task_id)
);
