package learning

import (
	"bytes"
	"context"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// What became of a refinement.
const (
	statusApplied    = "applied"
	statusRolledBack = "rolled_back"
)

// refineHistory answers learn/refinement/history/req: the newest first.
func (p *Plugin) refineHistory(ctx context.Context, _ *protocol.RefinementHistoryRequest, _ host.Emitter) (*protocol.RefinementHistoryResponse, error) {
	resp := &protocol.RefinementHistoryResponse{Entries: []map[string]any{}}
	err := p.read(ctx, func(tx *store.Tx) error {
		all, err := readRefinements(tx, selectRefinements+" ORDER BY number DESC")
		rows := make(images)
		for _, r := range all {
			if err != nil {
				break
			}
			var entry map[string]any
			if entry, err = r.entry(tx, rows); err == nil {
				resp.Entries = append(resp.Entries, entry)
			}
		}
		return err
	})
	return resp, err
}

// entry gives a refinement as history shows it.
func (r *refinement) entry(tx *store.Tx, rows images) (map[string]any, error) {
	var pr proposal
	if err := json.Unmarshal(r.proposal, &pr); err != nil {
		return nil, err
	}
	edits := []map[string]any{}
	for _, e := range r.edits {
		edits = append(edits, map[string]any{
			"target": e.Target, "kind": e.Kind, "component": e.Component, "name": e.Name,
			"from": valueIn(e.target, e.before), "to": valueIn(e.target, e.after),
		})
	}
	entry := map[string]any{
		"refinement_id": r.id, "proposal_id": r.proposalID, "component": pr.Component, "kind": pr.Kind, "scope": pr.Scope,
		"rationale": pr.Rationale, "confidence": pr.Confidence, "evidence": pr.Evidence, "edits": edits,
		"status": statusApplied, "applied_at": inSeconds(r.appliedAt), "rolled_back_at": nil, "rollback_available": false,
	}
	if r.rolledBackAt != nil {
		entry["status"], entry["rolled_back_at"] = statusRolledBack, inSeconds(*r.rolledBackAt)
		return entry, nil
	}
	same, err := rows.are(tx, r.edits)
	entry["rollback_available"] = same
	return entry, err
}

// images is what the rows of targets are, each read once.
type images map[target]jsontext.Value

// are tells whether the rows are still what edits made of them.
func (rows images) are(tx *store.Tx, edits []appliedEdit) (bool, error) {
	for _, e := range edits {
		if rows[e.target] == nil {
			row, _, err := e.target.read(tx)
			if err != nil {
				return false, err
			}
			rows[e.target] = canonical(row)
		}
		if !bytes.Equal(rows[e.target], canonical(e.after)) {
			return false, nil
		}
	}
	return true, nil
}

// MergeHistory adds what a plugin of lower priority has. Two on one store have the same.
// It is for host.List.
func MergeHistory(dst, src *protocol.RefinementHistoryResponse) {
	for _, e := range src.Entries {
		if !slices.ContainsFunc(dst.Entries, func(d map[string]any) bool { return d["refinement_id"] == e["refinement_id"] }) {
			dst.Entries = append(dst.Entries, e)
		}
	}
}
