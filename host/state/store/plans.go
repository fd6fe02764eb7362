package store

import (
	"errors"
	"sync"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// steadyPlans makes all connections of this process keep the plan of a prepared statement for all bound values.
// Otherwise SQLite prepares some statements again for each value (see SQLITE_DBCONFIG_ENABLE_QPSG): FTS5's own look-up
// of a word did that for each word and segment, which took a third of the time of a search.
var steadyPlans = sync.OnceValue(func() error {
	tls := libc.NewTLS()
	defer tls.Close()
	if sqlite3.Xsqlite3_auto_extension(tls, pointer(keepPlans)) != sqlite3.SQLITE_OK {
		return errors.New("SQLite takes no settings for its connections")
	}
	return nil
})

// keepPlans is called by SQLite for each connection that it opens.
func keepPlans(tls *libc.TLS, db, _, _ uintptr) int32 {
	const varargs = 16 // size of an int and a pointer
	args := tls.Alloc(varargs)
	defer tls.Free(varargs)
	on := libc.VaList(args, int32(1), uintptr(0))
	return sqlite3.Xsqlite3_db_config(tls, db, sqlite3.SQLITE_DBCONFIG_ENABLE_QPSG, on)
}
