package snapshot

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/store"
)

// chunkBytes is the size of the rows that a snapshot is kept in: SQLite holds a
// row in memory as a whole.
const chunkBytes = 1 << 20

// part is what a store of snapshots keeps. An id is never given out twice, so that
// who reads a snapshot notices when it is replaced.
func part() store.Part {
	return store.Part{Name: "snapshots", Migrations: []string{`
CREATE TABLE snapshots (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL UNIQUE,
	made INTEGER NOT NULL, -- seconds since 1970
	chunks INTEGER NOT NULL,
	bytes INTEGER NOT NULL,
	holds TEXT NOT NULL
);
CREATE TABLE snapshots_chunk (
	snapshot INTEGER NOT NULL,
	number INTEGER NOT NULL,
	content BLOB NOT NULL, -- a piece of one gzip stream
	PRIMARY KEY (snapshot, number)
);`}}
}

// sqliteStore keeps snapshots in a file of their own.
type sqliteStore struct {
	path string

	mu sync.Mutex
	db *store.SQLite // nil until it is needed; guarded by mu
}

// open returns the store, which it makes if there is none.
func (s *sqliteStore) open(ctx context.Context) (*store.SQLite, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		db, err := store.Open(ctx, s.path, store.Options{Parts: []store.Part{part()}})
		if err != nil {
			return nil, err
		}
		s.db = db
	}
	return s.db, nil
}

// there returns nil when there is no file yet.
func (s *sqliteStore) there(ctx context.Context) (*store.SQLite, error) {
	if _, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return s.open(ctx)
}

// Save implements Store.
func (s *sqliteStore) Save(ctx context.Context, info Info, replace bool, write func(io.Writer) (Holds, error)) (Info, error) {
	if err := CheckName(info.Name); err != nil {
		return Info{}, err
	}
	db, err := s.open(ctx)
	if err != nil {
		return Info{}, err
	}
	err = db.Write(ctx, func(tx *store.Tx) error {
		there, err := remove(tx, info.Name)
		if err == nil && there && !replace {
			err = exists(info.Name)
		}
		if err != nil {
			return err
		}
		return insert(tx, &info, write)
	})
	if err != nil {
		return Info{}, err
	}
	return info, nil
}

// insert writes a snapshot, and fills in what is known of it then.
func insert(tx *store.Tx, info *Info, write func(io.Writer) (Holds, error)) error {
	id, err := tx.Insert("INSERT INTO snapshots (name, made, chunks, bytes, holds) VALUES (?, ?, 0, 0, '{}') RETURNING id", info.Name, info.Made.Unix())
	if err != nil {
		return err
	}
	rows := &chunkWriter{tx: tx, id: id}
	zip := gzip.NewWriter(rows)
	if info.Holds, err = write(zip); err != nil {
		return err
	}
	if err := errors.Join(zip.Close(), rows.insert(len(rows.buf))); err != nil {
		return err
	}
	info.Bytes = rows.bytes
	holds, err := json.Marshal(info.Holds, json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = tx.Exec("UPDATE snapshots SET chunks = ?, bytes = ?, holds = ? WHERE id = ?", rows.number, rows.bytes, string(holds), id)
	return err
}

// remove deletes a snapshot. It reports whether there was one.
func remove(tx *store.Tx, name string) (there bool, err error) {
	var id int64
	there, err = tx.Get("DELETE FROM snapshots WHERE name = ? RETURNING id", []any{name}, &id)
	if there {
		_, err = tx.Exec("DELETE FROM snapshots_chunk WHERE snapshot = ?", id)
	}
	return there, err
}

// chunkWriter writes a stream as rows.
type chunkWriter struct {
	tx     *store.Tx
	id     int64
	number int // of the next row
	bytes  int64
	buf    []byte
}

// Write implements io.Writer.
func (w *chunkWriter) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p...)
	for len(w.buf) >= chunkBytes {
		if err := w.insert(chunkBytes); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// insert writes the next row, of the first n bytes that wait.
func (w *chunkWriter) insert(n int) error {
	_, err := w.tx.Exec("INSERT INTO snapshots_chunk VALUES (?, ?, ?)", w.id, w.number, w.buf[:n])
	w.buf = append(w.buf[:0], w.buf[n:]...)
	w.number++
	w.bytes += int64(n)
	return err
}

// chunkReader reads the rows of a snapshot as a stream, each in a view of its own.
type chunkReader struct {
	ctx    context.Context
	db     *store.SQLite
	id     int64
	number int // of the next row
	chunks int
	rest   []byte // of the last one
}

// Read implements io.Reader.
func (r *chunkReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		if r.number == r.chunks {
			return 0, io.EOF
		}
		var there bool
		err := r.db.Read(r.ctx, func(tx *store.Tx) (err error) {
			there, err = tx.Get("SELECT content FROM snapshots_chunk WHERE snapshot = ? AND number = ?", []any{r.id, r.number}, &r.rest)
			return err
		})
		if err == nil && !there {
			err = errors.New("a part of the snapshot is missing; perhaps it was replaced or deleted just now")
		}
		if err != nil {
			return 0, err
		}
		r.number++
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Load implements Store.
func (s *sqliteStore) Load(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	db, err := s.there(ctx)
	if err != nil {
		return nil, err
	}
	rows := &chunkReader{ctx: ctx, db: db}
	there := false
	if db != nil {
		err = db.Read(ctx, func(tx *store.Tx) (err error) {
			there, err = tx.Get("SELECT id, chunks FROM snapshots WHERE name = ?", []any{name}, &rows.id, &rows.chunks)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, unknown(ctx, s, name)
	}
	zip, err := gzip.NewReader(rows)
	if err != nil {
		return nil, damage(err)
	}
	return zip, nil
}

// List implements Store.
func (s *sqliteStore) List(ctx context.Context) ([]Info, error) {
	all := []Info{}
	db, err := s.there(ctx)
	if db == nil || err != nil {
		return all, err
	}
	err = db.Read(ctx, func(tx *store.Tx) error {
		return tx.Each("SELECT name, made, bytes, holds FROM snapshots ORDER BY made, name", nil, func(scan func(...any) error) error {
			var info Info
			var made int64
			var holds []byte
			if err := scan(&info.Name, &made, &info.Bytes, &holds); err != nil {
				return err
			}
			info.Made = time.Unix(made, 0).UTC()
			if err := json.Unmarshal(holds, &info.Holds); err != nil {
				info.Problem = damage(err).Error()
			}
			all = append(all, info)
			return nil
		})
	})
	return all, err
}

// Delete implements Store.
func (s *sqliteStore) Delete(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	db, err := s.there(ctx)
	if err != nil {
		return err
	}
	there := false
	if db != nil {
		err = db.Write(ctx, func(tx *store.Tx) (err error) {
			there, err = remove(tx, name)
			return err
		})
	}
	if err == nil && !there {
		return unknown(ctx, s, name)
	}
	return err
}

// Close implements Store.
func (s *sqliteStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}

// damage says that a snapshot is of no use.
func damage(err error) error { return fmt.Errorf("the snapshot is damaged: %w", err) }
