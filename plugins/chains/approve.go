package chains

import (
	"context"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/store"
	"a2e/protocol"
)

// codeDenied is the code of an approval that was denied.
const codeDenied protocol.ErrorCode = "approval_denied"

// approve says what a node of kind approve asks.
type approve struct {
	message string
	timeout time.Duration // 0 = as long as the chain has
	byself  string        // what is decided when it is up; "" = nothing
}

const (
	approveWord = "approve"
	denyWord    = "deny"
)

// checkApprove says what is wrong with an approval.
func (s *spec) checkApprove(at int, bad *problems) {
	if s.message == "" {
		bad.at(at, "message", "is required: say what should be approved")
	}
	switch {
	case s.byself != "" && s.byself != approveWord && s.byself != denyWord:
		bad.at(at, "default", "is %.64q; should be approve or deny", s.byself)
	case s.byself != "" && s.timeout == 0:
		bad.at(at, "default", "is decided when the timeout of the node is up; give it a timeout, in seconds")
	}
}

// decision is that of an approval.
type decision struct {
	approved bool
	by       string // agent, person or default
}

// approval runs a node of kind approve: it waits until the agent, or a person through the
// journal, has decided.
func (r *run) approval(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	d, err := r.decided(ctx, n, it)
	switch {
	case err != nil:
		return nil, err
	case !d.approved:
		return nil, protocol.Errorf(codeDenied, "it was denied (%s)", d.by)
	}
	return jsontext.Value(`{"approved":true,"by":` + strconv.Quote(d.by) + `}`), nil
}

func (r *run) decided(ctx context.Context, n *node, it *item) (decision, error) {
	own, cancel := context.WithCancel(ctx)
	type reply struct {
		decision
		err error
	}
	asked := make(chan reply, 1)
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	go func() {
		defer close(ended)
		content, accepted, err := r.plugin.elicit(own, n.approve.message, `{"type":"object","properties":{"approve":{"type":"boolean","description":"whether the chain may go on"}},"required":["approve"]}`)
		yes, _ := content.Get("approve")
		asked <- reply{decision{accepted && yes.Kind() == 't', "agent"}, err}
	}()
	var up <-chan time.Time
	if n.approve.timeout > 0 {
		timer := time.NewTimer(time.Until(r.begun(n, it).Add(n.approve.timeout)))
		defer timer.Stop()
		up = timer.C
	}
	poll := time.NewTicker(journalPoll)
	defer poll.Stop()
	for {
		if d, ok := r.written(ctx, n, it); ok {
			return d, nil
		}
		select {
		case a := <-asked:
			if a.err == nil {
				return a.decision, nil
			}
			if r.journal == nil && ctx.Err() == nil && up == nil {
				return decision{}, protocol.Errorf(protocol.CodeChainNodeError, `nobody can approve it: the agent did not (%w), and the chain has no journal; with a chain_id and "journal": true a person can, by "a2e chain approve"`, a.err)
			}
		case <-up:
			if n.approve.byself == "" {
				return decision{}, protocol.Errorf(protocol.CodeTimeout, "nobody decided within %s", n.approve.timeout)
			}
			return decision{n.approve.byself == approveWord, "default"}, nil
		case <-poll.C:
		case <-ctx.Done():
			return decision{}, context.Cause(ctx)
		}
	}
}

// written returns what a person decided through the journal.
func (r *run) written(ctx context.Context, n *node, it *item) (d decision, ok bool) {
	if r.journal == nil {
		return d, false
	}
	err := r.plugin.kept.Opener.Read(ctx, func(tx *store.Tx) (err error) { // not logged, as the next look is soon
		ok, err = tx.Get("SELECT approved FROM chains_decisions WHERE journal = ? AND path = ?", []any{r.journal.number, r.key(n, it)}, &d.approved)
		return err
	})
	d.by = "person"
	return d, ok && err == nil
}
