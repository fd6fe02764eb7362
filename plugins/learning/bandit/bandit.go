// Package bandit holds the strategies that turn what is known of components into
// routing weights, each from its published definition: pure functions, no I/O, no
// clock; chance comes from the caller's source.
//
// Rewards are in [0, 1], as in the papers; [FromScore] maps a score in [-1, 1].
package bandit

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Arm is one component among those to choose from.
type Arm struct {
	Pulls  float64 // how often it was chosen; may be fractional, but above 0 counts as 1 at least; 0 = never
	Mean   float64 // mean reward, in [0, 1]; what lies outside is cut off; without meaning when Pulls is 0
	Weight float64 // the routing weight it has now; 0 = none yet, which counts as 1. Only [PPO] reads it.
}

// Strategy is a way to choose among arms.
type Strategy interface {
	// Name is the strategy's name on the wire.
	Name() string
	// Weights gives each arm its routing weight, in the order of arms: finite, not
	// negative, 1 on average, more is better. t is the number of pulls so far over all
	// arms; when it is less than the sum of theirs, the sum counts. No arms give no weights.
	Weights(arms []Arm, t float64) []float64
	// Choose gives the index of the arm to pull next, -1 without arms. t is as in Weights.
	Choose(rng *rand.Rand, arms []Arm, t float64) int
}

// ByName gives the strategy of that name, with its default parameters: ucb1,
// epsilon_greedy, softmax or ppo. The error names these.
func ByName(name string) (Strategy, error) {
	for _, s := range []Strategy{UCB1{}, DefaultEpsilonGreedy(), DefaultSoftmax(), DefaultPPO()} {
		if s.Name() == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("strategy %q is none of ucb1, epsilon_greedy, softmax and ppo", name)
}

// FromScore maps a score in [-1, 1] to a reward in [0, 1]; what lies outside is cut off,
// and no number counts as 0, the neutral score.
func FromScore(score float64) float64 {
	if math.IsNaN(score) {
		return 0.5
	}
	return unit((score + 1) / 2)
}

// pulls is how often the arm counts as pulled: 0, or at least 1. The upper bound keeps
// sums finite.
func (a Arm) pulls() float64 {
	if !(a.Pulls > 0) {
		return 0
	}
	return min(max(a.Pulls, 1), 1e15)
}

// mean is the mean reward, surely in [0, 1].
func (a Arm) mean() float64 { return unit(a.Mean) }

// unit cuts x off to [0, 1]; no number becomes 0.
func unit(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}

// plays is the number of pulls over all arms: t, or their sum when that is more.
func plays(arms []Arm, t float64) float64 {
	sum := 0.0
	for _, a := range arms {
		sum += a.pulls()
	}
	if t > sum {
		return min(t, 1e18)
	}
	return sum
}

// balance scales w in place to a mean of 1. All are 1 when w sums up to nothing.
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
