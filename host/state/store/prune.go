package store

// Bound is how many rows of a table are kept.
type Bound struct {
	Table, Key string // Key is the column that tells rows apart
	Where      string // which rows are counted; "" = all
	Newest     string // the order in which rows are kept, such as "number DESC"
	Most       int
	Size       string // the bytes of a row; "" = only Most counts
	Bytes      int    // of all rows
}

// Prune deletes what is beyond the bound, but never the newest row: where much is kept a 64th more than it must, as it
// looks at all rows. args are those of Where.
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
