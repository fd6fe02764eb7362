ALTER TABLE planning_plans ADD COLUMN folder TEXT NOT NULL DEFAULT ''; -- workspace of the host that made it; '' = it was not noted
