CREATE TABLE rpc_rollouts (
	id       TEXT PRIMARY KEY,
	title    TEXT NOT NULL,
	provider TEXT NOT NULL,
	model    TEXT NOT NULL,
	thinking TEXT NOT NULL,
	created  REAL NOT NULL,
	updated  REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX rpc_rollouts_updated ON rpc_rollouts (updated);
INSERT INTO rpc_rollouts SELECT id, title, model, '', '', created, updated FROM rpc_sessions;
ALTER TABLE rpc_sessions ADD COLUMN rollout TEXT NOT NULL DEFAULT '';
UPDATE rpc_sessions SET rollout = id, title = CASE WHEN titled THEN title ELSE '' END;
ALTER TABLE rpc_sessions DROP COLUMN titled;
ALTER TABLE rpc_messages RENAME COLUMN session TO rollout;
ALTER TABLE rpc_messages ADD COLUMN turn TEXT NOT NULL DEFAULT '';
ALTER TABLE rpc_messages ADD COLUMN said INTEGER NOT NULL DEFAULT 1; -- 1 = part of the history
DELETE FROM rpc_messages WHERE json_extract(message, '$.role') = 'tool';
UPDATE rpc_messages SET message = json_object('role', json_extract(message, '$.role'), 'text', json_extract(message,
	'$.text'));
