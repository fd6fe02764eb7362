// Package embed turns texts into vectors, so that texts about the same thing can
// be found by the angle between them.
//
// NewEndpoint returns an Embedder that asks an OpenAI-compatible server for vectors; None returns one that
// makes no vectors. The package also splits texts into search words (Words), makes the keys by which other
// forms and misspellings of a word are found (Keys), and measures how much of a query a text contains (Query).
package embed

import (
	"context"
	"encoding/binary"
	"math"
)

// Model is the model that made a vector. Vectors of different models cannot be compared.
type Model struct {
	Name string
	Size int // dimensions; 0 = not known before the first answer
}

// Embedder turns texts into vectors. It is safe for concurrent use.
type Embedder interface {
	// Model returns the model of the embedder's vectors.
	Model() Model
	// Embed returns one vector for each text, in order; the vector of a text without
	// anything to embed is nil. An error means that no vector was made, for example
	// because the endpoint is down; callers then go on without vectors.
	Embed(ctx context.Context, texts []string) ([]Vector, error)
}

// None returns the embedder of a host without a model: it makes no vectors, and its Model has
// no name.
func None() Embedder { return none{} }

type none struct{}

func (none) Model() Model { return Model{} }

func (none) Embed(_ context.Context, texts []string) ([]Vector, error) {
	return make([]Vector, len(texts)), nil
}

// Vector is a direction: its components are those of the original vector, scaled and
// rounded so that the largest of them is 32767 or -32767. One byte per component would be too
// coarse: the vectors of some models lie so close together that any two have a cosine of 0.7 or
// more. Only the angle to another vector has a meaning. The Vector of a text without anything to
// embed is empty.
type Vector []int16

// Quantise returns the Vector with the direction of v, or nil if v has no direction: it is empty or
// zero, or has a component that is not finite.
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
		out[i] = int16(math.RoundToEven(float64(f) / top * math.MaxInt16))
	}
	return out
}

// Bytes returns the vector as it is stored: one byte for each component if all fit, otherwise two
// bytes, the low one first.
func (v Vector) Bytes() []byte {
	for _, c := range v {
		if c > math.MaxInt8 || c < -math.MaxInt8 {
			out, _ := binary.Append(nil, binary.LittleEndian, []int16(v)) // fails only for other types
			return out
		}
	}
	out := make([]byte, len(v))
	for i, c := range v {
		out[i] = byte(c)
	}
	return out
}

// VectorOf returns the vector of size dimensions that Bytes encoded as raw, or nil if raw has another
// size.
func VectorOf(raw []byte, size int) Vector {
	if size == 0 || len(raw) != size && len(raw) != 2*size {
		return nil
	}
	v := make(Vector, size)
	for i := range v {
		if len(raw) == size {
			v[i] = int16(int8(raw[i]))
		} else {
			v[i] = int16(binary.LittleEndian.Uint16(raw[2*i:]))
		}
	}
	return v
}

// Cosine returns the cosine of the angle between two vectors, from -1 to 1; 0 when
// their lengths differ or one is empty.
func (v Vector) Cosine(o Vector) float64 {
	if len(v) != len(o) || len(v) == 0 {
		return 0
	}
	var dot, vv, oo int64
	for i, a := range v {
		x, y := int64(a), int64(o[i])
		dot += x * y
		vv += x * x
		oo += y * y
	}
	if vv == 0 || oo == 0 {
		return 0
	}
	return max(-1, min(1, float64(dot)/math.Sqrt(float64(vv)*float64(oo))))
}

// unit returns a vector scaled to the length 1.
func (v Vector) unit() []float32 {
	sum := 0.0
	for _, c := range v {
		sum += float64(c) * float64(c)
	}
	scale := 1 / math.Sqrt(max(sum, 1))
	out := make([]float32, len(v))
	for i, c := range v {
		out[i] = float32(float64(c) * scale)
	}
	return out
}
