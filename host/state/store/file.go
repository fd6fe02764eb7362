package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"modernc.org/sqlite"

	"a2e/host/guard/private"
)

// inspect refuses a file that is not an a2e store, or that others could have changed, before anything
// changes it. It reads through SQLite, because closing another descriptor of the file would release
// the locks of other stores in this process.
func inspect(ctx context.Context, dir *private.Dir, name string) error {
	path := filepath.Join(dir.Path(), name)
	if err := checkBeside(dir, name); err != nil {
		return err
	}
	info, err := dir.Check(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrForeign, err)
	case info.Size() == 0:
		return fmt.Errorf("%s: %w: it is empty; restore a copy of it, or remove it to start over", path, ErrCorrupt)
	}
	h, err := headerNow(ctx, path)
	// Another host may be changing the file at its end just now.
	for range 40 {
		if code := resultCode(err); code == 0 || code == codeNotADB || !pause(ctx, 5*time.Millisecond) {
			break
		}
		h, err = headerNow(ctx, path)
	}
	switch {
	case err != nil:
		return err
	case h == fileHeader{} && info.Size() > 1: // SQLite treats one byte as an empty file
		return nil // no table: an older host was killed while it made the file
	case h.application != applicationID:
		return fmt.Errorf("%s: %w but some other SQLite file; move it away, or set another state_dir", path, ErrForeign)
	case h.format > formatVersion:
		return fmt.Errorf("%s: %w: it has format %d, this a2e knows %d; use the newer one, or another state_dir", path,
			ErrNewer, h.format, formatVersion)
	}
	return nil
}

// checkBeside checks the files that SQLite keeps next to the store.
func checkBeside(dir *private.Dir, name string) error {
	for _, beside := range []string{"-wal", "-shm", "-journal"} {
		info, err := dir.Check(name + beside)
		if errors.Is(err, private.ErrUnsafe) {
			return fmt.Errorf("%w: %w", ErrForeign, err)
		}
		// SQLite would fill a new file with the contents of the old log.
		if err == nil && beside == "-wal" && info.Size() > 0 && !dir.Exists(name) {
			return fmt.Errorf("%s: %w: it is missing, but its log %s exists; restore it, or remove the log",
				filepath.Join(dir.Path(), name), ErrMoved, name+beside)
		}
	}
	return nil
}

// Usable checks the first page of a store that this process has not opened. The error says why the store cannot be used
// until somebody repairs it. It returns nil for errors that may disappear, and if there is no file.
func Usable(ctx context.Context, path string) error {
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	dir, err := private.OpenDir(filepath.Dir(path))
	if err != nil {
		return nil
	}
	defer dir.Close()
	if wholeFront(dir, filepath.Base(path)) || checkedVFS() != nil {
		return nil
	}
	openHere.RLock()
	defer openHere.RUnlock()
	err = explain(path, inspect(ctx, dir, filepath.Base(path)))
	var lasts interface{ Lasting() bool }
	if errors.As(err, &lasts) && lasts.Lasting() {
		return err
	}
	return nil
}

// openHere is read-locked while SQLite has a file open in this process: closing another descriptor of
// the file would release its locks.
var openHere sync.RWMutex

// wholeFront reports whether the first page is certainly valid and in this format, and the file has
// the size that it says. It does not use SQLite, whose start takes longer than a whole handshake;
// false means that only SQLite can decide.
func wholeFront(dir *private.Dir, name string) bool {
	if checkBeside(dir, name) != nil || !openHere.TryLock() {
		return false
	}
	defer openHere.Unlock()
	file, err := dir.Open(name, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer file.Close()
	page := make([]byte, pageSize)
	info, err := file.Stat()
	if _, short := io.ReadFull(file, page); err != nil || short != nil {
		return false
	}
	number := func(at int) uint32 { return binary.BigEndian.Uint32(page[at:]) }
	return string(page[:16]) == "SQLite format 3\x00" && page[reserveAt] == pageReserve &&
		number(applicationAt) == applicationID && number(versionAt) == formatVersion &&
		checksum(page, 0) == [pageReserve]byte(page[pageSize-pageReserve:]) &&
		number(changedAt) == number(countedAt) && int64(number(pagesAt))*pageSize <= info.Size()
}

// fileHeader is the data in the header of an SQLite file. All fields are 0 if the file has no tables yet.
type fileHeader struct{ application, format, schema int }

// headerNow reads the header and leaves no trace. While a host moves its log into the file, or after it was killed
// during that, the file is valid only together with the log. Only then the log is read too, which takes SQLite's locks.
func headerNow(ctx context.Context, path string) (fileHeader, error) {
	h, err := headerOf(ctx, address(path, url.Values{"mode": {"ro"}, "immutable": {"1"}}))
	if resultCode(err) == codeCorrupt && sizeOf(path+"-wal") > 0 {
		h, err = headerOf(ctx, address(path, url.Values{"mode": {"ro"}}, "busy_timeout(1000)"))
	}
	return h, err
}

func headerOf(ctx context.Context, dsn string) (h fileHeader, err error) {
	connector, err := sqlite.NewConnector(dsn)
	if err != nil {
		return h, err
	}
	db := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx) // one connection for all reads, so that they see the same file
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for query, field := range map[string]*int{
		"PRAGMA application_id": &h.application, "PRAGMA user_version": &h.format,
		"PRAGMA schema_version": &h.schema,
	} {
		if err := conn.QueryRowContext(ctx, query).Scan(field); err != nil {
			return h, err
		}
	}
	return h, nil
}

// inPlace returns an error if the open file is no longer the file at its path: other hosts would not
// see what is written to it, and neither would this host after a restart.
func (s *SQLite) inPlace() error {
	if s.file == nil {
		return nil
	}
	now, err := os.Lstat(s.path)
	if err == nil && os.SameFile(now, s.file) {
		return nil
	}
	if err == nil {
		err = errors.New("another file replaced it")
	}
	return fmt.Errorf("%s: %w while this host had it open; restore it, or restart the host: %w", s.path, ErrMoved, err)
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// create makes the file if it is missing. The file gets its name when it is complete, so that a host
// that is killed before leaves nothing, and an empty file is never an incomplete one.
func create(dir *private.Dir, name string) error {
	if dir.Exists(name) {
		return nil
	}
	file, err := dir.Temp(name)
	if err != nil {
		return err
	}
	temp := filepath.Base(file.Name())
	_, err = file.Write(emptyFile())
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = dir.PlaceNew(temp, name)
	}
	if err != nil {
		_ = dir.Remove(temp)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil // another host was faster
	}
	return err
}

// emptyFile returns an SQLite file without tables, whose pages end with checksums
// (https://www.sqlite.org/fileformat2.html#the_database_header).
func emptyFile() []byte {
	page := make([]byte, pageSize)
	copy(page, "SQLite format 3\x00")
	binary.BigEndian.PutUint16(page[16:], pageSize)
	page[18], page[19], page[reserveAt] = 2, 2, pageReserve // read and written with a log
	page[21], page[22], page[23] = 64, 32, 32               // fixed values
	number := func(at int, n uint32) { binary.BigEndian.PutUint32(page[at:], n) }
	number(24, 1) // number of changes
	number(28, 1) // number of pages
	number(44, 4) // schema format
	number(56, 1) // UTF-8
	number(versionAt, formatVersion)
	number(applicationAt, applicationID)
	number(92, 1)         // the change for which the number of pages is valid
	number(96, 3_046_000) // an SQLite version, for information only
	page[headerSize] = 13 // an empty leaf page of the schema table
	binary.BigEndian.PutUint16(page[headerSize+5:], pageSize-pageReserve)
	sum := checksum(page, 0)
	copy(page[pageSize-pageReserve:], sum[:])
	return page
}
