-- SQLite's words for what queries of both engines need: json_each for lists of texts, as json_items gives them, and the
-- clock of the server. Queries of an a2e before this one say json_items.
CREATE FUNCTION json_each(list text) RETURNS TABLE(value text) LANGUAGE sql IMMUTABLE ROWS 64 AS $$
	SELECT json_array_elements_text(CASE WHEN position('\u0000' IN list) = 0 THEN list
		ELSE regexp_replace(list, '(?<!\\)((\\\\)*)\\u0000', U&'\\1\+10FFFE00', 'g') END::json) $$;
CREATE FUNCTION unixepoch() RETURNS bigint LANGUAGE sql VOLATILE AS $$
	SELECT CAST(extract(epoch FROM clock_timestamp()) AS BIGINT) $$;
