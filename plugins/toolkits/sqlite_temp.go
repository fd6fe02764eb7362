package toolkits

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// tempVFS registers a file system with SQLite and returns its name. It is the usual one with a bound on temporary
// files, which SQLite writes for sorts, groups and joins without a limit of its own. Each process has only one,
// since SQLite never releases one.
var tempVFS = sync.OnceValues(func() (name string, err error) {
	const own = "a2e-bounded"
	tls := libc.NewTLS()
	defer tls.Close()
	usual := sqlite3.Xsqlite3_vfs_find(tls, 0)
	zName, err := libc.CString(own)
	made := libc.Xcalloc(tls, 1, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_vfs{})))
	if usual == 0 || made == 0 || err != nil {
		return "", errors.New("SQLite has no file system")
	}
	vfs := pointed[sqlite3.Tsqlite3_vfs](made)
	*vfs = *pointed[sqlite3.Tsqlite3_vfs](usual)
	temps.open, temps.most = vfs.FxOpen, sqlMaxTemp
	vfs.FpNext, vfs.FzName, vfs.FxOpen = 0, zName, function(tempOpen)
	if code := sqlite3.Xsqlite3_vfs_register(tls, made, 0); code != sqlite3.SQLITE_OK {
		return "", errors.New("SQLite takes no file system")
	}
	return own, nil
})

// temps are the temporary files that are open.
var temps struct {
	open  uintptr      // the open function of the usual file system
	most  int64        // bytes that all files may have together; sqlMaxTemp except in tests
	bytes atomic.Int64 // of all files
	files sync.Map     // *tempFile by the address of SQLite's handle

	mu      sync.Mutex
	methods map[uintptr]uintptr // methods with the bound, by the usual methods; guarded by mu
}

type tempFile struct {
	usual *sqlite3.Tsqlite3_io_methods
	size  int64
}

// pointed returns a pointer to an address in SQLite's memory, which Go does not move.
func pointed[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// function returns a Go function as the number that SQLite stores; called returns the function for such a number.
func function[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }

func called[F any](number uintptr) F { return *(*F)(unsafe.Pointer(&number)) }

type (
	xOpen     = func(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32
	xWrite    = func(tls *libc.TLS, file, from uintptr, n int32, at int64) int32
	xTruncate = func(tls *libc.TLS, file uintptr, size int64) int32
	xClose    = func(tls *libc.TLS, file uintptr) int32
)

// tempOpen opens a file. A temporary file gets the methods with the bound.
func tempOpen(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32 {
	const temporary = sqlite3.SQLITE_OPEN_TEMP_DB | sqlite3.SQLITE_OPEN_TRANSIENT_DB |
		sqlite3.SQLITE_OPEN_TEMP_JOURNAL | sqlite3.SQLITE_OPEN_SUBJOURNAL
	code := called[xOpen](temps.open)(tls, vfs, name, file, flags, outFlags)
	if code != sqlite3.SQLITE_OK || flags&temporary == 0 {
		return code
	}
	methods := pointed[uintptr](file) // a handle begins with a pointer to its methods
	temps.files.Store(file, &tempFile{usual: pointed[sqlite3.Tsqlite3_io_methods](*methods)})
	*methods = boundedMethods(tls, *methods)
	return code
}

// boundedMethods returns the methods of a temporary file, which it makes from the usual ones.
func boundedMethods(tls *libc.TLS, usual uintptr) uintptr {
	temps.mu.Lock()
	defer temps.mu.Unlock()
	if made := temps.methods[usual]; made != 0 {
		return made
	}
	made := libc.Xcalloc(tls, 1, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_io_methods{})))
	if made == 0 {
		panic("out of memory")
	}
	m := pointed[sqlite3.Tsqlite3_io_methods](made)
	*m = *pointed[sqlite3.Tsqlite3_io_methods](usual)
	m.FxWrite, m.FxTruncate, m.FxClose = function(tempWrite), function(tempTruncate), function(tempClose)
	if temps.methods == nil {
		temps.methods = make(map[uintptr]uintptr)
	}
	temps.methods[usual] = made
	return made
}

func tempOf(file uintptr) *tempFile {
	found, _ := temps.files.Load(file)
	f, _ := found.(*tempFile)
	return f
}

// resize sets the counted size of a file; false = the bound does not allow it.
func (f *tempFile) resize(size int64) bool {
	more := size - f.size
	if temps.bytes.Add(more) > temps.most && more > 0 {
		temps.bytes.Add(-more)
		return false
	}
	f.size = size
	return true
}

func tempWrite(tls *libc.TLS, file, from uintptr, n int32, at int64) int32 {
	f := tempOf(file)
	if end := at + int64(n); end > f.size && !f.resize(end) {
		return sqlite3.SQLITE_FULL
	}
	return called[xWrite](f.usual.FxWrite)(tls, file, from, n, at)
}

func tempTruncate(tls *libc.TLS, file uintptr, size int64) int32 {
	f := tempOf(file)
	if size < f.size {
		f.resize(size)
	}
	return called[xTruncate](f.usual.FxTruncate)(tls, file, size)
}

func tempClose(tls *libc.TLS, file uintptr) int32 {
	f := tempOf(file)
	f.resize(0)
	temps.files.Delete(file)
	return called[xClose](f.usual.FxClose)(tls, file)
}
