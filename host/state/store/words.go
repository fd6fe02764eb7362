package store

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
)

// Words is an index of the words in rows: a table with the column rowid and one for the words, which
// is an FTS5 table in SQLite and a tsvector with a GIN index in PostgreSQL (see the part's
// migrations). A word consists of letters and digits.
type Words struct {
	Table, Column string
	// Stem does on PostgreSQL what the tokenizer of the FTS5 table does to a word; nil = nothing.
	Stem func(string) string
}

// Put adds the words of a row, separated by spaces.
func (w *Words) Put(tx *Tx, row int64, words string) error {
	if tx.onServer() && w.Stem != nil {
		all := strings.Fields(words)
		for i, word := range all {
			all[i] = w.Stem(word)
		}
		words = strings.Join(all, " ")
	}
	_, err := tx.Exec("INSERT INTO "+w.Table+" (rowid, "+w.Column+") VALUES ($1, $2)", row, words)
	return err
}

// Remove removes the words of a row.
func (w *Words) Remove(tx *Tx, row int64) error {
	_, err := tx.Exec("DELETE FROM "+w.Table+" WHERE rowid = $1", row)
	return err
}

// Find returns, for each of the expressions, the matching rows below a row (0 = all rows), largest first, at most most.
// The expressions are in the syntax of FTS5, with quoted words, AND, OR and brackets.
func (w *Words) Find(tx *Tx, below int64, most int, matches ...string) (rows [][]int64, err error) {
	if len(matches) == 0 {
		return nil, nil
	}
	condition, list := w.Table+" MATCH %s", "group_concat(rowid)"
	if tx.onServer() {
		condition, list = w.Column+" @@ CAST(%s AS tsquery)", "string_agg(CAST(rowid AS TEXT), ',')"
	}
	var args Args
	var lists []any
	var each []string
	for _, match := range matches {
		if tx.onServer() {
			match = w.tsquery(match)
		}
		found := fmt.Sprintf(condition, args.Add(match))
		if below > 0 {
			found += " AND rowid < " + args.Add(below)
		}
		// One row with a list is faster to read than many rows.
		each = append(each, "(SELECT "+list+" FROM (SELECT rowid FROM "+w.Table+" WHERE "+found+
			" ORDER BY rowid DESC LIMIT "+strconv.Itoa(most)+") AS found)")
		lists = append(lists, new(sql.NullString))
	}
	if _, err := tx.Get("SELECT "+strings.Join(each, ", "), args, lists...); err != nil {
		return nil, err
	}
	rows = make([][]int64, len(matches))
	for i, list := range lists {
		if rows[i], err = rowsOf(list.(*sql.NullString).String); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// rowsOf parses numbers separated by commas.
func rowsOf(list string) (rows []int64, err error) {
	if list == "" {
		return nil, nil
	}
	rows = make([]int64, 0, strings.Count(list, ",")+1)
	for one := range strings.SplitSeq(list, ",") {
		row, err := strconv.ParseInt(one, 10, 64)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// tsquery converts an expression of FTS5 to PostgreSQL's syntax.
func (w *Words) tsquery(match string) string {
	operators := strings.NewReplacer("AND", "&", "OR", "|")
	var out strings.Builder
	for i, part := range strings.Split(match, `"`) {
		switch {
		case i%2 == 0:
			out.WriteString(operators.Replace(part))
		case w.Stem != nil:
			fmt.Fprintf(&out, "'%s'", w.Stem(part))
		default:
			fmt.Fprintf(&out, "'%s'", part)
		}
	}
	return out.String()
}

// engine returns the engine's name in file names.
func (t *Tx) engine() string {
	if t.onServer() {
		return "postgres"
	}
	return "sqlite"
}

// onServer reports whether the transaction runs on PostgreSQL.
func (t *Tx) onServer() bool {
	_, is := t.db.(*pgConn)
	return is
}

// MergeWords merges up to pages pages of each index, and reports whether there may be more to merge. FTS5 adds a
// segment with each transaction, and a search reads each segment. PostgreSQL does such work itself.
func (s *SQLite) MergeWords(ctx context.Context, pages int, indexes ...Words) (more bool, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		for _, w := range indexes {
			var before, after int
			if _, err := tx.Get("SELECT total_changes()", nil, &before); err != nil {
				return err
			}
			if _, err := tx.Exec("INSERT INTO "+w.Table+" ("+w.Table+", rank) VALUES ('merge', $1)",
				pages); err != nil {
				return err
			}
			if _, err := tx.Get("SELECT total_changes()", nil, &after); err != nil {
				return err
			}
			more = more || after-before > 1 // the INSERT itself counts as one
		}
		return nil
	})
	return more, err
}
