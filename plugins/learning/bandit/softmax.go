package bandit

import (
	"cmp"
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
	Scale float64 `yaml:"scale" min:"0" doc:"Temperature of a component with one call; 0 = 0.5."` // C of the paper
}

// defaultScale is the largest standard deviation that rewards in [0, 1] can have.
const defaultScale = 0.5

// quantiles is the number of points of the highest draw's distribution at which Weights computes shares.
const quantiles = 128

// Weights implements [Strategy]: weights in proportion to the probabilities. Given that the highest draw M
// is x, an arm has it with a probability equal to its share in the sum of all f(x)/F(x). For a Gumbel draw
// f(x)/F(x) is exp(-(x-mean)/temperature)/temperature. The probability of an arm is the mean of its shares
// over the quantiles of M.
func (s Softmax) Weights(arms []Arm) []float64 {
	w := make([]float64, len(arms))
	shares := make([]float64, len(arms))
	for q := range quantiles {
		x := s.highest(arms, -math.Log((float64(q)+0.5)/quantiles))
		sum := 0.0
		for i, a := range arms {
			mean, temperature := s.of(a)
			shares[i] = math.Exp((mean-x)/temperature) / temperature
			sum += shares[i]
		}
		for i := range w {
			w[i] += shares[i] / sum
		}
	}
	return balance(w)
}

// highest returns the x at which the sum over all arms of exp(-(x-mean)/temperature) is value. The
// sum is the negated logarithm of the highest draw's distribution function, and falls with x.
func (s Softmax) highest(arms []Arm, value float64) float64 {
	low, high := math.Inf(-1), math.Inf(-1)
	for _, a := range arms { // at low one arm alone reaches value, at high each arm is at most its part of value
		mean, temperature := s.of(a)
		low = max(low, mean-temperature*math.Log(value))
		high = max(high, mean-temperature*math.Log(value/float64(len(arms))))
	}
	for range 50 {
		x, sum := (low+high)/2, 0.0
		for _, a := range arms {
			mean, temperature := s.of(a)
			sum += math.Exp((mean - x) / temperature)
		}
		if sum > value {
			low = x
		} else {
			high = x
		}
	}
	return high
}

// Choose implements [Strategy]: it returns the arm with the highest draw.
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
	return mean, max(cmp.Or(s.Scale, defaultScale), 1e-6) / math.Sqrt(n)
}
