ALTER TABLE chains_journals ADD COLUMN leased_until BIGINT NOT NULL DEFAULT 0; -- seconds since 1970, by the clock of the store
