package redact

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// IsSecret reports whether the value of a variable, a header or a member of a message must be hidden:
//
//	name of a secret     every text except "", true, false, null, none and the path of an existing file
//	name of a setting    never
//	any other name       a value that looks like a secret, because it is long and random
func IsSecret(name, value string) bool {
	switch kindOf(name) {
	case kindSetting:
		return false
	case kindSecret:
		if !filepath.IsAbs(value) {
			return !slices.Contains([]string{"", "true", "false", "null", "none"}, strings.ToLower(value))
		}
		_, err := os.Stat(value) // such as that of GOOGLE_APPLICATION_CREDENTIALS
		return err != nil
	}
	return looksSecret(value)
}

// SpeaksOfSecret reports whether a name, such as API_KEY, clientSecret or Authorization, is the name
// of a secret. The names of variables, headers, flags and members of messages all follow this rule.
func SpeaksOfSecret(name string) bool { return mayName([]byte(name)) && kindOf(name) == kindSecret }

// mayName reports whether a text may contain the name of a secret. It is a quick check, as few texts do.
func mayName(text []byte) bool { return nameParts().in(text) || containsAny(text, lettersOfASCII()) }

// lettersOfASCII returns the non-ASCII letters whose lower case is an ASCII letter: the Kelvin sign, and İ.
func lettersOfASCII() []string { return []string{"\u212a", "\u0130"} }

func containsAny(text []byte, all []string) bool {
	return slices.ContainsFunc(all, func(one string) bool { return bytes.Contains(text, []byte(one)) })
}

// parts are words that are searched for together, ignoring case. For each byte the array has the words
// of which it is the rarest byte.
type parts [256][]part

type part struct {
	word string
	at   int // index of its rarest byte
}

// partsOf makes parts from words, each with its rarest byte.
func partsOf(words map[string]byte) *parts {
	all := new(parts)
	for word, rarest := range words {
		for _, b := range []byte{rarest, rarest - 'a' + 'A'} {
			all[b] = append(all[b], part{word, strings.IndexByte(word, rarest)})
		}
	}
	return all
}

// in reports whether a text contains one of the parts.
func (all *parts) in(text []byte) bool {
	for i, b := range text {
		for _, p := range all[b] {
			from, to := i-p.at, i-p.at+len(p.word)
			if from >= 0 && to <= len(text) && strings.EqualFold(string(text[from:to]), p.word) {
				return true
			}
		}
	}
	return false
}

// nameParts contains a part of each word that secretWord knows.
var nameParts = sync.OnceValue(func() *parts { return partsOf(words()) })

func words() map[string]byte {
	return map[string]byte{
		"key": 'k', "token": 'k', "cookie": 'k', "pw": 'w', "jwt": 'w', "otp": 'p', "pas": 'p', "secret": 'c',
		"cred": 'c', "bearer": 'b', "auth": 'u',
	}
}

// messageParts adds the ends of the names of variables and headers to nameParts, as they stand in a
// message or in a text.
var messageParts = sync.OnceValue(func() *parts {
	all := words()
	for _, word := range []string{`env"`, `env\`, `env=`, "environ"} {
		all[word] = 'v'
	}
	all["headers"] = 'd'
	return partsOf(all)
})

// IsSecretQuery is IsSecret for a parameter of a URL, where a key or a signature is a secret as well.
func IsSecretQuery(name, value string) bool {
	kind := strings.ToLower(name)
	return kind == "key" || kind == "sig" || strings.HasSuffix(kind, "signature") || IsSecret(name, value)
}

// kind says what a name tells about its value.
type kind int

const (
	kindOther   kind = iota // nothing
	kindSecret              // it is a secret
	kindSetting             // it is an ordinary setting
)

// kindOf judges a name by its words: whether one of them means a secret, and whether the last one
// changes that, as in TOKEN_URL.
func kindOf(name string) kind {
	words := wordsOf(name)
	if len(words) == 0 {
		return kindOther
	}
	speaks := false
	for i, word := range words {
		before := ""
		if i > 0 {
			before = words[i-1]
		}
		speaks = speaks || secretWord(word, before)
	}
	last := words[len(words)-1]
	switch {
	case speaks && (last == "hash" || last == "id" && words[max(0, len(words)-2)] == "secret"):
		return kindSecret
	case settingWords()[last]:
		return kindSetting
	case speaks, len(words) == 1 && (name == "KEY" || name == "KEYS"): // other spellings of key alone may name anything
		return kindSecret
	}
	return kindOther
}

// wordsOf returns the words of a name in lower case, for names such as API_KEY, x-api-key, apiKey,
// APIKey and api.key.2.
func wordsOf(name string) (words []string) {
	var word []rune
	end := func() {
		if len(word) > 0 {
			words = append(words, strings.ToLower(string(word)))
			word = word[:0]
		}
	}
	runes := []rune(name)
	for i, r := range runes {
		if !unicode.IsLetter(r) {
			end()
			continue
		}
		lowerNext := i+1 < len(runes) && unicode.IsLower(runes[i+1])
		if n := len(word); unicode.IsUpper(r) && n > 0 && (unicode.IsLower(word[n-1]) || lowerNext) {
			end()
		}
		word = append(word, r)
	}
	end()
	return words
}

// secretWord reports whether a word means a secret, given the word before it.
func secretWord(word, before string) bool {
	switch single := strings.TrimSuffix(word, "s"); single {
	case "key":
		return before != "" && !plainKeys()[before]
	case "token":
		return !plainTokens()[before]
	case "compas", "compass", "bypas", "bypass", "trespas", "surpas", "overpas", "underpas", "encompas":
		return false
	case "cred", "pas", "pass", "pw", "jwt", "bearer", "otp", "totp":
		return true
	default:
		return secretEnd().MatchString(single)
	}
}

// secretEnd matches words that mean a secret, also with other words directly before them.
var secretEnd = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:token|secret|password|passwd|passphrase|passcode|pwd|pass?|credential|auth|` +
		`authori[sz]ation|cookie|(?:api|app|access|account|admin|auth|client|consumer|deploy|encryption|license|` +
		`master|private|secret|service|signing|ssh|gpg)key)$`)
})

func set(words string) map[string]bool {
	all := make(map[string]bool)
	for _, word := range strings.Fields(words) {
		all[word] = true
	}
	return all
}

// plainKeys are the words before "key" that make it no secret: keys of tables, lists, messages and keyboards.
var plainKeys = sync.OnceValue(func() map[string]bool {
	return set(`
		public pub primary foreign sort sorting partition cache group grouping order unique index object hash
		row column map dict hot shortcut arrow function modifier routing dedup dedupe deduplication idempotency
		lookup search range natural surrogate composite candidate compound config field json item entry parent
		child message event metric label tag translation locale lock queue task issue project ticket file blob
		path attribute property prop step node edge state memory any each every the press
	`)
})

// plainTokens are the words before "token" that make it no secret: tokens that are counted, and
// positions to continue at.
var plainTokens = sync.OnceValue(func() map[string]bool {
	return set(`
		max min maximum minimum total prompt completion input output num n cached reasoning used remaining
		context per limit stop special added pad eos bos unk sep cls mask page next prev previous continuation
		continue progress cancel cancellation design start end sub thinking first last audio text image
	`)
})

// settingWords are the last words of names of ordinary settings.
var settingWords = sync.OnceValue(func() map[string]bool {
	return set(`
		region zone tz timezone locale lang language url urls uri uris href link endpoint endpoints host hosts
		hostname server servers domain address addr port path paths dir dirs directory folder file files
		filename home root cwd name names username user users login email model models version tag branch ref
		commit sha digest checksum revision rev hash id ids type kind method methods mode scheme algorithm alg
		format encoding charset level env environment stage tier size length len count counts limit limits
		budget ttl expiry expires expiration at in lifetime age timeout interval enabled disabled required
		optional supported present valid verified missing provider issuer audience scope scopes realm service
		driver backend engine protocol status state error errors message description title label comment note
		usage used rate cost price max min index position policy rules rotation strength hint prefix suffix
		field fields column param parameter source helper manager store sock socket pid platform os arch shell
		term display editor pager browser date time timestamp theme color parallelism
	`)
})

// looksSecret reports whether a value looks like a secret, whatever its name is.
func looksSecret(value string) bool {
	scheme, rest, two := strings.Cut(value, " ")
	switch {
	case two && slices.Contains([]string{"bearer", "basic", "token"}, strings.ToLower(scheme)) &&
		len(rest) >= minSecret:
		return !strings.Contains(rest, " ")
	case strings.Contains(value, "-----BEGIN ") && strings.Contains(value, "PRIVATE KEY"):
		return true
	case knownTokens().MatchString(value):
		return true
	case strings.ContainsFunc(value, unicode.IsSpace), strings.Contains(value, "://"), pathLike(value):
		return false
	}
	parts := strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(".:,;@=", r) })
	return slices.ContainsFunc(parts, random)
}

// knownTokens matches tokens by the prefixes of their issuers.
var knownTokens = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:(?:sk|pk|rk|xox[a-z]|npm|hf|gh[opusr]|github_pat|glpat)[-_][-\w]{12,}|` +
		`(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[-\w]{30,}|ya29\.[-\w.]{12,}|eyJ[-\w]{8,}\.[-\w]{8,}\.[-\w]*)$`)
})

// pathLike reports whether a value is a path or a list of paths.
func pathLike(value string) bool {
	begins := func(with string) bool { return strings.HasPrefix(value, with) }
	return slices.ContainsFunc([]string{"~", "./", "../"}, begins) ||
		slices.ContainsFunc(filepath.SplitList(value), filepath.IsAbs) || len(value) > 2 && value[1:3] == `:\`
}

// minRandom is the minimum number of letters and digits of a value that looks random.
const minRandom = 20

// random reports whether a text is long, contains digits, and changes between lower case, upper case
// and digits about as often as a random text.
func random(text string) bool {
	const none, small, capital, digit = 0, 1, 2, 3
	last, count, digits, changes := none, 0, 0, 0
	for _, r := range text {
		class := none
		switch {
		case r >= '0' && r <= '9':
			class = digit
			digits++
		case r >= 'a' && r <= 'z':
			class = small
		case r >= 'A' && r <= 'Z':
			class = capital
		default:
			continue
		}
		if count++; last != none && class != last {
			changes++
		}
		last = class
	}
	return count >= minRandom && digits > 0 && changes*4 >= count
}
