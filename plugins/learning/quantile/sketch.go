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
	// maxBuckets bounds the memory of a sketch. They span a factor of e^(2048·0.02), 6e17:
	// from a nanosecond to 19 years.
	maxBuckets = 2048
	// chunk is by how many buckets a sketch grows at least.
	chunk = 32
	// logGamma is ln((1+accuracy)/(1-accuracy)), the width of a bucket in logarithms:
	// twice the area tangent of accuracy, by its series (the next term is below 1e-31).
	logGamma = 2 * (accuracy + accuracy*a2/3 + accuracy*a2*a2/5 + accuracy*a2*a2*a2/7 +
		accuracy*a2*a2*a2*a2/9 + accuracy*a2*a2*a2*a2*a2/11 + accuracy*a2*a2*a2*a2*a2*a2/13)
	a2 = accuracy * accuracy
)

// Sketch counts values in buckets whose width is in proportion to their place, so that
// any quantile comes out with a relative error of 1 %. Two sketches merge without loss.
// It is DDSketch of Masson, Rim, Lee, "DDSketch: A fast and fully-mergeable quantile
// sketch with relative-error guarantees", PVLDB 12 (2019), algorithms 1 to 4.
//
// It has 2048 buckets at most. When values spread over more than that (a factor of
// 6e17), the lowest buckets become one and only low quantiles lose accuracy.
//
// The zero value is an empty sketch. A Sketch must not be copied after its first use,
// nor used by several goroutines at once.
type Sketch struct {
	counts   []uint64 // of the buckets low, low+1…; those outside [low, low+len) are empty
	low      int
	zeros    uint64 // values that are 0 or below
	total    uint64 // all values
	min, max float64
}

// Add counts a value: of a duration, in whatever unit quantiles are wanted in. What is
// below 0 counts as 0, infinity as the largest number, and no number not at all.
func (s *Sketch) Add(v float64) {
	if !(v > 0) {
		if !math.IsNaN(v) {
			s.span(0, 0)
			s.zeros++
			s.total++
		}
		return
	}
	if v > math.MaxFloat64 {
		v = math.MaxFloat64
	}
	s.span(v, v)
	s.total++
	s.addTo(bucket(v), 1)
}

// Count is the number of values.
func (s *Sketch) Count() uint64 { return s.total }

// Quantile estimates the value that a share q of the values, in [0, 1], does not exceed:
// of n values in order, the one at place floor(q (n-1)), counted from 0. The estimate is
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
	rank := uint64(q * float64(s.total-1))
	seen := s.zeros
	if rank < seen {
		return 0
	}
	for i, n := range s.counts {
		if seen += n; rank < seen {
			// the least and the largest value are known: no estimate is outside
			return min(max(value(s.low+i), s.min), s.max)
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
	// the highest first: then the buckets that would be dropped are known at once
	for i := len(other.counts) - 1; i >= 0; i-- {
		if n := other.counts[i]; n > 0 {
			s.addTo(other.low+i, n)
		}
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

// bucket is where v > 0 is counted: bucket i holds (gamma^(i-1), gamma^i].
func bucket(v float64) int {
	x := math.Log(v) * (1 / logGamma)
	i := int(x)
	if float64(i) < x { // rounded up; math.Ceil costs as much as all the rest
		i++
	}
	return i
}

// value is the estimate for the values of a bucket: at most accuracy from both its ends.
func value(bucket int) float64 { return math.Exp(float64(bucket)*logGamma) * (1 - accuracy) }

// addTo counts n values in a bucket.
func (s *Sketch) addTo(bucket int, n uint64) {
	i := bucket - s.low
	if i < 0 || i >= len(s.counts) {
		i = s.grow(bucket)
	}
	s.counts[i] += n
}

// grow returns the place of a bucket outside counts, making room for it. It keeps the
// highest maxBuckets there are; those below are counted in the lowest of them.
func (s *Sketch) grow(bucket int) int {
	if len(s.counts) == 0 {
		s.low, s.counts = bucket, make([]uint64, chunk)
		return 0
	}
	high := max(bucket, s.highest())
	least := high - maxBuckets + 1
	bucket = max(bucket, least)
	if i := bucket - s.low; i >= 0 && i < len(s.counts) {
		return i
	}
	low := max(min(bucket, s.low), least)
	size := min((high-low)/chunk*chunk+chunk, maxBuckets)
	if bucket < s.low {
		low = high - size + 1 // what is left of the chunk is room below
	}
	counts := make([]uint64, size)
	for i, n := range s.counts {
		if n > 0 {
			counts[max(s.low+i-low, 0)] += n
		}
	}
	s.low, s.counts = low, counts
	return bucket - low
}

// highest is the highest bucket that is not empty; there is one.
func (s *Sketch) highest() int {
	i := len(s.counts) - 1
	for i > 0 && s.counts[i] == 0 {
		i--
	}
	return s.low + i
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
	last, first := 0, true
	for i, n := range s.counts {
		if n == 0 {
			continue
		}
		if gap := s.low + i - last; first {
			b = binary.AppendVarint(b, int64(gap))
		} else {
			b = binary.AppendUvarint(b, uint64(gap))
		}
		b = binary.AppendUvarint(b, n)
		last, first = s.low+i, false
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
	low, err := binary.ReadVarint(r)
	if err != nil {
		return false
	}
	s.low = int(min(max(low, -1<<20), 1<<20))
	for at := 0; ; {
		n, err := binary.ReadUvarint(r)
		if err != nil || n == 0 || n > maxTotal-s.total {
			return false
		}
		for len(s.counts) <= at {
			s.counts = append(s.counts, make([]uint64, chunk)...)
		}
		s.counts[at] = n
		s.total += n
		if r.Len() == 0 {
			return true
		}
		gap, err := binary.ReadUvarint(r)
		if err != nil || gap == 0 || gap >= uint64(maxBuckets-at) {
			return false
		}
		at += int(gap)
	}
}

// sound reports whether what was decoded can be a sketch: values where min and max say.
func (s *Sketch) sound() bool {
	switch {
	case s.total == 0:
		return s.min == 0 && s.max == 0
	case !(s.min >= 0 && s.min <= s.max && s.max <= math.MaxFloat64),
		(s.zeros > 0) != (s.min == 0), (len(s.counts) > 0) != (s.max > 0):
		return false
	}
	// the lowest bucket may hold what was below
	return len(s.counts) == 0 || bucket(s.max) == s.highest() && (s.zeros > 0 || bucket(s.min) <= s.low)
}
