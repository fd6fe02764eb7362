package bandit

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// names are those that the protocol knows, but for custom.
var names = []string{"ucb1", "epsilon_greedy", "softmax", "ppo"}

// strategies are all of them, and some with other parameters, useless ones too.
func strategies(t interface{ Fatal(...any) }) []Strategy {
	all := []Strategy{
		EpsilonGreedy{}, EpsilonGreedy{Constant: 0.1}, EpsilonGreedy{Constant: -1}, Softmax{}, Softmax{Scale: 1e9}, PPO{}, PPO{Clip: 0.9, Rate: 100, Epochs: 30},
	}
	for _, name := range names {
		s, err := ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

func TestByName(t *testing.T) {
	for _, name := range names {
		if s, err := ByName(name); err != nil || s.Name() != name {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	for _, name := range []string{"", "custom", "UCB1"} {
		if s, err := ByName(name); err == nil || !strings.Contains(err.Error(), "softmax") {
			t.Errorf("%q: %v, %v; want an error that names those there are", name, s, err)
		}
	}
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

// anyArms draws arms as a store may give them, bad numbers too.
func anyArms() *rapid.Generator[[]Arm] {
	number := func(good *rapid.Generator[float64]) *rapid.Generator[float64] {
		return rapid.OneOf(good, rapid.Float64(), rapid.SampledFrom([]float64{0, math.NaN(), math.Inf(1), math.Inf(-1)}))
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Arm {
		return Arm{
			Pulls:  number(rapid.Float64Range(0, 1e6)).Draw(t, "pulls"),
			Mean:   number(rapid.Float64Range(0, 1)).Draw(t, "mean"),
			Weight: number(rapid.Float64Range(0, 10)).Draw(t, "weight"),
		}
	}), 0, 20)
}

// TestWeights: whatever the arms, weights can be used, and so can the choice.
func TestWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arms := anyArms().Draw(t, "arms")
		before := slices.Clone(arms)
		turns := rapid.OneOf(rapid.Float64Range(0, 1e9), rapid.Float64(), rapid.Just(math.NaN())).Draw(t, "t")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for _, s := range strategies(t) {
			w := s.Weights(arms, turns)
			sum := 0.0
			for _, x := range w {
				if !(x >= 0) || math.IsInf(x, 0) {
					t.Fatalf("%s: weights %v", s.Name(), w)
				}
				sum += x
			}
			if w == nil || len(w) != len(arms) || math.Abs(sum-float64(len(arms))) > 1e-6 {
				t.Fatalf("%s: %d weights %v, sum %v, of %d arms", s.Name(), len(w), w, sum, len(arms))
			}
			i := s.Choose(rng, arms, turns)
			if i < -1 || i >= len(arms) || (i == -1) != (len(arms) == 0) {
				t.Fatalf("%s: chose %d of %d", s.Name(), i, len(arms))
			}
		}
		for i, a := range arms {
			if b := before[i]; math.Float64bits(a.Mean) != math.Float64bits(b.Mean) {
				t.Fatal("the arms were changed")
			}
		}
	})
}

// TestOrder: with equal evidence and no weights yet, a better mean never weighs less,
// and the best weighs more than neutral.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		means := rapid.SliceOfNDistinct(rapid.IntRange(0, 20), 2, 20, rapid.ID).Draw(t, "means")
		pulls := float64(rapid.IntRange(1, 1000).Draw(t, "pulls"))
		slices.Sort(means)
		arms := make([]Arm, len(means))
		for i, m := range means {
			arms[i] = Arm{Pulls: pulls, Mean: float64(m) / 20}
		}
		for _, name := range names {
			s, _ := ByName(name)
			w := s.Weights(arms, 0)
			for i := 1; i < len(w); i++ {
				if w[i] < w[i-1]-1e-12 {
					t.Fatalf("%s: weights %v of rising means %v", name, w, means)
				}
			}
			exploring := name == "epsilon_greedy" && DefaultEpsilonGreedy().epsilon(len(arms), pulls*float64(len(arms))) == 1
			if last := w[len(w)-1]; !exploring && last <= 1 {
				t.Fatalf("%s: the best weighs %v", name, last)
			}
		}
	})
}

// TestChooseAsWeighted: where the choice is by chance, weights are its probabilities.
func TestChooseAsWeighted(t *testing.T) {
	const draws = 100_000
	for name, arms := range map[string][]Arm{
		"even evidence":   {{Pulls: 9, Mean: 0.2}, {Pulls: 9, Mean: 0.4}, {Pulls: 9, Mean: 0.5}},
		"uneven evidence": {{Pulls: 1, Mean: 0.1}, {Pulls: 100, Mean: 0.6}, {Pulls: 3, Mean: 0.55}, {Pulls: 5000, Mean: 0.7}},
		"ties":            {{Pulls: 4, Mean: 0.5}, {Pulls: 4, Mean: 0.5}, {Pulls: 4, Mean: 0.1}},
		"one is new":      {{Pulls: 40, Mean: 0.8}, {}, {Pulls: 40, Mean: 0.3}},
		"all new":         {{}, {}},
	} {
		for _, s := range []Strategy{DefaultEpsilonGreedy(), EpsilonGreedy{Constant: 0.3}, DefaultSoftmax()} {
			w := s.Weights(arms, 0)
			rng := rand.New(rand.NewPCG(3, 4))
			got := make([]float64, len(arms))
			for range draws {
				got[s.Choose(rng, arms, 0)] += float64(len(arms)) / draws
			}
			for i := range w {
				if math.Abs(got[i]-w[i]) > 0.02 {
					t.Errorf("%s, %s: chosen %.3f, weights %.3f", s.Name(), name, got, w)
					break
				}
			}
		}
	}
}

// TestPPOChooses: its choice is by the weights that the arms have.
func TestPPOChooses(t *testing.T) {
	arms := []Arm{{Weight: 0.5}, {Weight: 2}, {}, {Weight: 0.5}}
	rng := rand.New(rand.NewPCG(3, 4))
	got := make([]float64, len(arms))
	for range 100_000 {
		got[DefaultPPO().Choose(rng, arms, 0)] += 4.0 / 100_000
	}
	for i, want := range []float64{0.5, 2, 1, 0.5} {
		if math.Abs(got[i]-want) > 0.02 {
			t.Errorf("arm %d: chosen %.3f, weight %v", i, got[i], want)
		}
	}
}

func TestUCB1Index(t *testing.T) {
	arms := []Arm{{Pulls: 10, Mean: 0.5}, {Pulls: 90, Mean: 0.6}, {Pulls: 0.2, Mean: 0.1}}
	w := UCB1{}.Weights(arms, 200)
	index := func(mean, n float64) float64 { return mean + math.Sqrt(2*math.Log(200)/n) }
	want := balance([]float64{index(0.5, 10), index(0.6, 90), index(0.1, 1)})
	for i := range w {
		if math.Abs(w[i]-want[i]) > 1e-12 {
			t.Errorf("weights %v, want %v", w, want)
			break
		}
	}
	// t counts from the arms' pulls when it is not known
	if a, b := (UCB1{}).Weights(arms, 0), (UCB1{}).Weights(arms, 101); !slices.Equal(a, b) {
		t.Errorf("weights at t unknown %v, at 101 %v", a, b)
	}
	arms = append(arms, Arm{}, Arm{})
	if got := (UCB1{}).Choose(nil, arms, 1e9); got != 3 {
		t.Errorf("chose %d, want the first one without pulls, 3", got)
	}
	if w := (UCB1{}).Weights(arms, 1e9); w[3] <= slices.Max(w[:3]) || w[3] != w[4] {
		t.Errorf("weights %v: the last two have no pulls and come first", w)
	}
}

func TestEpsilonDecays(t *testing.T) {
	e := EpsilonGreedy{C: 5, D: 0.5}
	for turn, want := range map[float64]float64{0: 1, 199: 1, 399: 0.5, 1999: 0.1} { // the pull after t
		if got := e.epsilon(10, turn); math.Abs(got-want) > 1e-12 {
			t.Errorf("after %v pulls: got %v, want %v", turn, got, want)
		}
	}
	if got := (EpsilonGreedy{Constant: 0.2}).epsilon(10, 1e9); got != 0.2 {
		t.Errorf("constant: got %v, want 0.2", got)
	}
}

// TestSoftmaxFormula: with equal pulls the weights are the softmax of the means, however
// small the temperature.
func TestSoftmaxFormula(t *testing.T) {
	for _, pulls := range []float64{1, 4, 100, 1e6, 1e12} {
		arms := []Arm{{Pulls: pulls, Mean: 0.3}, {Pulls: pulls, Mean: 0.5}, {Pulls: pulls, Mean: 0.9}}
		temperature := 0.5 / math.Sqrt(pulls)
		want := make([]float64, len(arms))
		for i, a := range arms {
			want[i] = math.Exp((a.Mean - 0.9) / temperature)
		}
		balance(want)
		for i, got := range DefaultSoftmax().Weights(arms, 0) {
			if math.Abs(got-want[i]) > 1e-9 {
				t.Errorf("%v pulls, arm %d: got %v, want %v", pulls, i, got, want[i])
			}
		}
	}
}

func BenchmarkWeights(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	arms := make([]Arm, 100)
	for i := range arms {
		arms[i] = Arm{Pulls: float64(rng.IntN(1000)), Mean: rng.Float64()}
	}
	for _, name := range names {
		s, _ := ByName(name)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s.Weights(arms, 0)
			}
		})
	}
}
