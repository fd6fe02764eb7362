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
	"a2e/host/state/store"
	"a2e/protocol"
)

const (
	statusReady = "ready" // there are proposals
	statusEmpty = "empty" // the records suggest no change

	maxProposals = 100 // in a plan; those with the highest confidence
	maxScope     = 64  // characters
)

// refinePlan answers learn/refinement/plan/req. It changes nothing.
func (p *Plugin) refinePlan(ctx context.Context, req *protocol.RefinementPlanRequest,
	_ host.Emitter,
) (*protocol.RefinementPlanResponse, error) {
	if n := utf8.RuneCountInString(req.Scope); n > maxScope {
		return nil, protocol.Violation(protocol.FieldError{Path: "/scope", Message: fmt.Sprintf("has %d characters; "+
			"at most %d are allowed, such as local", n, maxScope)})
	}
	if err := p.flush(ctx); err != nil {
		return nil, p.kept.Noted(ctx, err)
	}
	planner := &planner{scope: req.Scope, at: p.nowMicros()}
	if err := p.kept.Read(ctx, func(tx *store.Tx) error { return planner.plan(tx, req.ComponentName) }); err != nil {
		return nil, err
	}
	slices.SortStableFunc(planner.made, func(a, b *proposal) int { return cmp.Compare(*b.Confidence, *a.Confidence) })
	resp := &protocol.RefinementPlanResponse{
		PlanID: newID()[:idDigits], Proposals: []map[string]any{},
		Status: statusEmpty,
	}
	for _, pr := range planner.made[:min(len(planner.made), maxProposals)] {
		fields, err := pr.fields()
		if err != nil {
			return nil, err
		}
		resp.Proposals, resp.Status = append(resp.Proposals, fields), statusReady
	}
	return resp, nil
}

// fields returns the members of the proposal, for a message.
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
	at    int64 // microseconds since 1970
	made  []*proposal
}

// plan makes proposals for the components with a name, or for all if name is "".
func (pl *planner) plan(tx *store.Tx, name string) error {
	all, err := components(tx, name)
	for _, c := range all {
		v := c.judge()
		if err == nil && v.direction != 0 {
			err = pl.planWeight(tx, c, v)
		}
		if err == nil && v.direction != 0 && c.Kind == host.KindTool {
			err = pl.planDeferred(tx, c, v)
		}
		if err == nil && v.enough && v.direction <= 0 && c.Kind == host.KindTool {
			err = pl.planTimeout(tx, c, v)
		}
	}
	return err
}

// asTarget returns an edit of the component with the current value.
func (c *Component) asTarget(tx *store.Tx, of, name string) (*examined, error) {
	x := &examined{edit: &edit{target: target{of, c.Kind, c.Name, name}}, record: c}
	return x, x.readNow(tx)
}

// planWeight moves the weight towards what the component is worth: the more is known, the further. Applied
// repeatedly to the same records it converges.
func (pl *planner) planWeight(tx *store.Tx, c *Component, v verdict) error {
	x, err := c.asTarget(tx, targetWeight, nameWeight)
	if err != nil {
		return err
	}
	goal := 2 * v.worth // neutral is 1, and the worth of an unknown component 0.5
	to := round4(x.number + (goal-x.number)*v.confidence)
	if float64(v.direction)*(to-x.number) < leastGain*x.number {
		return nil // it has the weight that it is worth, or is beyond it
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

// planDeferred removes a tool that hardly ever works from the usual list, and returns a tool that a
// refinement has removed and that works well now.
func (pl *planner) planDeferred(tx *store.Tx, c *Component, v verdict) error {
	x, err := c.asTarget(tx, targetSetting, settingDeferred)
	if err != nil {
		return err
	}
	_, high := wilson(c.Successes, c.Calls, z95)
	x.From = x.now
	switch isDeferred := x.now.Kind() == 't'; {
	case v.direction < 0 && high <= uselessAt && x.now.Kind() == 'n':
		x.To = jsontext.Value("true")
		return pl.add(x, v, "leave the tool out of the usual list: "+v.why)
	case v.direction > 0 && isDeferred:
		x.To = jsontext.Value("null")
		return pl.add(x, v, "return the tool to the usual list: "+v.why)
	}
	return nil
}

// planTimeout doubles the time limit that a refinement has set for a failing tool, if its calls use up
// that limit.
func (pl *planner) planTimeout(tx *store.Tx, c *Component, v verdict) error {
	x, err := c.asTarget(tx, targetSetting, settingTimeout)
	if err != nil {
		return err
	}
	limit, err := number(x.now)
	if err != nil || c.P95Duration.Seconds() < nearLimit*limit { // no limit is set, or calls do not reach it
		return nil
	}
	x.From = x.now
	x.To = fmt.Appendf(nil, "%v", min(2*limit, maxTimeout))
	if x.is(x.To) {
		return nil
	}
	return pl.add(x, v, fmt.Sprintf("double the time limit: one call in twenty takes %.3g of %v seconds; %s",
		c.P95Duration.Seconds(), limit, v.why))
}

func (pl *planner) add(x *examined, v verdict, rationale string) error {
	evidence, err := json.Marshal(x.record.claim())
	if err != nil {
		return err
	}
	confidence := round4(math.Max(0, v.confidence))
	pl.made = append(pl.made, &proposal{
		ProposalID: newID()[:idDigits], Component: x.Component, Kind: x.Kind, Edits: []*edit{x.edit},
		Confidence: &confidence, Rationale: rationale, Evidence: evidence, Scope: pl.scope, CreatedAt: inSeconds(pl.at),
	})
	return nil
}

// The thresholds of judge. All bounds are those of 95 % intervals.
const (
	minCalls  = 10   // with fewer calls nothing can be said about a component
	goodRate  = 0.8  // a component is good if the lower bound of its success rate is at least this
	badRate   = 0.5  // it is bad if the upper bound is at most this
	uselessAt = 0.2  // upper bound up to which a tool should not be offered
	nearLimit = 0.95 // share of a time limit from which the limit counts as what ends calls
	leastGain = 0.05 // least relative change of a weight that is proposed
)

// The two-sided quantiles of the normal distribution for 95 % and 99 %.
const (
	z95 = 1.959963984540054
	z99 = 2.575829303548901
)

// wilson returns the score interval of a success rate; z is a quantile of the normal distribution. Source:
// E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927),
// 209-212.
func wilson(successes, calls int64, z float64) (low, high float64) {
	if calls <= 0 {
		return 0, 1
	}
	n, p := float64(calls), float64(successes)/float64(calls)
	mid := (p + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	return max(0, mid-half), min(1, mid+half)
}

// hoeffding returns half the width of the interval around the mean of n values in [-1,1] with any
// distribution; level is the confidence. With weights of at most 1, n is their sum, which makes the
// interval no narrower. Source: W. Hoeffding, "Probability Inequalities for Sums of Bounded Random
// Variables", JASA 58 (1963), 13-30, theorem 2.
func hoeffding(n, level float64) float64 {
	if n <= 0 {
		return 1
	}
	return min(1, 2*math.Sqrt(math.Log(2/(1-level))/(2*n)))
}

// verdict is the result of judging the record of a component.
type verdict struct {
	direction  int     // 1 = good, -1 = bad, 0 = calls and feedback are not clear, or contradict each other
	worth      float64 // 0 to 1, from the cautious end of the intervals; 0.5 = nothing is clear
	confidence float64 // 0 to 1: how narrow the intervals are
	enough     bool    // there is enough to judge by
	why        string
}

// judge judges a component by its calls and feedback.
func (c *Component) judge() verdict {
	low, high := wilson(c.Successes, c.Calls, z95)
	half, score := hoeffding(c.ScoreWeight, 0.95), c.Score
	byCalls, byScore := 0, 0
	v := verdict{worth: 0.5, enough: c.Calls >= minCalls}
	v.why = fmt.Sprintf("%d of %s succeeded (95 %% interval %.2f to %.2f), %s with a mean of %.2f", c.Successes,
		protocol.Count(c.Calls, "call"), low, high, protocol.Count(c.Feedbacks, "rating"), score)
	var worths []float64
	if v.enough {
		v.confidence = 1 - (high - low)
		switch {
		case low >= goodRate:
			byCalls, worths = 1, append(worths, low)
		case high <= badRate:
			byCalls, worths = -1, append(worths, high)
		}
	}
	switch {
	case score-half > 0:
		byScore, worths = 1, append(worths, (1+score-half)/2)
	case score+half < 0:
		byScore, worths = -1, append(worths, (1+score+half)/2)
	}
	if byScore != 0 {
		v.enough, v.confidence = true, 1-(1-v.confidence)*half
	}
	if byCalls*byScore < 0 {
		v.why += "; the feedback contradicts the calls"
		v.confidence /= 2
		return v
	}
	if v.direction = byCalls; byCalls == 0 {
		v.direction = byScore
	}
	if len(worths) > 0 {
		v.worth = 0
		for _, w := range worths {
			v.worth += w / float64(len(worths))
		}
	}
	return v
}

// claim is the evidence in a proposal, as plan writes it.
type claim struct {
	Calls       float64 `json:"calls"`
	Successes   int64   `json:"successes"`
	SuccessRate float64 `json:"success_rate"`
	SuccessLow  float64 `json:"success_low"` // bounds of the 95 % interval
	SuccessHigh float64 `json:"success_high"`
	Feedbacks   int64   `json:"feedbacks"`
	AvgScore    float64 `json:"avg_score"` // -1 to 1
	P95Duration float64 `json:"p95_duration_ms"`
}

func (c *Component) claim() claim {
	low, high := wilson(c.Successes, c.Calls, z95)
	rate := float64(c.Successes) / float64(max(c.Calls, 1))
	return claim{
		float64(c.Calls), c.Successes, round4(rate), round4(low), round4(high), c.Feedbacks, round4(c.Score),
		millis(c.P95Duration),
	}
}

// round4 rounds to four digits after the point; more would suggest a false precision.
func round4(v float64) float64 { return math.Round(v*1e4) / 1e4 }
