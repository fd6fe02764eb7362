// Package embed turns texts into vectors, so that texts about the same thing can
// be found by the angle between them.
//
// There are two embedders: Hashed is built in and lexical, it needs nothing but
// the text; NewEndpoint asks an OpenAI-compatible server for the vectors of a
// model that knows meanings. The package also splits texts into search words
// (Words) and measures how much of a query a text contains (Grams).
package embed

import (
	"context"
	"math"
)

// Model names what made a vector: vectors of different models never compare.
type Model struct {
	Name string
	Size int // dimensions; 0 = not known before the first answer
}

// Embedder turns texts into vectors. It is safe for concurrent use.
type Embedder interface {
	// Model names the embedder's vectors.
	Model() Model
	// Embed returns one vector for each text, in order; nil for a text without
	// anything to embed. An error means that none was made (the endpoint is
	// down...): callers go on without vectors.
	Embed(ctx context.Context, texts []string) ([]Vector, error)
}

// Vector is a direction: its components are those of the original vector, scaled
// so that the largest of them is 127 or -127, and rounded. Only the angle to
// another vector means anything. An empty Vector is that of a text without
// anything to embed.
type Vector []int8

// Quantise returns the Vector that points where v points. One that points nowhere
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

// Cosine returns the cosine of the angle between two vectors, from -1 to 1; 0 when
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

// products returns v·o, v·v and o·o of at most 2^16 components each.
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

// Sketch returns one bit for each component, set if it is positive, packed into
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
