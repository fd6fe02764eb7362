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

// inspect refuses a file that is not ours, or that others have a hand in, before anything could
// change it. It reads by way of SQLite, as closing a descriptor of the file would give up
// the locks that other stores of this process hold on it.
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
	// This look may come between what another host does to the file at its end.
	for range 40 {
		if code := resultCode(err); code == 0 || code == codeNotADB || !pause(ctx, 5*time.Millisecond) {
			break
		}
		h, err = headerNow(ctx, path)
	}
	switch {
	case err != nil:
		return err
	case h == fileHeader{} && info.Size() > 1: // SQLite takes one byte for nothing
		return nil // without a table: an older host was killed while it made the file
	case h.application != applicationID:
		return fmt.Errorf("%s: %w but some other SQLite file; move it away, or set another state_dir", path, ErrForeign)
	case h.format > formatVersion:
		return fmt.Errorf("%s: %w: it has format %d, this a2e knows %d; use the newer one, or another state_dir", path,
			ErrNewer, h.format, formatVersion)
	}
	return nil
}

// checkBeside looks at the names that SQLite has beside the file.
func checkBeside(dir *private.Dir, name string) error {
	for _, beside := range []string{"-wal", "-shm", "-journal"} {
		info, err := dir.Check(name + beside)
		if errors.Is(err, private.ErrUnsafe) {
			return fmt.Errorf("%w: %w", ErrForeign, err)
		}
		// A new file would be filled with what the log has of another.
		if err == nil && beside == "-wal" && info.Size() > 0 && !dir.Exists(name) {
			return fmt.Errorf("%s: %w: it is missing, but its log %s exists; restore it, or remove the log",
				filepath.Join(dir.Path(), name), ErrMoved, name+beside)
		}
	}
	return nil
}

// Usable looks at the front of a store that nobody here has open. The error says why it cannot
// be used until somebody mends it; what a later try may get over is none, as is no file.
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

// openHere is held for reading while SQLite has a file open in this process: closing another
// descriptor of the file would give up its locks.
var openHere sync.RWMutex

// wholeFront reports whether the first page is for certain one that SQLite takes, of this
// format, and the file as long as it says. It does not need SQLite, which takes longer to
// begin than a whole handshake; false means that only SQLite can say.
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

// fileHeader is what the first bytes of an SQLite file say of it. All are 0 when nobody has
// made a table in it yet.
type fileHeader struct{ application, format, schema int }

// headerNow reads the header without leaving a trace. While a host moves its log into the
// file, and after it was killed at that, the file makes no sense without the log: only
// then it is read together with it, which takes SQLite's locks.
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
	conn, err := db.Conn(ctx) // one for all: they see the same file
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

// inPlace fails when the file that was opened is no longer the one at its path: what is
// written into it is lost to all others, and to this host when it ends.
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

// create makes the file if there is none. It gets its name when it is whole: a host that is
// killed before leaves nothing, so that an empty file is never one that was begun.
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

// emptyFile is an SQLite file without a table, whose pages end with checksums
// (https://www.sqlite.org/fileformat2.html#the_database_header).
func emptyFile() []byte {
	page := make([]byte, pageSize)
	copy(page, "SQLite format 3\x00")
	binary.BigEndian.PutUint16(page[16:], pageSize)
	page[18], page[19], page[reserveAt] = 2, 2, pageReserve // written and read with a log
	page[21], page[22], page[23] = 64, 32, 32               // as every file has it
	number := func(at int, n uint32) { binary.BigEndian.PutUint32(page[at:], n) }
	number(24, 1) // changes
	number(28, 1) // pages
	number(44, 4) // the format of the schema
	number(56, 1) // UTF-8
	number(versionAt, formatVersion)
	number(applicationAt, applicationID)
	number(92, 1)         // the change that the number of pages is of
	number(96, 3_046_000) // a version of SQLite; it is for people
	page[headerSize] = 13 // a leaf of a table, of the schema's: without a cell
	binary.BigEndian.PutUint16(page[headerSize+5:], pageSize-pageReserve)
	sum := checksum(page, 0)
	copy(page[pageSize-pageReserve:], sum[:])
	return page
}
