package chains

import (
	"cmp"
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
	"a2e/host/state/store"
	"a2e/protocol"
)

// The states of a chain with a journal.
const (
	stateRunning     = "running"
	stateInterrupted = "interrupted" // it says that it runs, but its host is dead
	stateDone        = "done"
	stateFailed      = "failed"
	stateTimeout     = "timeout"
	stateCancelled   = "cancelled"
	stateStopped     = "stopped" // its host stopped, or it did not reach its first node
)

// head is one row of chains_journals. With the lines of the journal it is also the record of an export,
// and where that is imported the chain can be resumed.
type head struct {
	Workspace  string         `json:"workspace"`
	ID         string         `json:"chain_id"`
	State      string         `json:"state"`
	Definition string         `json:"definition"` // digest of what the chain does
	Input      string         `json:"input"`      // digest of its initial input
	Request    jsontext.Value `json:"request"`
	CreatedAt  store.Micros   `json:"created_at"`
	UpdatedAt  store.Micros   `json:"updated_at"`
	Message    string         `json:"message"`
	Agent      string         `json:"agent,omitzero"` // the owner, see host.Session.Owner
	Steps      []string       `json:"steps"`          // the lines of the journal; only in an export

	number int64
	owner  string
	leased bool // the lease of owner has not ended
	bytes  int  // size of the journal
}

// selectHeads computes the size of running journals; for others the column bytes has it.
const (
	headColumns = "workspace, id, state, definition, input, request, created_at, updated_at, message, agent"
	selectHeads = "SELECT " + headColumns + ", number, owner, leased_until > unixepoch(), CASE state WHEN 'running' " +
		"THEN LENGTH(request) + (SELECT COALESCE(SUM(LENGTH(body)), 0) FROM chains_steps WHERE " +
		"id >= number * 4294967296 AND id < (number + 1) * 4294967296) ELSE bytes END FROM chains_journals "
)

func (h *head) columns() []any {
	return []any{
		&h.Workspace, &h.ID, &h.State, &h.Definition, &h.Input, (*[]byte)(&h.Request), &h.CreatedAt,
		&h.UpdatedAt, &h.Message, &h.Agent, &h.number, &h.owner, &h.leased, &h.bytes,
	}
}

// heads returns the rows that a condition and an order select.
func heads(tx *store.Tx, rest string, args ...any) ([]*head, error) {
	return store.Rows(tx, selectHeads+rest, args, (*head).columns)
}

// findHead returns nil if there is no such journal.
func findHead(tx *store.Tx, workspace, id string) (*head, error) {
	all, err := heads(tx, "WHERE workspace = $1 AND id = $2", workspace, id)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// insert adds the row, without an owner.
func (h *head) insert(tx *store.Tx) (err error) {
	h.number, err = tx.Insert("INSERT INTO chains_journals ("+headColumns+", owner, bytes) "+
		"VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, '', $11) RETURNING number", h.Workspace, h.ID, h.State,
		h.Definition, h.Input, []byte(h.Request), int64(h.CreatedAt), int64(h.UpdatedAt), h.Message, h.Agent, h.bytes)
	return err
}

// runs reports whether a chain in the state running has a live host.
func (h *head) runs(tx *store.Tx, js *store.Journals) (bool, error) {
	if h.State != stateRunning {
		return false, nil
	}
	return js.Lives(tx, h.number, h.owner, h.leased)
}

// usualLease is how long a host on another machine keeps its journals after its last sign of life.
const usualLease = 30 * time.Second

func newJournals() *store.Journals {
	return &store.Journals{Table: "chains_journals", Lines: "chains_steps", Folder: "chains", Lease: usualLease}
}

// forget removes a journal.
func forget(tx *store.Tx, number int64) error {
	if _, err := tx.Exec("DELETE FROM chains_decisions WHERE journal = $1", number); err != nil {
		return err
	}
	return newJournals().Remove(tx, number)
}

// keptRequest is what a journal keeps of a request.
type keptRequest struct {
	Nodes        []protocol.Object `json:"nodes"`
	EntryNode    string            `json:"entry_node"`
	InitialInput protocol.Object   `json:"initial_input"`
	Timeout      int               `json:"timeout"`
}

// durable reports whether a request runs with a journal, which costs some microseconds per node. A
// chain_id alone is not enough: clients make one up for every chain.
func (p *Plugin) durable(req *protocol.ChainRequest) (bool, error) {
	wanted := ""
	switch {
	case req.Resume:
		wanted = "resume"
	case req.Journal:
		wanted = "journal"
	}
	if req.Resolve.Len() > 0 && !req.Resume {
		return false, protocol.Wrong("/resolve", "is for a chain that is resumed; it needs \"resume\": true")
	}
	if wanted == "" {
		if !p.opts.Journal || req.ChainID == "" || p.env.Store == nil {
			return false, nil
		}
		wanted = "journal"
	}
	if req.ChainID == "" || len(req.ChainID) > maxID || strings.ContainsFunc(req.ChainID, unicode.IsControl) {
		return false, protocol.Wrong("/chain_id", "%s needs a chain_id: a name of 1 to %d bytes for this run, without "+
			"control characters, such as \"deploy-42\"", wanted, maxID)
	}
	if p.env.Store == nil {
		return false, protocol.Wrong("/"+wanted, "this host keeps no state, and so no journals")
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
	defer p.journals.Work(j.number, false)
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

// foreign reports whether a journal belongs to another agent, where tokens tell agents apart.
func (h *head) foreign(ctx context.Context) bool {
	owner, apart := host.SessionFrom(ctx).Owner()
	return apart && owner != h.Agent
}

// fill completes a request that has only a chain_id with the chain in its journal.
func (p *Plugin) fill(ctx context.Context, req *protocol.ChainRequest) error {
	var h *head
	if p.env.StoreExists() {
		if err := p.kept.Read(ctx, func(tx *store.Tx) (err error) {
			h, err = findHead(tx, p.env.Workspace, req.ChainID)
			return err
		}); err != nil {
			return err
		}
	}
	if h == nil || h.foreign(ctx) {
		return protocol.Wrong("/chain_id", "is %q, of which there is no journal in this workspace; `a2e chain list` "+
			"shows those there are. A new chain needs nodes", req.ChainID)
	}
	var kept keptRequest
	if err := json.Unmarshal(h.Request, &kept); err != nil {
		return err
	}
	req.Nodes, req.EntryNode = kept.Nodes, kept.EntryNode
	if req.InitialInput.Len() == 0 {
		req.InitialInput = kept.InitialInput
	}
	return nil
}

// digests returns digests of the definition and of the initial input. White space and the order of members
// do not change them.
func digests(req *protocol.ChainRequest, pl *plan) (definition, input string) {
	canonical := func(obj protocol.Object) []byte {
		v := jsontext.Value(obj.Raw()).Clone()
		if len(v) == 0 {
			v = jsontext.Value("{}")
		}
		_ = v.Format(jsontext.ReorderRawObjects(true), jsontext.SpaceAfterColon(false), jsontext.SpaceAfterComma(false),
			jsontext.Multiline(false)) // it is valid, as it was read before
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

// claim makes a journal, or takes over an existing one. Nobody else runs the chain from then on.
func (p *Plugin) claim(ctx context.Context, req *protocol.ChainRequest, pl *plan) (*journal, error) {
	request, err := json.Marshal(keptRequest{req.Nodes, req.EntryNode, req.InitialInput, req.Timeout})
	if err != nil {
		return nil, err
	}
	now := store.Micros(p.env.Now().UnixMicro())
	fresh := head{
		Workspace: p.env.Workspace, ID: req.ChainID, State: stateRunning, Request: request, CreatedAt: now,
		UpdatedAt: now, bytes: len(request),
	}
	fresh.Definition, fresh.Input = digests(req, pl)
	fresh.Agent, _ = host.SessionFrom(ctx).Owner()
	j := &journal{}
	err = p.kept.Write(ctx, func(tx *store.Tx) error {
		*j = journal{plugin: p, id: req.ChainID, known: map[string]*entry{}, claimed: now}
		h, err := findHead(tx, p.env.Workspace, req.ChainID)
		if err == nil && h != nil {
			err = p.mayTake(ctx, tx, req, h, &fresh)
		}
		if err == nil && h != nil && !req.Resume {
			h, err = nil, forget(tx, h.number)
		}
		switch {
		case err != nil:
		case h == nil:
			h = &fresh
			err = cmp.Or(p.prune(tx, h.bytes), h.insert(tx))
		default:
			_, err = tx.Exec("UPDATE chains_journals SET state = $1, cancelled = 0, updated_at = $2, message = '' "+
				"WHERE number = $3", stateRunning, int64(now), h.number)
		}
		if err != nil {
			return err
		}
		j.number = h.number
		p.journals.Work(j.number, true)
		return cmp.Or(p.journals.Own(tx, j.number), j.load(tx), j.check(req.Resolve))
	})
	if err != nil {
		p.journals.Work(j.number, false)
		return nil, err
	}
	return j, nil
}

// mayTake returns an error if a journal cannot be resumed or begun anew.
func (p *Plugin) mayTake(ctx context.Context, tx *store.Tx, req *protocol.ChainRequest, h, fresh *head) error {
	if h.foreign(ctx) {
		return protocol.Wrong("/chain_id", "is %q, the name of another agent's chain; choose another chain_id", h.ID)
	}
	runs, err := h.runs(tx, p.journals)
	switch {
	case err != nil:
		return err
	case runs:
		return protocol.Wrong("/chain_id", "is %q, a chain that runs right now; wait for its end, or stop it by "+
			"`a2e chain cancel`; a host on another machine that was killed counts as running for %d seconds", h.ID,
			int(p.journals.Lease.Seconds()))
	case !req.Resume && h.State != stateDone:
		return protocol.Wrong("/chain_id", "is %q, a chain that has started and not ended; \"resume\": true resumes "+
			"it, another chain_id starts another one, `a2e chain cancel --forget` discards it", h.ID)
	case req.Resume && h.Definition != fresh.Definition:
		return protocol.Wrong("/nodes", "are not those that the chain %q started with, or a saved chain that it runs "+
			"was changed; leave nodes out to resume with those of the journal, or start with another chain_id", h.ID)
	case req.Resume && h.Input != fresh.Input:
		return protocol.Wrong("/initial_input", "is not what the chain %q started with; leave nodes and initial_input "+
			"out to resume with those of the journal, or start with another chain_id", h.ID)
	}
	return nil
}

// load reads the steps of the journal.
func (j *journal) load(tx *store.Tx) error {
	lines, err := newJournals().Read(tx, j.number)
	for _, l := range lines {
		j.place, j.bytes = l.Place+1, j.bytes+len(l.Body)
		if err == nil {
			err = readSteps(l.Body, func(s *step) {
				if j.known[s.Path] == nil {
					j.known[s.Path] = &entry{}
				}
				j.known[s.Path].take(s)
			})
		}
	}
	return err
}

// prune makes room for another journal. It first deletes journals of completed chains, the oldest first,
// then those of stopped chains. The journal of a running chain stays.
func (p *Plugin) prune(tx *store.Tx, more int) error {
	all, err := heads(tx, "ORDER BY state != 'done', updated_at, number")
	count, bytes := len(all)+1, more
	for _, h := range all {
		bytes += h.bytes
	}
	for _, h := range all {
		if err != nil || count <= p.opts.MaxJournals && bytes <= p.opts.MaxJournalBytes {
			return err
		}
		if runs, err := h.runs(tx, p.journals); err != nil || runs {
			continue
		}
		err = forget(tx, h.number)
		count, bytes = count-1, bytes-h.bytes
	}
	if err == nil && (count > p.opts.MaxJournals || bytes > p.opts.MaxJournalBytes) {
		full := protocol.Errorf(protocol.CodeOverloaded, "the chains with a journal that run now are %d with %d "+
			"bytes, and there is no room for another (max_journals and max_journal_bytes in the config allow more)",
			count-1, bytes-more)
		full.Retryable = true
		return full
	}
	return err
}

// watch renews the lease of the journal. It ends the chain when another process asks for that in the
// journal, or when another host may have taken the chain over: the journal has another owner, or could not
// be read for as long as a lease.
func (j *journal) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	lease := j.plugin.journals.Lease
	var renewals sync.WaitGroup
	defer renewals.Wait()
	renewals.Go(func() { // a renewal may wait for the writes of other hosts
		for pause(ctx, lease/3) {
			_ = j.plugin.kept.Opener.Write(ctx, func(tx *store.Tx) error {
				return j.plugin.journals.Renew(tx, j.number)
			})
		}
	})
	for ours := time.Now(); pause(ctx, journalPoll); {
		at := time.Now()
		switch goesOn, err := j.goesOn(ctx, lease/3); {
		case goesOn:
			ours = at
		case err == nil:
			cancel(protocol.Errorf(protocol.CodeCancelled, "the chain was cancelled by its journal, or another host "+
				"has taken it over; \"resume\": true resumes it"))
		case time.Since(ours) > lease:
			cancel(protocol.Errorf(protocol.CodeRuntimeError, "the journal of the chain could not be read for %s, "+
				"another host may go on with it: %w", lease, err))
		}
	}
}

// pause waits for d; false = ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// goesOn reports whether the journal is still this host's and nobody has cancelled the chain.
func (j *journal) goesOn(ctx context.Context, patience time.Duration) (yes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = j.plugin.kept.Opener.Read(ctx, func(tx *store.Tx) (err error) {
		yes, err = tx.Get("SELECT 1 FROM chains_journals WHERE number = $1 AND owner = $2 AND cancelled = 0",
			[]any{j.number, j.plugin.journals.Owner()}, new(int))
		return err
	})
	return yes && err == nil, err
}

// finish writes how the chain ended. It can be resumed unless its state is done.
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
	_ = j.flush(ctx) // the error is in j.err
	j.writes.Wait()  // also for one that the timer began: it must be stored while the journal is ours
	j.mu.Lock()
	if j.err != nil {
		state = stateStopped
	}
	j.mu.Unlock()
	now := j.plugin.env.Now().UnixMicro()
	end := func(tx *store.Tx) error { // only for this run, as another may have taken the chain over
		_, err := tx.Exec("UPDATE chains_journals SET state = $1, owner = '', cancelled = 0, message = $2, "+
			"updated_at = $3, bytes = LENGTH(request) + $4 WHERE number = $5 AND owner = $6 AND updated_at = $7",
			state, protocol.Clip(message, maxErrorText), now, j.bytes, j.number, j.plugin.journals.Owner(),
			int64(j.claimed))
		return err
	}
	// the timeout is for this write alone: earlier ones may have waited for other hosts
	ctx, cancel := context.WithTimeout(ctx, journalPatience)
	defer cancel()
	if err := j.plugin.kept.Write(ctx, end); err != nil { // the error is logged
		j.plugin.endLater(end)
	}
}

// endLater writes the end of a journal again and again until the store takes it or the plugin closes.
// Until then the journal says that this host runs the chain.
func (p *Plugin) endLater(end func(*store.Tx) error) {
	if p.life.Err() == nil {
		p.late.Go(func() {
			for pause(p.life, p.again) && p.kept.Opener.Write(p.life, end) != nil {
			}
		})
	}
}
