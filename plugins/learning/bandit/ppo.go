package bandit

import (
	"cmp"
	"math"
	"math/rand/v2"
)

// PPO is proximal policy optimisation with the clipped surrogate objective (Schulman,
// Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms",
// arXiv:1707.06347, equations 7 and 9), on the policy that the arms' weights define.
// Several epochs of gradient ascent raise
//
//	mean over the batch of min(r A, clip(r, 1-Clip, 1+Clip) A)  +  Entropy × H(policy)
//
// where r is the new probability of the arm over the old one and the advantage A is the
// reward less a baseline. There is no value function: a bandit has one state.
//
// The objective alone only removes the gain of leaving the clip: a step may still jump over
// its border, and an arm's probability also changes with those of other arms. So here a
// step is halved until it keeps the r of every arm, in the batch or not, within
// [1-Clip, 1+Clip], and does not lower the objective. Within the clip the first part is the
// expected reward as the batch estimates it, so if the estimate is true, it never falls.
type PPO struct {
	// Clip is how far r may be from 1; the default is that of the paper.
	Clip float64 `yaml:"clip" min:"0" max:"0.99" doc:"How far a weight may move in one update, as a share of it; 0 = 0.2."`
	// Rate times the number of arms is the length of a gradient step, so that an even policy moves equally
	// fast for any number of arms.
	Rate    float64 `yaml:"rate" min:"0" doc:"Length of a gradient step; 0 = 0.1."`
	Epochs  int     `yaml:"epochs" min:"0" max:"1000" doc:"Gradient steps in one update; 0 = 8."`
	Entropy float64 `yaml:"entropy" min:"0" doc:"Share of the entropy in what is raised, which keeps some choice open."`
}

// leastWeight is the least value that a weight has in a policy. The gradient is in proportion to the arm's
// probability, so an arm far below this could not recover.
const leastWeight = 0.05

// Weights implements [Strategy]: it returns the policy of the arms' weights after one update. The means of
// the arms are the batch, each as often as the policy chooses the arm; arms without pulls are not in it. A
// weight changes by at most a share of Clip. This is one update for one batch, so the arms should hold
// what happened since the last update.
func (o PPO) Weights(arms []Arm) []float64 {
	o.Clip, o.Rate, o.Epochs = cmp.Or(o.Clip, 0.2), cmp.Or(o.Rate, 0.1), cmp.Or(o.Epochs, 8)
	old := policy(arms)
	base, known := 0.0, 0.0
	for i, a := range arms {
		if a.pulls() > 0 {
			base += math.Exp(old[i]) * a.mean()
			known += math.Exp(old[i])
		}
	}
	advantages := make([]float64, len(arms)) // multiplied by the arm's share of the batch
	for i, a := range arms {
		if a.pulls() > 0 {
			advantages[i] = (a.mean() - base/known) * math.Exp(old[i]) / known
		}
	}
	w := o.climb(old, advantages)
	for i, l := range w {
		w[i] = math.Exp(l)
	}
	return balance(w)
}

// Choose implements [Strategy]: it chooses each arm with its probability in the policy.
func (o PPO) Choose(arms []Arm, rng *rand.Rand) int {
	shares := policy(arms)
	for i, l := range shares {
		shares[i] = math.Exp(l)
	}
	return Sample(shares, rng)
}

// policy returns the logarithms of the probabilities that the weights of the arms define.
func policy(arms []Arm) []float64 {
	logits := make([]float64, len(arms))
	for i, a := range arms {
		if a.Weight > 0 {
			logits[i] = math.Log(min(max(a.Weight, leastWeight), 1e9))
		}
	}
	return normalised(logits)
}

// normalised returns the logarithms of the softmax of the logits. They are logits of the same policy.
func normalised(logits []float64) []float64 {
	largest := math.Inf(-1)
	for _, l := range logits {
		largest = max(largest, l)
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(l - largest)
	}
	logs := make([]float64, len(logits))
	for i, l := range logits {
		logs[i] = l - largest - math.Log(sum)
	}
	return logs
}

// climb makes a step for each epoch, starting from the policy old, and returns the new policy. Both are
// logarithms of probabilities.
func (o PPO) climb(old, advantages []float64) []float64 {
	now, value := old, o.objective(old, old, advantages)
	for range o.Epochs {
		next, higher := o.step(old, now, o.gradient(old, now, advantages), advantages, value)
		if next == nil {
			break
		}
		now, value = next, higher
	}
	return now
}

// step goes along the gradient. It tries a full step, then a half, a quarter and so on, until one stays in
// the clip and does not lower the objective. It returns nil if no step does.
func (o PPO) step(old, now, gradient []float64, advantages []float64, value float64) ([]float64, float64) {
	logits := make([]float64, len(now))
	full := o.Rate * float64(len(now))
	for rate := full; rate > full/1e6; rate /= 2 {
		for i := range now {
			logits[i] = now[i] + rate*gradient[i]
		}
		next := normalised(logits)
		if !o.inside(old, next) {
			continue
		}
		if higher := o.objective(old, next, advantages); higher >= value {
			return next, higher
		}
	}
	return nil, value
}

// inside reports whether the ratio of every arm is within the clip.
func (o PPO) inside(old, now []float64) bool {
	for i := range now {
		if r := math.Exp(now[i] - old[i]); !(r >= 1-o.Clip && r <= 1+o.Clip) {
			return false
		}
	}
	return true
}

// objective returns the value that the epochs raise, within the clip; old and now are logarithms of
// probabilities.
func (o PPO) objective(old, now, advantages []float64) float64 {
	sum := o.Entropy * entropy(now)
	for i, a := range advantages {
		sum += a * math.Exp(now[i]-old[i])
	}
	return sum
}

// gradient returns the gradient of the objective by the logits.
func (o PPO) gradient(old, now, advantages []float64) []float64 {
	g := make([]float64, len(now))
	sum := 0.0
	for i, a := range advantages {
		g[i] = a * math.Exp(now[i]-old[i])
		sum += g[i]
	}
	h := entropy(now)
	for i, l := range now {
		g[i] -= math.Exp(l) * (sum + o.Entropy*(l+h))
	}
	return g
}

// entropy returns the entropy in nats of a distribution given by logarithms.
func entropy(logs []float64) float64 {
	h := 0.0
	for _, l := range logs {
		h -= math.Exp(l) * l
	}
	return h
}
