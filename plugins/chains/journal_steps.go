package chains

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

const (
	maxJournalOutput = 4 << 20          // bytes; a larger output is not kept
	journalPause     = time.Millisecond // how long the end of a node waits to be written together with others
	journalPoll      = 200 * time.Millisecond
	journalPatience  = 5 * time.Second // timeout of the last write of a chain, and pause before it is tried again
)

// The values of step.What.
const (
	stepStart      = "start"      // it begins, and may not be run twice
	stepIdempotent = "idempotent" // it begins, and may be run twice
	stepAsk        = "ask"        // it begins to wait for an approval
	stepDone       = "done"
	stepFailed     = "failed" // it failed, and the chain went on without it
	stepError      = "error"  // it failed, and runs again when the chain is resumed
)

// step is one record of a journal: what a node did.
type step struct {
	Path    string             `json:"p"`
	What    string             `json:"s"`
	At      int64              `json:"t"` // microseconds since 1970
	Output  jsontext.Value     `json:"o,omitzero"`
	Size    int                `json:"n,omitzero"` // of an output that was too large to keep
	Cut     bool               `json:"x,omitzero"` // the output is only a part
	Code    protocol.ErrorCode `json:"c,omitzero"`
	Message string             `json:"m,omitzero"`
}

// entry is what a journal has about a node.
type entry struct {
	begun   string // stepStart, stepIdempotent or stepAsk; "" = the node has not begun
	at      int64  // when it first began, in microseconds since 1970
	message string // of an approval
	end     string // stepDone, stepFailed or stepError; "" = it has not ended
	output  jsontext.Value
	size    int  // of an output that was not kept
	cut     bool // output is only a part
	err     *protocol.Error
}

// take updates an entry with a further step.
func (e *entry) take(s *step) {
	switch s.What {
	case stepStart, stepIdempotent, stepAsk:
		if e.begun == "" || e.end != "" {
			e.at = s.At
		}
		e.begun, e.end, e.message = s.What, "", s.Message
	case stepDone:
		e.end, e.output, e.size, e.cut = stepDone, s.Output, s.Size, s.Cut
	case stepFailed, stepError:
		e.end, e.err = s.What, protocol.Errorf(s.Code, "%s", s.Message)
	}
}

// unknown reports whether it is unknown if the node completed, and the node may not run twice.
func (e *entry) unknown() bool {
	return e.begun == stepStart && (e.end == "" || e.end == stepDone && e.size > 0)
}

// denied reports whether an approval was denied.
func (e *entry) denied() bool { return e.end != "" && e.err != nil && e.err.Code == codeDenied }

// stepJSON keeps outputs of tools in a journal as they came.
var stepJSON = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true),
	jsontext.PreserveRawStrings(true))

// readSteps passes each step in a line of a journal to do.
func readSteps(body []byte, do func(*step)) error {
	dec := jsontext.NewDecoder(bytes.NewReader(body), stepJSON)
	for {
		var s step
		err := json.UnmarshalDecode(dec, &s)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		do(&s)
	}
}

// journal is the journal of a running chain. known does not change while nodes run.
type journal struct {
	plugin *Plugin
	number int64
	id     string
	known  map[string]*entry
	taken  atomic.Int64 // nodes whose outputs came from it

	claimed store.Micros // when this run took it

	writes sync.WaitGroup // writes that are running

	mu    sync.Mutex // guards the fields below
	place int64      // number of the next line
	bytes int
	buf   []byte
	timer *time.Timer // writes buf soon; nil = not started
	err   error       // why the journal cannot be written
}

// appendLocked adds a step to buf.
func (j *journal) appendLocked(s *step) error {
	if j.err != nil {
		return j.err
	}
	if most := j.plugin.opts.MaxJournalBytes; j.bytes+len(j.buf) > most {
		return protocol.Errorf(protocol.CodeChainNodeError, "the journal of the chain has more than %d bytes; pass "+
			"less from node to node, or write it to files (max_journal_bytes in the config allows more)", most)
	}
	s.At = j.plugin.env.Now().UnixMicro()
	switch {
	case len(s.Output) > maxJournalOutput:
		s.Size, s.Output = len(s.Output), nil
	case s.What == stepDone && s.Output == nil:
		s.Output = jsontext.Value("null")
	}
	raw, err := json.Marshal(s, stepJSON)
	j.buf = append(j.buf, raw...)
	return err
}

// begin notes that a node begins. The note is on disk when begin returns; only that of an idempotent node
// is written soon after. If the host dies before, the idempotent node runs again.
func (j *journal) begin(ctx context.Context, s *step) error {
	j.mu.Lock()
	if err := j.appendLocked(s); err != nil {
		j.mu.Unlock()
		return err
	}
	if s.What == stepIdempotent {
		j.soonLocked()
		j.mu.Unlock()
		return nil
	}
	return j.flushLocked(ctx)
}

// end notes that a node ended. The note is written with the next beginning, or soon.
func (j *journal) end(s *step) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.appendLocked(s); err != nil {
		return err
	}
	j.soonLocked()
	return nil
}

// soonLocked starts the timer that writes buf after a short time.
func (j *journal) soonLocked() {
	if j.timer == nil {
		j.timer = time.AfterFunc(journalPause, func() {
			j.mu.Lock()
			_ = j.flushLocked(context.Background()) // the error is in j.err
		})
	}
}

// flushLocked writes buf, and unlocks mu. The store takes a write only while the journal is this host's.
func (j *journal) flushLocked(ctx context.Context) error {
	if j.timer != nil {
		j.timer.Stop()
		j.timer = nil
	}
	body, place := j.buf, j.place
	if j.buf = nil; len(body) == 0 || j.err != nil {
		defer j.mu.Unlock()
		return j.err
	}
	j.place++
	j.bytes += len(body)
	j.writes.Add(1)
	defer j.writes.Done()
	j.mu.Unlock()
	host.HandOff(ctx)
	err := j.plugin.kept.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		err := j.plugin.journals.Append(tx, j.number, place, body)
		if errors.Is(err, store.ErrLost) {
			return protocol.Errorf(protocol.CodeRuntimeError, "the chain cannot go on: %w", err)
		}
		return err
	})
	if err != nil {
		j.mu.Lock()
		j.err = err
		j.mu.Unlock()
	}
	return err
}

// flush writes buf.
func (j *journal) flush(ctx context.Context) error {
	j.mu.Lock()
	return j.flushLocked(ctx)
}

// key returns the key of a node in the journal: its path.
func (r *run) key(n *node, it *item) string { return r.prefix + r.path(n, it) }

// begun returns when a node began, maybe in an earlier host; for a node that begins now, the current time.
func (r *run) begun(n *node, it *item) time.Time {
	if r.journal != nil {
		if e := r.journal.known[r.key(n, it)]; e != nil && e.begun != "" && e.end == "" {
			return time.UnixMicro(e.at)
		}
	}
	return r.plugin.env.Now()
}

// recorded runs a node, or returns what the journal has about it. Only nodes that have an effect or take
// time are written: branches, maps and loops follow from the outputs of their nodes.
func (r *run) recorded(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	j := r.journal
	if j == nil {
		return r.perform(ctx, n, it)
	}
	s := &step{Path: r.key(n, it)}
	if e := j.known[s.Path]; e != nil {
		switch {
		case e.end == stepDone && e.size == 0:
			j.taken.Add(1)
			if e.cut {
				r.truncate(r.place(n, it))
			}
			return e.output, nil
		case e.end == stepFailed:
			return nil, e.err
		}
	}
	switch n.kind {
	case KindTool, KindSkill, KindProc, KindWait:
		if s.What = stepStart; n.idempotent || n.kind == KindWait {
			s.What = stepIdempotent
		}
	case KindApprove:
		s.What, s.Message = stepAsk, n.approve.message
	default:
		return r.perform(ctx, n, it)
	}
	if err := j.begin(ctx, s); err != nil {
		return nil, err
	}
	raw, err := r.perform(ctx, n, it)
	if err == nil {
		err = j.end(&step{Path: s.Path, What: stepDone, Output: raw, Cut: r.truncated(r.place(n, it))})
	}
	return raw, err
}

// recordFailure notes a failure; final = the chain goes on after it. A timeout that leaves open whether
// the node did something is not noted unless it is final.
func (r *run) recordFailure(n *node, it *item, err *protocol.Error, final bool) {
	j := r.journal
	if j == nil {
		return
	}
	s := failedStep(r.key(n, it), err)
	if !final {
		e := j.known[s.Path]
		resolved := e != nil && e.end == stepFailed
		if s.What = stepError; resolved || err.Code == protocol.CodeTimeout && n.leaf() && !n.idempotent {
			return
		}
	}
	_ = j.end(s) // a node whose end cannot be written runs again
}

func failedStep(path string, err *protocol.Error) *step {
	return &step{Path: path, What: stepFailed, Code: err.Code, Message: protocol.Clip(err.Message, maxErrorText)}
}

// attemptMark ends the path of an attempt, so that it differs from the path of its node.
const attemptMark = "~"

// recordAttempt notes that a node with a chain failed and is tried again. A resumed chain does not run
// that attempt once more, so that nodes of the next attempt do not run twice.
func (r *run) recordAttempt(n *node, it *item, err *protocol.Error) {
	if r.journal != nil && n.chain != nil {
		_ = r.journal.end(failedStep(r.key(n, it)+attemptMark, err)) // the next write reports an error
	}
}

// wasTried reports whether the journal says that an attempt of a node with a chain is over.
func (r *run) wasTried(n *node, it *item) bool {
	if r.journal == nil || n.chain == nil {
		return false
	}
	e := r.journal.known[r.key(n, it)+attemptMark]
	return e != nil && e.end == stepFailed
}

// leaf reports whether a node calls a tool, a skill or a program.
func (n *node) leaf() bool {
	return n.kind == KindTool || n.kind == KindSkill || n.kind == KindProc
}

// unknowns lists the paths of the nodes that were running and may not run twice, in order. It leaves out
// nodes within a failed node or attempt, as they are not reached again.
func (j *journal) unknowns() (paths []string) {
	for path, e := range j.known {
		if e.unknown() && !j.over(path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// over reports whether a node or an attempt around a path has failed.
func (j *journal) over(path string) bool {
	for i := strings.LastIndexByte(path, '/'); i >= 0; i = strings.LastIndexByte(path[:i], '/') {
		around := path[:i]
		for at := len(around); at > 0; at = strings.LastIndexAny(around[:at], "[~") {
			for _, path := range []string{around[:at], around[:at] + attemptMark} {
				if e := j.known[path]; e != nil && e.end == stepFailed {
					return true
				}
			}
		}
	}
	return false
}
