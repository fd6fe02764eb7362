package store

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
)

// Journal is what one life of a plugin writes down before it answers, and removes once other tables have it. What a
// killed host has left others read at once, and adopt when nobody has added to it for a while. A line is kept when
// Append returns: lines that wait at the same time are one commit, as all writes of a store are.
type Journal struct {
	table, owner string
	fresh        atomic.Bool // lines were added since the last Trim

	mu  sync.Mutex
	seq int64 // of the next line; guarded by mu
}

// Line is a line of a journal.
type Line struct {
	Owner string // the journal's
	Body  []byte
}

// NewJournal begins a journal in a table with the columns owner, seq, at and body, the first two its key.
func NewJournal(table string) *Journal { return &Journal{table: table, owner: uuid.NewString()} }

// Append adds a line. It waits until the line is kept.
func (j *Journal) Append(ctx context.Context, s Store, body []byte) error {
	j.mu.Lock()
	seq := j.seq
	j.seq++
	j.mu.Unlock()
	defer j.fresh.Store(true) // also after an error: who knows
	return s.Write(ctx, func(tx *Tx) error {
		_, err := tx.Exec("INSERT INTO "+j.table+" (owner, seq, at, body) VALUES ($1, $2, unixepoch(), $3)",
			j.owner, seq, body)
		return err
	})
}

// Mark is the place behind the lines so far.
func (j *Journal) Mark() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.seq
}

// Trim removes the lines before a mark. Without new ones it writes nothing.
func (j *Journal) Trim(ctx context.Context, s Store, mark int64) error {
	if !j.fresh.Swap(false) {
		return nil
	}
	err := s.Write(ctx, func(tx *Tx) error {
		_, err := tx.Exec("DELETE FROM "+j.table+" WHERE owner = $1 AND seq < $2", j.owner, mark)
		return err
	})
	if err != nil {
		j.fresh.Store(true)
	}
	return err
}

// Others returns the lines of all other journals of the table; those of one are in their order.
func (j *Journal) Others(tx *Tx) ([]*Line, error) { return lines(tx, j.table, j.owner) }

// JournalLines returns the lines of all journals of a table.
func JournalLines(tx *Tx, table string) ([]*Line, error) { return lines(tx, table, "") }

func lines(tx *Tx, table, but string) ([]*Line, error) {
	return Rows(tx, "SELECT owner, body FROM "+table+" WHERE owner <> $1 ORDER BY owner, seq", []any{but},
		func(l *Line) []any { return []any{&l.Owner, &l.Body} })
}

// Adopt hands each line of journals that nobody has added to for so many seconds to take, and removes them. young
// reports whether there are others, which may be adopted later.
func (j *Journal) Adopt(ctx context.Context, s Store, age int, take func(*Tx, *Line) error) (young bool, err error) {
	var old []string
	err = s.Read(ctx, func(tx *Tx) error {
		young, old = false, nil
		return tx.Each("SELECT owner, max(at) <= unixepoch() - $1 FROM "+j.table+" WHERE owner <> $2 GROUP BY owner "+
			"ORDER BY owner", []any{age, j.owner}, func(scan func(...any) error) error {
			var owner string
			var stray bool
			err := scan(&owner, &stray)
			if stray {
				old = append(old, owner)
			}
			young = young || !stray
			return err
		})
	})
	for _, owner := range old {
		if err == nil {
			err = s.Write(ctx, func(tx *Tx) error { return j.adopt(tx, owner, take) })
		}
	}
	return young, err
}

func (j *Journal) adopt(tx *Tx, owner string, take func(*Tx, *Line) error) error {
	all, err := Rows(tx, "SELECT owner, body FROM "+j.table+" WHERE owner = $1 ORDER BY seq", []any{owner},
		func(l *Line) []any { return []any{&l.Owner, &l.Body} })
	for _, l := range all {
		if err == nil {
			err = take(tx, l)
		}
	}
	if err == nil {
		_, err = tx.Exec("DELETE FROM "+j.table+" WHERE owner = $1", owner)
	}
	return err
}
