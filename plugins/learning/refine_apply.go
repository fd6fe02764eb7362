package learning

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// maxRefinements is how many are kept. When there are more, the oldest that were rolled
// back go first, and then the oldest: they cannot be rolled back any more.
const maxRefinements = 1_000

// refineApply answers learn/refinement/apply/req. All edits are made or none.
func (p *Plugin) refineApply(ctx context.Context, req *protocol.RefinementApplyRequest, _ host.Emitter) (*protocol.RefinementApplyResponse, error) {
	pr, err := parseProposal(req.Proposal)
	if err != nil {
		return nil, err
	}
	if err := p.flush(ctx); err != nil {
		return nil, p.noted(ctx, err)
	}
	var resp *protocol.RefinementApplyResponse
	err = p.write(ctx, func(tx *store.Tx) (err error) {
		resp, err = pr.apply(tx, p.nowMicros())
		return err
	})
	if err != nil {
		return nil, err
	}
	if resp.AppliedEdits > 0 {
		p.forgetWeights()
	}
	return resp, nil
}

// apply makes the edits, or says which are refused.
func (pr *proposal) apply(tx *store.Tx, at int64) (*protocol.RefinementApplyResponse, error) {
	edits, reasons, err := examine(tx, pr)
	if err != nil {
		return nil, err
	}
	failed := 0
	for _, x := range edits {
		if x.wrong != nil {
			failed++
		}
	}
	if pr.ProposalID != "" {
		inForce, err := appliedProposal(tx, pr.ProposalID)
		if err != nil {
			return nil, err
		}
		if inForce != "" {
			failed = len(edits)
			reasons = append(reasons[:0], fmt.Sprintf("the proposal is in force already, as the refinement %s; roll that back first", inForce))
		}
	}
	if reasons != nil {
		return &protocol.RefinementApplyResponse{FailedEdits: failed, Error: "nothing was changed: " + strings.Join(reasons, ". ")}, nil
	}
	r, err := pr.change(tx, edits, at)
	if err != nil {
		return nil, err
	}
	return &protocol.RefinementApplyResponse{RefinementID: r.id, AppliedEdits: len(edits), RollbackAvailable: true}, nil
}

// change writes the rows, and the refinement with their images before and after.
func (pr *proposal) change(tx *store.Tx, edits []*examined, at int64) (*refinement, error) {
	if err := trimRefinements(tx); err != nil {
		return nil, err
	}
	if first := edits[0]; pr.Component == "" || pr.Component == first.Component {
		pr.Component, pr.Kind = first.Component, first.Kind // history names what was found
	}
	text, err := json.Marshal(pr)
	if err != nil {
		return nil, err
	}
	r := &refinement{id: newRefinementID(), proposalID: pr.ProposalID, appliedAt: at, proposal: text}
	for _, x := range edits {
		after, err := x.after(at)
		if err != nil {
			return nil, err
		}
		if err := x.write(tx, after, at, refinementStrategy); err != nil {
			return nil, err
		}
		r.edits = append(r.edits, appliedEdit{x.target, x.before, after})
	}
	return r, r.insert(tx)
}

// appliedProposal gives the id of the refinement by which a proposal is in force, or "".
func appliedProposal(tx *store.Tx, proposalID string) (id string, err error) {
	_, err = tx.Get("SELECT id FROM learning_refinements WHERE proposal_id = ? AND rolled_back_at IS NULL", []any{proposalID}, &id)
	return id, err
}

// trimRefinements makes room for one more.
func trimRefinements(tx *store.Tx) error {
	var count int
	if _, err := tx.Get("SELECT count(*) FROM learning_refinements", nil, &count); err != nil || count < maxRefinements {
		return err
	}
	old, err := readRefinements(tx, selectRefinements+" ORDER BY rolled_back_at IS NULL, number LIMIT ?", count-maxRefinements+1)
	for _, r := range old {
		err = errors.Join(err, r.remove(tx))
	}
	return err
}

// remove takes the refinement out of the store; what it changed stays.
func (r *refinement) remove(tx *store.Tx) error {
	if _, _, err := tx.Exec("DELETE FROM learning_edits WHERE refinement = ?", r.number); err != nil {
		return err
	}
	_, _, err := tx.Exec("DELETE FROM learning_refinements WHERE number = ?", r.number)
	return err
}
