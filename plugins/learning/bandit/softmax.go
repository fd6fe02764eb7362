package bandit

import (
	"math"
	"math/rand/v2"
)

// Softmax is Boltzmann exploration: an arm is chosen with a probability that grows
// exponentially with its mean reward over a temperature, and the temperature falls as
// evidence grows (Sutton, Barto, "Reinforcement Learning", 2nd edition, 2.8; Cesa-Bianchi,
// Fischer, "Finite-time regret bounds for the multiarmed bandit problem", ICML 1998).
//
// The schedule is that of Cesa-Bianchi, Gentile, Lugosi, Neu, "Boltzmann Exploration
// Done Right", NeurIPS 2017, section 4: each arm has a temperature of its own,
//
//	temperature = Scale / sqrt(n)
//
// for n pulls, and the arm with the highest mean + temperature × Z is pulled, Z drawn
// from the standard Gumbel distribution for each arm. With equal pulls that is the
// softmax of mean / temperature, to the letter. The paper shows why one temperature for
// all arms, falling with t alone, either locks in on a wrong arm or explores too long;
// with this one regret grows as ln² t, whatever the distances of the means.
//
// An arm without pulls counts as pulled once with reward 1, so it is soon tried (the
// optimistic initial values of Sutton, Barto, 2.6).
type Softmax struct {
	Scale float64 // C of the paper, > 0: the temperature of an arm with one pull
}

// DefaultSoftmax has a scale of 1/2, the standard deviation that rewards in [0, 1] have at most.
func DefaultSoftmax() Softmax { return Softmax{Scale: 0.5} }

// quantiles is at how many points of its distribution the highest draw is looked at.
const quantiles = 128

// Weights implements [Strategy], in the proportions of the probabilities. For one arm to
// have the highest draw M, given M = x, is as likely as its share in the sum of all
// f(x)/F(x), which for a Gumbel draw is exp(-(x-mean)/temperature)/temperature. The mean
// of the shares over the quantiles of M is the probability.
func (s Softmax) Weights(arms []Arm) []float64 {
	w := make([]float64, len(arms))
	if len(arms) == 0 {
		return w
	}
	h := highest{make([]float64, len(arms)), make([]float64, len(arms)), make([]float64, len(arms)), 0}
	for i, a := range arms {
		h.mean[i], h.temperature[i] = s.of(a)
	}
	for q := range quantiles {
		y := -math.Log((float64(q) + 0.5) / quantiles)
		h.seek(math.Log(y))
		for i := range w {
			w[i] += h.terms[i] / h.temperature[i] / h.slope
		}
	}
	return balance(w)
}

// Choose implements [Strategy]: the arm with the highest draw.
func (s Softmax) Choose(arms []Arm, rng *rand.Rand) int {
	return best(len(arms), rng, func(i int) float64 {
		mean, temperature := s.of(arms[i])
		return mean - temperature*math.Log(rng.ExpFloat64())
	})
}

// of returns the mean reward and the temperature of an arm.
func (s Softmax) of(a Arm) (mean, temperature float64) {
	mean, n := a.mean(), a.pulls()
	if n == 0 {
		mean, n = 1, 1
	}
	return mean, max(s.Scale, 1e-6) / math.Sqrt(n)
}

// highest is the distribution of the highest draw: its logarithm at x is, negated, the
// sum over all arms of exp(-(x-mean)/temperature).
type highest struct {
	mean, temperature []float64
	terms             []float64 // of that sum, over the largest
	slope             float64   // sum of terms / temperature
}

// seek sets terms to those at the x where the logarithm of the sum is y. That function
// of x is convex and falls, so Newton's steps from the left never pass the x.
func (h *highest) seek(y float64) {
	x := math.Inf(-1)
	for i := range h.mean {
		x = max(x, h.mean[i]-h.temperature[i]*y)
	}
	for range 50 {
		log, slope := h.at(x)
		if log-y < 1e-6 {
			return
		}
		x += (log - y) / slope
	}
	h.at(x)
}

// at sets terms to those at x and returns the logarithm of the sum and how fast it falls.
func (h *highest) at(x float64) (log, slope float64) {
	largest := math.Inf(-1)
	for i := range h.mean {
		h.terms[i] = (h.mean[i] - x) / h.temperature[i]
		largest = max(largest, h.terms[i])
	}
	sum := 0.0
	h.slope = 0
	for i, e := range h.terms {
		h.terms[i] = math.Exp(e - largest)
		sum += h.terms[i]
		h.slope += h.terms[i] / h.temperature[i]
	}
	return largest + math.Log(sum), h.slope / sum
}
