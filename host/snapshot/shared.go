package snapshot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
)

// sessionPatience is how long a session waits for the store of its state at most.
const sessionPatience = 5 * time.Second

// What rows hold: what an agent's last session left, what its next one is to begin with, or, under any
// other name, what a restoration has added so far.
const (
	rowLast    = "last"
	rowPending = "restore"
)

func sessionPart() store.Part {
	return store.Part{Name: "sessions", Migrations: []string{`
CREATE TABLE sessions_states (
	agent TEXT NOT NULL, -- digest of its id
	what  TEXT NOT NULL,
	at    INTEGER NOT NULL, -- seconds since 1970
	state BLOB NOT NULL,
	PRIMARY KEY (agent, what)
);`}}
}

// rowSessions keeps sessions in the store of the state, where hosts on other machines find them.
type rowSessions struct {
	store    store.Opener
	maxBytes int // of a row
}

// NewSharedSessions keeps them in a store that has Parts, opened when it is needed.
func NewSharedSessions(state store.Opener) Sessions { return &rowSessions{state, maxSessionBytes} }

func patient() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), sessionPatience)
}

// Put implements host.SessionStates.
func (s *rowSessions) Put(agentID string, states map[string]jsontext.Value) error {
	ctx, cancel := patient()
	defer cancel()
	if len(states) == 0 {
		_, err := s.remove(ctx, agentID, rowLast)
		return err
	}
	raw, err := encode(session{agentID, states}, s.maxBytes)
	if err != nil {
		return err
	}
	return s.store.Write(ctx, func(tx *store.Tx) error {
		err := putRow(tx, agentID, rowLast, raw)
		if err == nil {
			_, err = tx.Exec("DELETE FROM sessions_states WHERE at < unixepoch() - $1", int(maxSessionAge.Seconds()))
		}
		if err == nil {
			_, err = tx.Exec("DELETE FROM sessions_states WHERE what = $1 AND agent IN (SELECT agent FROM "+
				"sessions_states WHERE what = $2 ORDER BY at DESC, agent LIMIT 1000000000 OFFSET $3)", rowLast,
				rowLast, maxSessions)
		}
		return err
	})
}

func putRow(tx *store.Tx, agentID, what string, raw []byte) error {
	_, err := tx.Exec("INSERT INTO sessions_states VALUES ($1, $2, unixepoch(), $3) ON CONFLICT (agent, what) DO "+
		"UPDATE SET at = excluded.at, state = excluded.state", keyOf(agentID), what, raw)
	return err
}

// remove returns what was in a row that it removes; nil = there was none. Looking for one writes nothing.
func (s *rowSessions) remove(ctx context.Context, agentID, what string) (raw []byte, err error) {
	there := false
	err = s.store.Read(ctx, func(tx *store.Tx) (err error) {
		there, err = tx.Get("SELECT 1 FROM sessions_states WHERE agent = $1 AND what = $2", []any{keyOf(agentID),
			what}, new(int))
		return err
	})
	if err != nil || !there {
		return nil, err
	}
	err = s.store.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Get("DELETE FROM sessions_states WHERE agent = $1 AND what = $2 RETURNING state",
			[]any{keyOf(agentID), what}, &raw)
		return err
	})
	return raw, err
}

// Take implements host.SessionStates. Of several hosts that ask, one gets it.
func (s *rowSessions) Take(agentID string) (map[string]jsontext.Value, error) {
	ctx, cancel := patient()
	defer cancel()
	raw, err := s.remove(ctx, agentID, rowPending)
	if err != nil || raw == nil {
		return nil, err
	}
	var found session
	if err := json.Unmarshal(raw, &found); err != nil {
		return nil, fmt.Errorf("what was restored for the agent cannot be read: %w", err)
	}
	return found.States, nil
}

// each implements Sessions.
func (s *rowSessions) each(f func(session) error) (broken []error, err error) {
	err = s.store.Read(context.Background(), func(tx *store.Tx) error {
		return tx.Each("SELECT DISTINCT agent FROM sessions_states WHERE what IN ($1, $2) ORDER BY agent",
			[]any{rowLast, rowPending}, func(scan func(...any) error) error {
				var agent string
				var raw []byte
				err := scan(&agent)
				if err == nil {
					_, err = tx.Get("SELECT state FROM sessions_states WHERE agent = $1 AND what IN ($2, $3) ORDER BY "+
						"what DESC LIMIT 1", []any{agent, rowLast, rowPending}, &raw)
				}
				if err != nil {
					return err
				}
				var one session
				if err := json.Unmarshal(raw, &one); err != nil {
					broken = append(broken, fmt.Errorf("the session of %s: %w", agent, err))
					return nil
				}
				return f(one)
			})
	})
	return broken, err
}

// rowRestoration is a restoration in rows.
type rowRestoration struct {
	*rowSessions
	name  string // of its rows
	added map[string]bool
}

func (s *rowSessions) restoration() restoration {
	return &rowRestoration{s, rand.Text(), map[string]bool{}}
}

// add implements restoration.
func (r *rowRestoration) add(one session) error {
	if r.added[one.AgentID] {
		return fmt.Errorf("the agent %.100q appears in it twice", one.AgentID)
	}
	raw, err := encode(one, r.maxBytes)
	if err != nil {
		return err
	}
	r.added[one.AgentID] = true
	return r.store.Write(context.Background(), func(tx *store.Tx) error { return putRow(tx, one.AgentID, r.name, raw) })
}

// commit implements restoration.
func (r *rowRestoration) commit() error {
	return r.store.Write(context.Background(), func(tx *store.Tx) error {
		_, err := tx.Exec("DELETE FROM sessions_states WHERE what = $1", rowPending)
		_, failed := tx.Exec("UPDATE sessions_states SET what = $1 WHERE what = $2", rowPending, r.name)
		return errors.Join(err, failed)
	})
}

// discard implements restoration.
func (r *rowRestoration) discard() {
	if len(r.added) == 0 {
		return
	}
	ctx, cancel := patient()
	defer cancel()
	_ = r.store.Write(ctx, func(tx *store.Tx) error { // what stays goes with its age
		_, err := tx.Exec("DELETE FROM sessions_states WHERE what = $1", r.name)
		return err
	})
}
