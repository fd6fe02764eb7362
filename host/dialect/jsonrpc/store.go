package jsonrpc

import (
	"context"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/dialect"
	"a2e/host/store"
	"a2e/protocol"
)

type entry struct {
	ID       string  `json:"session_id"`
	Title    string  `json:"title"`
	Titled   bool    `json:"titled,omitzero"` // the client gave the title
	Model    string  `json:"model"`           // the name of its worker; "" = the selected one
	Created  float64 `json:"created_at"`      // seconds since 1970
	Updated  float64 `json:"updated_at"`
	Messages int     `json:"message_count"`
}

type message struct {
	ID        string     `json:"message_id"`
	Role      string     `json:"role"` // user, assistant or tool
	Text      string     `json:"text"`
	Truncated bool       `json:"truncated,omitzero"` // the text was longer
	Images    []image    `json:"images,omitzero"`
	ToolCalls []toolCall `json:"tool_calls,omitzero"`
	Steered   bool       `json:"steered,omitzero"` // given to the worker while it worked
	Tokens    int        `json:"tokens,omitzero"`
	At        string     `json:"created_at"` // RFC 3339
}

// toolCall is a tool that a message is of.
type toolCall struct {
	ID        string         `json:"tool_call_id"`
	Name      string         `json:"tool_name"`
	Arguments jsontext.Value `json:"arguments,omitzero"`
	Success   bool           `json:"success"`
	Duration  int64          `json:"duration_ms"`
}

const (
	maxMessages = 2000    // of one session; the oldest go first
	maxHistory  = 8 << 20 // bytes of those
)

// history keeps sessions, their messages and settings in the store.
type history struct {
	store   store.Opener
	maxKept int
}

const entryColumns = "id, title, titled, model, created, updated, (SELECT count(*) FROM rpc_messages WHERE session = rpc_sessions.id)"

const selectEntry = "SELECT " + entryColumns + " FROM rpc_sessions WHERE id = ?"

func (e *entry) columns() []any {
	return []any{&e.ID, &e.Title, &e.Titled, &e.Model, &e.Created, &e.Updated, &e.Messages}
}

// scan reads the columns of a row.
type scan = func(...any) error

func readEntry(row scan) (e entry, err error) {
	err = row(e.columns()...)
	return e, err
}

// rows returns what read makes of each row of a query.
func rows[T any](tx *store.Tx, query string, args []any, read func(scan) (T, error)) ([]T, error) {
	all := []T{}
	err := tx.Each(query, args, func(row func(...any) error) error {
		v, err := read(row)
		all = append(all, v)
		return err
	})
	return all, err
}

func (h *history) list(ctx context.Context, limit, offset int) (all []entry, total int, err error) {
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		if _, err := tx.Get("SELECT count(*) FROM rpc_sessions", nil, &total); err != nil {
			return err
		}
		all, err = rows(tx, "SELECT "+entryColumns+" FROM rpc_sessions ORDER BY updated DESC, id LIMIT ? OFFSET ?", []any{limit, offset}, readEntry)
		return err
	})
	return all, total, err
}

func (h *history) find(ctx context.Context, id string) (e entry, found bool, err error) {
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		found, err = tx.Get(selectEntry, []any{id}, e.columns()...)
		return err
	})
	return e, found, err
}

func (h *history) put(ctx context.Context, e entry, change func(*entry)) (kept entry, gone []string, err error) {
	var now entry // neither is a result itself: the transaction may go on when write has returned
	var old []string
	err = dialect.Write(ctx, h.store, func(tx *store.Tx) error {
		now, old = e, nil
		if _, err := tx.Get(selectEntry, []any{e.ID}, now.columns()...); err != nil {
			return err
		}
		change(&now)
		if err := putEntry(tx, now); err != nil {
			return err
		}
		var err error
		old, err = rows(tx, "SELECT id FROM rpc_sessions WHERE id <> ? ORDER BY updated DESC LIMIT -1 OFFSET ?", []any{e.ID, max(h.maxKept-1, 0)}, func(row scan) (id string, err error) {
			err = row(&id)
			return id, err
		})
		for _, id := range old {
			for _, gone := range []string{"DELETE FROM rpc_messages WHERE session = ?", "DELETE FROM rpc_sessions WHERE id = ?"} {
				if err == nil {
					_, _, err = tx.Exec(gone, id)
				}
			}
		}
		return err
	})
	if err != nil {
		return entry{}, nil, err
	}
	return now, old, nil
}

func putEntry(tx *store.Tx, e entry) error {
	_, _, err := tx.Exec(`INSERT INTO rpc_sessions (id, title, titled, model, created, updated) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET title = excluded.title, titled = excluded.titled, model = excluded.model, created = excluded.created, updated = excluded.updated`,
		e.ID, e.Title, e.Titled, e.Model, e.Created, e.Updated)
	return err
}

func (h *history) add(ctx context.Context, id string, m message) error {
	text, err := protocol.AppendJSON(nil, m)
	if err != nil {
		return err
	}
	return dialect.Write(ctx, h.store, func(tx *store.Tx) error {
		if err := addMessage(tx, id, text); err != nil {
			return err
		}
		// The oldest go when there are too many, or too much.
		_, _, err := tx.Exec(`DELETE FROM rpc_messages WHERE session = ?1 AND number IN (
SELECT number FROM (SELECT number, row_number() OVER newest AS place, sum(length(CAST(message AS BLOB))) OVER newest AS bytes
FROM rpc_messages WHERE session = ?1 WINDOW newest AS (ORDER BY number DESC)) WHERE place > 1 AND (place > ?2 OR bytes > ?3))`, id, maxMessages, maxHistory)
		return err
	})
}

func addMessage(tx *store.Tx, id string, text []byte) error {
	_, _, err := tx.Exec("INSERT INTO rpc_messages (session, message) SELECT id, ? FROM rpc_sessions WHERE id = ?", string(text), id)
	return err
}

// place says where an offset is; a negative one counts from the end.
func place(offset, total int) int {
	if offset < 0 {
		offset += total
	}
	return min(max(offset, 0), total)
}

func (h *history) messages(ctx context.Context, id string, limit, offset int) (some []message, total int, err error) {
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		if _, err := tx.Get("SELECT count(*) FROM rpc_messages WHERE session = ?", []any{id}, &total); err != nil {
			return err
		}
		some, err = rows(tx, "SELECT message FROM rpc_messages WHERE session = ? ORDER BY number LIMIT ? OFFSET ?", []any{id, limit, place(offset, total)}, func(row scan) (m message, err error) {
			var text string
			if err = row(&text); err == nil {
				err = json.Unmarshal([]byte(text), &m)
			}
			return m, err
		})
		return err
	})
	return some, total, err
}

func (h *history) clear(ctx context.Context, id string) (int, error) {
	var removed int64
	err := dialect.Write(ctx, h.store, func(tx *store.Tx) (err error) {
		_, removed, err = tx.Exec("DELETE FROM rpc_messages WHERE session = ?", id)
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(removed), nil
}

func (h *history) setting(ctx context.Context, name string) (value string, err error) {
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		_, err := tx.Get("SELECT value FROM rpc_settings WHERE name = ?", []any{name}, &value)
		return err
	})
	return value, err
}

func (h *history) set(ctx context.Context, name, value string) error {
	return dialect.Write(ctx, h.store, func(tx *store.Tx) error { return setSetting(tx, name, value) })
}

func setSetting(tx *store.Tx, name, value string) error {
	_, _, err := tx.Exec("INSERT OR REPLACE INTO rpc_settings (name, value) VALUES (?, ?)", name, value)
	return err
}

type keptMessage struct {
	Session string         `json:"session_id"`
	Message jsontext.Value `json:"message"`
}

type keptSetting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Part is what the package keeps in a store.
func Part() store.Part {
	records := store.Kinds{
		store.RecordsOf("rpc.session", "SELECT "+entryColumns+" FROM rpc_sessions ORDER BY id", (*entry).columns, func(e *entry, tx *store.Tx) error {
			if _, _, err := tx.Exec("DELETE FROM rpc_messages WHERE session = ?", e.ID); err != nil {
				return err
			}
			return putEntry(tx, *e)
		}),
		store.RecordsOf("rpc.message", "SELECT session, message FROM rpc_messages ORDER BY number", func(m *keptMessage) []any {
			return []any{&m.Session, (*[]byte)(&m.Message)}
		}, func(m *keptMessage, tx *store.Tx) error {
			if err := json.Unmarshal(m.Message, new(message)); err != nil {
				return err
			}
			return addMessage(tx, m.Session, m.Message)
		}),
		store.RecordsOf("rpc.setting", "SELECT name, value FROM rpc_settings ORDER BY name", func(s *keptSetting) []any {
			return []any{&s.Name, &s.Value}
		}, func(s *keptSetting, tx *store.Tx) error { return setSetting(tx, s.Name, s.Value) }),
	}
	return store.Part{
		Name: "rpc",
		Migrations: []string{`
CREATE TABLE rpc_sessions (
	id      TEXT PRIMARY KEY,
	title   TEXT NOT NULL,
	titled  INTEGER NOT NULL, -- 1 = the client gave the title
	model   TEXT NOT NULL,
	created REAL NOT NULL,
	updated REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX rpc_sessions_updated ON rpc_sessions (updated);
CREATE TABLE rpc_messages (
	number  INTEGER PRIMARY KEY AUTOINCREMENT,
	session TEXT NOT NULL,
	message TEXT NOT NULL
);
CREATE INDEX rpc_messages_session ON rpc_messages (session, number);
CREATE TABLE rpc_settings (
	name  TEXT PRIMARY KEY,
	value TEXT NOT NULL
) WITHOUT ROWID;`},
		Export: records.Export, Import: records.Import, Clear: store.ClearTables("rpc_messages", "rpc_sessions", "rpc_settings"),
	}
}
