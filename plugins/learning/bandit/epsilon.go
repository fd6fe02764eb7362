package bandit

import (
	"math/rand/v2"
)

// EpsilonGreedy pulls the arm with the highest mean reward, but with probability epsilon
// any arm. Epsilon decays as
//
//	epsilon = min(1, C K / (D² t))
//
// for K arms at the t-th pull. This is epsilonₙ-greedy of Auer, Cesa-Bianchi, Fischer,
// "Finite-time Analysis of the Multiarmed Bandit Problem", Machine Learning 47 (2002),
// figure 3 and theorem 3: regret grows as ln t when D is at most the distance between
// the best mean and the next, and C is large enough (above 5 in the proof; far less
// does in practice, also in the paper's experiments).
//
// Its weights are in the proportions of the probabilities.
type EpsilonGreedy struct {
	C float64 // how much is explored, > 0
	D float64 // the smallest difference of means worth telling apart, in (0, 1]
	// Constant is an epsilon in (0, 1] that does not decay, instead of C and D (Sutton,
	// Barto, "Reinforcement Learning", 2nd edition, 2.2). Exploring never ends then, and
	// regret grows as t.
	Constant float64
}

// DefaultEpsilonGreedy tells apart means 0.3 from each other; it explores only, for
// about as many pulls as there are arms twice over.
func DefaultEpsilonGreedy() EpsilonGreedy { return EpsilonGreedy{C: 0.15, D: 0.3} }

// Name is "epsilon_greedy".
func (EpsilonGreedy) Name() string { return "epsilon_greedy" }

// Weights implements [Strategy].
func (e EpsilonGreedy) Weights(arms []Arm, t float64) []float64 {
	epsilon := e.epsilon(len(arms), plays(arms, t))
	top, ties := greedy(arms)
	w := make([]float64, len(arms))
	for i, a := range arms {
		w[i] = epsilon
		if ties == 0 || a.pulls() > 0 && a.mean() == top {
			w[i] += (1 - epsilon) * float64(len(arms)) / float64(max(ties, 1))
		}
	}
	return balance(w)
}

// Choose implements [Strategy].
func (e EpsilonGreedy) Choose(rng *rand.Rand, arms []Arm, t float64) int {
	if len(arms) == 0 {
		return -1
	}
	top, ties := greedy(arms)
	if ties == 0 || rng.Float64() < e.epsilon(len(arms), plays(arms, t)) {
		return rng.IntN(len(arms))
	}
	nth := rng.IntN(ties)
	for i, a := range arms {
		if a.pulls() == 0 || a.mean() != top {
			continue
		}
		if nth == 0 {
			return i
		}
		nth--
	}
	return -1 // not reached: greedy counted the same arms
}

// epsilon is the probability to explore at the pull after t pulls of k arms.
func (e EpsilonGreedy) epsilon(k int, t float64) float64 {
	epsilon := e.Constant
	if epsilon == 0 {
		epsilon = e.C * float64(k) / (e.D * e.D * (t + 1))
	}
	if epsilon >= 0 && epsilon <= 1 {
		return epsilon
	}
	return 1
}

// greedy gives the highest mean of the arms with pulls, and how many have it.
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
