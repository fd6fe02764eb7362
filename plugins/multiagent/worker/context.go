package worker

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"strings"
	"time"

	"a2e/host/agent"
	"a2e/host/state/store"
	"a2e/protocol/fleet"
)

//go:embed sql/*.sql
var tables embed.FS

// Limits of the stored conversations. The least recently used ones are deleted first.
const (
	maxContexts     = 1000
	maxContextBytes = 64 << 20
	maxSaid         = 1 << 20 // bytes of one conversation; its oldest messages are deleted first
	contextAge      = 30 * 24 * time.Hour
)

// Part returns the workers' part of the store: the conversations of tasks.
func Part() store.Part {
	records := store.Kinds{
		store.RecordsOf("multi_agent.context", "SELECT workspace, agent, context, worker, session, said, used_at "+
			"FROM worker_contexts ORDER BY workspace, agent, context", func(r *contextRecord) []any {
			return []any{&r.Workspace, &r.Agent, &r.Context, &r.Worker, &r.Session, store.JSON(&r.Said), &r.UsedAt}
		}, (*contextRecord).take),
	}
	return store.Part{
		Name: "multi_agent", SQL: tables, Export: records.Export, Import: records.Import,
		Clear: store.ClearTables("worker_contexts"),
	}
}

// message is one message of a conversation.
type message struct {
	Role string `json:"role"` // user or assistant
	Text string `json:"text"`
}

// conversation is what tasks with one context_id have in common.
type conversation struct {
	Worker  string    `json:"worker"`  // the worker that has it; "" = the conversation is new
	Session string    `json:"session"` // session id of its program; "" = none
	Said    []message `json:"said"`    // messages to and from a model, the oldest first
}

// contextRecord is a conversation in an export.
type contextRecord struct {
	Workspace string `json:"workspace"`
	Agent     string `json:"agent"`
	Context   string `json:"context"`
	conversation
	UsedAt store.Micros `json:"used_at"`
}

func (r *contextRecord) take(tx *store.Tx) error {
	if r.Context == "" || r.Worker == "" {
		return errors.New("context and worker should not be empty")
	}
	return r.put(tx)
}

// put writes the conversation to the store and replaces the stored one.
func (r *contextRecord) put(tx *store.Tx) error {
	size := 0
	for i := len(r.Said) - 1; i >= 0; i-- {
		if size += len(r.Said[i].Text) + 1; size > maxSaid && i < len(r.Said)-1 {
			r.Said = r.Said[i+1:]
			break
		}
	}
	_, err := tx.Exec(`INSERT INTO worker_contexts (workspace, agent, context, worker, session, said, size, used_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (workspace, agent, context) DO UPDATE
		SET worker = excluded.worker,
		session = excluded.session, said = excluded.said, size = excluded.size, used_at = excluded.used_at`,
		r.Workspace, r.Agent, r.Context, r.Worker, r.Session, store.JSON(r.Said), size, int64(r.UsedAt))
	return err
}

// converses reports whether a task belongs to a conversation in the store. A turn of a session has its own
// conversation.
func (p *Pool) converses(t *task) bool {
	return t.Task.ContextID != "" && t.Talk == nil && p.env.Store != nil
}

// recall reads the conversation of a task from the store.
func (p *Pool) recall(ctx context.Context, t *task) error {
	t.talk = new(conversation)
	return p.env.Store.Read(ctx, func(tx *store.Tx) error {
		_, err := tx.Get("SELECT worker, session, said FROM worker_contexts WHERE workspace = $1 AND agent = $2 AND "+
			"context = $3",
			[]any{p.workspace, t.owner, t.Task.ContextID}, &t.talk.Worker, &t.talk.Session, store.JSON(&t.talk.Said))
		return err
	})
}

// keep stores the conversation of a task that a worker has done, or whose session is lost.
func (p *Pool) keep(ctx context.Context, t *task) {
	now := p.env.Now()
	record := contextRecord{p.workspace, t.owner, t.Task.ContextID, *t.talk, store.Micros(now.UnixMicro())}
	err := p.env.Store.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		_, err := tx.Exec("DELETE FROM worker_contexts WHERE used_at < $1", now.Add(-contextAge).UnixMicro())
		bound := store.Bound{
			Table: "worker_contexts", Key: "used_at", Newest: "used_at DESC", Most: maxContexts,
			Size: "size", Bytes: maxContextBytes,
		}
		return cmp.Or(err, record.put(tx), bound.Prune(tx))
	})
	if err != nil {
		p.env.Log.Error().Err(err).Str("context_id", t.Task.ContextID).Msg("a conversation is not kept; the next " +
			"task in it begins anew")
	}
}

// say adds the brief and the model's summary to the conversation.
func (t *task) say(res *fleet.Result) {
	if t.talk != nil && res.Summary != "" {
		t.talk.Said = append(t.talk.Said, message{"user", t.Brief}, message{"assistant", res.Summary})
	}
}

// earlier returns the conversation so far for a model.
func (t *task) earlier() []agent.Said {
	if t.talk == nil {
		return nil
	}
	all := make([]agent.Said, len(t.talk.Said))
	for i, m := range t.talk.Said {
		all[i] = agent.Said{Role: m.Role, Text: m.Text}
	}
	return all
}

// filled replaces {context} in the arguments of a command by the id of the conversation, and {session} by the
// program's session id. If the value is empty, it leaves out the argument and a flag before it.
func filled(args []string, contextID, session string) []string {
	all := make([]string, 0, len(args))
	for i, arg := range args {
		if strings.Contains(arg, "{context}") && contextID == "" || strings.Contains(arg, "{session}") &&
			session == "" {
			if n := len(all); i > 1 && strings.HasPrefix(args[i-1], "-") && n > 1 && all[n-1] == args[i-1] {
				all = all[:n-1]
			}
			continue
		}
		all = append(all, strings.NewReplacer("{context}", contextID, "{session}", session).Replace(arg))
	}
	return all
}
