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

// answer is chain/resp, encoded by append.
type answer struct {
	chainID string
	success bool
	ids     []string // of outputs
	outputs []jsontext.Value
	final   jsontext.Value
	took    time.Duration
	ran     int
	noted
	err   map[string]any // nil = null
	code  protocol.ErrorCode
	broke bool // a node ended the chain
}

// noted is what only some answers tell: which outputs were not made anew or are only a part, and which failures
// were handled.
type noted struct {
	Cached         []string `json:"cached,omitzero"`
	CachedTotal    int      `json:"cached_total,omitzero"`
	Truncated      []string `json:"truncated,omitzero"`
	TruncatedTotal int      `json:"truncated_total,omitzero"`

	FromJournal  int64                   `json:"from_journal,omitzero"`
	Handled      []protocol.ChainFailure `json:"handled,omitzero"`
	HandledTotal int                     `json:"handled_total,omitzero"`
}

// ErrorCode is what the audit log notes: the answer is no error, but tells of one.
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
		noted
		Error protocol.NullableMap[any] `json:"error"`
	}{a.noted, a.err})
	if err != nil {
		return nil, err
	}
	rest[0] = ','
	return append(dst, rest...), nil
}

// noted tells which failures were handled, and which outputs cached or cut, if any.
func (r *run) noted() noted {
	n := noted{
		Cached: r.tree.cached.ids, CachedTotal: r.tree.cached.total, Truncated: r.cuts.ids,
		TruncatedTotal: r.cuts.total,
		HandledTotal:   r.caught,
	}
	for _, h := range r.handled {
		n.Handled = append(n.Handled, h.told(h.by))
	}
	return n
}

// told is a failure as answers list it; by = "" where no node handled it.
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

// answer returns the answer to the request, whose nodes have all ended. The error is for a
// request that was cancelled, or ends with the host.
func (r *run) answer(ctx context.Context, req *protocol.ChainRequest, took time.Duration) (*answer, error) {
	a := &answer{chainID: req.ChainID, success: r.success(), took: took, noted: r.noted()}
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
			a.code, a.err = protocol.CodeChainNodeError, r.errorOf(&r.failures[0], "; the chain went on")
		}
	}
	return a, nil
}

// late reports whether a context ended because its time was up.
func late(cause error) bool {
	var known *protocol.Error
	return errors.Is(cause, context.DeadlineExceeded) || errors.As(cause, &known) && known.Code == protocol.CodeTimeout
}

// collect takes the outputs in, the shortest first while there is room.
func (a *answer) collect(r *run, most int) {
	var all []int
	for i, n := range r.nodes {
		o := &r.outcomes[i]
		switch {
		case n.isItem && r.ran[i]:
			a.ran++
		case o.state == waiting, o.state == skipped, n.isItem:
		default:
			a.ran++
		}
		if o.state == done || o.state == tolerated || o.state == jumped {
			all = append(all, i)
		}
	}
	bySize := slices.Clone(all)
	slices.SortStableFunc(bySize, func(i, j int) int {
		return cmp.Compare(len(r.outcomes[i].raw),
			len(r.outcomes[j].raw))
	})
	room := make(map[int]int) // how long the output of a node may be
	for _, i := range bySize {
		room[i] = most
		most -= min(most, len(r.outcomes[i].raw))
	}
	for _, i := range all {
		a.ids = append(a.ids, r.nodes[i].id)
		a.outputs = append(a.outputs, bounded(r.outcomes[i].raw, room[i]))
	}
}

// errorOf tells of a failure, and of all others.
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

// list adds the failures there were to an error.
func (r *run) list(e map[string]any) {
	failed := []protocol.ChainFailure{}
	for _, f := range r.failures {
		failed = append(failed, f.told(""))
	}
	e["failed"], e["failed_total"] = failed, r.failed
}

// timedOut tells that the time of the chain was up.
func (r *run) timedOut(took time.Duration) map[string]any {
	running := []string{}
	for i := range r.outcomes {
		if s := r.outcomes[i].state; s == cut && len(running) < maxListed {
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

// final returns the output of the node that nothing came after; of several an object by
// id, of none null. Nobody works any more. whole = it is that, and not what stands for more than most bytes.
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

// followed tells of each node whether one that ran comes after it. A branch counts only
// with what comes after that.
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

// The phases of a node beside protocol.PhaseStart.
const (
	phaseStart = protocol.PhaseStart
	phaseDone  = protocol.ChainPhase("done")
	phaseSkip  = protocol.ChainPhase("skip")
	phaseError = protocol.ChainPhase("error")

	phaseRetry     = protocol.ChainPhase("retry")     // it failed, and is tried again after a pause
	phaseWait      = protocol.ChainPhase("wait")      // a wait, which says until when
	phaseIteration = protocol.ChainPhase("iteration") // of a loop, which begins
	phaseCached    = protocol.ChainPhase("cached")    // its output was kept by an earlier run
)

// maxErrorText is how much of an error's text events and answers have, in bytes.
const maxErrorText = 4096

// event is a chain/event, encoded by append: chains of thousands of nodes send twice as
// many. Its data say how long the node took, and of an item which one it is.
type event struct {
	id     string
	phase  protocol.ChainPhase
	output jsontext.Value
	err    string
	took   time.Duration
	of     string // the map whose item this is; "" = of no map
	index  int
	seq    int

	attempt, attempts int           // of retry: that which failed, and how many there may be
	pause             time.Duration // of retry: before the next one
	until             time.Time     // of wait
	iteration         int           // of iteration, from 0
	age               time.Duration // of cached
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

// bounded returns an output, or in place of a longer one how long that is.
func bounded(raw jsontext.Value, most int) jsontext.Value {
	if len(raw) <= most {
		return raw
	}
	return truncated(len(raw))
}

// truncated stands for a value of so many bytes, about.
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

// appendMillis appends a time in milliseconds.
func appendMillis(dst []byte, d time.Duration) []byte {
	return strconv.AppendFloat(dst, float64(d.Microseconds())/1e3, 'f', 3, 64)
}

// appendValue appends a value that may be missing.
func appendValue(dst []byte, raw jsontext.Value) []byte {
	if raw == nil {
		return append(dst, "null"...)
	}
	return append(dst, raw...)
}
