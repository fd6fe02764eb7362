ALTER TABLE planning_tasks ADD COLUMN claimed_for TEXT COLLATE "C" NOT NULL DEFAULT ''; -- the agent whose the claim is, where tokens tell agents apart
