package learning

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// refineRollback answers learn/refinement/rollback/req. Of a refinement that was rolled
// back before it says so again.
func (p *Plugin) refineRollback(ctx context.Context, req *protocol.RefinementRollbackRequest, _ host.Emitter) (*protocol.RefinementRollbackResponse, error) {
	resp := &protocol.RefinementRollbackResponse{RefinementID: req.RefinementID}
	known, changed := false, false
	err := p.write(ctx, func(tx *store.Tx) error {
		r, err := findRefinement(tx, req.RefinementID)
		if err != nil || r == nil {
			return err
		}
		if known = true; r.rolledBackAt != nil {
			resp.RolledBack = true
			return nil
		}
		why, err := r.stale(tx)
		if err != nil || why != "" {
			resp.Error = why
			return err
		}
		resp.RolledBack, changed = true, true
		return r.rollBack(tx, p.nowMicros())
	})
	switch {
	case err != nil:
		return nil, err
	case !known:
		resp.Error = fmt.Sprintf("there is no refinement %.64q; learn/refinement/history/req lists them", req.RefinementID)
		return nil, host.NotMineBut(resp)
	case changed:
		p.forgetWeights()
	}
	return resp, nil
}

// stale says what was changed since the refinement was applied; "" = nothing, so that it
// can be rolled back.
func (r *refinement) stale(tx *store.Tx) (string, error) {
	var reasons []string
	for _, e := range r.edits {
		row, value, err := e.target.read(tx)
		if err != nil {
			return "", err
		}
		if bytes.Equal(canonical(row), canonical(e.after)) {
			continue
		}
		why := fmt.Sprintf("the %s is %s by now, not %s", e.target, value, valueIn(e.target, e.after))
		later, err := laterRefinement(tx, e.target, r.number)
		if err != nil {
			return "", err
		}
		if later != "" {
			why += fmt.Sprintf(", by the refinement %s; roll that back first", later)
		}
		reasons = append(reasons, why)
	}
	if reasons == nil {
		return "", nil
	}
	return "it was changed since: " + strings.Join(reasons, ". "), nil
}

// rollBack puts back the rows as they were.
func (r *refinement) rollBack(tx *store.Tx, at int64) error {
	for _, e := range slices.Backward(r.edits) {
		if err := e.write(tx, e.before, at, rollbackStrategy); err != nil {
			return err
		}
	}
	_, _, err := tx.Exec("UPDATE learning_refinements SET rolled_back_at = ? WHERE number = ?", at, r.number)
	return err
}
