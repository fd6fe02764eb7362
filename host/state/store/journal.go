package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"a2e/host/guard/private"
)

// Journals are records that an owner, one run of a plugin, writes line by line: each line is stored before the plugin
// continues. While the owner lives, nobody else writes to its journals; when it has ended for any reason, others take
// them over. Other hosts on this machine see that by the lock of a file next to the store, which the system releases
// when a process ends. If the store is a server, hosts on other machines see it by a lease that the owner renews.
//
// A journal is a row of Table with the columns number, owner and leased_until, and further ones if a part needs them.
// Its lines are rows of Lines with the columns id (the journal's number * 2^32 + the line's place) and body.
type Journals struct {
	Table, Lines string
	Folder       string        // folder of the lock files, next to the store
	Lease        time.Duration // how long a host on another machine keeps its journals without renewal

	mu     sync.Mutex // guards the fields below
	own    string     // the owner's name; "" = not needed yet
	lock   *os.File   // nil if the store is in memory
	work   map[int64]bool
	closed bool // the lock is released after the last journal in work
}

// ErrLost says that a journal belongs to another owner now, or was removed.
var ErrLost = errors.New("the journal was removed, or taken over by another host")

const (
	maxLines   = 1 << 32 // in one journal
	lockSuffix = ".lock"
	strayLock  = time.Minute // age from which the lock file of an owner that has ended is removed
)

// Own makes this owner the owner of a journal, with a new lease.
func (js *Journals) Own(tx *Tx, number int64) error {
	if err := js.begin(tx); err != nil {
		return err
	}
	_, err := tx.Exec("UPDATE "+js.Table+" SET owner = $1, leased_until = unixepoch() + $2 WHERE number = $3",
		js.Owner(), int(js.Lease.Seconds()), number)
	return err
}

// Renew renews the lease of a journal.
func (js *Journals) Renew(tx *Tx, number int64) error {
	changed, err := tx.Exec("UPDATE "+js.Table+" SET leased_until = unixepoch() + $1 WHERE number = $2 AND owner = $3",
		int(js.Lease.Seconds()), number, js.Owner())
	return held(changed, err)
}

// Append adds a line to a journal. The place must be larger than that of the line before.
func (js *Journals) Append(tx *Tx, number, place int64, body []byte) error {
	changed, err := tx.Exec("INSERT INTO "+js.Lines+" (id, body) SELECT $1, $2 WHERE EXISTS (SELECT 1 FROM "+js.Table+
		" WHERE number = $3 AND owner = $4)", number*maxLines+place, body, number, js.Owner())
	return held(changed, err)
}

func held(changed int64, err error) error {
	if err == nil && changed == 0 {
		return ErrLost
	}
	return err
}

// Line is a line of a journal.
type Line struct {
	Place int64
	Body  []byte
}

// Read returns the lines of a journal, in order.
func (js *Journals) Read(tx *Tx, number int64) ([]*Line, error) {
	return js.lines(tx, "WHERE id >= $2 AND id < $3", number)
}

// Others returns the lines of all other journals, each journal's in order.
func (js *Journals) Others(tx *Tx, number int64) ([]*Line, error) {
	return js.lines(tx, "WHERE id < $2 OR id >= $3", number)
}

func (js *Journals) lines(tx *Tx, where string, number int64) ([]*Line, error) {
	return Rows(tx, "SELECT id % $1, body FROM "+js.Lines+" "+where+" ORDER BY id",
		[]any{int64(maxLines), number * maxLines, (number + 1) * maxLines},
		func(l *Line) []any { return []any{&l.Place, &l.Body} })
}

// Trim removes the lines of a journal that are before a place.
func (js *Journals) Trim(tx *Tx, number, before int64) error {
	_, err := tx.Exec("DELETE FROM "+js.Lines+" WHERE id >= $1 AND id < $2", number*maxLines, number*maxLines+before)
	return err
}

// Remove removes a journal and its lines.
func (js *Journals) Remove(tx *Tx, number int64) error {
	if err := js.Trim(tx, number, maxLines); err != nil {
		return err
	}
	_, err := tx.Exec("DELETE FROM "+js.Table+" WHERE number = $1", number)
	return err
}

// Left returns the journals without an owner, and those whose owner has ended.
func (js *Journals) Left(tx *Tx) (left []int64, err error) {
	type head struct {
		number int64
		owner  string
		leased bool
	}
	heads, err := Rows(tx, "SELECT number, owner, leased_until > unixepoch() FROM "+js.Table+" WHERE owner <> $1 "+
		"OR owner = '' ORDER BY number", []any{js.Owner()},
		func(h *head) []any { return []any{&h.number, &h.owner, &h.leased} })
	for _, h := range heads {
		if err == nil {
			var lives bool
			if lives, err = js.Lives(tx, h.number, h.owner, h.leased); !lives {
				left = append(left, h.number)
			}
		}
	}
	return left, err
}

// Owner returns the name of this owner, or "" if it has no journal yet.
func (js *Journals) Owner() string {
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.own
}

// Work records whether this owner works on a journal. A journal on which it does not work is free,
// even if it is the owner.
func (js *Journals) Work(number int64, does bool) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.work == nil {
		js.work = map[int64]bool{}
	}
	if js.work[number] = true; !does {
		delete(js.work, number)
	}
	if js.closed && js.lock != nil && len(js.work) == 0 {
		_ = js.lock.Close() // the file stays: it shows that this owner has ended
		js.lock = nil
	}
}

// Lives reports whether the owner of a journal works on it. leased says whether its lease is valid,
// which counts if its lock file does not exist here.
func (js *Journals) Lives(tx *Tx, number int64, owner string, leased bool) (bool, error) {
	js.mu.Lock()
	own, works := owner == js.own, js.work[number]
	js.mu.Unlock()
	switch {
	case owner == "":
		return false, nil
	case own:
		return works, nil
	case tx.Dir() == "":
		return leased, nil
	}
	d, err := private.OpenDir(filepath.Join(tx.Dir(), js.Folder))
	if err == nil {
		defer d.Close()
		var locked bool
		if locked, err = isLocked(d, owner+lockSuffix); err == nil {
			return locked, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return leased, nil
	}
	return false, err
}

func isLocked(d *private.Dir, name string) (bool, error) {
	file, err := d.Open(name, os.O_RDWR)
	if err != nil {
		return false, err
	}
	defer file.Close()
	free, err := private.TryShare(file)
	return !free, err
}

// begin makes the name of this owner and takes its lock, unless the store is in memory.
func (js *Journals) begin(tx *Tx) error {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.own != "" {
		return nil
	}
	name := uuid.NewString()
	if tx.Dir() != "" {
		d, err := private.MakeSub(tx.Dir(), js.Folder)
		if err != nil {
			return err
		}
		defer d.Close()
		if err := js.sweep(tx, d); err != nil {
			return err
		}
		file, err := d.Open(name+lockSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return err
		}
		if ok, err := private.TryLock(file); err != nil || !ok {
			return errors.Join(errors.New("the lock of the host cannot be taken"), err, file.Close())
		}
		js.lock = file
	}
	js.own = name
	return nil
}

// sweep removes the lock files of owners that have ended, and ends their leases.
func (js *Journals) sweep(tx *Tx, d *private.Dir) error {
	names, err := d.Names()
	for _, name := range names {
		owner, is := strings.CutSuffix(name, lockSuffix)
		info, gone := d.Lstat(name)
		if err != nil || !is || gone != nil || time.Since(info.ModTime()) < strayLock {
			continue
		}
		if used, unknown := isLocked(d, name); !used && unknown == nil {
			_, err = tx.Exec("UPDATE "+js.Table+" SET leased_until = 0 WHERE owner = $1", owner)
			tx.After(func() { _ = os.Remove(filepath.Join(d.Path(), name)) }) // another host may have been faster
		}
	}
	return err
}

// Close lets others take over the remaining journals once this owner works on none, at the latest when
// the process ends. The lock file is removed if no journal names the owner.
func (js *Journals) Close(ctx context.Context, s Opener) error {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.closed = true
	if js.lock == nil || len(js.work) > 0 {
		return nil
	}
	var named bool
	unknown := s.Read(ctx, func(tx *Tx) (err error) {
		named, err = tx.Get("SELECT 1 FROM "+js.Table+" WHERE owner = $1", []any{js.own}, new(int))
		return err
	})
	err := js.lock.Close()
	if unknown == nil && !named {
		err = errors.Join(err, os.Remove(js.lock.Name()))
	}
	js.lock = nil
	return err
}
