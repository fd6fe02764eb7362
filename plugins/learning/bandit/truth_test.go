package bandit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The test beds: ten arms whose rewards are 1 with these probabilities, else 0. The first
// two are distributions 11 and 12 of Auer, Cesa-Bianchi, Fischer (2002), section 4. In the
// last the distances are so large that 1,000 pulls are far beyond the start.
var (
	alike  = []float64{0.9, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6}
	near   = []float64{0.9, 0.8, 0.8, 0.8, 0.7, 0.7, 0.7, 0.6, 0.6, 0.6}
	spread = []float64{0.9, 0.5, 0.5, 0.5, 0.4, 0.4, 0.3, 0.3, 0.2, 0.1}
)

// pullsOfRun is how long a run is; marks are the pulls after which its regret is noted.
const pullsOfRun = 10_000

var marks = []int{1000, 5000, pullsOfRun}

// run is what came of one seed: the regret at the marks, by the true means, and the arm
// that was pulled most.
type run struct {
	regret [3]float64
	most   int
}

// result is the mean of all runs.
type result struct {
	regret [3]float64
	found  float64 // share of the seeds where the best arm was pulled most
}

// doubling is by which share regret grew in the second half of the run: 1 when it is
// linear, 0.41 when it is like the root of t, 0.17 when like ln² t and 0.08 when like
// ln t, both once the start no longer counts.
func (r result) doubling() float64 { return (r.regret[2] - r.regret[1]) / r.regret[1] }

// ratio is the regret of all pulls to that of the first 1,000: 10 when it is linear.
func (r result) ratio() float64 { return r.regret[2] / r.regret[0] }

// reward draws what an arm of that mean gives.
func reward(rng *rand.Rand, mean float64) float64 {
	if rng.Float64() < mean {
		return 1
	}
	return 0
}

// play is one run of a strategy.
func play(s Strategy, bed []float64, seed uint64) (r run) {
	rng := rand.New(rand.NewPCG(seed, 11))
	arms := make([]Arm, len(bed))
	best, regret, mark := slices.Max(bed), 0.0, 0
	for t := range pullsOfRun {
		i := s.Choose(rng, arms, float64(t))
		a := &arms[i]
		a.Pulls++
		a.Mean += (reward(rng, bed[i]) - a.Mean) / a.Pulls
		regret += best - bed[i]
		if t+1 == marks[mark] {
			r.regret[mark] = regret
			mark++
		}
	}
	for i := range arms {
		if arms[i].Pulls > arms[r.most].Pulls {
			r.most = i
		}
	}
	return r
}

// overSeeds runs one for each seed, side by side, and gives what they return by seed.
func overSeeds[T any](seeds int, one func(seed uint64) T) []T {
	got := make([]T, seeds)
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < seeds; i += workers {
				got[i] = one(uint64(i))
			}
		})
	}
	wg.Wait()
	return got
}

// measure is the mean over seeds of a strategy on a bed; arm 0 is the best.
func measure(s Strategy, bed []float64, seeds int) (r result) {
	for _, one := range overSeeds(seeds, func(seed uint64) run { return play(s, bed, seed) }) {
		for i := range one.regret {
			r.regret[i] += one.regret[i] / float64(seeds)
		}
		if one.most == 0 {
			r.found += 1 / float64(seeds)
		}
	}
	return r
}

// line is a row of the table that the tests log.
func line(b *strings.Builder, name, bed string, r result) {
	fmt.Fprintf(b, "%-28s %-7s %8.1f %8.1f %8.1f %7.2f %9.2f %7.1f %%\n", name, bed,
		r.regret[0], r.regret[1], r.regret[2], r.ratio(), r.doubling(), 100*r.found)
}

const head = "\nstrategy                     bed      at 1000  at 5000 at 10000   ratio  doubling    found\n"

// ucbBound is the bound of theorem 1 on the regret of UCB1 after n pulls.
func ucbBound(bed []float64, n float64) float64 {
	best, bound := slices.Max(bed), 0.0
	for _, mean := range bed {
		if d := best - mean; d > 0 {
			bound += 8*math.Log(n)/d + (1+math.Pi*math.Pi/3)*d
		}
	}
	return bound
}

// TestFindsTheBest: UCB1 and softmax pull the best arm most in 95 % of 200 seeds, also
// when the next best is close, with a regret far from linear.
func TestFindsTheBest(t *testing.T) {
	var table strings.Builder
	for _, s := range []Strategy{UCB1{}, DefaultSoftmax()} {
		for _, c := range []struct {
			name  string
			bed   []float64
			seeds int
		}{{"near", near, 200}, {"alike", alike, 60}} {
			r := measure(s, c.bed, c.seeds)
			line(&table, s.Name(), c.name, r)
			if r.found < 0.95 {
				t.Errorf("%s on %s: the best arm was found in %.1f %% of the seeds", s.Name(), c.name, 100*r.found)
			}
			if bound := ucbBound(c.bed, pullsOfRun); s.Name() == "ucb1" && r.regret[2] > bound {
				t.Errorf("ucb1 on %s: regret %.1f is above the theorem's bound %.1f", c.name, r.regret[2], bound)
			}
			if r.doubling() > 0.5 {
				t.Errorf("%s on %s: regret grew by %.2f in the second half, 1 is linear", s.Name(), c.name, r.doubling())
			}
		}
	}
	t.Log(head + table.String())
}

// TestRegretShape holds the growth of each regret against its theory.
func TestRegretShape(t *testing.T) {
	var table strings.Builder
	for _, c := range []struct {
		name     string
		s        Strategy
		ratio    float64 // at most
		doubling float64 // at most
	}{
		{"ucb1 (ln t)", UCB1{}, 2.5, 0.25},
		{"epsilon_greedy (ln t)", DefaultEpsilonGreedy(), 2, 0.2},
		{"softmax (ln² t)", DefaultSoftmax(), 2.5, 0.3},
	} {
		r := measure(c.s, spread, 60)
		line(&table, c.name, "spread", r)
		if r.ratio() > c.ratio || r.doubling() > c.doubling {
			t.Errorf("%s: regret %.1f: ratio %.2f above %v, or grew by %.2f in the second half, above %v",
				c.name, r.regret, r.ratio(), c.ratio, r.doubling(), c.doubling)
		}
	}
	// a constant epsilon goes on paying for its exploring: epsilon × mean distance a pull
	r := measure(EpsilonGreedy{Constant: 0.1}, spread, 60)
	line(&table, "epsilon_greedy, 0.1 (linear)", "spread", r)
	slope, want := (r.regret[2]-r.regret[1])/(pullsOfRun-5000), 0.0
	for _, mean := range spread {
		want += 0.1 * (0.9 - mean) / float64(len(spread))
	}
	if math.Abs(slope-want) > 0.05*want {
		t.Errorf("constant epsilon: regret grows by %.4f a pull, want %.4f", slope, want)
	}
	t.Log(head + table.String())
}

// batchOf is how many pulls PPO learns from at once.
const batchOf = 100

// learn is one run of PPO: the true expected reward of the policy before each update and
// after the last, the largest move of a probability, and the regret at the end.
func learn(o PPO, bed []float64, seed uint64) (expected []float64, move, regret float64) {
	rng := rand.New(rand.NewPCG(seed, 12))
	policy := NewPolicy(len(bed))
	value := func() (sum float64) {
		for i, p := range policy.Probabilities() {
			sum += p * bed[i]
		}
		return sum
	}
	expected = []float64{value()}
	for range pullsOfRun / batchOf {
		batch := make([]Sample, batchOf)
		for i := range batch {
			arm := policy.Choose(rng)
			batch[i] = Sample{arm, reward(rng, bed[arm])}
			regret += bed[0] - bed[arm]
		}
		old := policy.Probabilities()
		policy = o.Update(policy, batch)
		for i, p := range policy.Probabilities() {
			move = max(move, math.Abs(p/old[i]-1))
		}
		expected = append(expected, value())
	}
	return expected, move, regret
}

// TestPPOImproves: with PPO the expected reward rises in every window of ten updates,
// until it is all but the best there is, and no update leaves the clip.
func TestPPOImproves(t *testing.T) {
	const seeds, window = 40, 10
	for name, bed := range map[string][]float64{"alike": alike, "near": near, "spread": spread} {
		type one struct {
			expected     []float64
			move, regret float64
		}
		windows := make([]float64, pullsOfRun/batchOf/window)
		move, regret, last := 0.0, 0.0, 0.0
		for _, r := range overSeeds(seeds, func(seed uint64) (r one) {
			r.expected, r.move, r.regret = learn(DefaultPPO(), bed, seed)
			return r
		}) {
			for i, v := range r.expected[1:] {
				windows[i/window] += v / seeds / window
			}
			move = max(move, r.move)
			regret += r.regret / seeds
			last += r.expected[len(r.expected)-1] / seeds
		}
		t.Logf("ppo on %-6s regret %.1f, expected reward by windows %.4f, at last %.4f, largest move %.4f", name, regret, windows, last, move)
		for i := 1; i < len(windows); i++ {
			if windows[i] < windows[i-1] {
				t.Errorf("%s: the expected reward fell from %.4f to %.4f in window %d", name, windows[i-1], windows[i], i)
			}
		}
		if last < bed[0]-0.01 {
			t.Errorf("%s: expected reward %.4f at last, the best arm gives %v", name, last, bed[0])
		}
		if move > 0.2+1e-9 || move < 0.15 {
			t.Errorf("%s: the largest move of a probability is %.4f, want at most 0.2, and near it", name, move)
		}
	}
}
