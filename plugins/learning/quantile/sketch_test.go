package quantile

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"

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
func code(t must.TB, s *Sketch) []byte {
	return must.Get(s.MarshalBinary())(t)
}

// exact is the quantile by the definition: the least value that a share q of all does not exceed.
func exact(values []float64, q float64) float64 {
	sorted := slices.Clone(values)
	for i, v := range sorted {
		sorted[i] = max(v, 0)
	}
	slices.Sort(sorted)
	for _, v := range sorted {
		within := 0
		for _, w := range sorted {
			if w <= v {
				within++
			}
		}
		if float64(within) >= q*float64(len(sorted)) {
			return v
		}
	}
	return sorted[len(sorted)-1]
}

// close1 reports whether got is at most 1 % from want.
func close1(got, want float64) bool {
	return math.Abs(got-want) <= (accuracy+1e-9)*want
}

// durations draws values within the range of a sketch, of zero and below some, in clusters
// and spread out.
func durations() *rapid.Generator[[]float64] {
	return rapid.Custom(func(t *rapid.T) []float64 {
		unit := rapid.Float64Range(1e-9, 1e-6).Draw(t, "unit")
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
		must.Equal(t, s.Count(), uint64(len(values)), "count … of %d values", len(values))
		for _, q := range append(shares, rapid.Float64Range(0, 1).Draw(t, "q")) {
			got, want := s.Quantile(q), exact(values, q)
			must.That(t, close1(got, want), "quantile %v: got %v, want %v", q, got, want)
			must.That(t, q != 0 && q != 1 || got == want, "quantile %v: got %v, want exactly %v", q, got, want)
		}
	})
}

// anything draws values without bounds.
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
		must.That(t, bytes.Equal(code(t, merged), code(t, all)), "merged %+v, all added %+v", merged, all)
		must.That(t, bytes.Equal(code(t, other), before), "merging changed the other one")
		var again Sketch
		must.OK(t, again.UnmarshalBinary(before))
		must.That(t, bytes.Equal(code(t, &again), before), "decoded %+v, was %+v", again, other)
	})
}

func TestZeroValue(t *testing.T) {
	var s, other Sketch
	if s.Count() != 0 || s.Quantile(0.5) != 0 {
		t.Errorf("empty: count %d, median %v", s.Count(), s.Quantile(0.5))
	}
	s.Merge(&other)
	s.Add(math.NaN())
	assert.Equal(t, s.Count(), 0, "nothing and no number count")
	s.Add(-3)
	s.Add(7)
	s.Merge(&other)
	if s.Count() != 2 || s.Quantile(0) != 0 || s.Quantile(1) != 7 || s.Quantile(math.NaN()) != 0 {
		t.Errorf("count %d, from %v to %v", s.Count(), s.Quantile(0), s.Quantile(1))
	}
	s.Add(1e-300)
	s.Add(1e300)
	if s.Count() != 4 || s.Quantile(0) != 0 || !close1(s.Quantile(0.75), 7) || s.Quantile(1) != 1e300 {
		t.Errorf("beyond the range: count %d, from %v to %v", s.Count(), s.Quantile(0), s.Quantile(1))
	}
	other.Merge(&s)
	s.Merge(&s)
	if other.Count() != 4 || s.Count() != 8 {
		t.Errorf("counts after merging: %d and %d, want 4 and 8", other.Count(), s.Count())
	}
}

// FuzzUnmarshal: any bytes either fail and change nothing, or give a sketch that works.
func FuzzUnmarshal(f *testing.F) {
	for _, s := range []*Sketch{{}, sketchOf([]float64{0}), sketchOf([]float64{1, 2, 3, 1e9, 0}), sketchOf([]float64{1e-300, 1e300})} {
		f.Add(code(f, s))
	}
	f.Add([]byte{})
	f.Add([]byte{2, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := sketchOf([]float64{5})
		before := code(t, s)
		if err := s.UnmarshalBinary(data); err != nil {
			must.That(t, bytes.Equal(code(t, s), before), "a failed decoding changed the sketch")
			return
		}
		again := new(Sketch)
		err := again.UnmarshalBinary(code(t, s))
		must.That(t, err == nil, "%+v: %v", s, err)
		must.That(t, bytes.Equal(code(t, again), code(t, s)), "decoded %+v, then %+v", s, again)
		again.Merge(s)
		again.Add(1)
		if again.Count() != 2*s.Count()+1 {
			t.Fatalf("count %d after merging %d twice and one more", again.Count(), s.Count())
		}
		last := 0.0
		for _, q := range shares {
			x := s.Quantile(q)
			must.That(t, x >= last && x <= s.max, "quantile %v is %v after %v", q, x, last)
			last = x
		}
	})
}

func TestUnmarshalRefuses(t *testing.T) {
	head := func(zeros uint64, low, high float64, rest ...byte) []byte {
		b := binary.AppendUvarint([]byte{version}, zeros)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(low))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(high))
		return append(b, rest...)
	}
	good := code(t, sketchOf([]float64{1, 1}))
	want := head(0, 1, 1, 0, 2)
	must.That(t, bytes.Equal(good, want), "two ones are %v, want %v", good, want)
	for name, data := range map[string][]byte{
		"nothing":                  {},
		"another version":          append([]byte{9}, good[1:]...),
		"cut off":                  good[:len(good)-1],
		"cut off before buckets":   good[:len(good)-2],
		"a bucket without values":  head(0, 1, value(1), 0, 0, 1, 1),
		"no gap":                   head(0, 1, 1, 0, 1, 0, 1),
		"too many buckets":         head(0, 1, value(3000), 0, 1, 0xb8, 0x17, 1),
		"too many zeros":           head(1<<60, 0, 0),
		"too many values":          head(0, 1, 1, append([]byte{0}, binary.AppendUvarint(nil, 1<<60)...)...),
		"too many together":        head(1, 0, 1, append([]byte{0}, binary.AppendUvarint(nil, maxTotal)...)...),
		"an endless number":        head(0, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"least above largest":      head(0, 2, 1, 0, 1),
		"no number":                head(0, math.NaN(), 1, 0, 1),
		"infinite":                 head(0, 1, math.Inf(1), 0, 1),
		"below zero":               head(0, -1, 1, 0, 1),
		"largest elsewhere":        head(0, 1, 100, 0, 1),
		"least above its bucket":   head(0, 5, 5, 0, 1, 81, 1),
		"zeros without zero":       head(1, 1, 1, 0, 1),
		"an empty one with bounds": head(0, 0, 1),
	} {
		s := sketchOf([]float64{5})
		if err := s.UnmarshalBinary(data); err == nil {
			t.Errorf("%s: decoded as %+v", name, s)
		} else if s.Count() != 1 {
			t.Errorf("%s: failed and changed the sketch", name)
		}
	}
}
