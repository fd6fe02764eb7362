// Package bandit holds the strategies that choose among components by what is known about them, or compute
// routing weights from that. Each follows its published definition. There is no I/O and no clock, and
// randomness comes only from the caller.
//
// Rewards are in [0, 1], as in the papers; [FromScore] maps a score in [-1, 1].
package bandit

import (
	"cmp"
	"math"
	"math/rand/v2"
)

// Arm is one of the components to choose from.
type Arm struct {
	Pulls   float64 // how often it was chosen; may be fractional, but 0 < Pulls < 1 counts as 1; 0 = never
	Mean    float64 // mean reward, clamped to [0, 1]; ignored if Pulls is 0
	Graded  bool    // some rewards are neither 0 nor 1. Only [Thompson] reads it.
	Weight  float64 // its current routing weight; 0 = none yet, which counts as 1. Only [PPO] and [Given] read it.
	Pending int     // running pulls, whose rewards are not known yet. Only [Next] reads it.
}

// Strategy is a way to choose among arms.
type Strategy interface {
	// Weights returns the routing weight of each arm, in the order of arms. Weights are finite, not
	// negative and 1 on average; a larger one is better.
	Weights(arms []Arm) []float64
	// Choose returns the index of the arm to pull next; arms is not empty.
	Choose(arms []Arm, rng *rand.Rand) int
}

// Next returns the index of the arm to pull next: one that was never pulled, if there is one, else the
// choice of the strategy. Running pulls count as pulls with the mean of the arm, or with 1/2 if it has
// none, so that choices made at the same time differ.
func Next(s Strategy, arms []Arm, rng *rand.Rand) int {
	fresh := best(len(arms), rng, func(i int) float64 {
		if arms[i].pulls() == 0 && arms[i].Pending == 0 {
			return 1
		}
		return 0
	})
	if arms[fresh].pulls() == 0 && arms[fresh].Pending == 0 {
		return fresh
	}
	counted := make([]Arm, len(arms))
	for i, a := range arms {
		if a.pulls() == 0 {
			a.Mean = 0.5
		}
		a.Pulls = a.pulls() + float64(a.Pending)
		counted[i] = a
	}
	return s.Choose(counted, rng)
}

// best returns the index of the highest of n values, a random one of equal values.
func best(n int, rng *rand.Rand, value func(i int) float64) (at int) {
	top, ties := math.Inf(-1), 0
	for i := range n {
		switch v := value(i); {
		case v > top:
			at, top, ties = i, v, 1
		case v == top:
			if ties++; rng.IntN(ties) == 0 {
				at = i
			}
		}
	}
	return at
}

// Sample returns a random index, with probabilities in proportion to the weights, which are finite and not
// negative. If all weights are 0, all indexes are equally likely.
func Sample(weights []float64, rng *rand.Rand) int {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	if sum <= 0 {
		return rng.IntN(len(weights))
	}
	at := rng.Float64() * sum
	last := 0
	for i, w := range weights {
		if w <= 0 {
			continue
		}
		if last = i; at < w {
			break
		}
		at -= w
	}
	return last
}

// FromScore maps a score in [-1, 1] to a reward in [0, 1]. A score outside is clamped, and NaN counts as
// 0, the neutral score.
func FromScore(score float64) float64 {
	if math.IsNaN(score) {
		return 0.5
	}
	return unit((score + 1) / 2)
}

// pulls returns how often the arm counts as pulled: 0, or at least 1. The upper bound keeps sums finite.
func (a Arm) pulls() float64 {
	if !(a.Pulls > 0) {
		return 0
	}
	return min(max(a.Pulls, 1), 1e15)
}

// mean returns the mean reward, clamped to [0, 1].
func (a Arm) mean() float64 { return unit(a.Mean) }

// unit clamps x to [0, 1]; NaN becomes 0.
func unit(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}

// plays returns the number of pulls of all arms together.
func plays(arms []Arm) (sum float64) {
	for _, a := range arms {
		sum += a.pulls()
	}
	return sum
}

// balance scales w in place to a mean of 1. If the sum is 0, all become 1.
func balance(w []float64) []float64 {
	sum := 0.0
	for _, x := range w {
		sum += x
	}
	for i := range w {
		if sum > 0 {
			w[i] *= float64(len(w)) / sum
		} else {
			w[i] = 1
		}
	}
	return w
}

// UCB1 weighs arms by the upper confidence bound of their mean reward,
//
//	index = mean + sqrt(2 ln t / n)
//
// with n pulls of the arm and t pulls over all; arms without pulls come first. The regret
// of pulling the highest grows as ln t. Source: Auer, Cesa-Bianchi, Fischer, "Finite-time
// Analysis of the Multiarmed Bandit Problem", Machine Learning 47 (2002), figure 1 and
// theorem 1.
type UCB1 struct{}

// Weights implements [Strategy]: weights in proportion to the indices. In the paper the bound of an arm
// without pulls is infinite; here it is more than any other arm can have, so that weights stay finite.
func (UCB1) Weights(arms []Arm) []float64 { return balance(indices(arms)) }

// Choose implements [Strategy]: it returns the arm with the highest index.
func (UCB1) Choose(arms []Arm, rng *rand.Rand) int {
	index := indices(arms)
	return best(len(arms), rng, func(i int) float64 { return index[i] })
}

func indices(arms []Arm) []float64 {
	width := math.Sqrt(2 * math.Log(max(plays(arms), 1)))
	w := make([]float64, len(arms))
	for i, a := range arms {
		if n := a.pulls(); n > 0 {
			w[i] = a.mean() + width/math.Sqrt(n)
		} else {
			w[i] = 2 + width
		}
	}
	return w
}

// EpsilonGreedy favours the arm with the highest mean reward, but with probability epsilon
// takes any arm. Epsilon decays as
//
//	epsilon = min(1, C K / (D² t))
//
// for K arms at the t-th pull. This is epsilonₙ-greedy of Auer, Cesa-Bianchi, Fischer
// (see [UCB1]), figure 3 and theorem 3: regret grows as ln t when D is at most the distance
// between the best mean and the next, and C is large enough (above 5 in the proof; far
// less does in practice, also in the paper's experiments).
type EpsilonGreedy struct {
	C float64 `yaml:"c" min:"0" doc:"How much is explored while epsilon decays; 0 = 0.15."`
	D float64 `yaml:"d" min:"0" max:"1" doc:"The smallest difference of rewards worth telling apart; 0 = 0.3."`
	// Constant is used instead of C and D (Sutton, Barto, "Reinforcement Learning", 2nd edition, 2.2).
	// Exploration never ends then, and regret grows as t.
	Constant float64 `yaml:"epsilon" min:"0" max:"1" doc:"An epsilon that does not decay; 0 = one that does."`
}

// Weights implements [Strategy]: weights in proportion to the probabilities.
func (e EpsilonGreedy) Weights(arms []Arm) []float64 {
	k, epsilon := float64(len(arms)), e.epsilon(arms)
	top, ties := greedy(arms)
	w := make([]float64, len(arms))
	for i, a := range arms {
		w[i] = epsilon
		if ties == 0 || a.pulls() > 0 && a.mean() == top {
			w[i] += (1 - epsilon) * k / float64(max(ties, 1))
		}
	}
	return balance(w)
}

// Choose implements [Strategy]: it returns the arm with the highest mean, or with probability epsilon any
// arm.
func (e EpsilonGreedy) Choose(arms []Arm, rng *rand.Rand) int {
	if rng.Float64() < e.epsilon(arms) {
		return rng.IntN(len(arms))
	}
	return best(len(arms), rng, func(i int) float64 {
		if arms[i].pulls() == 0 {
			return -1
		}
		return arms[i].mean()
	})
}

func (e EpsilonGreedy) epsilon(arms []Arm) float64 {
	epsilon := e.Constant
	if epsilon == 0 {
		c, d := cmp.Or(e.C, 0.15), cmp.Or(e.D, 0.3) // explore for about twice as many pulls as there are arms
		epsilon = c * float64(len(arms)) / (d * d * (plays(arms) + 1))
	}
	if !(epsilon >= 0 && epsilon <= 1) {
		return 1
	}
	return epsilon
}

// greedy returns the highest mean of the arms with pulls, and how many arms have it.
func greedy(arms []Arm) (top float64, ties int) {
	for _, a := range arms {
		switch {
		case a.pulls() == 0:
		case ties == 0 || a.mean() > top:
			top, ties = a.mean(), 1
		case a.mean() == top:
			ties++
		}
	}
	return top, ties
}

// Given keeps the weights, and chooses each arm with a probability in proportion to its weight.
type Given struct{}

// Weights implements [Strategy].
func (Given) Weights(arms []Arm) []float64 { return balance(given(arms)) }

// Choose implements [Strategy].
func (Given) Choose(arms []Arm, rng *rand.Rand) int { return Sample(given(arms), rng) }

func given(arms []Arm) []float64 {
	w := make([]float64, len(arms))
	for i, a := range arms {
		if a.Weight > 0 {
			w[i] = min(a.Weight, 1e9)
		}
	}
	return w
}
