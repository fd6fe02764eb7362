package embed

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
)

func TestCut(t *testing.T) {
	for _, text := range []string{"", "abc", strings.Repeat("é", 10), strings.Repeat("\x80", 20)} {
		got := cut(text, 7)
		assert.That(t, len(got) <= 7 && strings.HasPrefix(text, got) && len(got) >= min(len(text), 6),
			"%q is cut to %q", text, got)
		assert.That(t, !utf8.ValidString(text) || utf8.ValidString(got), "%q is cut to %q", text, got)
	}
}

// TestQueryIn: In returns how much of a query is in a text: all its words, similar words, a part, or
// nothing.
func TestQueryIn(t *testing.T) {
	for _, c := range []struct {
		query, text string
		low, high   float64
	}{
		{"", "anything", 0, 0},
		{"?!", "anything", 0, 0},
		{"kestrel", "", 0, 0},
		{"kestrel", "atlas", 0, 0},
		{"kestrel", "Deploying KESTREL needs patience", 0.98, 1},
		{"kestrel kestrel", "kestrel", 0.98, 1},
		{"connection timeout", "the connection timeout", 0.98, 1},
		{
			"connection timeout",
			"a connection is better than any other timeout", 0.7, 0.9,
		},
		{"日本", "東京は日本の首都", 0.98, 1},
		{"postgers conection timout", "the Postgres connection timeout", 0.75, 0.95},
		{"deploying", "deployment", 0.9, 0.97},
		{"policy", "police", 0.5, 0.85},
		{"the kestrel", "kestrel", 0.85, 0.99},
		{"the kestrel", "the atlas", 0.01, 0.15},
		{"Vertrag gekündigt", "Kündigung der Verträge", 0.6, 0.9},
		{"12345", "12346", 0, 0},
		{"Speditionsvertrag", "die Spedition", 0.5, 0.8},
		{"kestrel atlas", "atlas " + strings.Repeat("and much else ", 500), 0.3, 0.6},
		{"kestrel", strings.Repeat("日本 ", maxLook/7+1) + "kestrel", 0, 0},
	} {
		q := NewQuery(c.query, 32)
		var weights []float64
		for _, w := range q.Words() {
			weights = append(weights, w.Share)
		}
		got := q.In(c.text, weights)
		assert.That(t, got >= c.low && got <= c.high, "%.3f of %q is in %.40q, want %v to %v", got, c.query, c.text,
			c.low, c.high)
	}
}

func TestKeys(t *testing.T) {
	for _, c := range []struct {
		word, other    string
		form, misspelt bool // whether they share a key of this kind
	}{
		{"database", "databases", true, true},
		{"deploying", "deployment", true, true},
		{"haus", "hauser", true, false},
		{"kundigung", "gekundigt", false, true},
		{"einreichen", "eingereicht", true, true},
		{"postgres", "postgers", false, true},
		{"conection", "connection", false, true},
		{"acess", "access", false, true},
		{"kestrel", "atlas", false, false},
		{"abc", "abd", false, false},
		{"sha256", "sha257", false, false},
		{"日本", "日木", false, false},
	} {
		forms, misspelt := Keys(c.word)
		otherForms, otherMisspelt := Keys(c.other)
		shares := func(a, b []string) bool {
			return slices.ContainsFunc(a, func(key string) bool { return slices.Contains(b, key) })
		}
		form := shares(forms, otherForms)
		any := shares(slices.Concat(forms, misspelt), slices.Concat(otherForms, otherMisspelt))
		assert.That(t, form == c.form && any == (c.form || c.misspelt), "%q %v %v and %q %v %v", c.word, forms,
			misspelt, c.other, otherForms, otherMisspelt)
	}
}

func embedded(t testing.TB, e Embedder, texts ...string) []Vector {
	t.Helper()
	out, err := e.Embed(t.Context(), texts)
	must.That(t, err == nil && len(out) == len(texts), "%d vectors of %d texts, %v", len(out), len(texts), err)
	return out
}

func TestQuantise(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		in   []float32
		want Vector
	}{
		{nil, nil},
		{[]float32{}, nil},
		{[]float32{0, 0, 0}, nil},
		{[]float32{1}, Vector{32767}},
		{[]float32{-2, 1, 0}, Vector{-32767, 16384, 0}},
		{[]float32{1e-45, 0, -1e-45}, Vector{32767, 0, -32767}},
		{[]float32{math.MaxFloat32, -math.MaxFloat32}, Vector{32767, -32767}},
		{[]float32{1, nan}, nil},
		{[]float32{inf, 1}, nil},
		{[]float32{1, -inf}, nil},
	} {
		got := Quantise(c.in)
		assert.That(t, slices.Equal(got, c.want) && (got == nil) == (c.want == nil), "Quantise(%v) = %v, want %v", c.in,
			got, c.want)
	}
}

func TestCosine(t *testing.T) {
	long := make(Vector, 140_000) // the sum of its products does not fit 32 bits
	for i := range long {
		long[i] = 127
	}
	for _, c := range []struct {
		v, o Vector
		want float64
	}{
		{nil, nil, 0},
		{Vector{}, Vector{}, 0},
		{Vector{1}, nil, 0},
		{Vector{1, 2}, Vector{1}, 0},
		{Vector{0, 0}, Vector{1, 1}, 0},
		{Vector{127}, Vector{127}, 1},
		{Vector{127, 0}, Vector{0, 127}, 0},
		{Vector{127, 10}, Vector{-127, -10}, -1},
		{Vector{127, 127}, Vector{127, 0}, math.Sqrt2 / 2},
		{Vector{3, 4}, Vector{4, 3}, 0.96},
		{long, long, 1},
		{Vector{-128, 127}, Vector{-128, 127}, 1},
	} {
		got := c.v.Cosine(c.o)
		assert.That(t, math.Abs(got-c.want) <= 1e-12, "%d and %d components: %v, want %v", len(c.v), len(c.o), got,
			c.want)
	}
}

// TestVectorBytes: a vector is stored in as few bytes as it needs, and vectors of former versions are
// read.
func TestVectorBytes(t *testing.T) {
	for _, c := range []struct {
		v    Vector
		size int
	}{{Vector{127, -127, 0}, 3}, {Vector{128, -1, 0}, 6}, {Vector{-32767, 32767}, 4}} {
		raw := c.v.Bytes()
		back := VectorOf(raw, len(c.v))
		assert.That(t, len(raw) == c.size && slices.Equal(back, c.v), "%v became %d bytes, and these %v", c.v, len(raw),
			back)
		got := VectorOf(raw, len(c.v)+1)
		assert.That(t, got == nil, "of another size: %v", got)
	}
}

// TestCodes: the cosines from codes are off by at most 0.3/√dimensions, even if the vectors lie in a
// narrow cone.
func TestCodes(t *testing.T) {
	for _, size := range []int{1, 2, 7, 64, 100, 384, 1000} {
		r := rand.New(rand.NewPCG(1, uint64(size)))
		vectors := make([]Vector, 300)
		for i := range vectors {
			x := make([]float32, size)
			for at := range x {
				x[at] = float32(r.NormFloat64())
			}
			x[0] += 1.5 * float32(math.Sqrt(float64(size))) // cosines of about 0.7
			vectors[i] = Quantise(x)
		}
		coder := NewCoder(Centre(vectors))
		codes := coder.Encode(vectors)
		probe := coder.Probe(vectors[0])
		n := probe.Count(codes)
		must.That(t, n == len(vectors), "%d dimensions: codes of %d vectors", size, n)
		sum := 0.0
		for i, v := range vectors {
			off := float64(probe.Cosine(codes, i)) - vectors[0].Cosine(v)
			sum += off * off
		}
		if off := math.Sqrt(sum / float64(len(vectors))); off > 0.3/math.Sqrt(float64(size)) {
			t.Errorf("%d dimensions: cosines are off by %.3f", size, off)
		}
		distances := probe.Distances(nil, codes)
		if at := slices.Index(distances, slices.Min(distances)); size > 64 && at != 0 {
			t.Errorf("%d dimensions: the vector %d seems nearer to the first than itself", size, at)
		}
	}
}

// TestVectorProperties: Quantise keeps the direction of a vector, so that Cosine stays right.
func TestVectorProperties(t *testing.T) {
	size := rapid.IntRange(1, 200)
	property.Check(t, func(t *rapid.T) {
		n := size.Draw(t, "size")
		floats := rapid.SliceOfN(rapid.Float32Range(-1, 1), n, n)
		x, y := floats.Draw(t, "x"), floats.Draw(t, "y")
		x[0], y[n-1] = 1, -1 // neither is zero
		v, o := Quantise(x), Quantise(y)
		top := max(slices.Max(v), -slices.Min(v))
		must.That(t, top == 32767, "the largest component is %d", top)
		got := v.Cosine(o)
		back := o.Cosine(v)
		must.That(t, got == back && got >= -1 && got <= 1, "%v one way, %v the other", got, back)
		exact := cosine(x, y)
		must.That(t, math.Abs(got-exact) <= 1e-4, "the cosine %v became %v", exact, got)
		own := v.Cosine(v)
		must.That(t, math.Abs(own-1) <= 1e-12, "%v to itself", own)
		scaled := slices.Clone(x)
		for i := range scaled {
			scaled[i] *= 4 // exact, so that the direction is the same
		}
		must.That(t, slices.Equal(Quantise(scaled), v), "the length of a vector changes its direction")
	})
}

func cosine(x, y []float32) float64 {
	var dot, xx, yy float64
	for i := range x {
		a, b := float64(x[i]), float64(y[i])
		dot, xx, yy = dot+a*b, xx+a*a, yy+b*b
	}
	return dot / math.Sqrt(xx*yy)
}

func TestWords(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{" \t\n.,;-_/\\", nil},
		{"Hello, World!", []string{"hello", "world"}},
		{"x X x", []string{"x", "x", "x"}},
		{"max_parallel=4 --dry-run", []string{"max", "parallel", "4", "dry", "run"}},
		{"SHA256 v1.2.3 10:30", []string{"sha256", "v1", "2", "3", "10", "30"}},
		{`"quoted" 'single' don't ‘curly’ «angle»`, []string{"quoted", "single", "don", "t", "curly", "angle"}},
		{`a AND (b OR NOT c) NEAR/2 d* ^e col:f`, []string{
			"a", "and", "b", "or", "not", "c", "near", "2", "d", "e",
			"col", "f",
		}},
		{"Größe Müller Straße", []string{"grosse", "muller", "strasse"}},
		{"Gro\u0308ße Mu\u0308ller", []string{"grosse", "muller"}},
		{"ÅNGSTRÖM Łódź Čeština Ærø İstanbul ısı", []string{"angstrom", "lodz", "cestina", "aero", "istanbul", "isi"}},
		{"crème brûlée naïve", []string{"creme", "brulee", "naive"}},
		{"Việt Nam", []string{"viet", "nam"}},
		{"ﬁle ＡＢＣ１２ x² Ⅳ", []string{"file", "abc12", "x2", "iv"}},
		{"Ёлка Й ΟΔΥΣΣΕΥΣ ὀδυσσεύς", []string{"елка", "и", "οδυσσευσ", "οδυσσευσ"}},
		{"日本語", []string{"日本", "本語"}},
		{"水", []string{"水"}},
		{"データベース", []string{"デー", "ータ", "タベ", "ベー", "ース"}},
		{"ﾃﾞｰﾀ", []string{"デー", "ータ"}},
		{"か\u3099く", []string{"がく"}},
		{"東京でGoを2年", []string{"東京", "京で", "go", "を", "2", "年"}},
		{"日本。語学 話", []string{"日本", "語学", "話"}},
		{"한국어", []string{"한국", "국어"}},
		{"\u1112\u1161\u11ab\u1100\u116e\u11a8", []string{"한국"}},
		{"ภาษาไทย", []string{"ภา", "าษ", "ษา", "าไ", "ไท", "ทย"}},
		{"🚀 ship it 👩\u200d💻", []string{"ship", "it"}},
		{"soft\u00adhyphen zero\u200bwidth join\u200der \ufeffbom", []string{
			"softhyphen", "zero", "width", "joiner",
			"bom",
		}},
		{"nul\x00byte", []string{"nul", "byte"}},
		{"bad\xff\xfeutf \xc3(", []string{"bad", "utf"}},
		{"broken\xe6\x97", []string{"broken"}},
		{"\u0301\u0301", nil},
		{"a" + strings.Repeat("\u0301", 1000) + "b", []string{"ab"}},
		{strings.Repeat("a", 130), []string{strings.Repeat("a", 64), strings.Repeat("a", 64), "aa"}},
		{strings.Repeat("a", 64) + " b", []string{strings.Repeat("a", 64), "b"}},
	} {
		got := slices.Collect(Words(c.text))
		assert.That(t, slices.Equal(got, c.want), "%.60q gives %q, want %q", c.text, got, c.want)
	}
}

// TestWordsStops: a caller may stop at any word, and range over the words again.
func TestWordsStops(t *testing.T) {
	words := Words("one two 日本語 three")
	for n := 1; n <= 5; n++ {
		var got []string
		for w := range words {
			if got = append(got, w); len(got) == n {
				break
			}
		}
		want := []string{"one", "two", "日本", "本語", "three"}[:n]
		assert.That(t, slices.Equal(got, want), "the first %d: %q", n, got)
	}
}

// TestWordsStream: the memory to split a text into words does not grow with the text.
func TestWordsStream(t *testing.T) {
	for name, piece := range map[string]string{
		"no space": "x", "marks": "\u0301", "CJK": "日", "bad": "\xff",
		"words": "ein Wort ",
	} {
		text := strings.Repeat(piece, 1<<18/len(piece))
		used := uint64(math.MaxUint64)
		for range 5 { // the runtime and the test's own time limit may allocate at the same time
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s := splitter{yield: func([]rune, bool) bool { return true }}
			s.split(text)
			runtime.ReadMemStats(&after)
			used = min(used, after.TotalAlloc-before.TotalAlloc)
		}
		assert.That(t, used <= 32<<10, "%s: %d bytes for a text of 256 KiB", name, used)
	}
}

func FuzzWords(f *testing.F) {
	for _, text := range []string{
		"", "Hello, World!", "Größe ﬁ İ ß", "日本語 データ ﾃﾞ", "한국어", "ไทย", "a\x00b", "\xff\xc3(", "e\u0301\u0301",
		"👩\u200d💻",
		strings.Repeat("a", 200), "ΣΑΣ ς", "ǅ ŉ ﬃ ㎏ ㈱ ½", "\u1100\u1161",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words := slices.Collect(Words(text))
		for _, w := range words {
			if w == "" || !utf8.ValidString(w) || utf8.RuneCountInString(w) > maxWord {
				t.Fatalf("%q gives the word %q", text, w)
			}
			for _, r := range w {
				if !unicode.IsLetter(r) && !unicode.IsNumber(r) {
					t.Fatalf("%q gives %q, which has the character %U", text, w, r)
				}
			}
		}
		if again := slices.Collect(Words(strings.Join(words, " "))); !slices.Equal(again, words) {
			t.Fatalf("the words of %q are %q, and theirs are %q", text, words, again)
		}
		if upper := slices.Collect(Words(strings.ToValidUTF8(text, " "))); !slices.Equal(upper, words) {
			t.Fatalf("%q gives %q, made valid %q", text, words, upper)
		}
		weights := make([]float64, len(NewQuery(text, 32).Words()))
		for i := range weights {
			weights[i] = 1
		}
		if in := NewQuery(text, 32).In(text, weights); !(in >= 0 && in <= 1) || in == 0 && len(weights) > 0 {
			t.Fatalf("%q has %v of itself", text, in)
		}
		for _, w := range words {
			Keys(w)
		}
	})
}

// TestSimilarityMeansTheSame: a similarity means the same for a model whose vectors lie in a narrow
// cone as for a model whose vectors point anywhere.
func TestSimilarityMeansTheSame(t *testing.T) {
	const size = 128
	for _, mean := range []float64{0, 0.3, 0.7, 0.9} {
		r := rand.New(rand.NewPCG(3, 4))
		vector := func(near []float32) (Vector, []float32) {
			x, own := make([]float32, size), make([]float32, size)
			for i := range x {
				own[i] = float32(r.NormFloat64())
				if near != nil {
					own[i] = 0.7*own[i] + 0.7*near[i]
				}
				x[i] = float32(math.Sqrt(1-mean))*own[i] + float32(math.Sqrt(mean))*float32(1-2*(i%2))
			}
			return Quantise(x), own
		}
		var vectors []Vector
		var owns [][]float32
		for range 100 {
			v, own := vector(nil)
			vectors, owns = append(vectors, v), append(owns, own)
		}
		b := BackgroundOf(vectors)
		unrelated, related := 0.0, 0.0
		for i, v := range vectors {
			like, _ := vector(owns[i])
			related += b.Similarity(v.Cosine(like)) / 100
			unrelated += b.Similarity(v.Cosine(vectors[(i+1)%100])) / 100
		}
		same := b.Similarity(vectors[0].Cosine(vectors[0]))
		if unrelated > 0.05 || related < 0.6 || related > 0.8 || same < 0.99 {
			t.Errorf("mean cosine %.1f: %.3f for unrelated texts, %.3f for related ones, %.3f for the same", mean,
				unrelated, related, same)
		}
	}
	if b := BackgroundOf(nil); b.Similarity(1) < 0.99 || b.Similarity(0) != 0 {
		t.Errorf("without any vectors: %v", b)
	}
}
