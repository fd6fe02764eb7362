package store

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// Each page of a file ends with a checksum of its contents and its number. The checksum is checked whenever the page is
// read, so that a disk that returns wrong bits, or another page, is detected before the page is used. SQLite leaves the
// last bytes of pages free if the header says so, and calls the file system through a table of functions. This is the
// system's own table with some functions replaced; the others do not depend on the table through which they are called.
// The log (-wal) has SQLite's own checksums, which SQLite checks when a host opens the log of a killed one.
//
// A page of zeros is accepted, because a page that was never written has no checksum; SQLite itself
// sees that it is empty.

const (
	vfsName       = "a2e"
	pageReserve   = 8
	headerSize    = 100
	reserveAt     = 20 // in the header: number of bytes at the end of pages
	changedAt     = 24 // how often the file was changed
	pagesAt       = 28 // number of pages, valid for the change at countedAt
	countedAt     = 92
	versionAt     = 60 // user_version
	applicationAt = 68 // application_id
)

// checkedMethods is the function table of one open file.
type checkedMethods struct {
	sqlite3.Tsqlite3_io_methods
	system uintptr // the table that it replaces
}

// checkedVFS registers the file system with checksums in SQLite, once per process, because SQLite has
// one list of file systems per process.
var checkedVFS = sync.OnceValue(func() error {
	tls := libc.NewTLS()
	defer tls.Close()
	system := sqlite3.Xsqlite3_vfs_find(tls, 0)
	name, err := libc.CString(vfsName)
	own := sqlite3.Xsqlite3_malloc(tls, int32(unsafe.Sizeof(sqlite3.Tsqlite3_vfs{})))
	if err != nil || system == 0 || own == 0 {
		return errors.New("SQLite has no file system")
	}
	vfs := at[sqlite3.Tsqlite3_vfs](own)
	*vfs = *at[sqlite3.Tsqlite3_vfs](system)
	vfs.FzName, vfs.FpNext, vfs.FpAppData = name, 0, system
	vfs.FxOpen, vfs.FxFullPathname = pointer(vfsOpen), pointer(vfsFullPathname)
	if rc := sqlite3.Xsqlite3_vfs_register(tls, own, 0); rc != sqlite3.SQLITE_OK {
		return errors.New("SQLite takes no file system")
	}
	return nil
})

// at returns a pointer to the value at an address in SQLite's memory.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// pointer converts a declared function to a pointer that SQLite can call.
func pointer[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }

// function converts such a pointer back to a function.
func function[F any](p uintptr) F { return *(*F)(unsafe.Pointer(&p)) }

type (
	openFunc  = func(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32
	readFunc  = func(tls *libc.TLS, file, buf uintptr, amount int32, offset int64) int32
	closeFunc = func(tls *libc.TLS, file uintptr) int32
	pathFunc  = func(tls *libc.TLS, vfs, path uintptr, size int32, out uintptr) int32
)

func systemVFS(vfs uintptr) (p uintptr, table *sqlite3.Tsqlite3_vfs) {
	p = at[sqlite3.Tsqlite3_vfs](vfs).FpAppData
	return p, at[sqlite3.Tsqlite3_vfs](p)
}

// vfsOpen opens a file. If it is a store with checksums, they are checked from then on.
func vfsOpen(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32 {
	system, table := systemVFS(vfs)
	rc := function[openFunc](table.FxOpen)(tls, system, name, file, flags, outFlags)
	f := at[sqlite3.Tsqlite3_file](file)
	if rc != sqlite3.SQLITE_OK || f.FpMethods == 0 {
		return rc
	}
	const kept = sqlite3.SQLITE_OPEN_MAIN_DB | sqlite3.SQLITE_OPEN_MAIN_JOURNAL | sqlite3.SQLITE_OPEN_WAL
	if name != 0 && flags&kept != 0 && !openedSafely(file) {
		return giveUp(tls, f, file, sqlite3.SQLITE_CANTOPEN)
	}
	if flags&sqlite3.SQLITE_OPEN_MAIN_DB == 0 || !hasChecksums(tls, f, file) {
		return rc
	}
	own := sqlite3.Xsqlite3_malloc(tls, int32(unsafe.Sizeof(checkedMethods{})))
	if own == 0 {
		return giveUp(tls, f, file, sqlite3.SQLITE_NOMEM)
	}
	m := at[checkedMethods](own)
	m.Tsqlite3_io_methods, m.system = *at[sqlite3.Tsqlite3_io_methods](f.FpMethods), f.FpMethods
	m.FxRead, m.FxWrite, m.FxClose = pointer(checkedRead), pointer(checkedWrite), pointer(checkedClose)
	m.FxDeviceCharacteristics = pointer(checkedTraits)
	m.FiVersion = min(m.FiVersion, 2) // without the functions that map a file into memory
	f.FpMethods = own
	return rc
}

// giveUp closes a file that was opened, and returns rc.
func giveUp(tls *libc.TLS, f *sqlite3.Tsqlite3_file, file uintptr, rc int32) int32 {
	function[closeFunc](at[sqlite3.Tsqlite3_io_methods](f.FpMethods).FxClose)(tls, file)
	f.FpMethods = 0
	return rc
}

// hasChecksums reports whether the pages of a file end with checksums. New files have checksums, such
// as those that SQLite fills (VACUUM INTO). Of the others, only files in the old format have none: a
// flipped bit in the header must not switch the checks off.
func hasChecksums(tls *libc.TLS, f *sqlite3.Tsqlite3_file, file uintptr) bool {
	buf := sqlite3.Xsqlite3_malloc(tls, headerSize)
	if buf == 0 {
		return false
	}
	defer sqlite3.Xsqlite3_free(tls, buf)
	header := unsafe.Slice(at[byte](buf), headerSize)
	clear(header)
	rc := function[readFunc](at[sqlite3.Tsqlite3_io_methods](f.FpMethods).FxRead)(tls, file, buf, headerSize, 0)
	if rc == sqlite3.SQLITE_IOERR_SHORT_READ && header[0] == 0 {
		return true
	}
	number := func(at int) uint32 { return binary.BigEndian.Uint32(header[at:]) }
	return rc == sqlite3.SQLITE_OK && number(applicationAt) == applicationID &&
		(header[reserveAt] != 0 || number(versionAt) != formatUnchecked)
}

func checkedRead(tls *libc.TLS, file, buf uintptr, amount int32, offset int64) int32 {
	rc := function[readFunc](at[sqlite3.Tsqlite3_io_methods](checkedOf(file).system).FxRead)(tls, file, buf, amount,
		offset)
	if rc != sqlite3.SQLITE_OK || amount < 512 {
		return rc
	}
	if amount != pageSize || offset%pageSize != 0 {
		return sqlite3.SQLITE_CORRUPT // the header has another page size
	}
	page := unsafe.Slice(at[byte](buf), pageSize)
	if sum := checksum(page, offset); sum != [pageReserve]byte(page[pageSize-pageReserve:]) && !isZero(page) {
		return sqlite3.SQLITE_CORRUPT
	}
	return rc
}

// checkedWrite writes a page of SQLite with its checksum in the last bytes, which SQLite does not use.
func checkedWrite(tls *libc.TLS, file, buf uintptr, amount int32, offset int64) int32 {
	if amount == pageSize && offset%pageSize == 0 {
		page := unsafe.Slice(at[byte](buf), pageSize)
		sum := checksum(page, offset)
		copy(page[pageSize-pageReserve:], sum[:])
	}
	return function[readFunc](at[sqlite3.Tsqlite3_io_methods](checkedOf(file).system).FxWrite)(tls, file, buf, amount,
		offset)
}

// checkedTraits says that only whole pages are read, because a part of a page has no checksum.
func checkedTraits(tls *libc.TLS, file uintptr) int32 {
	traits := function[closeFunc](at[sqlite3.Tsqlite3_io_methods](checkedOf(file).system).FxDeviceCharacteristics)(tls,
		file)
	return traits &^ sqlite3.SQLITE_IOCAP_SUBPAGE_READ
}

func checkedClose(tls *libc.TLS, file uintptr) int32 {
	own := at[sqlite3.Tsqlite3_file](file).FpMethods
	system := at[checkedMethods](own).system
	at[sqlite3.Tsqlite3_file](file).FpMethods = system
	rc := function[closeFunc](at[sqlite3.Tsqlite3_io_methods](system).FxClose)(tls, file)
	sqlite3.Xsqlite3_free(tls, own)
	return rc
}

func checkedOf(file uintptr) *checkedMethods {
	return at[checkedMethods](at[sqlite3.Tsqlite3_file](file).FpMethods)
}

// checksum returns the checksum of the page at an offset: two different CRCs, which processors compute fast.
func checksum(page []byte, offset int64) (sum [pageReserve]byte) {
	var place [8]byte
	binary.BigEndian.PutUint64(place[:], uint64(offset))
	content := page[:pageSize-pageReserve]
	castagnoli := crc32.MakeTable(crc32.Castagnoli) // made once
	binary.BigEndian.PutUint32(sum[:4], crc32.Update(crc32.Checksum(place[:], castagnoli), castagnoli, content))
	binary.BigEndian.PutUint32(sum[4:], crc32.Update(crc32.ChecksumIEEE(place[:]), crc32.IEEETable, content))
	return sum
}

func isZero(page []byte) bool {
	for _, b := range page {
		if b != 0 {
			return false
		}
	}
	return true
}

// vfsFullPathname returns a path unchanged: the system's own function would follow a link in place of
// the file, instead of failing.
func vfsFullPathname(tls *libc.TLS, vfs, path uintptr, size int32, out uintptr) int32 {
	text := libc.GoString(path)
	if len(text) == 0 || text[0] != '/' || len(text) >= int(size) {
		system, table := systemVFS(vfs)
		return function[pathFunc](table.FxFullPathname)(tls, system, path, size, out)
	}
	buf := unsafe.Slice(at[byte](out), size)
	buf[copy(buf, text)] = 0
	return sqlite3.SQLITE_OK
}
