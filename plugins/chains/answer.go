package chains

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// answer is chain/resp; AppendJSON encodes it.
type answer struct {
	chainID string
	success bool
	ids     []string // of the nodes in outputs, in the same order
	outputs []jsontext.Value
	final   jsontext.Value
	took    time.Duration
	ran     int
	optionalFields
	err   map[string]any // nil = null
	code  protocol.ErrorCode
	broke bool // a failed node ended the chain
}

// optionalFields holds the fields that only some answers have: outputs from the cache or the journal, truncated
// outputs, and handled failures.
type optionalFields struct {
	Cached         []string `json:"cached,omitzero"`
	CachedTotal    int      `json:"cached_total,omitzero"`
	Truncated      []string `json:"truncated,omitzero"`
	TruncatedTotal int      `json:"truncated_total,omitzero"`

	FromJournal  int64                   `json:"from_journal,omitzero"`
	Handled      []protocol.ChainFailure `json:"handled,omitzero"`
	HandledTotal int                     `json:"handled_total,omitzero"`
}

// ErrorCode returns the code for the audit log: the answer is not an error, but may report one.
func (a *answer) ErrorCode() protocol.ErrorCode { return a.code }

// AppendJSON implements protocol.Appender.
func (a *answer) AppendJSON(dst []byte) ([]byte, error) {
	dst = protocol.AppendString(append(dst, `{"chain_id":`...), a.chainID)
	dst = strconv.AppendBool(append(dst, `,"success":`...), a.success)
	dst = append(dst, `,"outputs":{`...)
	for i, id := range a.ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendValue(append(protocol.AppendString(dst, id), ':'), a.outputs[i])
	}
	dst = appendValue(append(dst, `},"final_output":`...), a.final)
	dst = strconv.AppendInt(append(dst, `,"duration_ms":`...), a.took.Milliseconds(), 10)
	dst = strconv.AppendInt(append(dst, `,"nodes_run":`...), int64(a.ran), 10)
	rest, err := protocol.AppendJSON(nil, struct {
		optionalFields
		Error protocol.NullableMap[any] `json:"error"`
	}{a.optionalFields, a.err})
	if err != nil {
		return nil, err
	}
	rest[0] = ','
	return append(dst, rest...), nil
}

// noted returns which failures were handled, and which outputs were cached or cut.
func (r *run) noted() optionalFields {
	n := optionalFields{
		Cached: r.tree.cached.first, CachedTotal: r.tree.cached.total, Truncated: r.cuts.first,
		TruncatedTotal: r.cuts.total, HandledTotal: r.handled.total,
	}
	for _, h := range r.handled.first {
		n.Handled = append(n.Handled, h.told(h.by))
	}
	return n
}

// told returns a failure in the form that answers list; by is the node that handled it, "" = none.
func (f *failure) told(by string) protocol.ChainFailure {
	one := protocol.ChainFailure{
		NodeID: f.id, Code: f.err.Code, Message: protocol.Clip(f.err.Message, maxErrorText),
		HandledBy: by,
	}
	if f.item >= 0 {
		one.Item = &f.item
	}
	return one
}

// answer returns the answer to the request after all nodes have ended. It returns an error if the request
// was cancelled or the host stops.
func (r *run) answer(ctx context.Context, req *protocol.ChainRequest, took time.Duration) (*answer, error) {
	a := &answer{chainID: req.ChainID, success: r.success(), took: took, optionalFields: r.noted()}
	cause := r.ended(ctx)
	if cause != nil && !late(cause) {
		return nil, cause
	}
	most := r.plugin.opts.MaxResultBytes
	a.collect(r, most)
	switch f := r.broke; {
	case cause != nil:
		a.code, a.err = protocol.CodeTimeout, r.timedOut(took)
	case f != nil:
		a.broke = true
		a.code, a.err = protocol.CodeChainNodeError, r.errorOf(f, "")
	default:
		a.final, _ = r.final(most)
		if !a.success {
			a.code, a.err = protocol.CodeChainNodeError, r.errorOf(&r.failures.first[0], "; the chain went on")
		}
	}
	return a, nil
}

// late reports whether a context ended because its time was up.
func late(cause error) bool {
	known, ok := errors.AsType[*protocol.Error](cause)
	return errors.Is(cause, context.DeadlineExceeded) || ok && known.Code == protocol.CodeTimeout
}

// collect adds the outputs to the answer. The shortest get their room first; one that does not fit is
// replaced by its size.
func (a *answer) collect(r *run, most int) {
	var all []int
	for i, n := range r.nodes {
		if s := r.outcomes[i].state; n.isItem && r.ran[i] || !n.isItem && s != waiting && s != skipped {
			a.ran++
		}
		if r.hasRun(i) {
			all = append(all, i)
		}
	}
	bySize := slices.Clone(all)
	slices.SortStableFunc(bySize, func(i, j int) int {
		return cmp.Compare(len(r.outcomes[i].raw), len(r.outcomes[j].raw))
	})
	room := make(map[int]int) // how long the output of a node may be, in bytes
	for _, i := range bySize {
		room[i] = most
		most -= min(most, len(r.outcomes[i].raw))
	}
	for _, i := range all {
		a.ids = append(a.ids, r.nodes[i].id)
		a.outputs = append(a.outputs, bounded(r.outcomes[i].raw, room[i]))
	}
}

// errorOf returns the field error of the answer: the failure f and a list of all failures. end is appended
// to the message.
func (r *run) errorOf(f *failure, end string) map[string]any {
	e := map[string]any{
		"code": protocol.CodeChainNodeError, "message": "node " + strconv.Quote(f.id) + ": " +
			protocol.Clip(f.err.Message, maxErrorText) + end,
		"node_id": f.id, "cause": f.err.Code, "retryable": f.err.Retryable,
	}
	if len(f.err.Detail) > 0 {
		if raw, err := protocol.AppendJSON(nil, f.err.Detail); err == nil && len(raw) <= r.plugin.env.MaxOutputBytes {
			e["detail"] = jsontext.Value(raw)
		}
	}
	r.list(e)
	return e
}

// list adds the list of all failures to an error.
func (r *run) list(e map[string]any) {
	failed := []protocol.ChainFailure{}
	for _, f := range r.failures.first {
		failed = append(failed, f.told(""))
	}
	e["failed"], e["failed_total"] = failed, r.failures.total
}

// timedOut returns the field error of the answer for a chain whose timeout was reached.
func (r *run) timedOut(took time.Duration) map[string]any {
	running := []string{}
	for i := range r.outcomes {
		if r.outcomes[i].state == cut && len(running) < maxListed {
			running = append(running, r.nodes[i].id)
		}
	}
	e := map[string]any{
		"code": protocol.CodeTimeout, "retryable": true, "node_id": "", "running": running,
		"message": "the chain did not end within its timeout and was stopped after " +
			took.Round(time.Millisecond).String() + "; a longer \"timeout\" gives it more",
	}
	if len(running) > 0 {
		e["node_id"] = running[0]
	}
	r.list(e)
	return e
}

// final returns the output of the node that no node followed: an object by id if there are several such
// nodes, null if there is none. All nodes must have ended. whole is false if the output is longer than
// most bytes, and only its size is returned.
func (r *run) final(most int) (out jsontext.Value, whole bool) {
	followed := r.followed()
	var last []int
	size := 1
	for i, n := range r.nodes {
		if !n.isItem && r.hasRun(i) && n.kind != KindBranch && !followed[i] {
			last = append(last, i)
			size += len(n.id) + len(r.outcomes[i].raw) + len(`"":null,`)
		}
	}
	switch {
	case len(last) == 0:
		return nil, true
	case len(last) == 1:
		raw := r.outcomes[last[0]].raw
		return bounded(raw, most), len(raw) <= most
	case size > most:
		return truncated(size), false
	}
	slices.SortFunc(last, func(i, j int) int { return cmp.Compare(r.nodes[i].id, r.nodes[j].id) })
	out = make([]byte, 0, size)
	for _, i := range last {
		out = protocol.AppendString(append(out, ','), r.nodes[i].id)
		out = appendValue(append(out, ':'), r.outcomes[i].raw)
	}
	out[0] = '{'
	return append(out, '}'), true
}

// hasRun reports whether a node ran, well or not.
func (r *run) hasRun(i int) bool {
	s := r.outcomes[i].state
	return s == done || s == tolerated || s == jumped
}

// followed reports for each node whether a node that ran comes after it. A branch counts only if a node
// that ran comes after the branch.
func (r *run) followed() []bool {
	followed, left := make([]bool, len(r.nodes)), make([]int, len(r.nodes))
	var ready []int
	for i, n := range r.nodes {
		if left[i] = len(n.out); left[i] == 0 {
			ready = append(ready, i)
		}
	}
	for len(ready) > 0 {
		i := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		counts := r.hasRun(i) && (r.nodes[i].kind != KindBranch || followed[i])
		for _, e := range r.nodes[i].in {
			followed[e.node] = followed[e.node] || counts
			if left[e.node]--; left[e.node] == 0 {
				ready = append(ready, e.node)
			}
		}
	}
	return followed
}

// The phases of a node in chain/event.
const (
	phaseStart = protocol.PhaseStart
	phaseDone  = protocol.ChainPhase("done")
	phaseSkip  = protocol.ChainPhase("skip")
	phaseError = protocol.ChainPhase("error")

	phaseRetry     = protocol.ChainPhase("retry")     // it failed, and is tried again after a pause
	phaseWait      = protocol.ChainPhase("wait")      // a node of kind wait waits; the event says until when
	phaseIteration = protocol.ChainPhase("iteration") // an iteration of a loop begins
	phaseCached    = protocol.ChainPhase("cached")    // its output comes from the cache
)

// maxErrorText bounds the text of an error in events and answers, in bytes.
const maxErrorText = 4096

// event is a chain/event, which AppendJSON encodes: a chain sends twice as many events as it has nodes.
// Its data have the duration of the node, and for an item of a map its index.
type event struct {
	id     string
	phase  protocol.ChainPhase
	output jsontext.Value
	err    string
	took   time.Duration
	of     string // the map whose item this is; "" = not an item
	index  int
	seq    int

	attempt, attempts int           // of retry: the attempt that failed, and how many there may be
	pause             time.Duration // of retry: before the next attempt
	until             time.Time     // of wait
	iteration         int           // of iteration, from 0
	age               time.Duration // of cached: since the output was stored
	truncated         bool          // of done: the output is only a part
}

// tell sends an event of a node, if the agent asked for them.
func (r *run) tell(id string, phase protocol.ChainPhase, e event) {
	host.Emit(r.root, protocol.TypeChainEvent, func(seq int) any {
		e.id, e.phase, e.seq = r.prefix+id, phase, seq
		e.output = bounded(e.output, r.plugin.env.MaxOutputBytes)
		e.err = protocol.Clip(e.err, maxErrorText)
		return &e
	})
}

// bounded returns an output, or an object with its size if it has more than most bytes.
func bounded(raw jsontext.Value, most int) jsontext.Value {
	if len(raw) <= most {
		return raw
	}
	return truncated(len(raw))
}

// truncated returns the object that replaces a value of about size bytes.
func truncated(size int) jsontext.Value {
	return jsontext.Value(`{"truncated":true,"bytes":` + strconv.Itoa(size) + `}`)
}

// AppendJSON implements protocol.Appender.
func (e *event) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"kind":"status","data":{`...)
	empty := len(dst)
	switch e.phase {
	case phaseDone, phaseError:
		if dst = appendMillis(append(dst, `"duration_ms":`...), e.took); e.truncated {
			dst = append(dst, `,"truncated":true`...)
		}
	case phaseRetry:
		dst = strconv.AppendInt(append(dst, `"attempt":`...), int64(e.attempt), 10)
		dst = strconv.AppendInt(append(dst, `,"max_attempts":`...), int64(e.attempts), 10)
		dst = appendMillis(append(dst, `,"pause_ms":`...), e.pause)
	case phaseWait:
		dst = append(append(dst, `"until":`...), unixSeconds(e.until)...)
	case phaseIteration:
		dst = strconv.AppendInt(append(dst, `"iteration":`...), int64(e.iteration), 10)
	case phaseCached:
		dst = appendMillis(append(dst, `"age_ms":`...), e.age)
	}
	if e.of != "" {
		if len(dst) > empty {
			dst = append(dst, ',')
		}
		dst = protocol.AppendString(append(dst, `"map":`...), e.of)
		dst = strconv.AppendInt(append(dst, `,"index":`...), int64(e.index), 10)
	}
	dst = strconv.AppendInt(append(dst, `},"seq":`...), int64(e.seq), 10)
	dst = protocol.AppendString(append(dst, `,"node_id":`...), e.id)
	dst = protocol.AppendString(append(dst, `,"phase":`...), e.phase)
	dst = appendValue(append(dst, `,"output":`...), e.output)
	dst = protocol.AppendString(append(dst, `,"error":`...), e.err)
	return append(dst, '}'), nil
}

// appendMillis appends a duration in milliseconds.
func appendMillis(dst []byte, d time.Duration) []byte {
	return strconv.AppendFloat(dst, float64(d.Microseconds())/1e3, 'f', 3, 64)
}

// appendValue appends a value; nil = null.
func appendValue(dst []byte, raw jsontext.Value) []byte {
	if raw == nil {
		return append(dst, "null"...)
	}
	return append(dst, raw...)
}
