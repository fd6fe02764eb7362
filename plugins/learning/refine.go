package learning

// Refinements are changes that are proposed with reasons and can be rolled back:
//
//	plan ─ what the records speak for     refine_plan.go
//	review ─ evidence, conflicts, history refine_review.go
//	apply ─ all edits or none             refine_check.go examines them
//	rollback ─ as it was before
//	history ─ what was applied
//
// A proposal comes from plan or from the agent itself, in the form of refine_proposal.go.
// It can change the routing weight of a component, its settings and its texts
// (refine_text.go). Each change is measured, and rolled back if the component does worse
// (refine_trial.go). refine_tables.go stores everything.

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/rogpeppe/go-internal/diff"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

// The status of a refinement.
const (
	statusApplied    = "applied"
	statusRolledBack = "rolled_back"
)

// maxRefinements is how many refinements are kept, and maxEditBytes bounds all their edits together.
// Beyond that the oldest ones that were rolled back are deleted first, and then the oldest ones, which
// cannot be rolled back any more.
const (
	maxRefinements = 1_000
	maxEditBytes   = 32 << 20
)

// refineRoutes returns the routes of the refinements.
func (p *Plugin) refineRoutes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeRefinementPlanReq, p.refinePlan),
		host.Handle(protocol.TypeRefinementReviewReq, p.refineReview),
		host.Handle(protocol.TypeRefinementApplyReq, p.refineApply),
		host.Handle(protocol.TypeRefinementRollbackReq, p.refineRollback),
		host.List(protocol.TypeRefinementHistoryReq, p.refineHistory, protocol.MergeRefinements),
	}
}

// refineApply answers learn/refinement/apply/req. It makes all edits or none.
func (p *Plugin) refineApply(ctx context.Context, req *protocol.RefinementApplyRequest,
	_ host.Emitter,
) (*protocol.RefinementApplyResponse, error) {
	pr, err := p.received(ctx, req.Proposal)
	if err != nil {
		return nil, err
	}
	var resp *protocol.RefinementApplyResponse
	err = p.kept.Write(ctx, func(tx *store.Tx) (err error) {
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

// received reads a proposal and the texts that it is about, and flushes the counted calls.
func (p *Plugin) received(ctx context.Context, obj protocol.Object) (*proposal, error) {
	pr, err := parseProposal(obj)
	if err == nil {
		err = p.readTexts(ctx, pr)
	}
	if err != nil {
		return nil, err
	}
	return pr, p.kept.Noted(ctx, p.flush(ctx))
}

// apply makes the edits, or returns why they are refused.
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
	inForce, err := appliedProposal(tx, pr.ProposalID)
	if err != nil {
		return nil, err
	}
	if inForce != "" {
		failed = len(edits)
		reasons = []string{fmt.Sprintf("the proposal is in effect already, as the refinement %s; roll that back first",
			inForce)}
	}
	if reasons != nil {
		return &protocol.RefinementApplyResponse{FailedEdits: failed, Error: "nothing was changed: " +
			strings.Join(reasons, ". ")}, nil
	}
	r, err := pr.change(tx, edits, at)
	if err != nil {
		return nil, err
	}
	return &protocol.RefinementApplyResponse{RefinementID: r.ID, AppliedEdits: len(edits), RollbackAvailable: true}, nil
}

// change writes the rows, and the refinement with the rows before and after.
func (pr *proposal) change(tx *store.Tx, edits []*examined, at int64) (*refinement, error) {
	if err := trimRefinements(tx); err != nil {
		return nil, err
	}
	if first := edits[0]; pr.Component == "" || pr.Component == first.Component {
		pr.Component, pr.Kind = first.Component, first.Kind // history shows the component that was found
	}
	about := *pr
	about.Edits = nil // edits are stored separately
	text, err := json.Marshal(&about)
	if err != nil {
		return nil, err
	}
	r := &refinement{ID: newID()[:idDigits], ProposalID: pr.ProposalID, AppliedAt: store.Micros(at), Proposal: text}
	for _, x := range edits {
		after, err := x.after(at)
		if err != nil {
			return nil, err
		}
		if err := x.change(tx, after, at, refinementStrategy); err != nil {
			return nil, err
		}
		version, err := nextVersion(tx, x.target)
		if err != nil {
			return nil, err
		}
		r.Edits = append(r.Edits, &appliedEdit{x.target, x.before, after, version})
		if t, err := newTrial(tx, x.Kind, x.Component); err != nil {
			return nil, err
		} else if !slices.ContainsFunc(r.Trials, func(o *trial) bool {
			return o.Kind == t.Kind &&
				o.Component == t.Component
		}) {
			r.Trials = append(r.Trials, t)
		}
	}
	return r, r.insert(tx)
}

// trimRefinements makes room for one more refinement.
func trimRefinements(tx *store.Tx) error {
	for {
		var count, size int64
		_, err := tx.Get("SELECT (SELECT count(*) FROM learning_refinements), (SELECT coalesce(sum(length(before) + "+
			"length(after)), 0) FROM learning_edits)", nil, &count, &size)
		if err != nil || count < maxRefinements && size <= maxEditBytes {
			return err
		}
		old, err := readRefinements(tx, selectRefinements+" ORDER BY rolled_back_at IS NULL, number LIMIT 1")
		if err != nil || len(old) == 0 {
			return err
		}
		if err := old[0].remove(tx); err != nil {
			return err
		}
	}
}

// refineRollback answers learn/refinement/rollback/req. For a refinement that was rolled back before it
// answers the same again.
func (p *Plugin) refineRollback(ctx context.Context, req *protocol.RefinementRollbackRequest,
	_ host.Emitter,
) (*protocol.RefinementRollbackResponse, error) {
	resp := &protocol.RefinementRollbackResponse{RefinementID: req.RefinementID}
	known, changed := false, false
	err := p.kept.Write(ctx, func(tx *store.Tx) error {
		r, err := findRefinement(tx, req.RefinementID)
		if err != nil || r == nil {
			return err
		}
		if known = true; r.RolledBackAt != nil {
			resp.RolledBack = true
			return nil
		}
		if resp.Error, err = r.stale(tx); err != nil || resp.Error != "" {
			return err
		}
		resp.RolledBack, changed = true, true
		return r.rollBack(tx, p.nowMicros())
	})
	switch {
	case err != nil:
		return nil, err
	case !known:
		resp.Error = fmt.Sprintf("there is no refinement %.64q; learn/refinement/history/req lists them",
			req.RefinementID)
		return nil, host.NotOwnerBut(resp)
	case changed:
		p.forgetWeights()
	}
	return resp, nil
}

// stale returns what was changed since the refinement was applied; "" = nothing, so that it can be rolled
// back.
func (r *refinement) stale(tx *store.Tx) (string, error) {
	var reasons []string
	for _, e := range r.Edits {
		row, err := e.read(tx)
		if err != nil {
			return "", err
		}
		if row.same(e.After) {
			continue
		}
		why := fmt.Sprintf("the %s is %s by now, not %s", e.target, protocol.Clip(e.valueIn(row), maxShown),
			protocol.Clip(e.valueIn(e.After), maxShown))
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

// rollBack restores the rows from before the refinement.
func (r *refinement) rollBack(tx *store.Tx, at int64) error {
	for _, e := range slices.Backward(r.Edits) {
		if err := e.change(tx, e.Before, at, rollbackStrategy); err != nil {
			return err
		}
	}
	if err := r.endTrials(tx); err != nil {
		return err
	}
	_, err := tx.Exec("UPDATE learning_refinements SET rolled_back_at = $1 WHERE number = $2", at, r.number)
	return err
}

// refineHistory answers learn/refinement/history/req, the newest refinement first.
func (p *Plugin) refineHistory(ctx context.Context, _ *protocol.RefinementHistoryRequest,
	_ host.Emitter,
) (*protocol.RefinementHistoryResponse, error) {
	if err := p.flush(ctx); err != nil {
		return nil, p.kept.Noted(ctx, err)
	}
	entries, err := History(ctx, p.kept)
	p.showEffects(ctx, entries)
	return &protocol.RefinementHistoryResponse{Entries: entries}, err
}

// History returns the applied refinements, the newest first, as learn/refinement/history/req does. It
// leaves out whether texts have an effect, which only a host knows.
func History(ctx context.Context, s interface {
	Read(context.Context, func(*store.Tx) error) error
},
) ([]map[string]any, error) {
	entries := []map[string]any{}
	room := maxDiffs
	err := s.Read(ctx, func(tx *store.Tx) error {
		all, err := readRefinements(tx, selectRefinements+" ORDER BY number DESC")
		for _, r := range all {
			if err != nil {
				break
			}
			var entry map[string]any
			entry, err = r.entry(tx, &room)
			entries = append(entries, entry)
		}
		return err
	})
	return entries, err
}

// maxDiffs bounds the diffs in one answer, in bytes; older diffs are left out.
const maxDiffs = 1 << 20

// entry returns a refinement for history.
func (r *refinement) entry(tx *store.Tx, room *int) (map[string]any, error) {
	var pr proposal
	if err := json.Unmarshal(r.Proposal, &pr); err != nil {
		return nil, err
	}
	edits, measured := []map[string]any{}, []map[string]any{}
	intact := true
	for _, e := range r.Edits {
		row, err := e.read(tx)
		if err != nil {
			return nil, err
		}
		edit := e.entry(room)
		edit["in_force"] = r.RolledBackAt == nil && row.same(e.After)
		intact = intact && edit["in_force"] == true
		edits = append(edits, edit)
	}
	for _, t := range r.Trials {
		measured = append(measured, t.entry())
	}
	entry := map[string]any{
		"refinement_id": r.ID, "proposal_id": r.ProposalID, "component": pr.Component, "kind": pr.Kind,
		"scope":     pr.Scope,
		"rationale": pr.Rationale, "confidence": pr.Confidence, "evidence": pr.Evidence, "edits": edits,
		"measured": measured,
		"status":   statusApplied, "applied_at": r.AppliedAt, "rolled_back_at": r.RolledBackAt,
		"rollback_available": intact,
	}
	if r.RolledBackAt != nil {
		entry["status"] = statusRolledBack
	}
	return entry, nil
}

// entry returns an edit for history; for a text it has the beginning and a diff.
func (e *appliedEdit) entry(room *int) map[string]any {
	entry := map[string]any{
		"target": e.Target, "kind": e.Kind, "component": e.Component, "name": e.Name, "version": e.Version,
		"from": e.valueIn(e.Before), "to": e.valueIn(e.After),
	}
	if e.Target != targetText {
		return entry
	}
	before, after := e.textIn(e.Before), e.textIn(e.After)
	for key, v := range map[string]*textValue{"from": before, "to": after} {
		if v != nil {
			entry[key] = protocol.Clip(v.Text, maxShown)
		}
	}
	if entry["diff"] = ""; *room > 0 {
		text := diffOf(before, after, e.Version)
		entry["diff"] = text
		*room -= len(text)
	}
	return entry
}

// diffOf returns the unified diff between two texts. nil means that no text is set, so that the
// component's own text is in effect.
func diffOf(before, after *textValue, version int64) string {
	from, to := "", ""
	switch {
	case before != nil && after != nil:
		from, to = before.Text, after.Text
	case before != nil:
		from, to = before.Text, before.Original
	case after != nil:
		from, to = after.Original, after.Text
	}
	text := diff.Diff(fmt.Sprintf("version %d", max(version-1, 0)), withEnd(from), fmt.Sprintf("version %d", version),
		withEnd(to))
	_, text, _ = bytes.Cut(text, []byte("\n")) // the first line only repeats the file names
	return string(text)
}

// withEnd returns a text with one line end at its end, which makes diffs easier to read.
func withEnd(text string) []byte { return []byte(strings.TrimRight(text, "\n") + "\n") }
