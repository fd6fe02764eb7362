package embed

import (
	"math"
)

// Vector is a direction: its components are those of the original vector, scaled
// so that the largest of them is 127 or -127, and rounded. Only the angle to
// another vector means anything. An empty Vector is that of a text without
// anything to embed.
type Vector []int8

// Quantise gives the Vector that points where v points. One that points nowhere
// gives nil: it is empty or zero, or has a component that is no finite number.
func Quantise(v []float32) Vector {
	top := 0.0
	for _, f := range v {
		a := math.Abs(float64(f))
		if math.IsNaN(a) || math.IsInf(a, 0) {
			return nil
		}
		top = max(top, a)
	}
	if top == 0 {
		return nil
	}
	out := make(Vector, len(v))
	for i, f := range v {
		// divided first: the quotient is at most 1, whatever the size of top
		out[i] = int8(math.RoundToEven(float64(f) / top * 127))
	}
	return out
}

// Cosine gives the cosine of the angle between two vectors, from -1 to 1; 0 when
// their lengths differ or one is empty.
func (v Vector) Cosine(o Vector) float64 {
	if len(v) != len(o) || len(v) == 0 {
		return 0
	}
	var dot, vv, oo int64
	// a component's product is at most 2^14, so that 2^16 of them fit an int32,
	// which adds up faster
	for len(v) > 0 {
		n := min(len(v), 1<<16)
		d, a, b := products(v[:n], o[:n])
		dot, vv, oo = dot+int64(d), vv+int64(a), oo+int64(b)
		v, o = v[n:], o[n:]
	}
	if vv == 0 || oo == 0 {
		return 0
	}
	return max(-1, min(1, float64(dot)/math.Sqrt(float64(vv)*float64(oo))))
}

// products gives v·o, v·v and o·o of at most 2^16 components each.
func products(v, o []int8) (dot, vv, oo int32) {
	o = o[:len(v)]
	for i, a := range v {
		x, y := int32(a), int32(o[i])
		dot += x * y
		vv += x * x
		oo += y * y
	}
	return dot, vv, oo
}

// Sketch gives one bit for each component, set if it is positive, packed into
// ceil(len/64) words from the lowest bit up: the Hamming distance of two sketches
// approximates the angle between their vectors.
func (v Vector) Sketch() []uint64 {
	if len(v) == 0 {
		return nil
	}
	out := make([]uint64, (len(v)+63)/64)
	for i, c := range v {
		if c > 0 {
			out[i/64] |= 1 << (i % 64)
		}
	}
	return out
}
