CREATE TABLE worker_contexts ( -- conversations that tasks belong to
	workspace TEXT COLLATE "C" NOT NULL, -- absolute
	agent     TEXT COLLATE "C" NOT NULL, -- whom it is of; '' = nobody in particular
	context   TEXT COLLATE "C" NOT NULL, -- context_id of the tasks
	worker    TEXT COLLATE "C" NOT NULL, -- that has it
	session   TEXT COLLATE "C" NOT NULL, -- of a program, by its own name; '' = it has none
	said      TEXT COLLATE "C" NOT NULL, -- JSON: [{role, text}], the oldest first
	size      BIGINT NOT NULL, -- bytes of said
	used_at   BIGINT NOT NULL, -- microseconds since 1970
	PRIMARY KEY (workspace, agent, context)
);
CREATE INDEX worker_contexts_by_use ON worker_contexts (used_at);
