// Package quantile estimates quantiles of a stream, such as the p95 of durations, in
// little memory.
package quantile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

const (
	// accuracy is the relative error of an estimate.
	accuracy = 0.01
	// logGamma is ln((1+accuracy)/(1-accuracy)), the width of a bucket in logarithms.
	logGamma = 0.02000066670666952
	// lowest and buckets are those of durations in seconds: from a nanosecond to 292 years, the
	// longest that there is.
	lowest  = -1040
	buckets = 2200
)

// Sketch counts durations, in seconds, in buckets whose width is in proportion to their place, so
// that any quantile comes out with a relative error of 1 %. Two sketches merge without loss.
// It is DDSketch of Masson, Rim, Lee, "DDSketch: A fast and fully-mergeable quantile
// sketch with relative-error guarantees", PVLDB 12 (2019), with a fixed range.
//
// The zero value is an empty sketch. A Sketch must not be copied after its first use,
// nor used by several goroutines at once.
type Sketch struct {
	counts   []uint64 // of the buckets from lowest on; nil = all are empty
	zeros    uint64   // values that are 0 or below
	total    uint64   // all values
	min, max float64
}

// Add counts a value. What is below 0 counts as 0, what is outside of the range in its first or
// last bucket, and no number not at all.
func (s *Sketch) Add(v float64) {
	if math.IsNaN(v) {
		return
	}
	v = min(max(v, 0), math.MaxFloat64)
	s.span(v, v)
	s.total++
	if v == 0 {
		s.zeros++
		return
	}
	s.room()
	s.counts[bucket(v)]++
}

// Count is the number of values.
func (s *Sketch) Count() uint64 { return s.total }

// Quantile estimates the least value that a share q of the values, in [0, 1], does not exceed:
// of n values in order, the one with the rank ceil(q n), counted from 1. The estimate is
// at most 1 % off (see [Sketch]); q = 0 and q = 1 are exact. It is 0 for an empty sketch.
func (s *Sketch) Quantile(q float64) float64 {
	switch {
	case s.total == 0:
		return 0
	case !(q > 0):
		return s.min
	case q >= 1:
		return s.max
	}
	rank := uint64(math.Ceil(q * float64(s.total)))
	seen := s.zeros
	if rank <= seen {
		return 0
	}
	for i, n := range s.counts {
		if seen += n; rank <= seen {
			// the least and the largest value are known: no estimate is outside
			return min(max(value(i), s.min), s.max)
		}
	}
	return s.max
}

// Merge counts all values of other, which stays as it is.
func (s *Sketch) Merge(other *Sketch) {
	if other.total == 0 {
		return
	}
	s.span(other.min, other.max)
	s.total += other.total
	s.zeros += other.zeros
	if other.counts != nil {
		s.room()
	}
	for i, n := range other.counts {
		s.counts[i] += n
	}
}

// span widens min and max. It must come before total counts the values.
func (s *Sketch) span(low, high float64) {
	if s.total == 0 || low < s.min {
		s.min = low
	}
	if s.total == 0 || high > s.max {
		s.max = high
	}
}

// room makes the buckets where there are none.
func (s *Sketch) room() {
	if s.counts == nil {
		s.counts = make([]uint64, buckets)
	}
}

// bucket is where v > 0 is counted: place i holds (gamma^(lowest+i-1), gamma^(lowest+i)].
func bucket(v float64) int {
	x := math.Log(v) * (1 / logGamma)
	i := int(x)
	if float64(i) < x { // rounded up; math.Ceil costs as much as all the rest
		i++
	}
	return min(max(i-lowest, 0), buckets-1)
}

// value is the estimate for the values at a place: at most accuracy from both its ends.
func value(place int) float64 {
	return math.Exp(float64(lowest+place)*logGamma) * (1 - accuracy)
}

// version is the first byte of an encoded sketch. It stands for the layout and for the
// accuracy, without which the buckets mean nothing.
const version = 1

// maxTotal bounds the values of an encoded sketch: as many as a float64 counts exactly,
// and a thousand of them merge without overflow.
const maxTotal = 1 << 53

var errSketch = errors.New("not an encoded quantile sketch")

// MarshalBinary encodes the sketch, in two or three bytes for each bucket in use:
//
//	version | zeros | min | max | { gap | count } …
//
// zeros and counts are uvarints, min and max 8 bytes each (little endian). A gap is how
// many buckets up from the one before, the first a varint from bucket 0, the others
// uvarints. Sketches of the same values have the same code. The error is always nil.
func (s *Sketch) MarshalBinary() ([]byte, error) {
	b := []byte{version}
	b = binary.AppendUvarint(b, s.zeros)
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.min))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(s.max))
	last := -1
	for i, n := range s.counts {
		switch {
		case n == 0:
			continue
		case last < 0:
			b = binary.AppendVarint(b, int64(lowest+i))
		default:
			b = binary.AppendUvarint(b, uint64(i-last))
		}
		b = binary.AppendUvarint(b, n)
		last = i
	}
	return b, nil
}

// UnmarshalBinary sets the sketch to an encoded one. On an error, of bytes that
// MarshalBinary did not make or of another version, the sketch stays as it was.
func (s *Sketch) UnmarshalBinary(data []byte) error {
	if len(data) > 0 && data[0] != version {
		return fmt.Errorf("%w: version %d, only %d is known", errSketch, data[0], version)
	}
	var n Sketch
	if len(data) == 0 || !n.read(bytes.NewReader(data[1:])) || !n.sound() {
		return errSketch
	}
	*s = n
	return nil
}

// read reads all of an encoding behind its version. It reports whether it can be one.
func (s *Sketch) read(r *bytes.Reader) bool {
	zeros, err := binary.ReadUvarint(r)
	var bounds [2]float64
	if err != nil || zeros > maxTotal || binary.Read(r, binary.LittleEndian, &bounds) != nil {
		return false
	}
	s.zeros, s.total, s.min, s.max = zeros, zeros, bounds[0], bounds[1]
	if r.Len() == 0 {
		return true
	}
	first, err := binary.ReadVarint(r)
	at := first - lowest
	for s.room(); err == nil && 0 <= at && at < buckets; {
		n, failed := binary.ReadUvarint(r)
		if failed != nil || n == 0 || n > maxTotal-s.total {
			return false
		}
		s.counts[at] += n
		s.total += n
		if r.Len() == 0 {
			return bucket(s.max) == int(at) && (s.zeros > 0 || bucket(s.min) == int(first)-lowest)
		}
		var gap uint64
		gap, err = binary.ReadUvarint(r)
		if gap == 0 || gap > buckets {
			return false
		}
		at += int64(gap)
	}
	return false
}

// sound reports whether what was decoded can be a sketch: values where min and max say.
func (s *Sketch) sound() bool {
	if s.total == 0 {
		return s.min == 0 && s.max == 0
	}
	return s.min >= 0 && s.min <= s.max && s.max <= math.MaxFloat64 && (s.zeros > 0) == (s.min == 0) && (s.counts != nil) == (s.max > 0)
}
