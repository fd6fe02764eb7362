CREATE TABLE worker_contexts ( -- conversations that tasks belong to
	workspace TEXT NOT NULL, -- absolute
	agent     TEXT NOT NULL, -- whom it is of; '' = nobody in particular
	context   TEXT NOT NULL, -- context_id of the tasks
	worker    TEXT NOT NULL, -- that has it
	session   TEXT NOT NULL, -- of a program, by its own name; '' = it has none
	said      TEXT NOT NULL, -- JSON: [{role, text}], the oldest first
	size      INTEGER NOT NULL, -- bytes of said
	used_at   INTEGER NOT NULL, -- microseconds since 1970
	PRIMARY KEY (workspace, agent, context)
) WITHOUT ROWID;
CREATE INDEX worker_contexts_by_use ON worker_contexts (used_at);
