package embed

import (
	"context"
	"math/bits"
	"sync"
)

const (
	hashedName = "a2e-hashed-1" // to be raised with any change to the vectors
	hashedSize = 512
	blocks     = 32 // components that one feature touches, one of each block
)

// hashed is the built-in embedder.
type hashed struct {
	pool sync.Pool // of *sums
}

// Hashed gives the built-in embedder "a2e-hashed-1" of 512 dimensions. It works
// offline, keeps nothing, and gives the same vectors on every machine.
//
// It is lexical: texts are near each other that share words, parts of words or
// neighbouring words. So it finds other forms of a word, misspelt ones and
// another word order; it knows no synonyms and no meanings, and of a language
// nothing but a list of the commonest English and German words, which count
// little. What lies beyond the first 16 KiB of a text is not looked at.
func Hashed() Embedder {
	h := &hashed{}
	h.pool.New = func() any { return newSums() }
	return h
}

// Model gives the name and size of the built-in vectors.
func (*hashed) Model() Model { return Model{Name: hashedName, Size: hashedSize} }

// Embed gives the vectors of texts. It fails only if ctx has ended.
func (h *hashed) Embed(ctx context.Context, texts []string) ([]Vector, error) {
	s := h.pool.Get().(*sums)
	defer h.pool.Put(s)
	out := make([]Vector, len(texts))
	for i, text := range texts {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		out[i] = s.vector(text)
	}
	return out, nil
}

// sums adds up the features of a text. Everything is counted in integers, which
// add up alike on every machine.
type sums struct {
	features features
	counts   table
	total    [hashedSize]int32
}

func newSums() *sums {
	s := &sums{}
	// found by trial on testdata/retrieval.json, where half and double do about as well
	s.features.weights = weights{word: 12, gram3: 16, gram4: 10, pair: 8, single: 6}
	s.features.add = s.counts.add
	return s
}

// vector gives the vector of a text, nil if it has no words.
func (s *sums) vector(text string) Vector {
	s.counts.reset(2048)
	s.features.of(text)
	clear(s.total[:])
	for _, c := range s.counts.cells {
		if c.times > 0 {
			s.spread(c.hash, damped(c.weight, c.times))
		}
	}
	var v [hashedSize]float32
	for i, n := range s.total {
		v[i] = float32(n)
	}
	return Quantise(v[:])
}

// spread adds a feature: its weight, or minus its weight, to one component of
// each block, both as its hash says.
func (s *sums) spread(hash uint64, weight int32) {
	// eight blocks take their bits from one word, a byte each
	const part, step = hashedSize / blocks * 8, hashedSize / blocks
	for from := 0; from < hashedSize; from += part {
		hash = mix(hash)
		total := (*[part]int32)(s.total[from : from+part])
		bytes := hash
		for at := 0; at < part; at += step {
			sign := int32(int8(bytes)) >> 31 // 0 or -1
			i := at | int(bytes&(step-1))
			total[i&(part-1)] += (weight ^ sign) - sign // the mask spares a bounds check
			bytes >>= 8
		}
	}
}

// damped gives the weight of a feature that occurs so many times: it grows with
// the logarithm, so that a text is not about its most repeated word alone.
func damped(weight, times int32) int32 {
	octave := bits.Len32(uint32(times)) - 1
	// in steps of 1/8 octave, linear between powers of two
	eighths := int32(octave)*8 + (times-1<<octave)*8>>octave
	return weight * (16 + eighths) / 16
}
