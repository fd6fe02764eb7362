package embed

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Most Arabic words are a root of three consonants in a pattern: موظف, وظيفة and وظائف have the
// root وظف. Plurals and verbs change the inside of a word, which a stemmer that only removes endings
// does not handle.

// arabicPatterns are the patterns of words without their endings, by length, the likelier first. A dot is
// a letter of the root.
var arabicPatterns = [...][]string{
	4: {"م...", "ت...", "ي...", "ن...", "ا...", ".ا..", "..ا.", "..و.", "..ي."},
	5: {
		"م..و.", "م..ا.", "م..ي.", "ت..ي.", "ا..ا.", "ا..و.", "م.ت..", "ا.ت..", "ي.ت..", "ت.ت..", "م.ا..", "ت.ا..",
		"ي.ا..", "ان...", "من...", "ين...", "مت...", "يت...", "تت...", ".وا..", "..اي.", ".ا.ي.", ".ا.و.", "...ان",
		"..و.ا", "..ي.ا",
	},
	6: {
		"است...", "مست...", "يست...", "تست...", "نست...", "ا.ت.ا.", "ان..ا.", "م.ا.ي.", "ت.ا.ي.", "ا.ا.ي.", ".وا.ي.",
		"مت.ا..", "يت.ا..", "تت.ا..", "م..و.ا",
	},
	7: {"است..ا.", "است..و."},
}

// Prefixes and suffixes of a word, the longer first.
var (
	arabicBefore = [...]string{"وبال", "وكال", "فبال", "وال", "فال", "بال", "كال", "ولل", "فلل", "ال", "لل"}
	arabicBehind = [...]string{
		"اتها", "اتهم", "يات", "تان", "تين", "كما", "هما", "تها", "تهم", "ات", "ان", "ون", "ين",
		"ية", "يا", "ته", "ها", "هم", "هن", "كم", "نا", "وا", "تم", "ني",
	}
)

func isArabic(r rune) bool { return unicode.Is(unicode.Arabic, r) }

// arabicRoot returns the root of a word without marks. For a word without a known pattern it returns the
// word without prefixes and suffixes. It returns "" if the result does not have 3 or 4 letters.
func arabicRoot(word string) string {
	w := []rune(word)
	for _, before := range arabicBefore {
		if n := utf8.RuneCountInString(before); len(w)-n >= 3 && strings.HasPrefix(word, before) {
			w = w[n:]
			break
		}
	}
	if len(w) >= 6 && w[0] == 'و' {
		w = w[1:]
	}
	for _, behind := range arabicBehind {
		if n := utf8.RuneCountInString(behind); len(w)-n >= 3 && strings.HasSuffix(word, behind) {
			w = w[:len(w)-n]
			break
		}
	}
	if last := len(w) - 1; last >= 3 && w[last] == 'ة' {
		w = w[:last]
	}
	root := patternRoot(w)
	if last := len(w) - 1; root == nil && last >= 3 && strings.ContainsRune("هيكتان", w[last]) {
		if root = patternRoot(w[:last]); root == nil && last > 3 {
			w = w[:last]
		}
	}
	if root == nil && len(w) > 4 && strings.ContainsRune("لبفسوك", w[0]) {
		w = w[1:]
		root = patternRoot(w)
	}
	if root == nil {
		root = slices.Clone(w)
	}
	if len(root) < 3 || len(root) > 4 {
		return ""
	}
	for i, r := range root { // weak letters change with the form of a word, so all become و
		if i > 0 && strings.ContainsRune("اويىء", r) {
			root[i] = 'و'
		}
	}
	return string(root)
}

// patternRoot returns the root of a word that has one of the patterns or three letters, otherwise nil.
func patternRoot(word []rune) []rune {
	if len(word) == 3 {
		return slices.Clone(word)
	}
	if len(word) >= len(arabicPatterns) {
		return nil
	}
next:
	for _, pattern := range arabicPatterns[len(word)] {
		var root [3]rune
		i, n := 0, 0
		for _, r := range pattern {
			switch {
			case r == '.':
				root[n] = word[i]
				n++
			case r != word[i]:
				continue next
			}
			i++
		}
		return root[:]
	}
	return nil
}
