package store

import (
	"errors"
	"sync"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// steadyPlans has all connections of this process keep the plan of a prepared statement, whatever values are bound to
// it. Otherwise SQLite prepares some of them again for each value (SQLITE_DBCONFIG_ENABLE_QPSG says more): FTS5's own
// look-up of a word did so for each word and segment, which was a third of the time of a search.
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
	const varargs = 16 // bytes of an int and a pointer
	args := tls.Alloc(varargs)
	defer tls.Free(varargs)
	on := libc.VaList(args, int32(1), uintptr(0))
	return sqlite3.Xsqlite3_db_config(tls, db, sqlite3.SQLITE_DBCONFIG_ENABLE_QPSG, on)
}
