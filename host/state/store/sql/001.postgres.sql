-- What belongs to no part. json_items gives the items of a list of texts; what the list escapes as \u0000 comes as
-- U+10FFFE and 00, like the store itself writes it. It is no strict function, as those are not inlined.
CREATE TABLE parts (name TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL);
CREATE TABLE commits (host TEXT COLLATE "C" PRIMARY KEY, number BIGINT NOT NULL, at TIMESTAMP WITH TIME ZONE NOT NULL);
CREATE FUNCTION json_items(list text) RETURNS TABLE(value text) LANGUAGE sql IMMUTABLE ROWS 64 AS $$
	SELECT json_array_elements_text(CASE WHEN position('\u0000' IN list) = 0 THEN list
		ELSE regexp_replace(list, '(?<!\\)((\\\\)*)\\u0000', U&'\\1\+10FFFE00', 'g') END::json) $$;
CREATE FUNCTION glob(pattern text, content text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
	SELECT content ~ ('^' || replace(pattern, '*', '.*') || '$') $$
