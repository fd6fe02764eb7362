package jsonrpc

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/dialect"
	"a2e/host/redact"
	"a2e/host/store"
	"a2e/protocol"
)

// entry is a session in the store.
type entry struct {
	ID      string  `json:"session_id"`
	Title   string  `json:"title"`               // that the client gave; "" = none
	Model   string  `json:"model"`               // the name of its worker; "" = the selected one
	Rollout string  `json:"rollout_id,omitzero"` // of what is said in it now; "" = nothing yet
	Created float64 `json:"created_at"`          // seconds since 1970
	Updated float64 `json:"updated_at"`
	Agent   string  `json:"agent,omitzero"` // whose it is, see auth.Tokens.Apart
}

// rollout is what was said in a session, up to a history.clear_session. It outlives that.
type rollout struct {
	ID       string  `json:"rollout_id"`
	Title    string  `json:"title"`
	Provider string  `json:"provider"`
	Model    string  `json:"model"`
	Thinking string  `json:"thinking"`
	Created  float64 `json:"created_at"` // seconds since 1970
	Updated  float64 `json:"updated_at"`
	Messages int     `json:"message_count"`
	Agent    string  `json:"agent,omitzero"`  // whose it is, see auth.Tokens.Apart
	Folder   string  `json:"folder,omitzero"` // where it began, see wall.Place; "" = it was not noted
}

// message is a message of a session. As JSON it is one of a history.
type message struct {
	Role      string       `json:"role"` // user, assistant, or system: a notice that no model sees
	Text      string       `json:"text"`
	Images    []attachment `json:"images,omitzero"`
	Truncated bool         `json:"truncated,omitzero"` // the text was longer

	number int64 // in the store
	said   bool  // it is part of the history: its turn has ended, and did not fail
}

const (
	maxMessages = 2000     // of one rollout; the oldest go first
	maxHistory  = 32 << 20 // bytes of those, with their images
)

// history keeps sessions, what was said in them, and settings in the store.
type history struct {
	store   store.Opener
	maxKept int
	folder  string                 // where rollouts begin
	secrets *redact.Set            // what is kept has none of them, nor those that it names itself
	only    atomic.Pointer[string] // the agent whose sessions there are, as tokens tell agents apart; nil = all
}

// owner is whose a new session is.
func (h *history) owner() string {
	if only := h.only.Load(); only != nil {
		return *only
	}
	return ""
}

// mine is the condition on rows that are the client's to see, behind others.
func (h *history) mine(args ...any) (condition string, all []any) {
	if only := h.only.Load(); only != nil {
		return fmt.Sprintf(" AND agent = ?%d", len(args)+1), append(args, *only)
	}
	return "", args
}

// in is mine, and of a folder only; "" = of all.
func (h *history) in(folder string, args ...any) (condition string, all []any) {
	condition, all = h.mine(args...)
	if folder != "" {
		all = append(all, folder)
		condition += fmt.Sprintf(" AND folder = ?%d", len(all))
	}
	return condition, all
}

const (
	entryColumns   = "id, title, model, rollout, created, updated, agent"
	rolloutColumns = "id, title, provider, model, thinking, created, updated, (SELECT count(*) FROM rpc_messages " +
		"WHERE rollout = rpc_rollouts.id AND said <> 0), agent, folder"
	saved = " FROM rpc_rollouts WHERE EXISTS (SELECT 1 FROM rpc_messages WHERE rollout = rpc_rollouts.id AND said <> 0)"
)

func (e *entry) columns() []any {
	return []any{&e.ID, &e.Title, &e.Model, &e.Rollout, &e.Created, &e.Updated, &e.Agent}
}

func (r *rollout) columns() []any {
	return []any{&r.ID, &r.Title, &r.Provider, &r.Model, &r.Thinking, &r.Created, &r.Updated, &r.Messages, &r.Agent,
		&r.Folder}
}

// rows returns what read makes of each row of a query.
func rows[T any](tx *store.Tx, query string, args []any, columns func(*T) []any) ([]T, error) {
	all := []T{}
	err := tx.Each(query, args, func(scan func(...any) error) error {
		var v T
		err := scan(columns(&v)...)
		all = append(all, v)
		return err
	})
	return all, err
}

// list returns a page of the rollouts that began in a folder, the latest first, and how many there are; "" = in any.
func (h *history) list(ctx context.Context, folder string, limit, cursor int) (all []rollout, total int, err error) {
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		mine, args := h.in(folder)
		if _, err := tx.Get("SELECT count(*)"+saved+mine, args, &total); err != nil {
			return err
		}
		mine, args = h.in(folder, limit, cursor)
		all, err = rows(tx, "SELECT "+rolloutColumns+saved+mine+" ORDER BY updated DESC, id LIMIT ?1 OFFSET ?2", args,
			(*rollout).columns)
		return err
	})
	return all, total, err
}

// match returns the rollouts of a folder, or any for "", at most two, whose ids begin with a prefix in any case;
// "" = the latest of all.
func (h *history) match(ctx context.Context, folder, prefix string) (found []rollout, err error) {
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		mine, args := h.in(folder, strings.ToLower(prefix))
		found, err = rows(tx, "SELECT "+rolloutColumns+saved+" AND substr(id, 1, length(?1)) = ?1"+mine+
			" ORDER BY length(id) = length(?1) DESC, updated DESC LIMIT 2",
			args, (*rollout).columns)
		return err
	})
	return found, err
}

func (h *history) find(ctx context.Context, id string) (e entry, found bool, err error) {
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		mine, args := h.mine(id)
		found, err = tx.Get("SELECT "+entryColumns+" FROM rpc_sessions WHERE id = ?1"+mine, args, e.columns()...)
		return err
	})
	return e, found, err
}

// provider returns who answered in a rollout.
func (h *history) provider(ctx context.Context, id string) (provider string, err error) {
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		_, err := tx.Get("SELECT provider FROM rpc_rollouts WHERE id = ?", []any{id}, &provider)
		return err
	})
	return provider, err
}

func (h *history) put(ctx context.Context, e entry) error {
	return dialect.Write(ctx, h.store, func(tx *store.Tx) error { return h.putEntry(tx, e) })
}

// kept is a text as it may be kept.
func (h *history) kept(text string) string { return string(h.secrets.Own([]byte(text))) }

// putEntry keeps a session, and has the oldest go where there are too many.
func (h *history) putEntry(tx *store.Tx, e entry) error {
	if h != nil {
		e.Title = h.kept(e.Title)
	}
	_, err := tx.Exec(`INSERT INTO rpc_sessions (`+entryColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET title = excluded.title, model = excluded.model, rollout = excluded.rollout,
	updated = CASE WHEN excluded.updated > rpc_sessions.updated THEN excluded.updated ELSE rpc_sessions.updated END`,
		e.ID, e.Title, e.Model, e.Rollout, e.Created, e.Updated, e.Agent)
	if err == nil && h != nil {
		_, err = tx.Exec("DELETE FROM rpc_sessions WHERE id IN (SELECT id FROM rpc_sessions WHERE id <> ? ORDER BY updated DESC LIMIT 1000000000 OFFSET ?)", e.ID, max(h.maxKept-1, 0))
	}
	return err
}

func putRollout(tx *store.Tx, r rollout) error {
	_, err := tx.Exec(`INSERT INTO rpc_rollouts (id, title, provider, model, thinking, created, updated, agent, `+
		`folder) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET title = excluded.title, provider = excluded.provider, model = excluded.model, thinking = excluded.thinking, updated = excluded.updated`,
		r.ID, r.Title, r.Provider, r.Model, r.Thinking, r.Created, r.Updated, r.Agent, r.Folder)
	return err
}

// add keeps a message of a turn in a rollout, and returns its number. e is its session.
func (h *history) add(ctx context.Context, e entry, rollout, turn string, m message) (number int64, err error) {
	m.Text = h.kept(m.Text)
	text, err := protocol.AppendJSON(nil, &m)
	if err != nil {
		return 0, err
	}
	var at int64 // no result itself: the transaction may go on when Write has returned
	err = dialect.Write(ctx, h.store, func(tx *store.Tx) error {
		err := h.putEntry(tx, e)
		if err == nil {
			_, err = tx.Exec("INSERT INTO rpc_rollouts (id, title, provider, model, thinking, created, updated, "+
				"agent, folder) "+
				"VALUES (?1, '', '', '', '', ?2, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
				rollout, e.Updated, e.Agent, h.folder)
		}
		if err == nil {
			at, err = tx.Insert("INSERT INTO rpc_messages (rollout, turn, said, message) VALUES (?, ?, 0, ?) RETURNING number", rollout, turn, string(text))
		}
		if err == nil { // the oldest go when there are too many, or too much
			_, err = tx.Exec(`DELETE FROM rpc_messages WHERE rollout = ?1 AND number IN (
SELECT number FROM (SELECT number, row_number() OVER newest AS place, sum(octet_length(message)) OVER newest AS bytes
FROM rpc_messages WHERE rollout = ?1 WINDOW newest AS (ORDER BY number DESC)) sized WHERE place > 1 AND (place > ?2 OR bytes > ?3))`, rollout, maxMessages, maxHistory)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return at, nil
}

// finish has what was said in a turn be part of the history.
func (h *history) finish(ctx context.Context, turn string, r rollout) error {
	return dialect.Write(ctx, h.store, func(tx *store.Tx) error {
		err := putRollout(tx, r)
		if err == nil { // a message begins with its role
			_, err = tx.Exec(`UPDATE rpc_messages SET said = CASE WHEN message LIKE '{"role":"system",%' THEN 0 ELSE 1 END WHERE rollout = ? AND turn = ?`, r.ID, turn)
		}
		for _, table := range []string{"rpc_messages WHERE rollout", "rpc_rollouts WHERE id"} {
			if err == nil {
				_, err = tx.Exec("DELETE FROM "+table+" IN (SELECT id FROM rpc_rollouts WHERE id <> ? ORDER BY updated DESC LIMIT 1000000000 OFFSET ?)", r.ID, max(h.maxKept-1, 0))
			}
		}
		return err
	})
}

// messages returns what is in a rollout, the oldest first; said = without what is no part of
// the history.
func (h *history) messages(ctx context.Context, rollout string, said bool) (all []message, err error) {
	type row struct {
		message
		json string
	}
	err = h.store.Read(ctx, func(tx *store.Tx) error {
		read, err := rows(tx, "SELECT number, said, message FROM rpc_messages WHERE rollout = ? AND said >= ? ORDER BY number", []any{rollout, said}, func(r *row) []any {
			return []any{&r.number, &r.said, &r.json}
		})
		all = make([]message, len(read))
		for i := range read {
			if err == nil {
				err = json.Unmarshal([]byte(read[i].json), &read[i].message)
			}
			all[i] = read[i].message
		}
		return err
	})
	return all, err
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
	_, err := tx.Exec("INSERT INTO rpc_settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, value)
	return err
}

// keptSession is an entry in an export. Older ones had their messages themselves.
type keptSession struct {
	entry
	Titled   bool `json:"titled,omitzero"`
	Messages int  `json:"message_count,omitzero"`
}

type keptMessage struct {
	Rollout string         `json:"rollout_id,omitzero"`
	Turn    string         `json:"turn_id,omitzero"`
	Said    bool           `json:"said,omitzero"`
	Message jsontext.Value `json:"message"`
	Session string         `json:"session_id,omitzero"` // of an older export
}

type keptSetting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Part is what the package keeps in a store.
func Part() store.Part {
	forget := func(tx *store.Tx, rollout string) error {
		_, err := tx.Exec("DELETE FROM rpc_messages WHERE rollout = ?", rollout)
		return err
	}
	records := store.Kinds{
		store.RecordsOf("rpc.session", "SELECT "+entryColumns+" FROM rpc_sessions ORDER BY id", func(s *keptSession) []any { return s.columns() }, func(s *keptSession, tx *store.Tx) error {
			if s.Messages > 0 {
				s.Rollout = s.ID
				old := rollout{ID: s.ID, Title: s.Title, Provider: s.Model, Created: s.Created, Updated: s.Updated}
				if err := cmp.Or(forget(tx, s.ID), putRollout(tx, old)); err != nil {
					return err
				}
			}
			return (*history)(nil).putEntry(tx, s.entry)
		}),
		store.RecordsOf("rpc.rollout", "SELECT "+rolloutColumns+" FROM rpc_rollouts ORDER BY id", (*rollout).columns, func(r *rollout, tx *store.Tx) error {
			return cmp.Or(forget(tx, r.ID), putRollout(tx, *r))
		}),
		store.RecordsOf("rpc.message", "SELECT rollout, turn, said, message FROM rpc_messages ORDER BY number", func(m *keptMessage) []any {
			return []any{&m.Rollout, &m.Turn, &m.Said, (*[]byte)(&m.Message)}
		}, func(m *keptMessage, tx *store.Tx) error {
			if err := json.Unmarshal(m.Message, new(message)); err != nil {
				return err
			}
			_, err := tx.Exec("INSERT INTO rpc_messages (rollout, turn, said, message) VALUES (?, ?, ?, ?)", cmp.Or(m.Rollout, m.Session), m.Turn, m.Said || m.Session != "", string(m.Message))
			return err
		}),
		store.RecordsOf("rpc.setting", "SELECT name, value FROM rpc_settings ORDER BY name", func(s *keptSetting) []any {
			return []any{&s.Name, &s.Value}
		}, func(s *keptSetting, tx *store.Tx) error { return setSetting(tx, s.Name, s.Value) }),
	}
	return store.Part{
		Name: "rpc", Migrations: migrations(), Postgres: map[int]string{1: store.WithoutRows(migrations()[1])},
		Export: records.Export, Import: records.Import, Clear: store.ClearTables("rpc_messages", "rpc_rollouts", "rpc_sessions", "rpc_settings"),
	}
}

func migrations() []string {
	return []string{`
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
) WITHOUT ROWID;`, `
CREATE TABLE rpc_rollouts (
	id       TEXT PRIMARY KEY,
	title    TEXT NOT NULL,
	provider TEXT NOT NULL,
	model    TEXT NOT NULL,
	thinking TEXT NOT NULL,
	created  REAL NOT NULL,
	updated  REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX rpc_rollouts_updated ON rpc_rollouts (updated);
INSERT INTO rpc_rollouts SELECT id, title, model, '', '', created, updated FROM rpc_sessions;
ALTER TABLE rpc_sessions ADD COLUMN rollout TEXT NOT NULL DEFAULT '';
UPDATE rpc_sessions SET rollout = id, title = CASE WHEN titled THEN title ELSE '' END;
ALTER TABLE rpc_sessions DROP COLUMN titled;
ALTER TABLE rpc_messages RENAME COLUMN session TO rollout;
ALTER TABLE rpc_messages ADD COLUMN turn TEXT NOT NULL DEFAULT '';
ALTER TABLE rpc_messages ADD COLUMN said INTEGER NOT NULL DEFAULT 1; -- 1 = part of the history
DELETE FROM rpc_messages WHERE json_extract(message, '$.role') = 'tool';
UPDATE rpc_messages SET message = json_object('role', json_extract(message, '$.role'), 'text', json_extract(message,
	'$.text'));`, `
ALTER TABLE rpc_sessions ADD COLUMN agent TEXT NOT NULL DEFAULT '';
ALTER TABLE rpc_rollouts ADD COLUMN agent TEXT NOT NULL DEFAULT '';`,
		"ALTER TABLE rpc_rollouts ADD COLUMN folder TEXT NOT NULL DEFAULT '';"}
}
