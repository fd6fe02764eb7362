package jsonrpc

import (
	"cmp"
	"context"
	"embed"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/dialect"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// entry is a session in the store.
type entry struct {
	ID      string  `json:"session_id"`
	Title   string  `json:"title"`               // as the client set it; "" = none
	Model   string  `json:"model"`               // the name of its worker; "" = the selected one
	Rollout string  `json:"rollout_id,omitzero"` // the id of its current rollout; "" = none yet
	Created float64 `json:"created_at"`          // seconds since 1970
	Updated float64 `json:"updated_at"`
	Agent   string  `json:"agent,omitzero"` // its owner, see auth.Tokens.Apart
}

// rollout is a conversation in a session. history.clear_session ends it, but does not delete it.
type rollout struct {
	ID       string  `json:"rollout_id"`
	Title    string  `json:"title"`
	Provider string  `json:"provider"`
	Model    string  `json:"model"`
	Thinking string  `json:"thinking"`
	Created  float64 `json:"created_at"` // seconds since 1970
	Updated  float64 `json:"updated_at"`
	Messages int     `json:"message_count"`
	Agent    string  `json:"agent,omitzero"`   // its owner, see auth.Tokens.Apart
	Folder   string  `json:"folder,omitzero"`  // where it began, see wall.Canonical; "" = not known
	Summary  string  `json:"summary,omitzero"` // of its older messages; "" = none
}

// message is a message of a session. Its JSON is that of the history.
type message struct {
	Role      string       `json:"role"` // user, assistant or system; system is a notice that no model sees
	Text      string       `json:"text"`
	Images    []attachment `json:"images,omitzero"`
	Truncated bool         `json:"truncated,omitzero"` // the text was longer

	number   int64  // in the store
	said     bool   // it belongs to the history: its turn has ended without a failure
	summed   bool   // the summary of its rollout replaces it
	provider string // of its rollout
}

// history keeps sessions, their messages and settings in the store. No access waits longer than StoreWait. Titles,
// texts and summaries are stored without secrets.
type history struct {
	*Options
	folder string                 // where rollouts begin
	only   atomic.Pointer[string] // the agent whose sessions are visible, if tokens tell agents apart; nil = all are
}

// Queries for what the client may see have its agent as $1; null = all agents.
const (
	mine = " AND (agent = $1 OR $1 IS NULL)"

	entryColumns   = "id, title, model, rollout, created, updated, agent"
	rolloutColumns = "id, title, provider, model, thinking, created, updated, agent, folder, summary"
	saidRows       = " FROM rpc_messages WHERE rollout = rpc_rollouts.id AND said <> 0)"
	rolloutRows    = "SELECT " + rolloutColumns + ", (SELECT count(*)" + saidRows
	// saved selects the rollouts that began in the folder $2; "" = in any.
	saved = " FROM rpc_rollouts WHERE EXISTS (SELECT 1" + saidRows + mine + " AND (folder = $2 OR $2 = '')"
)

func (e *entry) columns() []any {
	return []any{&e.ID, &e.Title, &e.Model, &e.Rollout, &e.Created, &e.Updated, &e.Agent}
}

// columns returns the targets for rolloutRows: rolloutColumns and the number of messages.
func (r *rollout) columns() []any {
	return []any{
		&r.ID, &r.Title, &r.Provider, &r.Model, &r.Thinking, &r.Created, &r.Updated, &r.Agent, &r.Folder,
		&r.Summary, &r.Messages,
	}
}

// errSlow returns the error for a request that has waited too long for the store.
func errSlow(wait time.Duration) *protocol.Error {
	return protocol.Errorf(protocol.CodeTimeout, "the store was not free within %s; send it again later", wait)
}

func (h *history) read(ctx context.Context, fn func(*store.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.StoreWait, errSlow(h.StoreWait))
	defer cancel()
	err := h.Store.Read(ctx, fn)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (h *history) write(ctx context.Context, fn func(*store.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.StoreWait, errSlow(h.StoreWait))
	defer cancel()
	return dialect.Write(ctx, h.Store, fn)
}

// one reads the first row of a query; false = there is none.
func (h *history) one(ctx context.Context, query string, args []any, dest ...any) (found bool, err error) {
	err = h.read(ctx, func(tx *store.Tx) error {
		found, err = tx.Get(query, args, dest...)
		return err
	})
	return found, err
}

// all returns all rows of a query.
func all[R any](ctx context.Context, h *history, query string, args []any, columns func(*R) []any) ([]*R, error) {
	var rows []*R
	err := h.read(ctx, func(tx *store.Tx) (err error) {
		rows, err = store.Rows(tx, query, args, columns)
		return err
	})
	return rows, err
}

// count returns how many rollouts began in a folder; "" = in any.
func (h *history) count(ctx context.Context, folder string) (total int, err error) {
	_, err = h.one(ctx, "SELECT count(*)"+saved, []any{h.only.Load(), folder}, &total)
	return total, err
}

// list returns a page of the rollouts that began in a folder, the latest first; "" = in any.
func (h *history) list(ctx context.Context, folder string, limit, cursor int) ([]*rollout, error) {
	return all(ctx, h, rolloutRows+saved+" ORDER BY updated DESC, id LIMIT $3 OFFSET $4",
		[]any{h.only.Load(), folder, limit, cursor}, (*rollout).columns)
}

// rollout returns the rollout whose id is, or begins with, a text, in any case; "" = the latest. folder is where it
// began; "" = anywhere. none is the message of the error if no rollout, or more than one, is found.
func (h *history) rollout(ctx context.Context, folder, id, none string) (*rollout, error) {
	found, err := all(ctx, h, rolloutRows+saved+" AND substr(id, 1, length($3)) = $3"+
		" ORDER BY length(id) = length($3) DESC, updated DESC LIMIT 2",
		[]any{h.only.Load(), folder, strings.ToLower(id)}, (*rollout).columns)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0, len(found) > 1 && id != "" && !strings.EqualFold(found[0].ID, id):
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "%s", none)
	}
	return found[0], nil
}

func (h *history) find(ctx context.Context, id string) (e entry, found bool, err error) {
	found, err = h.one(ctx, "SELECT "+entryColumns+" FROM rpc_sessions WHERE id = $2"+mine,
		[]any{h.only.Load(), id}, e.columns()...)
	return e, found, err
}

// messages returns the messages of a rollout, the oldest first. said = only those of the history.
func (h *history) messages(ctx context.Context, rollout string, said bool) ([]*message, error) {
	return all(ctx, h, "SELECT number, said, summed, message, coalesce((SELECT provider FROM rpc_rollouts WHERE id "+
		"= rollout), '') FROM rpc_messages WHERE rollout = $1 AND said >= $2 ORDER BY number", []any{rollout, said},
		func(m *message) []any { return []any{&m.number, &m.said, &m.summed, store.JSON(m), &m.provider} })
}

// kept returns a text without secrets, as it may be stored.
func (h *history) kept(text string) string { return string(h.Secrets.Own([]byte(text))) }

func exec(tx *store.Tx, query string, args ...any) error {
	_, err := tx.Exec(query, args...)
	return err
}

func putEntry(tx *store.Tx, e entry) error {
	return exec(tx, `INSERT INTO rpc_sessions (`+entryColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (id) DO UPDATE SET title = excluded.title, model = excluded.model, rollout = excluded.rollout,
	updated = CASE WHEN excluded.updated > rpc_sessions.updated THEN excluded.updated ELSE rpc_sessions.updated END`,
		e.columns()...)
}

// putRollout stores a rollout. known is the SQL for a rollout that is there already.
func putRollout(tx *store.Tx, r rollout, known string) error {
	columns := r.columns()
	return exec(tx, "INSERT INTO rpc_rollouts ("+rolloutColumns+") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) "+
		"ON CONFLICT (id) DO "+known, columns[:len(columns)-1]...)
}

const (
	leaveRollout  = "NOTHING"
	updateRollout = `UPDATE SET title = excluded.title, provider = excluded.provider, model = excluded.model,
	thinking = excluded.thinking, updated = excluded.updated`
	importRollout = updateRollout + ", summary = excluded.summary"
)

// prune deletes the rows of the oldest sessions or rollouts beyond MaxKept, but never those of the id but.
func (h *history) prune(tx *store.Tx, rows, table, but string) error {
	return exec(tx, "DELETE FROM "+rows+" IN (SELECT id FROM "+table+
		" WHERE id <> $1 ORDER BY updated DESC LIMIT 1000000000 OFFSET $2)", but, max(h.MaxKept-1, 0))
}

func (h *history) keep(tx *store.Tx, e entry) error {
	e.Title = h.kept(e.Title)
	return cmp.Or(putEntry(tx, e), h.prune(tx, "rpc_sessions WHERE id", "rpc_sessions", e.ID))
}

func (h *history) put(ctx context.Context, e entry) error {
	return h.write(ctx, func(tx *store.Tx) error { return h.keep(tx, e) })
}

// add stores a message of a turn in a rollout and returns its number. e is its session. It deletes the oldest messages
// of the rollout if there are too many or they are too long together.
func (h *history) add(ctx context.Context, e entry, id, turn string, m message) (number int64, err error) {
	m.Text = h.kept(m.Text)
	text, err := protocol.AppendJSON(nil, &m)
	if err != nil {
		return 0, err
	}
	first := rollout{ID: id, Created: e.Updated, Updated: e.Updated, Agent: e.Agent, Folder: h.folder}
	var at int64 // not the result itself, because the transaction may go on after write has returned
	err = h.write(ctx, func(tx *store.Tx) error {
		err := cmp.Or(h.keep(tx, e), putRollout(tx, first, leaveRollout))
		if err == nil {
			at, err = tx.Insert("INSERT INTO rpc_messages (rollout, turn, said, message) VALUES ($1, $2, 0, $3) "+
				"RETURNING number", id, turn, string(text))
		}
		said := store.Bound{
			Table: "rpc_messages", Key: "number", Where: "rollout = $1", Newest: "number DESC",
			Most: maxMessages, Size: "octet_length(message)", Bytes: maxHistory,
		}
		return cmp.Or(err, said.Prune(tx, id))
	})
	if err != nil {
		return 0, err
	}
	return at, nil
}

// finish makes the messages of a turn part of the history.
func (h *history) finish(ctx context.Context, turn string, r rollout) error {
	return h.write(ctx, func(tx *store.Tx) error {
		return cmp.Or(putRollout(tx, r, updateRollout), // the JSON of a message begins with its role
			exec(tx, `UPDATE rpc_messages SET said = CASE WHEN message LIKE '{"role":"system",%' THEN 0 ELSE 1 END
WHERE rollout = $1 AND turn = $2`, r.ID, turn),
			h.prune(tx, "rpc_messages WHERE rollout", "rpc_rollouts", r.ID),
			h.prune(tx, "rpc_rollouts WHERE id", "rpc_rollouts", r.ID))
	})
}

func (h *history) setting(ctx context.Context, name string) (value string, err error) {
	_, err = h.one(ctx, "SELECT value FROM rpc_settings WHERE name = $1", []any{name}, &value)
	return value, err
}

type setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func (s *setting) columns() []any { return []any{&s.Name, &s.Value} }

func (s *setting) put(tx *store.Tx) error {
	return exec(tx, "INSERT INTO rpc_settings (name, value) VALUES ($1, $2) "+
		"ON CONFLICT (name) DO UPDATE SET value = excluded.value", s.Name, s.Value)
}

func (h *history) set(ctx context.Context, name, value string) error {
	return h.write(ctx, (&setting{name, value}).put)
}

// keptSession is a session in an export. An older export has messages that name the session, and no rollouts.
type keptSession struct {
	entry
	Titled   bool `json:"titled,omitzero"`
	Messages int  `json:"message_count,omitzero"`
}

func (s *keptSession) put(tx *store.Tx) error {
	if s.Messages > 0 {
		s.Rollout = s.ID
		old := rollout{ID: s.ID, Title: s.Title, Provider: s.Model, Created: s.Created, Updated: s.Updated}
		if err := old.put(tx); err != nil {
			return err
		}
	}
	return putEntry(tx, s.entry)
}

// put replaces a stored rollout, and deletes its messages.
func (r *rollout) put(tx *store.Tx) error {
	return cmp.Or(exec(tx, "DELETE FROM rpc_messages WHERE rollout = $1", r.ID), putRollout(tx, *r, importRollout))
}

type keptMessage struct {
	Rollout string         `json:"rollout_id,omitzero"`
	Turn    string         `json:"turn_id,omitzero"`
	Said    bool           `json:"said,omitzero"`
	Summed  bool           `json:"summed,omitzero"`
	Message jsontext.Value `json:"message"`
	Session string         `json:"session_id,omitzero"` // of an older export
}

func (m *keptMessage) columns() []any {
	return []any{&m.Rollout, &m.Turn, &m.Said, &m.Summed, (*[]byte)(&m.Message)}
}

func (m *keptMessage) put(tx *store.Tx) error {
	if err := json.Unmarshal(m.Message, new(message)); err != nil {
		return err
	}
	return exec(tx, "INSERT INTO rpc_messages (rollout, turn, said, summed, message) VALUES ($1, $2, $3, $4, $5)",
		cmp.Or(m.Rollout, m.Session), m.Turn, m.Said || m.Session != "", m.Summed, string(m.Message))
}

//go:embed sql/*.sql
var tables embed.FS

// Part returns the part of a store that the package keeps.
func Part() store.Part {
	records := store.Kinds{
		store.RecordsOf("rpc.session", "SELECT "+entryColumns+" FROM rpc_sessions ORDER BY id",
			(*keptSession).columns, (*keptSession).put),
		store.RecordsOf("rpc.rollout", rolloutRows+" FROM rpc_rollouts ORDER BY id",
			(*rollout).columns, (*rollout).put),
		store.RecordsOf("rpc.message", "SELECT rollout, turn, said, summed, message FROM rpc_messages ORDER BY number",
			(*keptMessage).columns, (*keptMessage).put),
		store.RecordsOf("rpc.setting", "SELECT name, value FROM rpc_settings ORDER BY name",
			(*setting).columns, (*setting).put),
	}
	return store.Part{
		Name: "rpc", SQL: tables,
		Export: records.Export, Import: records.Import,
		Clear: store.ClearTables("rpc_messages", "rpc_rollouts", "rpc_sessions", "rpc_settings"),
	}
}
