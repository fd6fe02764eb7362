package chains

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/schema"
	"a2e/protocol"
)

// Bounds of retry.
const (
	maxAttempts    = 100
	maxFirstPause  = time.Hour
	longestPause   = time.Minute // limit of growing pauses, unless the first is longer
	defaultBackoff = time.Second
)

// retry says when a node that failed is tried again.
type retry struct {
	attempts int
	backoff  time.Duration // about the first pause; each further pause is twice as long
	on       []protocol.ErrorCode
}

// readRetry reads the field retry of a node.
func readRetry(at int, val protocol.Value, bad *problems) *retry {
	t := &retry{backoff: defaultBackoff}
	members(at, "retry", `{"max_attempts": 3}`, []string{"max_attempts", "backoff", "on"}, val, bad,
		func(name string, val protocol.Value) (ok bool, want string) {
			switch name {
			case "max_attempts":
				t.attempts, ok = val.Int()
				return ok && t.attempts >= 1 && t.attempts <= maxAttempts, fmt.Sprintf("an integer from 1 to %d: how "+
					"often the node is tried at most", maxAttempts)
			case "backoff":
				t.backoff, ok = secondsOf(val)
				return ok && t.backoff <= maxFirstPause, fmt.Sprintf("a number of seconds, 0 to %.0f: the pause "+
					"before the second attempt", maxFirstPause.Seconds())
			}
			t.on, want = codesOf(val)
			return want == "", want
		})
	if t.attempts == 0 && len(bad.list) == 0 {
		bad.at(at, "retry/max_attempts", "is required: how often the node is tried at most, such as 3")
	}
	return t
}

// members reads a field of a node that is an object like sample. take reads one member; for a wrong value
// it returns what the value should be.
func members(at int, field, sample string, known []string, val protocol.Value, bad *problems,
	take func(name string, val protocol.Value) (ok bool, want string),
) {
	obj, ok := objectOf(val)
	if !ok {
		bad.at(at, field, "should be an object, such as %s", sample)
		return
	}
	for key, val := range obj.All() {
		name := string(key)
		if !slices.Contains(known, name) {
			bad.at(at, pointer(field, name), "is not known; %s", schema.Suggest(name, "fields of "+field, known))
		} else if ok, want := take(name, val); !ok {
			bad.at(at, field+"/"+name, "should be %s", want)
		}
	}
}

// codesOf reads a list of error codes. Tools have codes of their own, so that it refuses only a likely
// misspelling of one of the host's codes.
func codesOf(val protocol.Value) (codes []protocol.ErrorCode, want string) {
	texts, ok := val.Strings()
	if !ok || len(texts) == 0 {
		return nil, `an array of error codes, such as ["timeout", "tool_error"]`
	}
	known := hostCodes()
	for _, text := range texts {
		if hint := schema.DidYouMean(text, known); hint != "" && !slices.Contains(known, text) {
			return nil, fmt.Sprintf("an array of error codes; there is no %.64q, %s", text, hint)
		}
		codes = append(codes, protocol.ErrorCode(text))
	}
	return codes, ""
}

// hostCodes lists the codes with which nodes usually fail.
func hostCodes() []string {
	return []string{
		"timeout", "overloaded", "runtime_error", "out_of_memory", "sandbox_crash", "store_unavailable",
		"schema_violation", "capability_missing",
		"unknown_tool", "tool_denied", "tool_error", "unknown_skill", "skill_error", "proc_limit", "chain_node_error",
		"mcp_server_not_found", "mcp_tool_not_found", "mcp_protocol_error", "mcp_server_unavailable",
		"mcp_transport_error",
	}
}

// tries reports whether a node is tried again after an error: after the codes in on, or, without on, after
// any code except those that another attempt cannot change.
func (t *retry) tries(err *protocol.Error) bool {
	if t.on != nil {
		return slices.Contains(t.on, err.Code)
	}
	_, wasCut := err.Detail[detailTruncated] // the call succeeded; another attempt would do everything again
	return !wasCut && !slices.Contains(finalCodes(), err.Code)
}

// finalCodes lists the codes of denials, of invalid requests and of cancels.
func finalCodes() []protocol.ErrorCode {
	return []protocol.ErrorCode{
		protocol.CodeToolDenied, codeDenied, protocol.CodeUnauthorized, protocol.CodeCapabilityMissing,
		protocol.CodeSchemaViolation, protocol.CodeInvalidMessage, protocol.CodeCancelled,
	}
}

// tried runs a node, and retries it as its retry says.
func (r *run) tried(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	if n.retry == nil {
		return r.once(ctx, n, it)
	}
	pauses := backoff.ExponentialBackOff{
		InitialInterval: n.retry.backoff, Multiplier: 2, MaxInterval: max(n.retry.backoff, longestPause),
		RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
	for attempt := 1; ; attempt++ {
		again := it.again(attempt)
		if r.wasTried(n, again) {
			continue
		}
		raw, err := r.once(ctx, n, again)
		if err == nil || ctx.Err() != nil {
			return raw, err
		}
		known := nodeError(err)
		if attempt >= n.retry.attempts || !n.retry.tries(known) {
			return nil, after(known, attempt, "")
		}
		pause := max(pauses.NextBackOff(), retryAfter(known))
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < pause {
			return nil, after(known, attempt, fmt.Sprintf("; not tried again, as the time that is left ends before "+
				"the pause of %s", pause.Round(time.Millisecond)))
		}
		r.recordAttempt(n, again, known)
		e := it.event()
		e.err, e.attempt, e.attempts, e.pause = known.Message, attempt, n.retry.attempts, pause
		r.tell(n.id, phaseRetry, e)
		if err := sleep(ctx, time.Now, time.Now().Add(pause)); err != nil {
			return nil, err
		}
	}
}

// after returns the error of a node with retry: the message has the number of attempts, if there were
// several, and why.
func after(err *protocol.Error, attempts int, why string) error {
	own := *err
	if attempts > 1 {
		own.Message = fmt.Sprintf("%s (after %d attempts)", protocol.Clip(own.Message, maxErrorText), attempts)
	}
	own.Message += why
	return &own
}

// retryAfter returns how long to wait by the retry_after in an error's detail, in seconds there; 0 = not
// set.
func retryAfter(err *protocol.Error) time.Duration {
	val, there := err.Detail["retry_after"]
	if !there {
		return 0
	}
	raw, failed := protocol.AppendJSON(nil, val)
	if failed != nil {
		return 0
	}
	if text, isText := protocol.Value(raw).Str(); isText {
		if _, failed := strconv.ParseFloat(text, 64); failed != nil {
			return 0
		}
		raw = []byte(text)
	}
	wait, _ := secondsOf(protocol.Value(raw))
	return wait
}

// longestSleep is how long a wait sleeps before it looks at the clock again: the clock may have been set,
// or the machine may have been suspended.
const longestSleep = time.Minute

// sleep waits until end, or until ctx ends.
func sleep(ctx context.Context, now func() time.Time, end time.Time) error {
	for {
		left := end.Sub(now())
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if left <= 0 {
			return nil
		}
		host.HandOff(ctx)
		timer := time.NewTimer(min(left, longestSleep))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// catch says which node handles the failure of another.
type catch struct {
	node string
	on   []protocol.ErrorCode // nil = any
}

// readCatch reads the field catch of a node: the id of a node, or an object.
func readCatch(at int, val protocol.Value, bad *problems) *catch {
	if id, ok := val.Str(); ok {
		if id == "" {
			return nil
		}
		return &catch{node: id}
	}
	c := &catch{}
	members(at, "catch", `{"node": "fallback", "on": ["timeout"]}, or the id of a node`, []string{"node", "on"}, val,
		bad, func(name string, val protocol.Value) (ok bool, want string) {
			if name == "node" {
				c.node, ok = val.Str()
				return ok, "the id of the node that handles the failure"
			}
			c.on, want = codesOf(val)
			return want == "", want
		})
	if c.node == "" && len(bad.list) == 0 {
		bad.at(at, "catch/node", "is required: the id of the node that handles the failure")
	}
	return c
}

// handler returns the id of the node that handles a failure of this one; "" = none.
func (s *spec) handler() string {
	switch {
	case s.catch != nil:
		return s.catch.node
	case s.onError == onErrorAbort, s.onError == onErrorSkip:
		return ""
	}
	return s.onError
}

// bindCatch finds the node that handles a failure, by catch or on_error.
func (b *binder) bindCatch(at int, n *node) {
	c, onError := n.spec.catch, n.spec.onError
	switch {
	case onError == "", onError == onErrorAbort:
	case onError == onErrorSkip:
		n.skips = true
	case c != nil:
		b.bad.at(at, "on_error", "leads to a node as catch does; give %q or %q here, for what catch does not take",
			onErrorAbort, onErrorSkip)
	default:
		n.catch = &catch{node: onError}
		b.lead(at, "on_error", onError, EdgeError)
	}
	if c != nil {
		n.catch = c
		b.lead(at, "catch", c.node, EdgeError)
	}
}

// catches reports whether a failure with this code leads to another node.
func (n *node) catches(code protocol.ErrorCode) bool {
	return n.catch != nil && (n.catch.on == nil || slices.Contains(n.catch.on, code))
}

// handled is a failure that another node handled.
type handled struct {
	failure
	by string
}

// judge finds which failures were handled after all nodes have ended: those whose handling node ran. The
// others count as failures.
func (r *run) judge() {
	for i, n := range r.nodes {
		o := &r.outcomes[i]
		if o.state != jumped {
			continue
		}
		if by := n.catch.node; r.hasRun(r.byID[by]) {
			r.settled(handled{failure{n.id, -1, o.err}, by})
		} else {
			r.fails(n.id, -1, o.err)
		}
	}
}

// settled notes a failure that was handled.
func (r *run) settled(h handled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handled.add(h)
}

// caughtError returns what the expressions of a node see as error: the failure of the first node, in the
// order of the chain, that led to it; nil = none did.
func (r *run) caughtError(n *node) any {
	first := -1
	for _, e := range n.in {
		if e.kind == EdgeError && r.outcomes[e.node].state == jumped && (first < 0 || e.node < first) {
			first = e.node
		}
	}
	if first < 0 {
		return nil
	}
	err := r.outcomes[first].err
	return map[string]any{
		"code": string(err.Code), "message": protocol.Clip(err.Message, maxErrorText),
		"node_id": r.nodes[first].id,
	}
}
