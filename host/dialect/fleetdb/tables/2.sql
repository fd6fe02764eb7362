-- A claim whose plan stays right however the tables grow: the rows are found by the index of the
-- queue, and changed by their key.
CREATE OR REPLACE FUNCTION ~.claim(me text, most integer) RETURNS TABLE (number bigint, claims integer, task_id text, seconds integer, dispatch text)
LANGUAGE plpgsql SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE w ~.workers;
BEGIN
	SELECT * INTO w FROM ~.workers WHERE id = me AND NOT draining AND lease > now();
	RETURN QUERY UPDATE ~.tasks SET state = 1, worker = me, claims = claims + 1, taken = now()
	WHERE number = ANY (ARRAY(
		SELECT t.number FROM ~.tasks t
		WHERE t.state = 0 AND t.requires <@ w.offers AND t.model IN ('', w.model) AND t.tier IN ('', w.tier) AND NOT w.id = ANY (t.refused)
			AND (t.deadline IS NULL OR t.deadline > now())
		ORDER BY t.rank DESC, t.number LIMIT most FOR UPDATE SKIP LOCKED))
	RETURNING number, claims, task_id, seconds, dispatch;
END $$;
