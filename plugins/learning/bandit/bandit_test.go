package bandit_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	. "a2e/plugins/learning/bandit"
)

var ppo = PPO{Entropy: 0.01}

var defaults = map[string]Strategy{
	"ucb1": UCB1{}, "epsilon_greedy": EpsilonGreedy{}, "softmax": Softmax{}, "ppo": ppo,
	"thompson": Thompson{},
}

func TestFromScore(t *testing.T) {
	for score, want := range map[float64]float64{-1: 0, 0: 0.5, 0.5: 0.75, 1: 1, 7: 1, math.Inf(-1): 0} {
		if got := FromScore(score); got != want {
			t.Errorf("score %v: got %v, want %v", score, got, want)
		}
	}
	if got := FromScore(math.NaN()); got != 0.5 {
		t.Errorf("no number: got %v, want 0.5", got)
	}
}

// anyArms draws arms as they may come from a store, with invalid numbers, too.
func anyArms() *rapid.Generator[[]Arm] {
	number := func(good *rapid.Generator[float64]) *rapid.Generator[float64] {
		return rapid.OneOf(good, rapid.Float64(), rapid.SampledFrom([]float64{
			0, math.NaN(), math.Inf(1),
			math.Inf(-1),
		}))
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Arm {
		return Arm{
			Pulls:  number(rapid.Float64Range(0, 1e6)).Draw(t, "pulls"),
			Mean:   number(rapid.Float64Range(0, 1)).Draw(t, "mean"),
			Weight: number(rapid.Float64Range(0, 10)).Draw(t, "weight"),
		}
	}), 0, 20)
}

// TestWeights: the weights are valid whatever the arms and the parameters are, even invalid ones.
func TestWeights(t *testing.T) {
	all := []Strategy{
		EpsilonGreedy{Constant: 0.1},
		EpsilonGreedy{Constant: -1},
		Softmax{Scale: 1e9},
		PPO{Clip: 0.9, Rate: 100, Epochs: 30},
		Thompson{Posterior: PosteriorGaussian},
	}
	for _, s := range defaults {
		all = append(all, s)
	}
	property.Check(t, func(t *rapid.T) {
		arms := anyArms().Draw(t, "arms")
		before := slices.Clone(arms)
		for _, s := range all {
			w := s.Weights(arms)
			sum := 0.0
			for _, x := range w {
				must.That(t, x >= 0 && !math.IsInf(x, 0), "%T: weights %v", s, w)
				sum += x
			}
			must.That(t, w != nil && len(w) == len(arms) && math.Abs(sum-float64(len(arms))) <= 1e-6,
				"%T: %d weights %v, sum %v, of %d arms", s, len(w), w, sum, len(arms))
		}
		for i, a := range arms {
			must.That(t, math.Float64bits(a.Mean) == math.Float64bits(before[i].Mean), "the arms were changed")
		}
	})
}

// TestOrder: with equal evidence and no weights yet, an arm with a better mean never weighs less, and the best arm
// weighs more than a neutral one.
func TestOrder(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		means := rapid.SliceOfNDistinct(rapid.IntRange(0, 20), 2, 20, rapid.ID).Draw(t, "means")
		pulls := float64(rapid.IntRange(1, 1000).Draw(t, "pulls"))
		slices.Sort(means)
		arms := make([]Arm, len(means))
		for i, m := range means {
			arms[i] = Arm{Pulls: pulls, Mean: float64(m) / 20}
		}
		for name, s := range defaults {
			w := s.Weights(arms)
			for i := range w[1:] {
				must.That(t, w[i+1] >= w[i]-1e-12, "%s: weights %v of rising means %v", name, w, means)
			}
			exploring := name == "epsilon_greedy" && pulls < 3
			last := w[len(w)-1]
			must.That(t, exploring || last > 1, "%s: the best weighs %v", name, last)
		}
	})
}

func near(got, want []float64) bool {
	return slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
}

// TestFormulas checks weights against the published definitions, computed by hand.
func TestFormulas(t *testing.T) {
	scaled := func(w ...float64) []float64 { // scales weights to a mean of 1
		sum := 0.0
		for _, x := range w {
			sum += x
		}
		for i := range w {
			w[i] *= float64(len(w)) / sum
		}
		return w
	}
	index := func(mean, n float64) float64 { return mean + math.Sqrt(2*math.Log(101)/n) }
	some := []Arm{{Pulls: 10, Mean: 0.5}, {Pulls: 90, Mean: 0.6}, {Pulls: 0.2, Mean: 0.1}}
	type row struct {
		name string
		s    Strategy
		arms []Arm
		want []float64
	}
	rows := []row{
		{"ucb1, a part of a pull counts as one", UCB1{}, some, scaled(index(0.5, 10), index(0.6, 90), index(0.1, 1))},
		{
			"epsilon of 5·3/(0.5²·150)",
			EpsilonGreedy{C: 5, D: 0.5},
			[]Arm{{Pulls: 149, Mean: 0.5}, {}, {}},
			[]float64{0.4 + 0.6*3, 0.4, 0.4},
		},
		{"epsilon explores at first", EpsilonGreedy{C: 5, D: 0.5}, []Arm{{Pulls: 19, Mean: 0.5}, {}}, []float64{1, 1}},
		{"constant epsilon, ties", EpsilonGreedy{Constant: 0.3}, []Arm{
			{Pulls: 4, Mean: 0.5},
			{Pulls: 4, Mean: 0.5},
			{Pulls: 4, Mean: 0.1},
		}, []float64{1.35, 1.35, 0.3}},
	}
	for _, pulls := range []float64{1, 4, 100, 1e6, 1e12} {
		arms := []Arm{{Pulls: pulls, Mean: 0.3}, {Pulls: pulls, Mean: 0.5}, {Pulls: pulls, Mean: 0.9}}
		soft := func(mean float64) float64 { return math.Exp((mean - 0.9) * math.Sqrt(pulls) / 0.5) }
		rows = append(rows, row{
			"softmax of even evidence",
			Softmax{},
			arms,
			scaled(soft(0.3), soft(0.5), soft(0.9)),
		})
	}
	for _, r := range rows {
		got := r.s.Weights(r.arms)
		assert.That(t, near(got, r.want), "%s: weights %v, want %v", r.name, got, r.want)
	}
	w := UCB1{}.Weights(append(some, Arm{}, Arm{}))
	assert.That(t, w[3] > slices.Max(w[:3]) && w[3] == w[4], "weights %v: the last two have no pulls and come first", w)
}

// TestChoose: a strategy chooses an arm as often as its weight says, and UCB1 chooses the arm with the highest index.
func TestChoose(t *testing.T) {
	arms := []Arm{
		{Pulls: 1, Mean: 0.1, Weight: 0.2},
		{Pulls: 100, Mean: 0.6, Weight: 2},
		{Pulls: 3, Mean: 0.55},
		{Pulls: 5000, Mean: 0.7, Weight: 0.5},
		{},
	}
	graded := slices.Clone(arms)
	graded[2].Graded = true
	rng := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		name string
		s    Strategy
		arms []Arm
		want []float64
	}{
		{"epsilon_greedy", EpsilonGreedy{Constant: 0.4}, arms, nil},
		{"softmax", Softmax{}, arms, nil},
		{"ppo", ppo, arms, []float64{0.2 / 4.7 * 5, 2 / 4.7 * 5, 1 / 4.7 * 5, 0.5 / 4.7 * 5, 1 / 4.7 * 5}},
		{"thompson", Thompson{}, arms, nil},
		{"thompson of graded arms", Thompson{}, graded, Thompson{Posterior: PosteriorGaussian}.Weights(arms)},
		{"ucb1", UCB1{}, arms[:4], []float64{4, 0, 0, 0}},
		{
			"equal ones",
			UCB1{},
			[]Arm{{Pulls: 2, Mean: 0.5}, {Pulls: 2, Mean: 0.5}, {Pulls: 2, Mean: 0.5}},
			[]float64{1, 1, 1},
		},
	} {
		got := make([]float64, len(c.arms))
		const draws = 100_000
		for range draws {
			got[c.s.Choose(c.arms, rng)] += float64(len(c.arms)) / draws
		}
		if c.want == nil {
			c.want = c.s.Weights(c.arms)
		}
		for i, w := range c.want {
			if math.Abs(got[i]-w) > 0.025 {
				t.Errorf("%s: chosen %.3f, want %.3f", c.name, got, c.want)
				break
			}
		}
	}
}

// TestNext: arms that were never pulled come first. Choices at the same time are of different arms, and pulls that have
// not ended count.
func TestNext(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, s := range defaults {
		arms := []Arm{{Pulls: 1000, Mean: 1, Weight: 9}, {}, {}, {}}
		seen := []int{0, 0, 0, 0}
		for range 3 {
			i := Next(s, arms, rng)
			seen[i]++
			arms[i].Pending++
		}
		assert.That(t, slices.Equal(seen, []int{0, 1, 1, 1}), "%s: of one known arm and three unknown ones it chose %v",
			name, seen)
	}
	if i := Next(UCB1{}, []Arm{{Pulls: 10, Mean: 0.5, Pending: 5}, {Pulls: 10, Mean: 0.5}, {Pending: 20}},
		rng); i != 1 {
		t.Errorf("ucb1 chose arm %d beside pulls under way", i)
	}
	got := []int{Sample([]float64{0, 0, 3, 0}, rng), Sample([]float64{0}, rng)}
	assert.That(t, slices.Equal(got, []int{2, 0}), "samples %v", got)
}

// bed has the probabilities with which the arms have the reward 1; the reward is 0 otherwise.
var bed = []float64{0.9, 0.6, 0.5, 0.4, 0.3}

// play learns from batches of pulls that are chosen by the weights; ofBatch = each update uses the last batch only. It
// returns the expected reward of the weights after each batch, and the largest relative change of a weight.
func play(s Strategy, seed uint64, batches int, ofBatch bool) (expected []float64, move float64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	total := make([]Arm, len(bed))
	w := s.Weights(total)
	for range batches {
		batch := make([]Arm, len(bed))
		for range 100 {
			at := rng.Float64() * float64(len(bed))
			i := 0
			for ; i < len(bed)-1 && at >= w[i]; i++ {
				at -= w[i]
			}
			reward := 0.0
			if rng.Float64() < bed[i] {
				reward = 1
			}
			for _, a := range []*Arm{&batch[i], &total[i]} {
				a.Pulls++
				a.Mean += (reward - a.Mean) / a.Pulls
			}
		}
		from, old := total, w
		if ofBatch {
			from = batch
		}
		for i := range from {
			from[i].Weight = old[i]
		}
		w = s.Weights(from)
		sum := 0.0
		for i := range w {
			sum += w[i] / float64(len(bed)) * bed[i]
			move = max(move, math.Abs(w[i]/max(old[i], 0.05)-1))
		}
		expected = append(expected, sum)
	}
	return expected, move
}

// TestFindsTheBest: each strategy learns to prefer the best arm. ppo improves until the end, and none of its updates
// exceeds the clip.
func TestFindsTheBest(t *testing.T) {
	for name, least := range map[string]float64{
		"ucb1": 0.59, "epsilon_greedy": 0.89, "softmax": 0.89, "ppo": 0.87,
		"thompson": 0.89,
	} {
		const seeds, batches = 5, 60
		early, late := 0.0, 0.0
		for seed := range uint64(seeds) {
			expected, move := play(defaults[name], seed, batches, name == "ppo")
			early, late = early+expected[0]/seeds, late+expected[batches-1]/seeds
			assert.That(t, name != "ppo" || move > 0.15 && move < 0.25, "ppo: a weight moved by a share of %.3f, "+
				"want 0.2 or little less", move)
		}
		assert.That(t, late >= least && late >= early, "%s: the expected reward went from %.3f to %.3f, want %.3f "+
			"of 0.9", name, early, late, least)
	}
}

// TestPPO: with the true means and without the entropy bonus, an update never lowers the expected reward. With any
// options, it changes no probability by more than the clip.
func TestPPO(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		o := PPO{
			Clip: rapid.Float64Range(0.01, 0.9).Draw(t, "clip"), Rate: rapid.Float64Range(0.01, 1000).Draw(t, "rate"),
			Epochs: rapid.IntRange(1, 40).Draw(t, "epochs"), Entropy: rapid.SampledFrom([]float64{0, 0.01, 1}).Draw(t,
				"entropy"),
		}
		arms := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Arm {
			return Arm{
				Pulls: 1, Mean: rapid.Float64Range(0, 1).Draw(t, "mean"),
				Weight: rapid.Float64Range(0.05, 10).Draw(t, "weight"),
			}
		}), 2, 12).Draw(t, "arms")
		sum := 0.0
		for _, a := range arms {
			sum += a.Weight
		}
		was, is := 0.0, 0.0
		for i, w := range o.Weights(arms) {
			a := arms[i]
			old := a.Weight * float64(len(arms)) / sum
			was, is = was+old*a.Mean, is+w*a.Mean
			r := w / old
			must.That(t, r >= 1-o.Clip-1e-9 && r <= 1+o.Clip+1e-9, "arm %d: ratio %v outside of 1±%v", i, r, o.Clip)
		}
		must.That(t, o.Entropy != 0 || is >= was-1e-9, "expected reward fell from %v to %v", was, is)
	})
}

// TestPPOCases: in a clear case only the clip bounds the step, an arm without pulls counts neither as bad nor as good,
// and an arm that has lost all weight gains some again.
func TestPPOCases(t *testing.T) {
	for _, k := range []int{2, 10, 100} {
		arms := make([]Arm, k)
		for i := range arms {
			arms[i] = Arm{Pulls: 10, Mean: 0.1}
		}
		arms[1].Mean = 0.9
		if w := ppo.Weights(arms); w[1] < 1.15 || w[1] > 1.2+1e-9 {
			t.Errorf("%d arms: the best went from 1 to %v, want 1.2 or little less", k, w[1])
		}
	}
	if w := (PPO{}).Weights([]Arm{
		{Pulls: 5, Mean: 0.8, Weight: 1},
		{Mean: 0.3, Weight: 0.7},
		{Pulls: 9, Mean: 0.8, Weight: 1.3},
	}); !near(w, []float64{1, 0.7, 1.3}) {
		t.Errorf("weights 1, 0.7 and 1.3 became %v", w)
	}
	arms := []Arm{{Pulls: 9, Mean: 0.9, Weight: 1e-9}, {Pulls: 9, Mean: 0.2, Weight: 2}}
	for range 100 {
		for i, w := range ppo.Weights(arms) {
			arms[i].Weight = w
		}
	}
	if arms[0].Weight < 1.5 {
		t.Errorf("after 100 updates the best arm's weight is %v", arms[0].Weight)
	}
}
