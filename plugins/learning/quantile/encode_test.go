package quantile

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

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
			if !bytes.Equal(code(t, s), before) {
				t.Fatal("a failed decoding changed the sketch")
			}
			return
		}
		if len(s.counts) > maxBuckets {
			t.Fatalf("%d buckets", len(s.counts))
		}
		again := new(Sketch)
		if err := again.UnmarshalBinary(code(t, s)); err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		if !bytes.Equal(code(t, again), code(t, s)) {
			t.Fatalf("decoded %+v, then %+v", s, again)
		}
		again.Merge(s)
		again.Add(1)
		if again.Count() != 2*s.Count()+1 {
			t.Fatalf("count %d after merging %d twice and one more", again.Count(), s.Count())
		}
		last := 0.0
		for _, q := range shares {
			x := s.Quantile(q)
			if !(x >= last && x <= s.max) {
				t.Fatalf("quantile %v is %v after %v", q, x, last)
			}
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
	if want := head(0, 1, 1, 0, 2); !bytes.Equal(good, want) {
		t.Fatalf("two ones are %v, want %v", good, want)
	}
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
