package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest/must"
)

// chatter makes texts of random words.
type chatter struct{ random *rand.Rand }

func newChatter() chatter { return chatter{rand.New(rand.NewPCG(1, 2))} }

// words returns n words of a language of 20,000 words, few of which are common.
func (c chatter) words(n int) string {
	var all []string
	for range n {
		x := c.random.Float64()
		all = append(all, word(int(x*x*20_000)))
	}
	return strings.Join(all, " ")
}

func word(number int) string {
	const consonants, vowels = "bdfgklmnprstvz", "aeiou"
	var b strings.Builder
	for range 4 {
		b.WriteByte(consonants[number%len(consonants)])
		number /= len(consonants)
		b.WriteByte(vowels[number%len(vowels)])
		number /= 3
	}
	return b.String()
}

// BenchmarkSearch searches by six words of one entry among entries of twelve words. A2E_TEST_STATE may
// name a PostgreSQL server for the store; see package stores.
func BenchmarkSearch(b *testing.B) {
	for _, size := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			a, c := newAgent(b, file(b), "a", DefaultOptions(), newClock()), newChatter()
			queries := a.fill(c, size)
			a.retrieve(`{"query":"bada fafa","limit":10}`)
			time.Sleep(time.Second) // background work on the new entries ends meanwhile
			var took []time.Duration
			b.ResetTimer()
			for n := range b.N {
				began := time.Now()
				a.retrieve(fmt.Sprintf(`{"query":%q,"limit":10}`, queries[n%len(queries)]))
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-µs")
		})
	}
}

// BenchmarkStore stores one entry at a time, among 10,000.
func BenchmarkStore(b *testing.B) {
	a, c := newAgent(b, file(b), "a", DefaultOptions(), newClock()), newChatter()
	a.fill(c, 10_000)
	var took []time.Duration
	b.ResetTimer()
	for n := range b.N {
		began := time.Now()
		a.store(fmt.Sprintf(`{"key":{"new":%d},"content":{"text":%q},"tier":"semantic"}`, n, c.words(12)))
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
}

// fill stores entries of twelve words, and returns queries of six words of some of them.
func (a *agent) fill(c chatter, size int) (queries []string) {
	for from := 0; from < size; from += 500 {
		var entries []string
		for n := from; n < from+500; n++ {
			text := c.words(12)
			if len(queries) < 200 {
				queries = append(queries, strings.Join(strings.Fields(text)[:6], " "))
			}
			entries = append(entries, fmt.Sprintf(`{"key":{"n":%d},"content":{"text":%q},"tier":"semantic"}`, n, text))
		}
		resp := a.store(entries...)
		must.That(a.t, len(resp.Stored) == len(entries) && len(resp.Errors) == 0, "%.200s",
			strings.Join(resp.Errors, " "))
	}
	return queries
}
