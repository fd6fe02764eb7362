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

// Parts are what the store of a state keeps beside what plugins do, where it is on a server that several machines
// share: snapshots, and what sessions had in memory. No export has it.
func Parts() []store.Part { return []store.Part{part(), sessionPart()} }

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

// sqliteFile is a SQLite file of the snapshots' own.
type sqliteFile struct {
	path string

	mu sync.Mutex
	db *store.SQLite // nil until it is needed; guarded by mu
}

// open returns the store, which it makes if there is none.
func (s *sqliteFile) open(ctx context.Context) (store.Store, error) {
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

// missing reports whether there is no file yet.
func (s *sqliteFile) missing() bool {
	_, err := os.Stat(s.path)
	return errors.Is(err, fs.ErrNotExist)
}

func (s *sqliteFile) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}

// rowStore keeps snapshots in the rows of a store.
type rowStore struct {
	open store.Opener
	file *sqliteFile // that is opened; nil = the store is another's
}

// there returns nil when there is no file yet.
func (s *rowStore) there(ctx context.Context) (store.Store, error) {
	if s.file != nil && s.file.missing() {
		return nil, nil
	}
	return s.open(ctx)
}

// Save implements Store.
func (s *rowStore) Save(ctx context.Context, info Info, replace bool, write func(io.Writer) (Holds, error)) (Info, error) {
	if err := CheckName(info.Name); err != nil {
		return Info{}, err
	}
	made, err := spool(func(file io.Writer) (err error) {
		zip := gzip.NewWriter(file)
		if info.Holds, err = write(zip); err == nil {
			err = zip.Close()
		}
		return err
	})
	if err != nil {
		return Info{}, err
	}
	defer made.Close()
	about, err := made.Stat()
	if err != nil {
		return Info{}, err
	}
	info.Bytes = about.Size()
	err = s.open.Write(ctx, func(tx *store.Tx) error {
		there, err := remove(tx, info.Name)
		if err == nil && there && !replace {
			err = exists(info.Name)
		}
		if err != nil {
			return err
		}
		return insert(tx, &info, made)
	})
	if err != nil {
		return Info{}, err
	}
	return info, nil
}

// spool writes what is made into a file without a name, which is read then: nobody can write to a store
// while it is read into its own rows, nor the other way round.
func spool(write func(io.Writer) error) (made spooled, err error) {
	file, err := os.CreateTemp("", "a2e-snapshot-")
	if err != nil {
		return made, err
	}
	_ = os.Remove(file.Name()) // where an open file can be removed
	made = spooled{file}
	if err = write(file); err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return made, errors.Join(err, made.Close())
	}
	return made, nil
}

// spooled is a file that goes when it is closed.
type spooled struct{ *os.File }

// Close implements io.Closer.
func (s spooled) Close() error {
	err := s.File.Close()
	_ = os.Remove(s.Name())
	return err
}

// insert writes a snapshot.
func insert(tx *store.Tx, info *Info, made io.Reader) error {
	holds, err := json.Marshal(info.Holds, json.Deterministic(true))
	if err != nil {
		return err
	}
	id, err := tx.Insert("INSERT INTO snapshots (name, made, chunks, bytes, holds) VALUES ($1, $2, $3, $4, $5) "+
		"RETURNING id",
		info.Name, info.Made.Unix(), (info.Bytes+chunkBytes-1)/chunkBytes, info.Bytes, string(holds))
	if err != nil {
		return err
	}
	chunk := make([]byte, chunkBytes)
	for number := 0; err == nil; number++ {
		var n int
		n, err = io.ReadFull(made, chunk)
		if n > 0 {
			if _, err := tx.Exec("INSERT INTO snapshots_chunk VALUES ($1, $2, $3)", id, number, chunk[:n]); err != nil {
				return err
			}
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// remove deletes a snapshot. It reports whether there was one.
func remove(tx *store.Tx, name string) (there bool, err error) {
	var id int64
	there, err = tx.Get("DELETE FROM snapshots WHERE name = $1 RETURNING id", []any{name}, &id)
	if there {
		_, err = tx.Exec("DELETE FROM snapshots_chunk WHERE snapshot = $1", id)
	}
	return there, err
}

// Load implements Store. The rows are read at once, in one view: who takes the snapshot in writes to the
// store meanwhile, and that may be this one.
func (s *rowStore) Load(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	db, err := s.there(ctx)
	if err != nil {
		return nil, err
	}
	there := false
	temp, err := spool(func(w io.Writer) error {
		if db == nil {
			return nil
		}
		return db.Read(ctx, func(tx *store.Tx) (err error) {
			var id, chunks int64
			if there, err = tx.Get("SELECT id, chunks FROM snapshots WHERE name = $1", []any{name}, &id,
				&chunks); !there {
				return err
			}
			err = tx.Each("SELECT content FROM snapshots_chunk WHERE snapshot = $1 ORDER BY number", []any{id},
				func(scan func(...any) error) error {
					var content []byte
					if err := scan(&content); err != nil {
						return err
					}
					chunks--
					_, err := w.Write(content)
					return err
				})
			if err == nil && chunks != 0 {
				err = errors.New("a part of the snapshot is missing")
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, errors.Join(unknown(ctx, s, name), temp.Close())
	}
	return unzip(temp)
}

// List implements Store.
func (s *rowStore) List(ctx context.Context) ([]Info, error) {
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
func (s *rowStore) Delete(ctx context.Context, name string) error {
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
func (s *rowStore) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.close()
}

// damage says that a snapshot is of no use.
func damage(err error) error { return fmt.Errorf("the snapshot is damaged: %w", err) }
