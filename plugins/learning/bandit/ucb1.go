package bandit

import (
	"math"
	"math/rand/v2"
)

// UCB1 pulls the arm with the highest upper confidence bound of its mean reward,
//
//	index = mean + sqrt(2 ln t / n)
//
// with n pulls of the arm and t pulls over all; arms without pulls come first. Its
// regret grows as ln t. Source: Auer, Cesa-Bianchi, Fischer, "Finite-time Analysis of
// the Multiarmed Bandit Problem", Machine Learning 47 (2002), figure 1 and theorem 1.
//
// Its weights are in the proportions of the indices, so they order arms as it does.
type UCB1 struct{}

// Name is "ucb1".
func (UCB1) Name() string { return "ucb1" }

// Weights implements [Strategy].
func (UCB1) Weights(arms []Arm, t float64) []float64 {
	width := ucbWidth(plays(arms, t))
	w := make([]float64, len(arms))
	for i, a := range arms {
		w[i] = ucbIndex(a, width)
	}
	return balance(w)
}

// Choose implements [Strategy]. It needs no chance: of equal arms it takes the first.
func (UCB1) Choose(_ *rand.Rand, arms []Arm, t float64) int {
	width := ucbWidth(plays(arms, t))
	best, top := -1, math.Inf(-1)
	for i, a := range arms {
		if index := ucbIndex(a, width); index > top {
			best, top = i, index
		}
	}
	return best
}

// ucbWidth is how far the bound of an arm with one pull is above its mean.
func ucbWidth(t float64) float64 { return math.Sqrt(2 * math.Log(max(t, 1))) }

// ucbIndex is the arm's index. Without pulls the bound is infinite in the paper; here it
// is more than any arm with pulls can have, so that weights stay finite.
func ucbIndex(a Arm, width float64) float64 {
	n := a.pulls()
	if n == 0 {
		return 2 + width
	}
	return a.mean() + width/math.Sqrt(n)
}
