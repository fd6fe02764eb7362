package bench

import (
	"errors"
	"strings"
)

// split cuts a command line into words at blanks. Single and double quotes keep
// blanks together; there is no escape character, so that Windows paths pass.
func split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	open := false // a word has begun, perhaps an empty one in quotes
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'':
			quote, open = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if open {
				words = append(words, word.String())
				word.Reset()
			}
			open = false
		default:
			word.WriteRune(c)
			open = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if open {
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, errors.New("an empty command line")
	}
	return words, nil
}
