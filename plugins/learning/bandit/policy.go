package bandit

import (
	"math"
	"math/rand/v2"
)

// Policy is a categorical distribution over arms: the probability of an arm is the
// softmax of its logit. Logits are finite, one for each arm.
type Policy struct{ Logits []float64 }

// NewPolicy is the policy that chooses each of k arms with the same probability.
func NewPolicy(k int) Policy { return Policy{Logits: make([]float64, k)} }

// leastWeight is the least that a weight counts for in a policy. A gradient is in
// proportion to the arm's probability: from much further down no arm would come back.
const leastWeight = 0.05

// PolicyOf is the policy that the weights of the arms stand for: probabilities in their
// proportions. A weight below 0.05 counts as that; none, or no number, counts as 1.
func PolicyOf(arms []Arm) Policy {
	p := NewPolicy(len(arms))
	for i, a := range arms {
		if a.Weight > 0 {
			p.Logits[i] = math.Log(min(max(a.Weight, leastWeight), 1e9))
		}
	}
	return p
}

// Probabilities gives the probability of each arm; they sum up to 1.
func (p Policy) Probabilities() []float64 {
	probs := p.logs()
	for i, l := range probs {
		probs[i] = math.Exp(l)
	}
	return probs
}

// Weights gives the routing weight of each arm: its probability times the number of arms.
func (p Policy) Weights() []float64 { return balance(p.Probabilities()) }

// Choose draws an arm, -1 without arms: the highest logit plus Gumbel noise has just the
// probability of the policy.
func (p Policy) Choose(rng *rand.Rand) int {
	best, top := -1, math.Inf(-1)
	for i, l := range p.Logits {
		if x := l + gumbel(rng); x > top {
			best, top = i, x
		}
	}
	return best
}

// gumbel draws from the standard Gumbel distribution.
func gumbel(rng *rand.Rand) float64 { return -math.Log(rng.ExpFloat64()) }

// logs gives the logarithms of the probabilities. They are logits of the same policy.
func (p Policy) logs() []float64 {
	largest := math.Inf(-1)
	for _, l := range p.Logits {
		largest = max(largest, l)
	}
	sum := 0.0
	for _, l := range p.Logits {
		sum += math.Exp(l - largest)
	}
	logs := make([]float64, len(p.Logits))
	for i, l := range p.Logits {
		logs[i] = l - largest - math.Log(sum)
	}
	return logs
}
