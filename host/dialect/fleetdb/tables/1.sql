CREATE TABLE ~.workers (
	id       text PRIMARY KEY,          -- of one process
	name     text NOT NULL,
	place    text NOT NULL,             -- the machine
	announce text NOT NULL,             -- its SESSION_ANNOUNCE
	offers   text[] NOT NULL,           -- what a task may require of it
	model    text NOT NULL,
	tier     text NOT NULL,
	places   integer NOT NULL,          -- tasks at once
	draining boolean NOT NULL DEFAULT false,
	begun    timestamptz NOT NULL DEFAULT now(),
	lease    timestamptz NOT NULL       -- what it took is its own until then
);
CREATE TABLE ~.tasks (
	number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	task_id  text NOT NULL UNIQUE,
	digest   text NOT NULL,             -- tells tasks apart that have one id
	sender   text NOT NULL,             -- who waits for the result
	rank     smallint NOT NULL,         -- of its priority, 3 = urgent
	requires text[] NOT NULL,
	model    text NOT NULL,             -- '' = any
	tier     text NOT NULL,
	dispatch text NOT NULL CHECK (octet_length(dispatch) <= 8388608),
	deadline timestamptz,
	seconds  integer NOT NULL,          -- that a worker may take; 0 = as the worker has it
	retries  smallint NOT NULL,         -- how many workers may die of it, and it is begun again
	state    smallint NOT NULL DEFAULT 0, -- 0 waiting, 1 taken, 2 ended
	canceled boolean NOT NULL DEFAULT false,
	worker   text,                      -- that has it, or had it last
	claims   integer NOT NULL DEFAULT 0, -- how often it was taken: the latest alone may give it back
	losses   integer NOT NULL DEFAULT 0, -- workers that died of it
	refused  text[] NOT NULL DEFAULT '{}', -- workers that could not begin with it
	status   text,                      -- of the result
	result   text CHECK (octet_length(result) <= 8388608), -- the TASK_RESULT; NULL = see fate
	fate     text,                      -- why it ended without a worker's result
	created  timestamptz NOT NULL DEFAULT now(),
	taken    timestamptz,
	ended    timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX ON ~.tasks (rank DESC, number) WHERE state = 0;
CREATE INDEX ON ~.tasks (worker) WHERE state = 1;
CREATE INDEX ON ~.tasks (deadline) WHERE state = 0 AND deadline IS NOT NULL;
CREATE INDEX ON ~.tasks (ended) WHERE state = 2;
CREATE FUNCTION ~.fits(t ~.tasks, w ~.workers) RETURNS boolean LANGUAGE sql STABLE AS $$
	SELECT t.requires <@ w.offers AND t.model IN ('', w.model) AND t.tier IN ('', w.tier) AND NOT w.id = ANY (t.refused)
$$;
-- a function, as its settings have the queue read in its order, however few tasks fit, and its
-- plan is made once for each connection
CREATE FUNCTION ~.claim(me text, most integer) RETURNS TABLE (number bigint, claims integer, task_id text, seconds integer, dispatch text)
LANGUAGE plpgsql SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE w ~.workers;
BEGIN
	SELECT * INTO w FROM ~.workers WHERE id = me AND NOT draining AND lease > now();
	RETURN QUERY WITH next AS (
		SELECT t.number FROM ~.tasks t
		WHERE t.state = 0 AND t.requires <@ w.offers AND t.model IN ('', w.model) AND t.tier IN ('', w.tier) AND NOT w.id = ANY (t.refused)
			AND (t.deadline IS NULL OR t.deadline > now())
		ORDER BY t.rank DESC, t.number LIMIT most FOR UPDATE SKIP LOCKED)
	UPDATE ~.tasks t SET state = 1, worker = me, claims = t.claims + 1, taken = now() FROM next WHERE t.number = next.number
	RETURNING t.number, t.claims, t.task_id, t.seconds, t.dispatch;
END $$;
