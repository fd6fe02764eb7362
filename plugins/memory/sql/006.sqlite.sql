INSERT INTO memory_unkeyed SELECT max(id) FROM memory_entries WHERE content || sent || tags GLOB '*[ؠ-ۿ]*' OR content || sent || tags LIKE '%\u06__%' HAVING count(*) > 0;
DELETE FROM memory_unkeyed WHERE upto < (SELECT max(upto) FROM memory_unkeyed);
