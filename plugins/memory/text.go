package memory

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/plugins/memory/embed"
)

const (
	maxText  = 64 << 10 // bytes of an entry that are searched
	maxWords = 10_000   // and words
)

// text gives what search goes by: names and values of the key and the content,
// and the tags.
func (e *entry) text() string {
	var b strings.Builder
	appendText(&b, e.Key)
	appendText(&b, e.Content)
	for _, tag := range e.Tags {
		b.WriteString(tag)
		b.WriteByte('\n')
	}
	return b.String()
}

// appendText adds the names, texts and numbers of a JSON value, a line each.
func appendText(b *strings.Builder, value jsontext.Value) {
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	for b.Len() < maxText {
		token, err := dec.ReadToken()
		if err != nil {
			return
		}
		switch token.Kind() {
		case '"', '0':
			s := token.String()
			b.WriteString(s[:min(len(s), maxText-b.Len())])
			b.WriteByte('\n')
		}
	}
}

// indexed gives a text's words for the index, each marked with its space: a search
// in one space never meets the words of another, however many there are.
func indexed(space int64, text string) string {
	var b strings.Builder
	prefix := spaceMark(space)
	n := 0
	for word := range embed.Words(text) {
		if n++; n > maxWords {
			break
		}
		b.WriteString(prefix)
		b.WriteString(word)
		b.WriteByte(' ')
	}
	return b.String()
}

// spaceMark is what stands before each word of a space. Digits and a consonant at the
// front of a word do not change what the stemmer makes of its end.
func spaceMark(space int64) string { return strconv.FormatInt(space, 10) + "x" }
