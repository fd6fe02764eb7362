package config

import (
	"errors"
	"fmt"
	"strings"
)

// errBadVariable is for ${ that begins no variable. It shows nothing of the
// text, which may be a secret with odd characters.
var errBadVariable = errors.New("a variable is written ${NAME} or ${NAME:-default}, without one inside the other; $${ stands for ${")

// expand puts variables in: ${NAME}, ${NAME:-default}, and $${ for ${. Other
// dollar signs stay. changed reports whether a variable was put in.
func expand(text string, getenv func(string) string) (out string, changed bool, err error) {
	if !strings.Contains(text, "${") {
		return text, false, nil
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		if !found {
			b.WriteString(text)
			return b.String(), changed, nil
		}
		if strings.HasSuffix(before, "$") {
			b.WriteString(before[:len(before)-1] + "${")
			text = rest
			continue
		}
		b.WriteString(before)
		inner, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", false, errBadVariable
		}
		value, err := variable(inner, getenv)
		if err != nil {
			return "", false, err
		}
		b.WriteString(value)
		text, changed = after, true
	}
}

// variable returns the value of what stands between ${ and }.
func variable(inner string, getenv func(string) string) (string, error) {
	name, fallback, hasFallback := strings.Cut(inner, ":-")
	if !isVariable(name) || strings.Contains(fallback, "${") {
		return "", errBadVariable
	}
	if value := getenv(name); value != "" || hasFallback {
		if value == "" {
			value = fallback
		}
		return value, nil
	}
	return "", fmt.Errorf("the variable %s is not set or empty: set it, or write ${%s:-default}", name, name)
}

func isVariable(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
