package learning

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A histogram of durations counts in steps of 512 ns up to 65 µs, and within 1 % from there to longest. It
// takes 37 KiB of memory.
const (
	shortest = time.Microsecond
	longest  = 30 * 24 * time.Hour
	digits   = 2
)

// durations counts durations. The zero value is empty and takes no memory. It must not be copied after its
// first use.
type durations struct{ histogram *hdrhistogram.Histogram }

// add counts a duration n times. A duration outside of the range counts as the nearest one inside.
func (d *durations) add(v time.Duration, n int64) {
	if d.histogram == nil {
		d.histogram = hdrhistogram.New(int64(shortest), int64(longest), digits)
	}
	_ = d.histogram.RecordValues(int64(min(max(v, 0), longest)), n) // fails only above longest
}

// merge adds the durations of other, which does not change.
func (d *durations) merge(other *durations) {
	for _, bar := range other.bars() {
		d.add(time.Duration(bar.From), bar.Count)
	}
}

// bars returns the count of each duration; some may be 0.
func (d *durations) bars() []hdrhistogram.Bar {
	if d.histogram == nil {
		return nil
	}
	return d.histogram.Distribution()
}

func (d *durations) count() int64 {
	if d.histogram == nil {
		return 0
	}
	return d.histogram.TotalCount()
}

// quantile returns the duration with rank ceil(q n) of n, counted from 1, or a little more, by the
// resolution of the histogram; 0 = there is none. q is in (0, 1].
func (d *durations) quantile(q float64) time.Duration {
	n := float64(d.count())
	if n == 0 {
		return 0
	}
	return time.Duration(d.histogram.ValueAtQuantile(100 * math.Ceil(q*n) / n)) // it rounds to the nearest rank
}

// The first byte of encoded durations is the version of the encoding. Old ones are read by readOld.
const (
	versionOld = 1
	version    = 2
)

// maxDurations bounds the encoded durations, so that the sum of many does not overflow.
const maxDurations = 1 << 53

var errDurations = errors.New("not encoded durations")

// encode returns the durations as the version and { gap | count } …, all as uvarints; a gap is how many
// nanoseconds a duration is above the one before. No durations are no bytes. The histogram's own encoding
// is not used, as its decoder panics, loops or takes any amount of memory for some input.
func (d *durations) encode() []byte {
	if d.count() == 0 {
		return nil
	}
	b, last := []byte{version}, int64(0)
	for _, bar := range d.bars() {
		if bar.Count > 0 {
			b = binary.AppendUvarint(b, uint64(bar.From-last))
			b = binary.AppendUvarint(b, uint64(bar.Count))
			last = bar.From
		}
	}
	return b
}

// decodeDurations reads what encode of this or an earlier version of the program has written.
func decodeDurations(data []byte) (d durations, err error) {
	if len(data) == 0 {
		return d, nil
	}
	ok, r := false, bytes.NewReader(data[1:])
	switch data[0] {
	case versionOld:
		ok = d.readOld(r)
	case version:
		ok = d.read(r)
	default:
		return d, fmt.Errorf("%w: version %d, known are %d and %d", errDurations, data[0], versionOld, version)
	}
	if !ok {
		return durations{}, errDurations
	}
	return d, nil
}

// read adds the pairs after the version.
func (d *durations) read(r *bytes.Reader) bool {
	at := time.Duration(0)
	for r.Len() > 0 {
		gap, err := binary.ReadUvarint(r)
		if err != nil || gap > uint64(longest-at) {
			return false
		}
		at += time.Duration(gap)
		if !d.readCount(r, at) {
			return false
		}
	}
	return true
}

// readCount reads the count of a duration, and adds it.
func (d *durations) readCount(r *bytes.Reader, v time.Duration) bool {
	n, err := binary.ReadUvarint(r)
	if err != nil || n == 0 || n > uint64(maxDurations-d.count()) {
		return false
	}
	d.add(v, int64(n))
	return true
}

// readOld adds a sketch (DDSketch, of seconds within 1 %) in the encoding of version 1: the number of
// zeros, the least and the greatest duration as floats, and { gap | count } …. The first gap is the number
// of the first bucket as a varint.
func (d *durations) readOld(r *bytes.Reader) bool {
	const (
		lowest, highest = -1040, 1159         // buckets
		width           = 0.02000066670666952 // of a bucket, in logarithms
	)
	zeros, err := binary.ReadUvarint(r)
	var ends [2]float64
	if err != nil || zeros > maxDurations || binary.Read(r, binary.LittleEndian, &ends) != nil {
		return false
	}
	if !(0 <= ends[0] && ends[0] <= ends[1]) { // this also refuses NaN
		return false
	}
	if zeros > 0 {
		d.add(0, int64(zeros))
	}
	for bucket := int64(lowest); r.Len() > 0; {
		if bucket == lowest {
			bucket, err = binary.ReadVarint(r)
		} else if gap, failed := binary.ReadUvarint(r); gap <= highest-lowest {
			bucket, err = bucket+int64(gap), failed
		} else {
			return false
		}
		seconds := min(max(math.Exp(float64(bucket)*width)*0.99, ends[0]), ends[1], longest.Seconds())
		if err != nil || bucket < lowest || bucket > highest || !d.readCount(r, time.Duration(seconds*1e9)) {
			return false
		}
	}
	return true
}
