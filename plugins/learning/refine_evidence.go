package learning

import (
	"fmt"
	"math"
)

// What counts as clear. Both bounds are of 95 % confidence.
const (
	minCalls  = 10   // less say nothing of a component
	goodRate  = 0.8  // a component is good where even the lower bound of its success rate is
	badRate   = 0.5  // it is bad where even the upper bound is
	uselessAt = 0.2  // upper bound from which on a tool had better not be offered
	leastGain = 0.05 // relative change of a weight that is worth a proposal
)

// z95 is the two-sided 95 % quantile of the normal distribution.
const z95 = 1.959963984540054

// wilson gives the score interval of a success rate. Source: E. B. Wilson, "Probable
// Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927), 209-212.
func wilson(successes, calls int64) (low, high float64) {
	if calls <= 0 {
		return 0, 1
	}
	n, p := float64(calls), float64(successes)/float64(calls)
	mid := (p + z95*z95/(2*n)) / (1 + z95*z95/n)
	half := z95 / (1 + z95*z95/n) * math.Sqrt(p*(1-p)/n+z95*z95/(4*n*n))
	return max(0, mid-half), min(1, mid+half)
}

// hoeffding gives half the width of the interval around the mean of n values in [-1,1],
// whatever their distribution. Source: W. Hoeffding, "Probability Inequalities for Sums of
// Bounded Random Variables", JASA 58 (1963), 13-30, theorem 2. With confidences of at most
// 1 as weights, their sum in place of n makes it no narrower.
func hoeffding(n float64) float64 {
	if n <= 0 {
		return 1
	}
	return min(1, 2*math.Sqrt(math.Log(2/0.05)/(2*n)))
}

// verdict is what the record of a component comes to.
type verdict struct {
	direction  int     // 1 = good, -1 = bad, 0 = they are not clear, or contradict each other
	worth      float64 // 0 to 1, from the cautious end of the intervals; 0.5 where nothing is clear
	confidence float64 // 0 to 1: how narrow the intervals are
	enough     bool    // there is something to judge by
	why        string
}

// judge weighs calls and feedback.
func (c *Component) judge() verdict {
	low, high := wilson(c.Successes, c.Calls)
	half, score := hoeffding(c.ScoreWeight), c.Score
	byCalls, byScore := 0, 0
	v := verdict{worth: 0.5, enough: c.Calls >= minCalls}
	v.why = fmt.Sprintf("%d of %d calls succeeded (95 %% interval %.2f to %.2f), %d feedbacks with a mean of %.2f", c.Successes, c.Calls, low, high, c.Feedbacks, score)
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

// claim is what a proposal says of its own evidence, as plan writes it.
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
	low, high := wilson(c.Successes, c.Calls)
	rate := float64(c.Successes) / float64(max(c.Calls, 1))
	return claim{float64(c.Calls), c.Successes, round4(rate), round4(low), round4(high), c.Feedbacks, round4(c.Score), millis(c.P95Duration)}
}

// round4 keeps four digits after the point: what is more would pretend to be known.
func round4(v float64) float64 { return math.Round(v*1e4) / 1e4 }
