package learning

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/host/state/store"
)

// durationsOf returns a histogram of these durations.
func durationsOf(values ...time.Duration) *durations {
	d := &durations{}
	for _, v := range values {
		d.add(v, 1)
	}
	return d
}

// lengths draws lists of durations up to a day, clustered and spread out, none below zero.
func lengths() *rapid.Generator[[]time.Duration] {
	value := rapid.OneOf(
		rapid.Map(rapid.Float64Range(0, math.Log10(float64(24*time.Hour))),
			func(x float64) time.Duration { return time.Duration(math.Pow(10, x)) }),
		rapid.Map(rapid.IntRange(5000, 5200), func(n int) time.Duration { return time.Duration(n) * time.Millisecond }),
		rapid.Just(time.Duration(0)),
	)
	return rapid.Custom(func(t *rapid.T) []time.Duration {
		n := rapid.OneOf(rapid.SampledFrom([]int{1, 2, 3, 19, 20, 21, 100}), rapid.IntRange(1, 300)).Draw(t, "n")
		return rapid.SliceOfN(value, n, n).Draw(t, "values")
	})
}

// TestDurationsHaveTheNearestRank: a quantile is the duration of the nearest rank, within the resolution of the
// histogram. With a rank that is rounded down, the p95 could be below the median.
func TestDurationsHaveTheNearestRank(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		values := lengths().Draw(t, "all")
		d := durationsOf(values...)
		slices.Sort(values)
		n := len(values)
		for _, percent := range []int{1, 5, 25, 50, 75, 90, 95, 99, 100} {
			want := values[(percent*n+99)/100-1]
			got := d.quantile(float64(percent) / 100)
			must.That(t, want <= got && got <= want+max(want/100, 512), "of %d the %d %% are %v, want %v", n, percent,
				got, want)
		}
		must.That(t, d.quantile(0.95) >= d.quantile(0.5), "p95 %v, median %v", d.quantile(0.95), d.quantile(0.5))
	})
}

func TestDurationsAddUp(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		a, b := lengths().Draw(t, "a"), lengths().Draw(t, "b")
		sum, other := durationsOf(a...), durationsOf(b...)
		sum.merge(other)
		all := durationsOf(slices.Concat(a, b)...).encode()
		must.That(t, bytes.Equal(sum.encode(), all), "merged they are not as counted together")
		must.That(t, bytes.Equal(other.encode(), durationsOf(b...).encode()), "merging changed the other ones")
		again := must.Get(decodeDurations(all))(t)
		must.That(t, bytes.Equal(again.encode(), all), "decoded they are others")
	})
}

// TestDurationsAreBounded: durations outside of the range count as its ends, and the memory for one component is
// bounded.
func TestDurationsAreBounded(t *testing.T) {
	none := must.Get(decodeDurations(nil))(t)
	assert.That(t, none.count() == 0 && none.quantile(0.95) == 0 && none.encode() == nil, "none are %+v", none)
	d := durationsOf(-time.Second, math.MaxInt64)
	d.merge(&none)
	assert.That(t, d.count() == 2 && d.quantile(0.5) < time.Microsecond, "the least is %v", d.quantile(0.5))
	assert.That(t, d.quantile(1) >= longest && d.quantile(1) <= longest+longest/100, "the greatest is %v",
		d.quantile(1))
	assert.That(t, d.histogram.ByteSize() <= 38_000, "a component takes %d bytes", d.histogram.ByteSize())
}

// oldDurations is what the previous version stored for a call without a duration, and for twenty calls of 10.5 ms to
// 210 ms.
const oldDurations = "AQEAAAAAAAAAAOJ6FK5H4co/xQMBIgEVAQ4BCwEJAQgBBwEGAQUBBQEEAQQBBAEDAQMBAwEDAQMBAgE="

// TestDurationsOfAnOlderVersion: the durations of an older version still count, and are stored in the new form.
func TestDurationsOfAnOlderVersion(t *testing.T) {
	old := must.Get(base64.StdEncoding.DecodeString(oldDurations))(t)
	d := must.Get(decodeDurations(old))(t)
	assert.Equal(t, d.count(), 21, "calls")
	for rank := 1; rank <= 21; rank++ {
		got, want := d.quantile(float64(rank)/21), time.Duration(rank-1)*10500*time.Microsecond
		assert.That(t, (got-want).Abs() <= max(want/50, 512), "rank %d is %v, want %v", rank, got, want)
	}
	s := newStage(t, newFile(t), DefaultOptions())
	s.calls("grep", 1, 0)
	s.one("grep")
	must.OK(t, s.store.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec("UPDATE learning_components SET calls = 21, durations = $1 WHERE name = 'grep'", old)
		return err
	}))
	assert.That(t, math.Abs(s.one("grep").P95-199.5) <= 4, "p95 %v of what is stored", s.one("grep").P95)
	s.work(work{Kind: host.KindTool, Component: "grep", Times: 40, Millis: 1000})
	assert.That(t, math.Abs(s.one("grep").P95-1000) <= 10, "p95 %v after more calls", s.one("grep").P95)
	var stored []byte
	must.OK(t, s.store.Read(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get("SELECT durations FROM learning_components WHERE name = 'grep'", nil, &stored)
		return err
	}))
	d = must.Get(decodeDurations(stored))(t)
	assert.That(t, stored[0] == version && d.count() == 61, "stored is %x", stored)
	line := fmt.Sprintf(`{"kind":"learning.component","record":{"kind":"tool","component":"sed","calls":21,"successes":21,"durations":%q}}`, oldDurations)
	must.OK(t, imported(t, s.store, exportOf(line), store.Merge))
	assert.That(t, math.Abs(s.one("sed").P95-199.5) <= 4, "p95 %v of an import", s.one("sed").P95)
}

func TestDurationsThatAreRefused(t *testing.T) {
	numbers := func(first byte, all ...uint64) []byte {
		b := []byte{first}
		for _, n := range all {
			b = binary.AppendUvarint(b, n)
		}
		return b
	}
	old := func(zeros uint64, low, high float64, rest ...byte) []byte {
		b := binary.LittleEndian.AppendUint64(numbers(versionOld, zeros), math.Float64bits(low))
		return append(binary.LittleEndian.AppendUint64(b, math.Float64bits(high)), rest...)
	}
	must.Get(decodeDurations(old(0, 1, 1, 0, 2)))(t)
	must.Get(decodeDurations(numbers(version, 5, 1)))(t)
	for name, data := range map[string][]byte{
		"another version":       {9, 5, 1},
		"cut off":               numbers(version, 5),
		"none of them":          numbers(version, 5, 0),
		"above the range":       numbers(version, uint64(longest), 1, 1, 1),
		"far above it":          numbers(version, math.MaxUint64, 1),
		"too many":              numbers(version, 5, 1<<60),
		"too many together":     numbers(version, 5, maxDurations, 5, 1),
		"an endless number":     append(numbers(version), bytes.Repeat([]byte{0xff}, 11)...),
		"old: cut off":          old(0, 1, 1, 0),
		"old: no ends":          {versionOld, 1},
		"old: too many zeros":   old(1<<60, 0, 0),
		"old: too many":         old(1, 0, 1, append([]byte{0}, binary.AppendUvarint(nil, maxDurations)...)...),
		"old: none in a bucket": old(0, 1, 1, 0, 0),
		"old: no such bucket":   old(0, 1, 1, 0, 1, 0xb8, 0x17, 1),
		"old: a far bucket":     old(0, 1, 1, append([]byte{0, 1}, numbers(0xff, math.MaxUint64)...)...),
		"old: not a number":     old(0, math.NaN(), 1, 0, 1),
		"old: the least is not": old(0, 2, 1, 0, 1),
		"old: below zero":       old(0, -1, 1, 0, 1),
	} {
		d, err := decodeDurations(data)
		assert.That(t, err != nil && d.count() == 0, "%s: decoded %d", name, d.count())
	}
}

// FuzzDurations: decoding any bytes fails, or returns durations that work and are the same after another encoding.
func FuzzDurations(f *testing.F) {
	old := must.Get(base64.StdEncoding.DecodeString(oldDurations))(f)
	for _, b := range [][]byte{
		nil,
		{2, 0},
		{1, 0},
		old, durationsOf(0).encode(),
		durationsOf(1, 2, time.Second, longest, 0).encode(),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := decodeDurations(data)
		if err != nil {
			return
		}
		code, n := d.encode(), d.count()
		again := must.Get(decodeDurations(code))(t)
		must.That(t, bytes.Equal(again.encode(), code), "decoded %x, then %x", code, again.encode())
		again.merge(&d)
		again.add(1, 1)
		must.That(t, again.count() == 2*n+1, "count %d after merging %d twice and one more", again.count(), n)
		last := time.Duration(0)
		for _, q := range []float64{0.001, 0.1, 0.5, 0.95, 0.999, 1} {
			v := d.quantile(q)
			must.That(t, v >= last && v <= longest+longest/100, "quantile %v is %v after %v", q, v, last)
			last = v
		}
	})
}
