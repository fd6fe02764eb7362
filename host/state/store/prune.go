package store

// Bound is a limit on the rows of a table.
type Bound struct {
	Table, Key string // Key is the column that identifies a row
	Where      string // condition for the rows that count; "" = all
	Newest     string // the order, newest first, such as "number DESC"
	Most       int
	Size       string // SQL expression for the bytes of a row; "" = only Most counts
	Bytes      int    // limit for all rows together
}

// Prune deletes the oldest rows beyond the bound, but never the newest row. In large tables it deletes
// a 64th more than necessary, because it has to read all rows. args are the arguments of Where.
func (b Bound) Prune(tx *Tx, args ...any) error {
	if b.Size == "" {
		b.Size = "0"
	}
	from := " FROM " + b.Table
	if b.Where != "" {
		from += " WHERE " + b.Where
	}
	var count, bytes int
	if _, err := tx.Get("SELECT count(*), coalesce(sum("+b.Size+"), 0)"+from, args, &count, &bytes); err != nil ||
		count <= b.Most && bytes <= b.Bytes {
		return err
	}
	all := Args(args)
	_, err := tx.Exec("DELETE FROM "+b.Table+" WHERE "+b.Key+" IN (SELECT "+b.Key+" FROM (SELECT "+b.Key+
		", row_number() OVER newest AS place, sum("+b.Size+") OVER newest AS bytes"+from+
		" WINDOW newest AS (ORDER BY "+b.Newest+" ROWS UNBOUNDED PRECEDING)) ranked WHERE place > 1 AND (place > "+
		all.Add(b.Most-b.Most/64)+" OR bytes > "+all.Add(b.Bytes-b.Bytes/64)+"))", all...)
	return err
}
