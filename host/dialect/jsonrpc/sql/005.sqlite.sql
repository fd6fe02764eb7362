ALTER TABLE rpc_rollouts ADD COLUMN summary TEXT NOT NULL DEFAULT ''; -- of its older messages
ALTER TABLE rpc_messages ADD COLUMN summed INTEGER NOT NULL DEFAULT 0; -- 1 = the summary stands for it
