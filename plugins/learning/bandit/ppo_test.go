package bandit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// anyPPO draws options: wild ones too, for the clip holds with any.
func anyPPO() *rapid.Generator[PPO] {
	return rapid.Custom(func(t *rapid.T) PPO {
		return PPO{
			Clip:    rapid.Float64Range(0.01, 0.9).Draw(t, "clip"),
			Rate:    rapid.Float64Range(0.01, 1000).Draw(t, "rate"),
			Epochs:  rapid.IntRange(1, 40).Draw(t, "epochs"),
			Entropy: rapid.Float64Range(0, 1).Draw(t, "entropy"),
		}
	})
}

// anyPolicy draws a policy, some of its arms all but impossible.
func anyPolicy() *rapid.Generator[Policy] {
	return rapid.Custom(func(t *rapid.T) Policy {
		spread := rapid.SampledFrom([]float64{0, 1, 10, 1000}).Draw(t, "spread")
		return Policy{Logits: rapid.SliceOfN(rapid.Float64Range(-spread, spread), 1, 12).Draw(t, "logits")}
	})
}

// anyBatch draws samples, some of arms that are not there.
func anyBatch() *rapid.Generator[[]Sample] {
	return rapid.SliceOf(rapid.Custom(func(t *rapid.T) Sample {
		return Sample{rapid.IntRange(-1, 14).Draw(t, "arm"), rapid.Float64Range(0, 1).Draw(t, "reward")}
	}))
}

// TestClipHolds: no update moves the probability of any arm by more than the clip.
func TestClipHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, policy := anyPPO().Draw(t, "ppo"), anyPolicy().Draw(t, "policy")
		before := slices.Clone(policy.Logits)
		updated := o.Update(policy, anyBatch().Draw(t, "batch"))
		if !slices.Equal(policy.Logits, before) {
			t.Fatal("the update changed its argument")
		}
		// by logarithms: a probability may be too small for a number
		old, now := policy.logs(), updated.logs()
		for i := range old {
			if r := math.Exp(now[i] - old[i]); !(r >= 1-o.Clip-1e-9 && r <= 1+o.Clip+1e-9) {
				t.Fatalf("arm %d: ratio %v outside of 1±%v", i, r, o.Clip)
			}
		}
	})
}

// TestClipIsReached: the clip is what stops a clear case, not timid steps.
func TestClipIsReached(t *testing.T) {
	for _, k := range []int{2, 10, 100} {
		arms := make([]Arm, k)
		for i := range arms {
			arms[i] = Arm{Pulls: 10, Mean: 0.1}
		}
		arms[1].Mean = 0.9
		w := DefaultPPO().Weights(arms, 0)
		if w[1] < 1.15 || w[1] > 1.2+1e-9 {
			t.Errorf("%d arms: the best went from 1 to %v, want 1.2 or little less", k, w[1])
		}
	}
}

// TestTrueMeansNeverWorse: told the true means and without the entropy bonus, an update
// never lowers the expected reward.
func TestTrueMeansNeverWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := anyPPO().Draw(t, "ppo")
		o.Entropy = 0
		arms := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Arm {
			return Arm{Pulls: 1, Mean: rapid.Float64Range(0, 1).Draw(t, "mean"), Weight: rapid.Float64Range(0.05, 10).Draw(t, "weight")}
		}), 2, 12).Draw(t, "arms")
		expected := func(probs []float64) (sum float64) {
			for i, p := range probs {
				sum += p * arms[i].Mean
			}
			return sum
		}
		old := PolicyOf(arms).Probabilities()
		now := o.Weights(arms, 0)
		for i := range now {
			now[i] /= float64(len(arms))
		}
		if was, is := expected(old), expected(now); is < was-1e-12 {
			t.Fatalf("expected reward fell from %v to %v", was, is)
		}
	})
}

// naive is the objective as the paper writes it, sample by sample.
func naive(o PPO, old, now []float64, batch []Sample) float64 {
	mean := 0.0
	for _, s := range batch {
		mean += s.Reward / float64(len(batch))
	}
	sum := 0.0
	for _, s := range batch {
		r := math.Exp(now[s.Arm] - old[s.Arm])
		a := s.Reward - mean
		sum += min(r*a, min(max(r, 1-o.Clip), 1+o.Clip)*a) / float64(len(batch))
	}
	for _, l := range now {
		sum -= o.Entropy * math.Exp(l) * l
	}
	return sum
}

// TestObjective: objective and gradient are those of the paper, outside of the clip too.
func TestObjective(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	o := PPO{Clip: 0.2, Entropy: 0.03}
	for range 200 {
		const k = 5
		from, to := NewPolicy(k), NewPolicy(k)
		for i := range k {
			from.Logits[i] = rng.NormFloat64()
			to.Logits[i] = from.Logits[i] + 0.3*rng.NormFloat64()
		}
		batch := make([]Sample, 30)
		for i := range batch {
			batch[i] = Sample{rng.IntN(k), rng.Float64()}
		}
		old, adv := from.logs(), advantagesOf(k, batch)
		if got, want := o.objective(old, to.logs(), adv), naive(o, old, to.logs(), batch); math.Abs(got-want) > 1e-12 {
			t.Fatalf("objective %v, want %v", got, want)
		}
		gradient := o.gradient(old, to.logs(), adv)
		for i := range k {
			const h = 1e-6
			up, down := slices.Clone(to.Logits), slices.Clone(to.Logits)
			up[i] += h
			down[i] -= h
			want := (naive(o, old, Policy{up}.logs(), batch) - naive(o, old, Policy{down}.logs(), batch)) / (2 * h)
			if math.Abs(gradient[i]-want) > 1e-6 {
				t.Fatalf("gradient of logit %d: %v, want %v", i, gradient[i], want)
			}
		}
	}
}

// advantagesOf are those of a batch of arms that all exist.
func advantagesOf(k int, batch []Sample) advantages {
	sum, n := 0.0, float64(len(batch))
	for _, s := range batch {
		sum += s.Reward
	}
	adv := newAdvantages(k)
	for _, s := range batch {
		adv.add(s.Arm, s.Reward-sum/n, 1/n)
	}
	return adv
}

// TestObjectiveNeverFalls: however long the steps and whatever the entropy bonus.
func TestObjectiveNeverFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, policy := anyPPO().Draw(t, "ppo"), anyPolicy().Draw(t, "policy")
		batch := anyBatch().Draw(t, "batch")
		k := len(policy.Logits)
		batch = slices.DeleteFunc(batch, func(s Sample) bool { return s.Arm < 0 || s.Arm >= k })
		old, adv := policy.logs(), advantagesOf(k, batch)
		was, is := o.objective(old, old, adv), o.objective(old, o.Update(policy, batch).logs(), adv)
		if is < was-1e-9 {
			t.Fatalf("objective fell from %v to %v", was, is)
		}
	})
}

// TestUnknownArm: an arm without pulls is not taken for a bad one, nor for a good one.
func TestUnknownArm(t *testing.T) {
	o := DefaultPPO()
	o.Entropy = 0
	arms := []Arm{{Pulls: 5, Mean: 0.8, Weight: 1}, {Mean: 0.3, Weight: 0.7}, {Pulls: 9, Mean: 0.8, Weight: 1.3}}
	for i, w := range o.Weights(arms, 0) {
		if math.Abs(w-arms[i].Weight) > 1e-9 {
			t.Errorf("arm %d: weight %v, was %v", i, w, arms[i].Weight)
		}
	}
}

// TestNothingLearned: without evidence nothing moves but by the entropy bonus.
func TestNothingLearned(t *testing.T) {
	o := DefaultPPO()
	o.Entropy = 0
	policy := Policy{Logits: []float64{1, 0, 2}}
	for name, batch := range map[string][]Sample{
		"no samples":    nil,
		"no such arms":  {{-1, 1}, {3, 0}},
		"equal rewards": {{0, 0.5}, {1, 0.5}, {2, 0.5}},
	} {
		got, want := o.Update(policy, batch).Probabilities(), policy.Probabilities()
		for i := range got {
			if math.Abs(got[i]-want[i]) > 1e-12 {
				t.Errorf("%s: %v, was %v", name, got, want)
				break
			}
		}
	}
	if p := o.Update(Policy{}, nil); len(p.Logits) != 0 || p.Choose(rand.New(rand.NewPCG(1, 1))) != -1 {
		t.Errorf("without arms: %v", p)
	}
}

// TestComesBack: an arm that lost all weight regains it when it turns out to be the best.
func TestComesBack(t *testing.T) {
	arms := []Arm{{Pulls: 9, Mean: 0.9, Weight: 1e-9}, {Pulls: 9, Mean: 0.2, Weight: 2}}
	updates := 0
	for ; arms[0].Weight < 1.5 && updates < 100; updates++ {
		for i, w := range DefaultPPO().Weights(arms, 0) {
			arms[i].Weight = w
		}
	}
	if updates == 100 {
		t.Errorf("after %d updates its weight is %v", updates, arms[0].Weight)
	}
}
