package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"
)

// inspect refuses a file that is not ours, before anything could change it. It reads by
// way of SQLite, as closing a descriptor of the file would give up the locks that other
// stores of this process hold on it.
func inspect(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 && info.Mode().IsRegular() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: %w: it is no regular file", path, ErrForeign)
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
		return nil // without a table: a host is making the file, or was killed while it did
	case h.application != applicationID:
		return fmt.Errorf("%s: %w but some other SQLite file; move it away, or set another state_dir", path, ErrForeign)
	case h.format > formatVersion:
		return fmt.Errorf("%s: %w: it has format %d, this a2e knows %d; use the newer one, or another state_dir", path, ErrNewer, h.format, formatVersion)
	}
	return nil
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
	for query, field := range map[string]*int{"PRAGMA application_id": &h.application, "PRAGMA user_version": &h.format, "PRAGMA schema_version": &h.schema} {
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
	now, err := os.Stat(s.path)
	if err == nil && os.SameFile(now, s.file) {
		return nil
	}
	if err == nil {
		err = errors.New("another file is in its place")
	}
	return fmt.Errorf("%s: %w while this host had it open; put it back, or start the host anew: %w", s.path, ErrMoved, err)
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// create makes the file with the rights it shall have; SQLite's other files follow it.
func create(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return file.Close()
}
