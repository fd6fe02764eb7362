package store

import (
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"a2e/host/private"
)

// maxUpgrade bounds the files that get checksums when they are opened, which writes all of
// them anew: a request waits for it. Larger ones get them by export and import.
const maxUpgrade = 1 << 30

// addChecksums writes a file of an older a2e anew, with checksums, if nobody else has it open.
// Otherwise, and after any failure, it stays as it is; the next host tries again.
func addChecksums(dir *private.Dir, name string) (err error) {
	info, err := dir.Check(name)
	if err != nil || info.Size() > maxUpgrade {
		return err
	}
	file, err := dir.Temp(name)
	if err != nil {
		return err
	}
	temp := filepath.Base(file.Name())
	if err := file.Close(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = dir.Remove(temp)
		}
	}()
	old, err := openRaw(filepath.Join(dir.Path(), name))
	if err != nil {
		return err
	}
	defer old.close() // gives up the lock, when the new file has the name
	reserve := int32(pageReserve)
	if rc := sqlite3.Xsqlite3_file_control(old.tls, old.db, 0, sqlite3.SQLITE_FCNTL_RESERVE_BYTES, old.number(reserve)); rc != sqlite3.SQLITE_OK {
		return old.failure(rc)
	}
	// To leave the log takes that nobody else is there, and to lock exclusively keeps it so.
	if err := old.exec("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE", "COMMIT"); err != nil {
		return err
	}
	if dir.Exists(name + "-wal") {
		return fmt.Errorf("%s is in use", name)
	}
	path := filepath.Join(dir.Path(), temp)
	if err := old.exec("VACUUM INTO " + quoted(path)); err != nil {
		return err
	}
	if err := finishUpgrade(dir, path, temp); err != nil {
		return err
	}
	return dir.Rename(temp, name)
}

// finishUpgrade gives the new file its version and brings it to the disk.
func finishUpgrade(dir *private.Dir, path, temp string) error {
	made, err := openRaw(path)
	if err != nil {
		return err
	}
	err = made.exec(fmt.Sprintf("PRAGMA user_version = %d", formatVersion), "PRAGMA quick_check")
	made.close()
	if err != nil {
		return err
	}
	file, err := dir.Open(temp, os.O_RDWR)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}

// raw is a connection without the database package, which cannot ask for space in pages.
type raw struct {
	tls *libc.TLS
	db  uintptr
	mem []uintptr
}

func openRaw(path string) (*raw, error) {
	r := &raw{tls: libc.NewTLS()}
	out := r.number64()
	rc := sqlite3.Xsqlite3_open_v2(r.tls, r.text(path), out, sqlite3.SQLITE_OPEN_READWRITE, r.text(vfsName))
	r.db = *at[uintptr](out)
	if rc != sqlite3.SQLITE_OK {
		err := r.failure(rc)
		r.close()
		return nil, err
	}
	return r, nil
}

// exec runs statements and looks at none of their rows.
func (r *raw) exec(queries ...string) error {
	for _, q := range queries {
		if rc := sqlite3.Xsqlite3_exec(r.tls, r.db, r.text(q), 0, 0, 0); rc != sqlite3.SQLITE_OK {
			return fmt.Errorf("%s: %w", q, r.failure(rc))
		}
	}
	return nil
}

func (r *raw) failure(rc int32) error { return fmt.Errorf("SQLite gave the code %d", rc) }

func (r *raw) text(s string) uintptr {
	p := r.malloc(len(s) + 1)
	buf := unsafe.Slice(at[byte](p), len(s)+1)
	buf[copy(buf, s)] = 0
	return p
}

func (r *raw) number(n int32) uintptr {
	p := r.malloc(4)
	*at[int32](p) = n
	return p
}

func (r *raw) number64() uintptr {
	p := r.malloc(8)
	*at[int64](p) = 0
	return p
}

func (r *raw) malloc(n int) uintptr {
	p := libc.Xmalloc(r.tls, libc.Tsize_t(n))
	if p == 0 {
		panic("out of memory")
	}
	r.mem = append(r.mem, p)
	return p
}

func (r *raw) close() {
	if r.db != 0 {
		_ = sqlite3.Xsqlite3_close_v2(r.tls, r.db)
	}
	for _, p := range r.mem {
		libc.Xfree(r.tls, p)
	}
	r.tls.Close()
}

// quoted makes a text one of SQL.
func quoted(s string) string {
	out := []byte{'\''}
	for i := range len(s) {
		if s[i] == '\'' {
			out = append(out, '\'')
		}
		out = append(out, s[i])
	}
	return string(append(out, '\''))
}
