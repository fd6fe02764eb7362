package memory

import "embed"

//go:embed sql/*.sql
var tables embed.FS

// recount counts the entries of each space after an import, during which PostgreSQL's triggers do not run.
const recount = `UPDATE memory_spaces s SET (entries, bytes) = (SELECT count(*), coalesce(sum(bytes), 0)
	FROM memory_entries e WHERE e.space = s.id),
	past_bytes = (SELECT coalesce(sum(bytes), 0) FROM memory_history h WHERE h.space = s.id)`
