ALTER TABLE chains_journals ADD COLUMN agent TEXT NOT NULL DEFAULT ''; -- whose it is; '' = no agent's with a token
