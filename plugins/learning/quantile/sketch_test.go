package quantile

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// shares are the quantiles that tests look at.
var shares = []float64{0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1}

// sketchOf is a sketch of these values.
func sketchOf(values []float64) *Sketch {
	s := new(Sketch)
	for _, v := range values {
		s.Add(v)
	}
	return s
}

// code is the encoded sketch.
func code(t interface{ Fatal(...any) }, s *Sketch) []byte {
	b, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// exact is the quantile by the definition.
func exact(values []float64, q float64) float64 {
	sorted := slices.Clone(values)
	for i, v := range sorted {
		sorted[i] = max(v, 0)
	}
	slices.Sort(sorted)
	return sorted[int(q*float64(len(sorted)-1))]
}

// close1 tells whether got is at most 1 % from want.
func close1(got, want float64) bool {
	return math.Abs(got-want) <= (accuracy+1e-9)*want
}

// durations draws values that one sketch holds without loss: within a factor of 1e15,
// of zero and below some, in clusters and spread out.
func durations() *rapid.Generator[[]float64] {
	return rapid.Custom(func(t *rapid.T) []float64 {
		unit := rapid.Float64Range(1e-200, 1e200).Draw(t, "unit")
		value := rapid.OneOf(
			rapid.Float64Range(1, 1e15),
			rapid.Map(rapid.Float64Range(0, 15), func(x float64) float64 { return math.Pow(10, x) }),
			rapid.Float64Range(5, 5.2),
			rapid.SampledFrom([]float64{0, -1}),
		)
		values := rapid.SliceOfN(value, 1, 300).Draw(t, "values")
		for i := range values {
			values[i] *= unit
		}
		return values
	})
}

func TestQuantileError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := durations().Draw(t, "all")
		s := sketchOf(values)
		if s.Count() != uint64(len(values)) {
			t.Fatalf("count %d of %d values", s.Count(), len(values))
		}
		for _, q := range append(shares, rapid.Float64Range(0, 1).Draw(t, "q")) {
			got, want := s.Quantile(q), exact(values, q)
			if !close1(got, want) {
				t.Fatalf("quantile %v: got %v, want %v", q, got, want)
			}
			if (q == 0 || q == 1) && got != want {
				t.Fatalf("quantile %v: got %v, want exactly %v", q, got, want)
			}
		}
	})
}

// TestSkewed holds the bound on the distributions that durations have.
func TestSkewed(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() float64{
		"lognormal": func() float64 { return math.Exp(3 + 2*rng.NormFloat64()) },
		"pareto":    func() float64 { return math.Pow(1-rng.Float64(), -1) },
		"bimodal":   func() float64 { return []float64{1e3, 1e9}[rng.IntN(2)] * (1 + rng.Float64()) },
		"uniform":   func() float64 { return 1e6 * rng.Float64() },
	} {
		values := make([]float64, 50_000)
		for i := range values {
			values[i] = draw()
		}
		s := sketchOf(values)
		for _, q := range shares {
			if got, want := s.Quantile(q), exact(values, q); !close1(got, want) {
				t.Errorf("%s: quantile %v: got %v, want %v", name, q, got, want)
			}
		}
		if n := len(code(t, s)); n > 6<<10 {
			t.Errorf("%s: %d bytes encoded", name, n)
		}
	}
}

// anything draws values without bounds, so that buckets collapse.
func anything() *rapid.Generator[[]float64] {
	return rapid.SliceOf(rapid.OneOf(
		rapid.Float64(),
		rapid.Map(rapid.Float64Range(-300, 300), func(x float64) float64 { return math.Pow(10, x) }),
		rapid.SampledFrom([]float64{0, math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64, math.SmallestNonzeroFloat64}),
	))
}

func TestMergeIsAddingAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anything().Draw(t, "a"), anything().Draw(t, "b")
		all := sketchOf(slices.Concat(a, b))
		merged, other := sketchOf(a), sketchOf(b)
		before := code(t, other)
		merged.Merge(other)
		if !bytes.Equal(code(t, merged), code(t, all)) {
			t.Fatalf("merged %+v, all added %+v", merged, all)
		}
		if !bytes.Equal(code(t, other), before) {
			t.Fatal("merging changed the other one")
		}
		if len(all.counts) > maxBuckets || len(merged.counts) > maxBuckets {
			t.Fatalf("%d and %d buckets", len(all.counts), len(merged.counts))
		}
		var again Sketch
		if err := again.UnmarshalBinary(before); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(code(t, &again), before) {
			t.Fatalf("decoded %+v, was %+v", again, other)
		}
	})
}

// TestCollapse: when values spread too far, the high quantiles stay right.
func TestCollapse(t *testing.T) {
	var s Sketch
	for i := range 1000 {
		s.Add(math.Pow(10, float64(i)/25)) // up to 1e40
	}
	for _, q := range []float64{0.6, 0.9, 0.95, 0.99} {
		want := math.Pow(10, math.Floor(q*999)/25)
		if got := s.Quantile(q); !close1(got, want) {
			t.Errorf("quantile %v: got %v, want %v", q, got, want)
		}
	}
	if len(s.counts) != maxBuckets {
		t.Errorf("%d buckets, want %d", len(s.counts), maxBuckets)
	}
	if got := s.Quantile(0); got != 1 {
		t.Errorf("least value: got %v, want 1", got)
	}
	if low := s.Quantile(0.1); low > s.Quantile(0.6) {
		t.Errorf("quantile 0.1 is %v, above quantile 0.6", low)
	}
	if n := testing.AllocsPerRun(100, func() { s.Add(2) }); n != 0 {
		t.Errorf("a value below all buckets costs %v allocations", n)
	}
}

func TestZeroValue(t *testing.T) {
	var s, other Sketch
	if s.Count() != 0 || s.Quantile(0.5) != 0 {
		t.Errorf("empty: count %d, median %v", s.Count(), s.Quantile(0.5))
	}
	s.Merge(&other)
	s.Add(math.NaN())
	if s.Count() != 0 {
		t.Errorf("nothing and no number count %d", s.Count())
	}
	s.Add(-3)
	s.Add(7)
	s.Merge(&other)
	if s.Count() != 2 || s.Quantile(0) != 0 || s.Quantile(1) != 7 || s.Quantile(math.NaN()) != 0 {
		t.Errorf("count %d, from %v to %v", s.Count(), s.Quantile(0), s.Quantile(1))
	}
	other.Merge(&s)
	s.Merge(&s)
	if other.Count() != 2 || s.Count() != 4 {
		t.Errorf("counts after merging: %d and %d, want 2 and 4", other.Count(), s.Count())
	}
}

// TestOneValue: no estimate is outside of the values there are.
func TestOneValue(t *testing.T) {
	for _, v := range []float64{0, 5, 1e-300, math.SmallestNonzeroFloat64, math.MaxFloat64} {
		s := sketchOf([]float64{v, v, v})
		if got := s.Quantile(0.5); got != v {
			t.Errorf("median of %v is %v", v, got)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([]float64, 4096)
	for i := range values {
		values[i] = math.Exp(10 + 3*rng.NormFloat64())
	}
	var s Sketch
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		s.Add(values[i%len(values)])
		i++
	}
}

func BenchmarkQuantile(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s Sketch
	for range 100_000 {
		s.Add(math.Exp(10 + 3*rng.NormFloat64()))
	}
	for b.Loop() {
		s.Quantile(0.95)
	}
}
