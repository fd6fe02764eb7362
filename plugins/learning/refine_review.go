package learning

import (
	"context"
	"fmt"
	"math"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

// leastConfidence is the confidence that a proposal needs to be approved.
const leastConfidence = 0.3

// risk is the risk of a proposal.
type risk int

const (
	riskLow risk = iota
	riskMedium
	riskHigh
)

// String returns the risk as messages show it.
func (r risk) String() string { return [...]string{"low", "medium", "high"}[r] }

// reviewer collects the reasons against a proposal.
type reviewer struct {
	pr         *proposal
	confidence float64
	risk       risk
	refused    bool
	reasons    []string
}

// note adds a reason, raises the risk to at least this one and multiplies the confidence by part.
func (r *reviewer) note(least risk, part float64, format string, args ...any) {
	r.risk = max(r.risk, least)
	r.confidence *= part
	r.reasons = append(r.reasons, fmt.Sprintf(format, args...))
}

// refuse adds a reason that keeps the proposal from being approved.
func (r *reviewer) refuse(least risk, format string, args ...any) {
	r.refused = true
	r.note(least, 0.5, format, args...)
}

// refineReview answers learn/refinement/review/req. It changes nothing.
func (p *Plugin) refineReview(ctx context.Context, req *protocol.RefinementReviewRequest,
	_ host.Emitter,
) (*protocol.RefinementReviewResponse, error) {
	pr, err := p.received(ctx, req.Proposal)
	if err != nil {
		return nil, err
	}
	var r *reviewer
	err = p.kept.Read(ctx, func(tx *store.Tx) error {
		r = &reviewer{pr: pr, confidence: 1, reasons: []string{}}
		return r.review(tx)
	})
	if err != nil {
		return nil, err
	}
	r.confidence = round4(r.confidence)
	if !r.refused && r.confidence < leastConfidence {
		r.refuse(riskMedium, "a confidence of %v is left; it takes %v", r.confidence, leastConfidence)
		r.confidence *= 2 // undo the halving by refuse, as the reason shows this confidence
	}
	return &protocol.RefinementReviewResponse{
		Approved: !r.refused && r.risk != riskHigh, ConfidenceAdjusted: r.confidence, Reasons: r.reasons,
		RiskLevel: r.risk.String(),
	}, nil
}

// review checks each edit, and looks at earlier refinements.
func (r *reviewer) review(tx *store.Tx) error {
	if r.pr.Confidence != nil {
		r.confidence = *r.pr.Confidence
	}
	edits, reasons, err := examine(tx, r.pr)
	if err != nil {
		return err
	}
	for _, why := range reasons {
		r.refuse(riskHigh, "%s", why)
	}
	inForce, err := appliedProposal(tx, r.pr.ProposalID)
	if err != nil {
		return err
	}
	if inForce != "" {
		r.refuse(riskHigh, "the proposal is in effect already, as the refinement %s", inForce)
	}
	for _, x := range edits {
		if x.wrong != nil {
			continue
		}
		r.evidence(x)
		if err := r.history(tx, x); err != nil {
			return err
		}
	}
	return nil
}

// evidence compares an edit with the component's record.
func (r *reviewer) evidence(x *examined) {
	v := x.record.judge()
	if !v.enough {
		r.refuse(riskMedium, "there is not enough evidence on the %s %.128q: %s; it takes %d calls, or clear feedback",
			x.Kind, x.Component, v.why, minCalls)
		return
	}
	r.confidence = min(r.confidence, v.confidence)
	r.reasons = append(r.reasons, fmt.Sprintf("the %s %.128q: %s", x.Kind, x.Component, v.why))
	var said claim
	if json.Unmarshal(r.pr.Evidence, &said) == nil && said.Calls > float64(x.record.Calls) &&
		x.Component == r.pr.Component {
		r.note(riskMedium, 0.5, "the proposal speaks of %g calls, %d were recorded", said.Calls, x.record.Calls)
	}
	switch x.Target {
	case targetSetting:
		r.settingEvidence(x, v)
		return
	case targetText:
		if v.direction > 0 {
			r.note(riskMedium, 0.7, "the component does well with the text that it has")
		}
		return
	}
	to := x.toNumber()
	switch up := math.Signbit(x.number - to); {
	case v.direction == 0:
		r.note(riskMedium, 0.7, "the evidence is not clear either way")
	case up != (v.direction > 0):
		r.refuse(riskHigh, "the evidence speaks against the change of the %s from %v to %v", x.target, x.number, to)
	}
	switch ratio := max(to, x.number) / min(to, x.number); {
	case to == 0:
		r.note(riskHigh, 1, "a weight of 0 may keep the component from being used at all; then no evidence comes "+
			"that could change it")
	case ratio > 4:
		r.note(riskMedium, 1, "the %s changes by a factor of %.3g at once", x.target, ratio)
	}
}

// settingEvidence compares a change of a setting with the record.
func (r *reviewer) settingEvidence(x *examined, v verdict) {
	limit, isLimit := 0.0, x.Name == settingTimeout && x.To.Kind() == '0'
	if isLimit {
		limit, _ = number(x.To) // checkTo has checked it
	}
	switch defers := x.Name == settingDeferred && x.To.Kind() == 't'; {
	case defers && v.direction > 0:
		r.refuse(riskHigh, "the evidence speaks against leaving the component out of lists: it does well")
	case isLimit && limit < x.record.P95Duration.Seconds():
		r.refuse(riskHigh, "one call in twenty takes longer than %.3g seconds: a limit of %.3g would cut them off",
			x.record.P95Duration.Seconds(), limit)
	case !isLimit && v.direction == 0:
		r.note(riskMedium, 0.7, "the evidence is not clear either way")
	}
}

// history looks at earlier refinements of the same target.
func (r *reviewer) history(tx *store.Tx, x *examined) error {
	earlier, err := refinementsOf(tx, x.target)
	if err != nil {
		return err
	}
	undone := 0
	for _, e := range earlier {
		switch {
		case e.RolledBackAt != nil:
			if e.resembles(x) {
				undone++
			}
		case r.pr.CreatedAt > 0 && inSeconds(int64(e.AppliedAt)) > r.pr.CreatedAt:
			r.refuse(riskHigh, "the refinement %s changed the %s after this was proposed; plan again", e.ID, x.target)
		}
	}
	switch {
	case undone == 1:
		r.note(riskMedium, 0.7, "a like change of the %s was rolled back once", x.target)
	case undone > 1:
		r.note(riskHigh, 0.5, "like changes of the %s were rolled back %d times", x.target, undone)
	}
	return nil
}

// resembles reports whether the refinement changed the weight of the target in the same direction, or
// another target to the same value.
func (r *refinement) resembles(x *examined) bool {
	for _, e := range r.Edits {
		if e.target != x.target {
			continue
		}
		if x.Target == targetWeight {
			return math.Signbit(e.Before.weight()-e.After.weight()) == math.Signbit(x.number-x.toNumber())
		}
		return string(e.valueIn(e.After)) == string(x.To)
	}
	return false
}
