package chains

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// How a chain with a journal stands.
const (
	stateRunning     = "running"
	stateInterrupted = "interrupted" // it says that it runs, but its host is dead
	stateDone        = "done"
	stateFailed      = "failed"
	stateTimeout     = "timeout"
	stateCancelled   = "cancelled"
	stateStopped     = "stopped" // with its host, or before its first node
)

// head is one row of chains_journals.
type head struct {
	number      int64
	owner       string
	leased      bool // it was heard of within the lease
	state       string
	definition  string // digest of what it does
	input       string // digest of its initial input
	request     []byte
	cancelled   bool
	createdAt   int64
	updatedAt   int64
	id, message string
	agent       string // whose it is, see host.Session.Owner
}

const selectHeads = "SELECT number, id, owner, leased_until > unixepoch(), state, definition, input, request, " +
	"cancelled, created_at, updated_at, message, agent FROM chains_journals"

func (h *head) columns() []any {
	return []any{&h.number, &h.id, &h.owner, &h.leased, &h.state, &h.definition, &h.input, &h.request, &h.cancelled,
		&h.createdAt, &h.updatedAt, &h.message, &h.agent}
}

// findHead returns nil when there is none.
func findHead(tx *store.Tx, workspace, id string) (*head, error) {
	h := new(head)
	there, err := tx.Get(selectHeads+" WHERE workspace = $1 AND id = $2", []any{workspace, id}, h.columns()...)
	if !there || err != nil {
		return nil, err
	}
	return h, nil
}

// keptRequest is what a journal keeps of a request.
type keptRequest struct {
	Nodes        []protocol.Object `json:"nodes"`
	EntryNode    string            `json:"entry_node"`
	InitialInput protocol.Object   `json:"initial_input"`
	Timeout      int               `json:"timeout"`
}

// durable reports whether a request is one with a journal, which costs some microseconds a node.
// A chain_id alone is not enough: clients send one that they made up with every chain.
func (p *Plugin) durable(req *protocol.ChainRequest) (bool, error) {
	wanted := ""
	switch {
	case req.Resume:
		wanted = "resume"
	case req.Journal:
		wanted = "journal"
	}
	refuse := func(path, format string, args ...any) (bool, error) {
		return false, protocol.Violation(protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	if req.Resolve.Len() > 0 && !req.Resume {
		return refuse("/resolve", "is for a chain that is resumed; it needs \"resume\": true")
	}
	if wanted == "" {
		if !p.opts.Journal || req.ChainID == "" || p.env.Store == nil {
			return false, nil
		}
		wanted = "journal"
	}
	if req.ChainID == "" || len(req.ChainID) > maxID || strings.ContainsFunc(req.ChainID, unicode.IsControl) {
		return refuse("/chain_id", "%s needs a chain_id: a name of 1 to %d bytes for this run, without control characters, such as \"deploy-42\"", wanted, maxID)
	}
	if p.env.Store == nil {
		return refuse("/"+wanted, "this host keeps no state, and so no journals")
	}
	return true, nil
}

// journalled runs a chain with a journal, from its beginning or from where it stopped.
func (p *Plugin) journalled(ctx context.Context, req *protocol.ChainRequest) (*answer, error) {
	host.HandOff(ctx)
	if req.Resume && len(req.Nodes) == 0 {
		if err := p.fill(ctx, req); err != nil {
			return nil, err
		}
	}
	plan, err := p.plan(ctx, req)
	if err != nil {
		return nil, err
	}
	j, err := p.claim(ctx, req, plan)
	if err != nil {
		return nil, err
	}
	defer p.hosts.mark(j.number, false)
	ctx, cancel := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		j.watch(ctx, cancel)
	}()
	defer func() { cancel(nil); <-watched }()
	var a *answer
	if err = j.settle(ctx, req.Resolve); err == nil {
		a, err = p.run(ctx, req, plan, j)
	}
	j.finish(ctx, a, err)
	if a != nil {
		a.FromJournal = j.taken.Load()
	}
	return a, err
}

// foreign reports whether a journal is another agent's, where tokens tell agents apart.
func (h *head) foreign(ctx context.Context) bool {
	owner, apart := host.SessionFrom(ctx).Owner()
	return apart && owner != h.agent
}

// fill takes the chain of a request that only names it from its journal.
func (p *Plugin) fill(ctx context.Context, req *protocol.ChainRequest) error {
	var h *head
	if p.env.StoreExists == nil || p.env.StoreExists() {
		if err := p.kept.Read(ctx, func(tx *store.Tx) (err error) {
			h, err = findHead(tx, p.env.Workspace, req.ChainID)
			return err
		}); err != nil {
			return err
		}
	}
	if h == nil || h.foreign(ctx) {
		return protocol.Violation(protocol.FieldError{Path: "/chain_id",
			Message: fmt.Sprintf("is %q, of which there is no journal in this workspace; `a2e chain list` shows "+
				"those there are. A new chain needs nodes", req.ChainID)})
	}
	var kept keptRequest
	if err := json.Unmarshal(h.request, &kept); err != nil {
		return err
	}
	req.Nodes, req.EntryNode = kept.Nodes, kept.EntryNode
	if req.InitialInput.Len() == 0 {
		req.InitialInput = kept.InitialInput
	}
	return nil
}

// digests tell definitions and inputs apart, however they are spaced and ordered.
func digests(req *protocol.ChainRequest, pl *plan) (definition, input string) {
	canonical := func(obj protocol.Object) []byte {
		v := jsontext.Value(obj.Raw()).Clone()
		if len(v) == 0 {
			v = jsontext.Value("{}")
		}
		_ = v.Format(jsontext.ReorderRawObjects(true), jsontext.SpaceAfterColon(false), jsontext.SpaceAfterComma(false), jsontext.Multiline(false)) // it was read before
		return v
	}
	digest := sha256.New()
	fmt.Fprintf(digest, "%q", req.EntryNode)
	for i, n := range req.Nodes {
		digest.Write(canonical(n))
		if inner := pl.nodes[i].chain; inner != nil {
			digest.Write(inner.digest)
		}
	}
	given := sha256.Sum256(canonical(req.InitialInput))
	return hex.EncodeToString(digest.Sum(nil)), hex.EncodeToString(given[:])
}

// claim makes a journal, or takes that up which there is. Nobody else runs it from then on.
func (p *Plugin) claim(ctx context.Context, req *protocol.ChainRequest, pl *plan) (*journal, error) {
	definition, input := digests(req, pl)
	request, err := json.Marshal(keptRequest{req.Nodes, req.EntryNode, req.InitialInput, req.Timeout})
	if err != nil {
		return nil, err
	}
	j, claimed := &journal{}, false
	agent, _ := host.SessionFrom(ctx).Owner()
	err = p.kept.Write(ctx, func(tx *store.Tx) error {
		*j = journal{plugin: p, id: req.ChainID, known: map[string]*entry{}}
		if err := p.hosts.begin(tx); err != nil {
			return err
		}
		h, err := findHead(tx, p.env.Workspace, req.ChainID)
		if err != nil {
			return err
		}
		if h != nil {
			if h.foreign(ctx) {
				return protocol.Violation(protocol.FieldError{Path: "/chain_id", Message: fmt.Sprintf(
					"is %q, the name of another agent's chain; choose another chain_id", h.id)})
			}
			if err := p.mayTake(tx, req, h, definition, input); err != nil {
				return err
			}
			if !req.Resume {
				if err := forget(tx, h.number); err != nil {
					return err
				}
				h = nil
			}
		}
		now := p.env.Now().UnixMicro()
		j.claimed = now
		if h != nil {
			j.number, claimed = h.number, true
			p.hosts.mark(j.number, true)
			if _, err := tx.Exec("UPDATE chains_journals SET owner = $1, leased_until = unixepoch() + $2, "+
				"state = $3, cancelled = 0, updated_at = $4, message = '' WHERE number = $5",
				p.hosts.name(), p.hosts.lease, stateRunning, now, h.number); err != nil {
				return err
			}
			if err := j.load(tx); err != nil {
				return err
			}
			return j.check(req.Resolve)
		}
		if err := p.prune(tx, len(request)); err != nil {
			return err
		}
		j.number, err = tx.Insert("INSERT INTO chains_journals (workspace, id, agent, owner, leased_until, state, "+
			"definition, input, request, created_at, updated_at, bytes) "+
			"VALUES ($1, $2, $3, $4, unixepoch() + $5, $6, $7, $8, $9, $10, $11, $12) RETURNING number",
			p.env.Workspace, req.ChainID, agent, p.hosts.name(), p.hosts.lease, stateRunning, definition, input,
			request, now, now, len(request))
		if claimed = err == nil; claimed {
			p.hosts.mark(j.number, true)
			err = j.check(req.Resolve)
		}
		return err
	})
	if err != nil {
		if claimed {
			p.hosts.mark(j.number, false)
		}
		return nil, err
	}
	return j, nil
}

// mayTake says why a journal cannot be taken up, or begun anew; else it is this plugin's.
func (p *Plugin) mayTake(tx *store.Tx, req *protocol.ChainRequest, h *head, definition, input string) error {
	refuse := func(path, format string, args ...any) error {
		return protocol.Violation(protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	if h.state == stateRunning {
		runs, err := p.hosts.runs(tx.Dir(), h)
		if err != nil {
			return err
		}
		if runs {
			return refuse("/chain_id", "is %q, a chain that runs right now; wait for its end, or stop it by `a2e chain cancel`; a host on another machine that was killed counts as running for %d seconds", h.id, p.hosts.lease)
		}
	}
	if !req.Resume {
		if h.state != stateDone {
			return refuse("/chain_id", "is %q, a chain that has started and not ended; \"resume\": true resumes it, "+
				"another chain_id starts another one, `a2e chain cancel --forget` discards it", h.id)
		}
		return nil
	}
	switch {
	case h.definition != definition:
		return refuse("/nodes", "are not those that the chain %q started with, or a saved chain that it runs was "+
			"changed; leave nodes out to resume with those of the journal, or start with another chain_id", h.id)
	case h.input != input:
		return refuse("/initial_input", "is not what the chain %q started with; leave nodes and initial_input out "+
			"to resume with those of the journal, or start with another chain_id", h.id)
	}
	return nil
}

// load reads what the journal has.
func (j *journal) load(tx *store.Tx) error {
	return eachStep(tx, j.number, func(id int64, body []byte) error {
		j.seq = id - j.number*maxSeq + 1
		j.bytes += len(body)
		return readSteps(body, func(s *step) {
			e := j.known[s.Path]
			if e == nil {
				e = &entry{}
				j.known[s.Path] = e
			}
			e.take(s)
		})
	})
}

// eachStep goes over the writes of a journal, in order.
func eachStep(tx *store.Tx, number int64, do func(id int64, body []byte) error) error {
	return tx.Each("SELECT id, body FROM chains_steps WHERE id >= $1 AND id < $2 ORDER BY id", []any{number * maxSeq,
		(number + 1) * maxSeq}, func(scan func(...any) error) error {
		var id int64
		var body []byte
		if err := scan(&id, &body); err != nil {
			return err
		}
		return do(id, body)
	})
}

// forget removes a journal.
func forget(tx *store.Tx, number int64) error {
	if _, err := tx.Exec("DELETE FROM chains_steps WHERE id >= $1 AND id < $2", number*maxSeq,
		(number+1)*maxSeq); err != nil {
		return err
	}
	if _, err := tx.Exec("DELETE FROM chains_decisions WHERE journal = $1", number); err != nil {
		return err
	}
	_, err := tx.Exec("DELETE FROM chains_journals WHERE number = $1", number)
	return err
}

// prune makes room for a further journal: those of chains that came to their end go first, the
// oldest before the others, then those that stopped. One that runs stays.
func (p *Plugin) prune(tx *store.Tx, more int) error {
	type old struct {
		head
		bytes int
	}
	var all []old
	count, bytes := 1, more
	if err := tx.Each(fmt.Sprintf(`SELECT number, owner, leased_until > unixepoch(), state, CASE state WHEN 'running' THEN LENGTH(request) +
		(SELECT COALESCE(SUM(LENGTH(body)), 0) FROM chains_steps WHERE id >= number * %d AND id < (number + 1) * %d) ELSE bytes END
		FROM chains_journals ORDER BY state != 'done', updated_at, number`, int64(maxSeq), int64(maxSeq)), nil, func(scan func(...any) error) error {
		var o old
		err := scan(&o.number, &o.owner, &o.leased, &o.state, &o.bytes)
		all = append(all, o)
		count, bytes = count+1, bytes+o.bytes
		return err
	}); err != nil {
		return err
	}
	for _, o := range all {
		if count <= p.opts.MaxJournals && bytes <= p.opts.MaxJournalBytes {
			return nil
		}
		if o.state == stateRunning {
			if runs, err := p.hosts.runs(tx.Dir(), &o.head); err != nil || runs {
				continue
			}
		}
		if err := forget(tx, o.number); err != nil {
			return err
		}
		count, bytes = count-1, bytes-o.bytes
	}
	if count > p.opts.MaxJournals || bytes > p.opts.MaxJournalBytes {
		err := protocol.Errorf(protocol.CodeOverloaded, "the chains with a journal that run now are %d with %d bytes, and there is no room for another (max_journals and max_journal_bytes in the config allow more)", count-1, bytes-more)
		err.Retryable = true
		return err
	}
	return nil
}

// watch renews the lease of the journal. It ends the chain when another process asks for that in the journal,
// or may have taken it up: the journal is another's, or could not be read for as long as a lease.
func (j *journal) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	lease := time.Duration(j.plugin.hosts.lease) * time.Second
	poll, renew := time.NewTicker(journalPoll), time.NewTicker(lease/3)
	defer poll.Stop()
	defer renew.Stop()
	var renewals sync.WaitGroup
	defer renewals.Wait()
	ours := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			renewals.Go(func() { j.renew(ctx) }) // it may wait for the writes of other hosts
			continue
		case <-poll.C:
		}
		at := time.Now()
		switch goesOn, err := j.goesOn(ctx, lease/3); {
		case goesOn:
			ours = at
		case err == nil:
			cancel(protocol.Errorf(protocol.CodeCancelled, "the chain was cancelled by its journal, or another host "+
				"has taken it over; \"resume\": true resumes it"))
		case time.Since(ours) > lease:
			cancel(protocol.Errorf(protocol.CodeRuntimeError, "the journal of the chain could not be read for %s, another host may go on with it: %w", lease, err))
		}
	}
}

// goesOn reports whether the journal is still this host's, and nobody has cancelled the chain.
func (j *journal) goesOn(ctx context.Context, patience time.Duration) (yes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = j.plugin.kept.Opener.Read(ctx, func(tx *store.Tx) (err error) {
		yes, err = tx.Get("SELECT 1 FROM chains_journals WHERE number = $1 AND owner = $2 AND cancelled = 0",
			[]any{j.number, j.plugin.hosts.name()}, new(int))
		return err
	})
	return yes && err == nil, err
}

// renew begins the lease anew.
func (j *journal) renew(ctx context.Context) {
	_ = j.plugin.kept.Opener.Write(ctx, func(tx *store.Tx) error { // what fails is done again, or watch tells
		_, err := tx.Exec("UPDATE chains_journals SET leased_until = unixepoch() + $1 WHERE number = $2 AND owner = "+
			"$3", j.plugin.hosts.lease, j.number, j.plugin.hosts.name())
		return err
	})
}

// finish notes how the chain ended; it can be resumed unless it came to its end.
func (j *journal) finish(ctx context.Context, a *answer, failed error) {
	state, message := stateDone, ""
	switch {
	case failed != nil:
		known := nodeError(failed)
		if state, message = stateStopped, known.Message; known.Code == protocol.CodeCancelled {
			state = stateCancelled
		}
	case a.code == protocol.CodeTimeout:
		state = stateTimeout
	case a.broke:
		state = stateFailed
	}
	if a != nil && a.err != nil {
		message, _ = a.err["message"].(string)
	}
	ctx = context.WithoutCancel(ctx)
	_ = j.flush(ctx) // j.err has it
	j.writes.Wait()  // one that the timer began may stand in the store only while the journal is ours
	j.mu.Lock()
	if j.err != nil {
		state = stateStopped
	}
	j.mu.Unlock()
	now := j.plugin.env.Now().UnixMicro()
	end := func(tx *store.Tx) error { // of this run alone: another may have taken the chain up
		_, err := tx.Exec("UPDATE chains_journals SET state = $1, owner = '', cancelled = 0, message = $2, "+
			"updated_at = $3, bytes = LENGTH(request) + $4 WHERE number = $5 AND owner = $6 AND updated_at = $7",
			state, protocol.Clip(message, maxErrorText), now, j.bytes, j.number, j.plugin.hosts.name(), j.claimed)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, journalPatience) // of this write: those before may have waited for other hosts
	defer cancel()
	if err := j.plugin.kept.Write(ctx, end); err != nil { // it is logged
		j.plugin.hosts.later(func(ctx context.Context) error { return j.plugin.kept.Opener.Write(ctx, end) })
	}
}
