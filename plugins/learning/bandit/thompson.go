package bandit

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Thompson is Thompson sampling: each arm's mean reward is drawn from its posterior, and
// the arm with the highest draw is pulled (Thompson, "On the likelihood that one unknown
// probability exceeds another in view of the evidence of two samples", Biometrika 25,
// 1933). Regret grows as ln t.
//
// Where all rewards are 0 or 1 the posterior is Beta(1 + successes, 1 + failures), that of
// a uniform prior (Agrawal, Goyal, "Analysis of Thompson Sampling for the Multi-armed
// Bandit Problem", COLT 2012, algorithm 1). Where some are graded it is the normal
// distribution of "Further Optimal Regret Bounds for Thompson Sampling" (the same, AISTATS
// 2013, algorithm 2), with the largest variance that rewards in [0, 1] can have,
//
//	N((n mean + 1/2) / (n + 1), 1 / (4 (n + 1)))
//
// for n pulls.
type Thompson struct {
	Posterior Posterior `yaml:"posterior" enum:"auto,beta,gaussian" doc:"The distribution assumed for rewards: beta where rewards are 0 or 1, gaussian where they are graded; auto (the default) looks at which there are."`
}

// Posterior is the kind of distribution that describes the belief about an arm's mean reward.
type Posterior string

// The posteriors. Any other value means PosteriorGaussian if some arm is graded, else PosteriorBeta.
const (
	PosteriorBeta     Posterior = "beta"
	PosteriorGaussian Posterior = "gaussian"
)

// belief is the posterior of one arm: a Beta distribution with a and b, or a normal one
// where a is 0.
type belief struct{ a, b, mean, deviation float64 }

func (t Thompson) beliefs(arms []Arm) []belief {
	graded := t.Posterior == PosteriorGaussian ||
		t.Posterior != PosteriorBeta && slices.ContainsFunc(arms, func(a Arm) bool { return a.Graded })
	all := make([]belief, len(arms))
	for i, arm := range arms {
		n := arm.pulls()
		if graded {
			mean := 0.5
			if n > 0 {
				mean = (n*arm.mean() + 0.5) / (n + 1)
			}
			all[i] = belief{mean: mean, deviation: 0.5 / math.Sqrt(n+1)}
			continue
		}
		a, b := 1+n*arm.mean(), 1+n*(1-arm.mean())
		all[i] = belief{a: a, b: b, mean: a / (a + b), deviation: math.Sqrt(a*b/(a+b+1)) / (a + b)}
	}
	return all
}

// Choose implements [Strategy].
func (t Thompson) Choose(arms []Arm, rng *rand.Rand) int {
	all := t.beliefs(arms)
	return best(len(arms), rng, func(i int) float64 { return all[i].draw(rng) })
}

func (b belief) draw(rng *rand.Rand) float64 {
	if b.a == 0 {
		return b.mean + b.deviation*rng.NormFloat64()
	}
	x, y := gamma(b.a, rng), gamma(b.b, rng)
	return x / (x + y)
}

// gamma draws from the gamma distribution with a shape of at least 1 (Marsaglia, Tsang, "A Simple Method
// for Generating Gamma Variables", ACM TOMS 26, 2000).
func gamma(shape float64, rng *rand.Rand) float64 {
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v *= v * v
		if math.Log(1-rng.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

const (
	// pointsOfArm is the number of points at which the densities are computed per arm, within reach
	// deviations of the arm's mean.
	pointsOfArm = 64
	reach       = 8
	// maxPoints bounds the points of all arms together.
	maxPoints = 4096
)

// Weights implements [Strategy]: weights in proportion to the probability that an arm's draw is the
// highest. That is the integral of its density times the distribution functions of all others.
func (t Thompson) Weights(arms []Arm) []float64 {
	all := t.beliefs(arms)
	points := pointsOf(all)
	w := make([]float64, len(arms))
	total, before, share := make([]float64, len(arms)), make([]float64, len(arms)), make([]float64, len(arms))
	for i, b := range all {
		total[i] = 1 // avoids a division by 0 if the sum is 0
		sum := 0.0
		for k := 1; k < len(points); k++ {
			sum += b.mass(points[k-1], points[k])
		}
		if sum > 0 {
			total[i] = sum
		}
	}
	for k := 1; k < len(points); k++ {
		product := 1.0
		for i, b := range all {
			share[i] = b.mass(points[k-1], points[k]) / total[i]
			product *= before[i] + share[i]/2
		}
		for i := range all {
			if middle := before[i] + share[i]/2; middle > 0 {
				w[i] += share[i] * product / middle
			}
			before[i] += share[i]
		}
	}
	return balance(w)
}

// pointsOf returns the points at which the densities are computed, in order.
func pointsOf(all []belief) []float64 {
	var points []float64
	each := min(pointsOfArm, max(maxPoints/max(len(all), 1), 4))
	step := max(len(all)*each/maxPoints, 1) // with very many arms, some have no points of their own
	for i := 0; i < len(all); i += step {
		b := all[i]
		for k := range each + 1 {
			x := b.mean + b.deviation*reach*(2*float64(k)/float64(each)-1)
			if b.a > 0 {
				x = min(max(x, 1e-12), 1-1e-12)
			}
			points = append(points, x)
		}
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// mass returns a value in proportion to the probability of lying between two points, by the trapezoidal
// rule.
func (b belief) mass(from, to float64) float64 {
	return (b.density(from) + b.density(to)) / 2 * (to - from)
}

// density returns the density at x divided by that at the mean.
func (b belief) density(x float64) float64 {
	if b.a == 0 {
		z := (x - b.mean) / b.deviation
		return math.Exp(-z * z / 2)
	}
	return math.Exp((b.a-1)*math.Log(x/b.mean) + (b.b-1)*math.Log((1-x)/(1-b.mean)))
}
