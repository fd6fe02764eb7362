package quantile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

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
	r := reader{rest: data}
	r.bytes(1)
	n := Sketch{zeros: r.uvarint(), min: r.float(), max: r.float()}
	n.total = n.zeros
	r.bad = r.bad || n.zeros > maxTotal
	if !r.bad && len(r.rest) > 0 {
		r.buckets(&n)
	}
	if r.bad || !n.sound() {
		return errSketch
	}
	*s = n
	return nil
}

// sound tells whether what was decoded can be a sketch: values where min and max say.
func (s *Sketch) sound() bool {
	if s.total == 0 {
		return s.min == 0 && s.max == 0
	}
	if !(s.min >= 0 && s.min <= s.max && s.max <= math.MaxFloat64) {
		return false
	}
	if (s.zeros > 0) != (s.min == 0) || (len(s.counts) > 0) != (s.max > 0) {
		return false
	}
	if len(s.counts) == 0 {
		return true
	}
	// the lowest bucket may hold what was below
	return bucket(s.max) == s.highest() && (s.zeros > 0 || bucket(s.min) <= s.low)
}

// reader takes an encoding apart. After the first mistake it is bad and gives zeros.
type reader struct {
	rest []byte
	bad  bool
}

// buckets reads the buckets to the end of the data.
func (r *reader) buckets(s *Sketch) {
	s.low = int(min(max(r.varint(), -1<<20), 1<<20))
	at := 0
	for {
		n := r.uvarint()
		if r.bad || n == 0 || n > maxTotal-s.total {
			r.bad = true
			return
		}
		for len(s.counts) <= at {
			s.counts = append(s.counts, make([]uint64, chunk)...)
		}
		s.counts[at] = n
		s.total += n
		if len(r.rest) == 0 {
			return
		}
		gap := r.uvarint()
		if gap == 0 || gap >= uint64(maxBuckets-at) {
			r.bad = true
			return
		}
		at += int(gap)
	}
}

// bytes takes the next n bytes off.
func (r *reader) bytes(n int) []byte {
	if r.bad || n > len(r.rest) {
		r.bad = true
		return make([]byte, n)
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) float() float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(r.bytes(8)))
}

func (r *reader) uvarint() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.bytes(size)
	return n
}

func (r *reader) varint() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.bytes(size)
	return n
}
