package embed

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

const golden = "Deploying kestrel: drain the queue first! Größe ≤ 25 MB, データベース; the the the v1.2.3"

// Vectors are kept in files that go from machine to machine: a change to them
// needs a new name of the model.
func TestHashedIsTheSameEverywhere(t *testing.T) {
	for text, want := range map[string]uint64{golden: 0xcb61f87e7458b424, strings.Repeat(golden, 50): 0x7b54726b69dcdd77} {
		h := fnv.New64a()
		for _, c := range embedded(t, Hashed(), text)[0] {
			h.Write([]byte{byte(c)})
		}
		if got := h.Sum64(); got != want {
			t.Errorf("the vector of %.20q… has the hash %#x, want %#x: name the model anew", text, got, want)
		}
	}
	if m := Hashed().Model(); m != (Model{"a2e-hashed-1", 512}) {
		t.Errorf("%+v", m)
	}
}

func TestHashedNearness(t *testing.T) {
	for _, c := range []struct{ text, near, far string }{
		{"postgers conection timout", "Postgres connection timeout", "Redis connection pool"},
		{"deploying", "the deployment", "the employer"},
		{"timeout of the connection", "connection timeout", "connection pool of the timer"},
		{"Größe der Anhänge", "maximale Anhanggrosse", "der Name der Anlage"},
		{"会議室 東京", "東京の会議室", "東京の天気"},
		{"the of and is in kestrel", "kestrel", "the of and is in"},
		{"dog bites man", "dog bites man today", "man bites dog today"},
	} {
		v := embedded(t, Hashed(), c.text, c.near, c.far)
		if near, far := v[0].Cosine(v[1]), v[0].Cosine(v[2]); near <= far {
			t.Errorf("%q: %q is at %.3f, %q at %.3f", c.text, c.near, near, c.far, far)
		}
	}
}

// A word said a hundred times does not drown the others.
func TestHashedDamps(t *testing.T) {
	v := embedded(t, Hashed(), strings.Repeat("queue ", 100)+"scheduler deadlock", "scheduler deadlock", "queue")
	if got := v[0].Cosine(v[1]); got < 0.25 {
		t.Errorf("the rest of the text is at %.3f", got)
	}
	last := int32(0)
	for times := int32(1); times < 5000; times++ {
		got := damped(160, times)
		if got < last || times == 1 && got != 160 || got > 160*8 {
			t.Fatalf("%d times: %d after %d", times, got, last)
		}
		last = got
	}
}

// Whatever the bytes, there is a vector or none, in bounded time.
func TestHashedTakesAnything(t *testing.T) {
	texts := []string{
		"", " ", "\x00", "\xff\xfe", "🚀", "\u0301", "a", "水",
		strings.Repeat("x", 1<<20), strings.Repeat("\u0301", 1<<19), strings.Repeat("日", 1<<18), strings.Repeat("\xff", 1<<20), strings.Repeat("\x80", 1<<20),
	}
	for i, v := range embedded(t, Hashed(), texts...) {
		empty := true
		for range Words(cut(texts[i], maxLook)) {
			empty = false
			break
		}
		if (v == nil) != empty || v != nil && len(v) != hashedSize {
			t.Errorf("%.20q: %d components", texts[i], len(v))
		}
	}
	if v := embedded(t, Hashed()); len(v) != 0 {
		t.Errorf("no texts: %v", v)
	}
}

// Only the first 16 KiB count, of a vector and of a share.
func TestHashedLooksNoFurther(t *testing.T) {
	head := strings.Repeat("日本 ", maxLook/7+1) // the limit falls inside a character
	v := embedded(t, Hashed(), head+"kestrel", head+"postgres", cut(head, maxLook))
	if !slices.Equal(v[0], v[1]) || !slices.Equal(v[0], v[2]) {
		t.Error("what lies beyond the limit changes the vector")
	}
	if got := Grams("kestrel").In(head + "kestrel"); got != 0 {
		t.Errorf("what lies beyond the limit is found: %v", got)
	}
	for _, text := range []string{"", "abc", strings.Repeat("é", 10), strings.Repeat("\x80", 20)} {
		if got := cut(text, 7); len(got) > 7 || !strings.HasPrefix(text, got) || len(got) < min(len(text), 6) || utf8.ValidString(text) && !utf8.ValidString(got) {
			t.Errorf("%q is cut to %q", text, got)
		}
	}
}

func TestHashedConcurrently(t *testing.T) {
	set, h := readSet(t), Hashed()
	want := embedded(t, h, set.Entries[0].Text, set.Entries[1].Text)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				got, err := h.Embed(context.Background(), []string{set.Entries[0].Text, set.Entries[1].Text})
				if err != nil || !slices.Equal(got[0], want[0]) || !slices.Equal(got[1], want[1]) {
					t.Error("another goroutine changed the vectors", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestHashedCancelled(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if v, err := Hashed().Embed(ctx, []string{"a"}); !errors.Is(err, cause) || v != nil {
		t.Errorf("%v, %v", v, err)
	}
}

// The table counts as a map does, also while it grows.
func TestTable(t *testing.T) {
	var table table
	for round := range 2 {
		table.reset(8)
		want := map[uint64]int32{}
		for i := range 3000 {
			hash := mix(uint64(i%700)) &^ uint64(round*0xfff) // many that belong to one place
			table.add(hash, 1+int32(i%3))
			table.add(hash+1, 0)
			want[hash]++
		}
		got := map[uint64]int32{}
		for _, c := range table.cells {
			if c.times > 0 {
				got[c.hash] = c.times
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || table.used != len(want) {
			t.Errorf("round %d: %d features, want %d", round, len(got), len(want))
		}
	}
}

func TestGrams(t *testing.T) {
	for _, c := range []struct {
		query, text string
		low, high   float64
	}{
		{"", "anything", 0, 0}, {"?!", "anything", 0, 0}, {"kestrel", "", 0, 0}, {"kestrel", "atlas", 0, 0},
		{"kestrel", "Deploying KESTREL needs patience", 1, 1}, {"kestrel kestrel", "kestrel", 1, 1}, {"kestrel", "kestrel kestrel", 1, 1},
		{"connection timeout", "timeout of a connection", 1, 1}, {"日本", "東京は日本の首都", 1, 1},
		{"postgers conection timout", "the Postgres connection timeout", 0.4, 0.8},
		{"deploying", "deployment", 0.3, 0.7}, {"the kestrel", "kestrel", 0.85, 0.99}, {"the kestrel", "the atlas", 0.01, 0.15},
		{"kestrel atlas", "atlas " + strings.Repeat("and much else ", 500), 0.3, 0.7},
	} {
		if got := Grams(c.query).In(c.text); got < c.low || got > c.high {
			t.Errorf("%.3f of %q is in %.40q, want %v to %v", got, c.query, c.text, c.low, c.high)
		}
	}
	if got := (GramSet{}).In("x"); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func BenchmarkHashed(b *testing.B) {
	for name, text := range map[string]string{"english": sample(b, "e10"), "german": sample(b, "e107"), "16KiB": strings.Repeat(golden, 200)} {
		b.Run(name, func(b *testing.B) {
			h, texts := Hashed(), []string{text}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := h.Embed(b.Context(), texts); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGramsIn(b *testing.B) {
	g, text := Grams("postgers conection timout"), sample(b, "e10")
	b.ReportAllocs()
	for b.Loop() {
		g.In(text)
	}
}
