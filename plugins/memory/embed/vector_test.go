package embed

import (
	"math"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestQuantise(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		in   []float32
		want Vector
	}{
		{nil, nil},
		{[]float32{}, nil},
		{[]float32{0, 0, 0}, nil},
		{[]float32{1}, Vector{127}},
		{[]float32{-2, 1, 0}, Vector{-127, 64, 0}},
		{[]float32{1e-45, 0, -1e-45}, Vector{127, 0, -127}},
		{[]float32{math.MaxFloat32, -math.MaxFloat32}, Vector{127, -127}},
		{[]float32{1, nan}, nil},
		{[]float32{inf, 1}, nil},
		{[]float32{1, -inf}, nil},
	} {
		if got := Quantise(c.in); !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("Quantise(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestCosine(t *testing.T) {
	long := make(Vector, 140_000) // the sum of its products does not fit 32 bits
	for i := range long {
		long[i] = 127
	}
	for _, c := range []struct {
		v, o Vector
		want float64
	}{
		{nil, nil, 0}, {Vector{}, Vector{}, 0}, {Vector{1}, nil, 0}, {Vector{1, 2}, Vector{1}, 0}, {Vector{0, 0}, Vector{1, 1}, 0},
		{Vector{127}, Vector{127}, 1}, {Vector{127, 0}, Vector{0, 127}, 0}, {Vector{127, 10}, Vector{-127, -10}, -1},
		{Vector{127, 127}, Vector{127, 0}, math.Sqrt2 / 2}, {Vector{3, 4}, Vector{4, 3}, 0.96}, {long, long, 1},
		{Vector{-128, 127}, Vector{-128, 127}, 1},
	} {
		if got := c.v.Cosine(c.o); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%d and %d components: %v, want %v", len(c.v), len(c.o), got, c.want)
		}
	}
}

func TestSketch(t *testing.T) {
	if got := Vector(nil).Sketch(); got != nil {
		t.Errorf("of nothing: %v", got)
	}
	v := make(Vector, 65)
	v[0], v[1], v[63], v[64] = 1, -1, 127, 5
	if got, want := v.Sketch(), []uint64{1 | 1<<63, 1}; !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

// What Quantise keeps is the direction, and what Cosine and Sketch say of it.
func TestVectorProperties(t *testing.T) {
	size := rapid.IntRange(1, 200)
	rapid.Check(t, func(t *rapid.T) {
		n := size.Draw(t, "size")
		floats := rapid.SliceOfN(rapid.Float32Range(-1, 1), n, n)
		x, y := floats.Draw(t, "x"), floats.Draw(t, "y")
		x[0], y[n-1] = 1, -1 // neither is zero
		v, o := Quantise(x), Quantise(y)
		if top := max(slices.Max(v), -slices.Min(v)); top != 127 {
			t.Fatalf("the largest component is %d", top)
		}
		got := v.Cosine(o)
		if back := o.Cosine(v); got != back || got < -1 || got > 1 {
			t.Fatalf("%v one way, %v the other", got, back)
		}
		if exact := cosine(x, y); math.Abs(got-exact) > 0.02 {
			t.Fatalf("the cosine %v became %v", exact, got)
		}
		if own := v.Cosine(v); math.Abs(own-1) > 1e-12 {
			t.Fatalf("%v to itself", own)
		}
		scaled := slices.Clone(x)
		for i := range scaled {
			scaled[i] *= 4 // exact, so that the direction is the same
		}
		if !slices.Equal(Quantise(scaled), v) {
			t.Fatal("the length of a vector changes its direction")
		}
		if len(v.Sketch()) != (n+63)/64 {
			t.Fatalf("%d components have a sketch of %d words", n, len(v.Sketch()))
		}
	})
}

func cosine(x, y []float32) float64 {
	var dot, xx, yy float64
	for i := range x {
		a, b := float64(x[i]), float64(y[i])
		dot, xx, yy = dot+a*b, xx+a*a, yy+b*b
	}
	return dot / math.Sqrt(xx*yy)
}

// The bits in which two sketches differ tell the angle, nearly.
func TestSketchTellsTheAngle(t *testing.T) {
	set := readSet(t)
	var texts []string
	for _, e := range set.Entries {
		texts = append(texts, e.Text)
	}
	vectors := embedded(t, Hashed(), texts...)
	off, worst, pairs := 0.0, 0.0, 0.0
	for i, v := range vectors {
		for _, o := range vectors[:i+1] {
			distance := 0
			a, b := v.Sketch(), o.Sketch()
			for k := range a {
				distance += bits.OnesCount64(a[k] ^ b[k])
			}
			d := math.Abs(float64(distance)/hashedSize - math.Acos(v.Cosine(o))/math.Pi)
			off, worst, pairs = off+d, max(worst, d), pairs+1
		}
	}
	if off/pairs > 0.03 || worst > 0.15 {
		t.Errorf("sketches are off by %.3f of a half turn, %.3f at worst", off/pairs, worst)
	}
}

func BenchmarkCosine(b *testing.B) {
	v := embedded(b, Hashed(), "Postgres connection timeout", "the connection pool of Postgres")
	for b.Loop() {
		v[0].Cosine(v[1])
	}
}
