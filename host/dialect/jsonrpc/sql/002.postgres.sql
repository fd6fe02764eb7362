CREATE TABLE rpc_rollouts (
	id       TEXT COLLATE "C" PRIMARY KEY,
	title    TEXT COLLATE "C" NOT NULL,
	provider TEXT COLLATE "C" NOT NULL,
	model    TEXT COLLATE "C" NOT NULL,
	thinking TEXT COLLATE "C" NOT NULL,
	created  DOUBLE PRECISION NOT NULL,
	updated  DOUBLE PRECISION NOT NULL
);
CREATE INDEX rpc_rollouts_updated ON rpc_rollouts (updated);
ALTER TABLE rpc_sessions ADD COLUMN rollout TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE rpc_sessions DROP COLUMN titled;
ALTER TABLE rpc_messages RENAME COLUMN session TO rollout;
ALTER TABLE rpc_messages ADD COLUMN turn TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE rpc_messages ADD COLUMN said BIGINT NOT NULL DEFAULT 1; -- 1 = part of the history
