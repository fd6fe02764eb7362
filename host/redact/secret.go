package redact

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// minSecret is how many bytes a value must have to be looked for.
const minSecret = 4

// maxWord is the length of the longest plain word, in bytes: debug, production.
const maxWord = 16

var (
	word   = regexp.MustCompile(`^[A-Za-z][A-Za-z_-]*$`)
	number = regexp.MustCompile(`^[-+0-9.,:]+[a-zA-Z]{0,2}$`) // also addresses, versions, sizes and durations
	locale = regexp.MustCompile(`^(C|POSIX|[a-z]{2,3}_[A-Z]{2})([.@][A-Za-z0-9-]+)*$`)
)

// isSecret reports whether a value must be hidden. Under a name that speaks of a secret
// every value but true and false is one; under others all but plain settings are: a word, a number, a locale,
// and files and folders that exist.
func isSecret(name, value string) bool {
	switch {
	case slices.Contains([]string{"true", "false", "null", "none"}, strings.ToLower(value)):
		return false
	case speaksOfSecret(name):
		return true
	case len(value) <= maxWord && word.MatchString(value), number.MatchString(value), locale.MatchString(value):
		return false
	}
	paths := filepath.SplitList(value)
	return !slices.ContainsFunc(paths, filepath.IsAbs) || slices.ContainsFunc(paths, func(p string) bool {
		if p == "" {
			return false
		}
		_, err := os.Stat(p)
		return !filepath.IsAbs(p) || err != nil
	})
}

// speaksOfSecret reports whether a name, such as API_KEY or Authorization, is that of one.
func speaksOfSecret(name string) bool {
	name = strings.ReplaceAll(strings.ToUpper(name), "AUTHOR", "")
	return slices.ContainsFunc([]string{"KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "COOKIE"}, func(w string) bool {
		return strings.Contains(name, w)
	})
}
