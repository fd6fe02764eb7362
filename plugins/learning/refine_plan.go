package learning

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

const (
	statusReady = "ready" // there are proposals
	statusEmpty = "empty" // the records speak for no change

	maxProposals = 100 // of a plan; the most confident ones
	maxScope     = 64  // characters
)

// refinePlan answers learn/refinement/plan/req: it changes nothing.
func (p *Plugin) refinePlan(ctx context.Context, req *protocol.RefinementPlanRequest, _ host.Emitter) (*protocol.RefinementPlanResponse, error) {
	if n := utf8.RuneCountInString(req.Scope); n > maxScope {
		return nil, protocol.Violation(protocol.FieldError{Path: "/scope", Message: fmt.Sprintf("has %d characters; at most %d are allowed, such as local", n, maxScope)})
	}
	if err := p.flush(ctx); err != nil {
		return nil, p.noted(ctx, err)
	}
	planner := &planner{scope: req.Scope, at: inSeconds(p.nowMicros())}
	if err := p.read(ctx, func(tx *store.Tx) error { return planner.plan(tx, req.ComponentName) }); err != nil {
		return nil, err
	}
	slices.SortStableFunc(planner.made, func(a, b *proposal) int { return cmp.Compare(*b.Confidence, *a.Confidence) })
	resp := &protocol.RefinementPlanResponse{PlanID: newRefinementID(), Proposals: []map[string]any{}, Status: statusEmpty}
	for _, pr := range planner.made[:min(len(planner.made), maxProposals)] {
		fields, err := pr.fields()
		if err != nil {
			return nil, err
		}
		resp.Proposals, resp.Status = append(resp.Proposals, fields), statusReady
	}
	return resp, nil
}

// fields gives the proposal as a message carries it.
func (pr *proposal) fields() (fields map[string]any, err error) {
	raw, err := json.Marshal(pr)
	if err == nil {
		var members map[string]jsontext.Value
		err = json.Unmarshal(raw, &members)
		fields = make(map[string]any, len(members))
		for name, value := range members {
			fields[name] = value
		}
	}
	return fields, err
}

// planner makes proposals.
type planner struct {
	scope string
	at    float64
	made  []*proposal
}

// plan looks at the components of a name, all for "".
func (pl *planner) plan(tx *store.Tx, name string) error {
	all, err := readComponents(tx, name)
	for _, c := range all {
		v := c.judge()
		if err == nil && v.direction != 0 {
			err = pl.planWeight(tx, c, v)
		}
		if err == nil && v.direction != 0 && c.Kind == host.KindTool {
			err = pl.planDeferred(tx, c, v)
		}
	}
	return err
}

// planWeight moves the weight towards what the component is worth, the further the more
// is known: applied again and again on the same records it comes to rest.
func (pl *planner) planWeight(tx *store.Tx, c *Component, v verdict) error {
	x := &examined{edit: &edit{target: target{targetWeight, c.Kind, c.Name, nameWeight}}, record: c}
	if err := x.readNow(tx); err != nil {
		return err
	}
	goal := 2 * v.worth // neutral is 1, the worth of what nobody knows 0.5
	to := round4(x.number + (goal-x.number)*v.confidence)
	if float64(v.direction)*(to-x.number) < leastGain*x.number {
		return nil // it has what it deserves, or more of it
	}
	word := "raise"
	if v.direction < 0 {
		word = "lower"
	}
	from, err := json.Marshal(x.number)
	if err != nil {
		return err
	}
	x.From, x.To = from, fmt.Appendf(nil, "%v", to)
	return pl.add(x, v, fmt.Sprintf("%s the weight: %s", word, v.why))
}

// planDeferred takes a tool that hardly ever works out of the usual list, and puts one
// back that a refinement had taken out and that is good by now.
func (pl *planner) planDeferred(tx *store.Tx, c *Component, v verdict) error {
	x := &examined{edit: &edit{target: target{targetSetting, c.Kind, c.Name, host.SettingDeferred}}, record: c}
	if err := x.readNow(tx); err != nil {
		return err
	}
	_, high := wilson(c.Successes, c.Calls)
	x.From = x.now
	switch isDeferred := x.now.Kind() == 't'; {
	case v.direction < 0 && high <= uselessAt && x.now.Kind() == 'n':
		x.To = jsontext.Value("true")
		return pl.add(x, v, "leave the tool out of the usual list: "+v.why)
	case v.direction > 0 && isDeferred:
		x.To = jsontext.Value("null")
		return pl.add(x, v, "put the tool back into the usual list: "+v.why)
	}
	return nil
}

func (pl *planner) add(x *examined, v verdict, rationale string) error {
	evidence, err := json.Marshal(x.record.claim())
	if err != nil {
		return err
	}
	confidence := round4(math.Max(0, v.confidence))
	pl.made = append(pl.made, &proposal{
		ProposalID: newRefinementID(), Component: x.Component, Kind: x.Kind, Edits: []*edit{x.edit},
		Confidence: &confidence, Rationale: rationale, Evidence: evidence, Scope: pl.scope, CreatedAt: pl.at,
	})
	return nil
}
