package embed

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

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
		{`a AND (b OR NOT c) NEAR/2 d* ^e col:f`, []string{"a", "and", "b", "or", "not", "c", "near", "2", "d", "e", "col", "f"}},
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
		{"soft\u00adhyphen zero\u200bwidth join\u200der \ufeffbom", []string{"softhyphen", "zero", "width", "joiner", "bom"}},
		{"nul\x00byte", []string{"nul", "byte"}},
		{"bad\xff\xfeutf \xc3(", []string{"bad", "utf"}},
		{"broken\xe6\x97", []string{"broken"}},
		{"\u0301\u0301", nil},
		{"a" + strings.Repeat("\u0301", 1000) + "b", []string{"ab"}},
		{strings.Repeat("a", 130), []string{strings.Repeat("a", 64), strings.Repeat("a", 64), "aa"}},
		{strings.Repeat("a", 64) + " b", []string{strings.Repeat("a", 64), "b"}},
	} {
		if got := slices.Collect(Words(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("%.60q gives %q, want %q", c.text, got, c.want)
		}
	}
}

// A caller may stop at any word, and go through the words again.
func TestWordsStops(t *testing.T) {
	words := Words("one two 日本語 three")
	for n := 1; n <= 5; n++ {
		var got []string
		for w := range words {
			if got = append(got, w); len(got) == n {
				break
			}
		}
		if want := []string{"one", "two", "日本", "本語", "three"}[:n]; !slices.Equal(got, want) {
			t.Errorf("the first %d: %q", n, got)
		}
	}
}

// Words of one text need no memory that grows with it.
func TestWordsStream(t *testing.T) {
	for name, piece := range map[string]string{"no space": "x", "marks": "\u0301", "CJK": "日", "bad": "\xff", "words": "ein Wort "} {
		text := strings.Repeat(piece, 1<<18/len(piece))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := splitter{yield: func([]rune, bool) bool { return true }}
		s.split(text)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 32<<10 {
			t.Errorf("%s: %d bytes for a text of 256 KiB", name, used)
		}
	}
}

func FuzzWords(f *testing.F) {
	for _, text := range []string{
		"", "Hello, World!", "Größe ﬁ İ ß", "日本語 データ ﾃﾞ", "한국어", "ไทย", "a\x00b", "\xff\xc3(", "e\u0301\u0301", "👩\u200d💻",
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
		v := embedded(t, Hashed(), text)[0]
		if (v == nil) != (len(slices.Collect(Words(cut(text, maxLook)))) == 0) {
			t.Fatalf("%q has the words %q and the vector %v", text, words, v)
		}
	})
}
