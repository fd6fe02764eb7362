package chains

import (
	"slices"

	"a2e/protocol"
)

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
	members(at, "catch", `{"node": "fallback", "on": ["timeout"]}, or the id of a node`, []string{"node", "on"}, val, bad, func(name string, val protocol.Value) (ok bool, want string) {
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

// handler returns the id of the node that handles a failure; "" = none does.
func (s *spec) handler() string {
	switch {
	case s.catch != nil:
		return s.catch.node
	case s.onError == onErrorAbort, s.onError == onErrorSkip:
		return ""
	}
	return s.onError
}

// bindCatch finds the node that handles a failure: that of catch, or of on_error.
func (b *binder) bindCatch(at int, n *node) {
	c, onError := n.spec.catch, n.spec.onError
	switch {
	case onError == "", onError == onErrorAbort:
	case onError == onErrorSkip:
		n.skips = true
	case c != nil:
		b.bad.at(at, "on_error", "leads to a node as catch does; give %q or %q here, for what catch does not take", onErrorAbort, onErrorSkip)
	default:
		n.catch = &catch{node: onError}
		b.lead(at, "on_error", onError, EdgeError)
	}
	if c != nil {
		n.catch = c
		b.lead(at, "catch", c.node, EdgeError)
	}
}

// catches reports whether a node that fails so leads to another.
func (n *node) catches(code protocol.ErrorCode) bool {
	return n.catch != nil && (n.catch.on == nil || slices.Contains(n.catch.on, code))
}

// handled is a failure that another node handled.
type handled struct {
	failure
	by string
}

// judge finds out, once all has ended, which failures were handled: those that led to a node
// which ran. The others count as failures.
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
	if r.caught++; len(r.handled) < maxFailures {
		r.handled = append(r.handled, h)
	}
}

// caughtError is what the expressions of a node see as error: that of the first node, in the
// order of the chain, whose failure led to it; nil = none did.
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
	return map[string]any{"code": string(err.Code), "message": protocol.Clip(err.Message, maxErrorText), "node_id": r.nodes[first].id}
}
