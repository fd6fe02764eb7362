package chains

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/guard/wall"
	"a2e/host/state/store"
	"a2e/protocol"
)

//go:embed sql/*.sql
var tables embed.FS

// Part describes what the plugins of this type keep in the store: journals, and cached outputs of nodes.
// Exports leave out the outputs, as they can be made again.
func Part() store.Part {
	return store.Part{
		Name: "chains", SQL: tables,
		Export: journalRecords().Export, Import: journalRecords().Import,
		Clear: store.ClearTables("chains_cache", "chains_journals", "chains_steps", "chains_decisions"),
	}
}

func journalRecords() store.Kinds {
	return store.Kinds{{Kind: "chains.journal", Export: exportHeads, Import: store.ImportOf((*head).take)}}
}

func exportHeads(tx *store.Tx, emit func(any) error) error {
	all, err := heads(tx, "ORDER BY number")
	for _, h := range all {
		lines, err := newJournals().Read(tx, h.number)
		if err != nil {
			return err
		}
		h.Steps = []string{}
		for _, l := range lines {
			h.Steps = append(h.Steps, string(l.Body))
		}
		if err := emit(h); err != nil {
			return err
		}
	}
	return err
}

// take imports a journal from an export, and replaces one with the same name.
func (h *head) take(tx *store.Tx) error {
	var kept keptRequest
	if err := json.Unmarshal(h.Request, &kept); err != nil || h.ID == "" || len(h.ID) > maxID {
		return fmt.Errorf("the journal %.64q is not that of a chain: %w", h.ID, err)
	}
	old, err := findHead(tx, h.Workspace, h.ID)
	if err == nil && old != nil {
		err = forget(tx, old.number)
	}
	h.bytes = len(h.Request)
	for _, body := range h.Steps {
		h.bytes += len(body)
		if err := readSteps([]byte(body), func(*step) {}); err != nil {
			return fmt.Errorf("the journal %.64q: %w", h.ID, err)
		}
	}
	err = cmp.Or(err, h.insert(tx))
	// The journal has no owner, and the new store.Journals owns none yet.
	for i, body := range h.Steps {
		err = cmp.Or(err, newJournals().Append(tx, h.number, int64(i), []byte(body)))
	}
	return err
}

// Journal is what people see about a chain with a journal.
type Journal struct {
	ID        string       `json:"chain_id"`
	Agent     string       `json:"agent,omitzero"` // the owner, where tokens tell agents apart
	State     string       `json:"state"`
	Nodes     int          `json:"nodes"` // of the chain itself, without those of chains within it
	Done      int          `json:"done"`  // nodes that are done, with those of chains within it and of each iteration
	Unknown   []string     `json:"unknown"`
	Waiting   []Waiting    `json:"waiting"`
	CreatedAt store.Micros `json:"created_at"`
	UpdatedAt store.Micros `json:"updated_at"`
	Message   string       `json:"message"`
	Timeout   int          `json:"timeout"`
	Steps     []NodeStep   `json:"steps,omitzero"` // only if asked for

	Request protocol.ChainRequest `json:"-"`
	number  int64
}

// Waiting is a node that can be approved: it waits for an approval, or asks for it again when the chain is
// resumed.
type Waiting struct {
	Path    string `json:"path"`
	Message string `json:"message"`
	Denied  bool   `json:"denied,omitzero"`
}

// NodeStep is the state of a node in a journal.
type NodeStep struct {
	Path   string         `json:"path"`
	State  string         `json:"state"`
	Output jsontext.Value `json:"output,omitzero"`
	Error  string         `json:"error,omitzero"`
}

// Journals lists the chains of a workspace that have a journal, the last changed first; id = "" means all
// of them. With steps, each has a list of its nodes.
func Journals(ctx context.Context, s store.Store, workspace, id string, steps bool) (all []Journal, err error) {
	workspace = wall.Canonical(workspace)
	err = s.Read(ctx, func(tx *store.Tx) error {
		all, err = journals(tx, workspace, id, steps)
		return err
	})
	return all, err
}

func journals(tx *store.Tx, workspace, id string, steps bool) ([]Journal, error) {
	all := []Journal{}
	found, err := heads(tx, "WHERE workspace = $1 AND ($2 = '' OR id = $2) ORDER BY updated_at DESC, number DESC",
		workspace, id)
	for _, h := range found {
		if err == nil {
			var one Journal
			one, err = describe(tx, h, steps)
			all = append(all, one)
		}
	}
	if err == nil && id != "" && len(all) == 0 {
		err = fmt.Errorf("there is no journal of a chain %q in this workspace; `a2e chain list` shows those there are",
			id)
	}
	return all, err
}

func describe(tx *store.Tx, h *head, steps bool) (Journal, error) {
	one := Journal{
		ID: h.ID, Agent: h.Agent, State: h.State, CreatedAt: h.CreatedAt, UpdatedAt: h.UpdatedAt,
		Message: h.Message, Unknown: []string{}, Waiting: []Waiting{}, number: h.number,
	}
	if runs, err := h.runs(tx, newJournals()); err != nil {
		return one, err
	} else if h.State == stateRunning && !runs {
		one.State = stateInterrupted
	}
	var kept keptRequest
	if err := json.Unmarshal(h.Request, &kept); err != nil {
		return one, err
	}
	one.Nodes, one.Timeout = len(kept.Nodes), kept.Timeout
	one.Request = protocol.ChainRequest{
		ChainID: h.ID, Nodes: kept.Nodes, EntryNode: kept.EntryNode,
		InitialInput: kept.InitialInput, Timeout: kept.Timeout,
	}
	j := &journal{number: h.number, known: map[string]*entry{}}
	if err := j.load(tx); err != nil {
		return one, err
	}
	for path, e := range j.known {
		switch {
		case e.end == stepDone:
			one.Done++
		case e.begun == stepAsk && (e.end == "" || e.end == stepError): // a denied one can still be approved
			one.Waiting = append(one.Waiting, Waiting{path, e.message, e.denied()})
		}
		if steps {
			one.Steps = append(one.Steps, e.told(path, one.State))
		}
	}
	if one.State != stateRunning && one.State != stateDone {
		one.Unknown = append(one.Unknown, j.unknowns()...)
	}
	slices.SortFunc(one.Waiting, func(a, b Waiting) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(one.Steps, func(a, b NodeStep) int { return strings.Compare(a.Path, b.Path) })
	return one, nil
}

// told returns the state of a node; state is that of its chain.
func (e *entry) told(path, state string) NodeStep {
	s := NodeStep{Path: path, State: e.end}
	switch {
	case e.end == stepDone && e.size > 0:
		s.Output = truncated(e.size)
	case e.end == stepDone:
		s.Output = e.output
	case e.end != "":
		s.Error = e.err.Message
	case e.begun == stepAsk && (state == stateCancelled || state == stateTimeout):
		s.State = "not approved"
	case e.begun == stepAsk:
		s.State = "waits for approval"
	case state == stateRunning:
		s.State = "running"
	case e.unknown():
		s.State = "unknown"
	default:
		s.State = "runs again"
	}
	return s
}

// CancelJournal asks the host that runs a chain to end it, and reports whether a host runs it. The journal
// keeps what the nodes did. drop deletes the journal of a chain that no host runs.
func CancelJournal(ctx context.Context, s store.Store, workspace, id string, drop bool) (running bool, err error) {
	workspace = wall.Canonical(workspace)
	return running, s.Write(ctx, func(tx *store.Tx) error {
		found, err := journals(tx, workspace, id, false)
		if err != nil {
			return err
		}
		one := &found[0]
		running = one.State == stateRunning
		switch {
		case drop && running:
			return fmt.Errorf("the chain %q runs right now; cancel it first, and forget it then", id)
		case drop:
			return forget(tx, one.number)
		case running:
			_, err = tx.Exec("UPDATE chains_journals SET cancelled = 1 WHERE number = $1", one.number)
		case one.State == stateInterrupted:
			_, err = tx.Exec("UPDATE chains_journals SET state = $1, owner = '' WHERE number = $2", stateCancelled,
				one.number)
		}
		return err
	})
}

// Approve writes into a journal what a person decided about a node that waits for it; path = "" means the
// only such node. It returns the path of the node, and whether a host runs the chain.
func Approve(ctx context.Context, s store.Store, workspace, id, path string, approved bool) (node string, running bool,
	err error,
) {
	workspace = wall.Canonical(workspace)
	err = s.Write(ctx, func(tx *store.Tx) error {
		found, err := journals(tx, workspace, id, false)
		if err != nil {
			return err
		}
		running = found[0].State == stateRunning
		if node, err = found[0].waits(path); err != nil {
			return err
		}
		_, err = tx.Exec("INSERT INTO chains_decisions (journal, path, approved) VALUES ($1, $2, $3) ON CONFLICT "+
			"(journal, path) DO UPDATE SET approved = excluded.approved", found[0].number, node, approved)
		return err
	})
	return node, running, err
}

// waits returns the path of a node that waits for an approval; path = "" means the only such node.
func (j *Journal) waits(path string) (string, error) {
	var paths []string
	for _, w := range j.Waiting {
		paths = append(paths, w.Path)
	}
	switch {
	case len(paths) == 0:
		return "", fmt.Errorf("no node of the chain %q waits for an approval", j.ID)
	case path == "" && len(paths) > 1:
		return "", fmt.Errorf("several nodes of the chain %q wait for an approval: %s; name one by --node", j.ID,
			listed(paths))
	case path == "":
		return paths[0], nil
	case !slices.Contains(paths, path):
		return "", fmt.Errorf("%q is not a node of the chain %q that waits for an approval; there are: %s", path, j.ID,
			listed(paths))
	}
	return path, nil
}
