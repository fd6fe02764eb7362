package learning

// Refinements are changes that somebody proposes, with reasons, and can take back:
//
//	plan ─ what the records speak for     refine_plan.go, refine_evidence.go
//	review ─ evidence, conflicts, history refine_review.go
//	apply ─ all edits or none             refine_apply.go, refine_check.go
//	rollback ─ as it was before           refine_rollback.go
//	history ─ what was applied            refine_history.go
//
// A proposal comes from plan or from the agent itself, in the words of refine_proposal.go.
// What may be changed is the routing weight of a component and its settings, which
// refine_settings.go lists. refine_tables.go and refine_transfer.go keep it all.

import (
	"a2e/host"
	"a2e/protocol"
)

// refineRoutes are the routes of the refinements.
func (p *Plugin) refineRoutes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeRefinementPlanReq, p.refinePlan).Reads(),
		host.Handle(protocol.TypeRefinementReviewReq, p.refineReview).Reads(),
		host.Handle(protocol.TypeRefinementApplyReq, p.refineApply).Changes(),
		host.Handle(protocol.TypeRefinementRollbackReq, p.refineRollback).Changes(),
		host.List(protocol.TypeRefinementHistoryReq, p.refineHistory, MergeHistory).Reads(),
	}
}
