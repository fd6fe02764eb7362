package skill

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// document is a SKILL.md taken apart.
type document struct {
	front *node  // nil = it cannot be used
	body  string // what follows the front matter, lines ended by \n
}

// split takes the text of a SKILL.md apart. What is wrong with it goes to n.
func split(text []byte, n *notes) (d document) {
	switch {
	case bytes.HasPrefix(text, []byte("\xff\xfe")), bytes.HasPrefix(text, []byte("\xfe\xff")):
		n.fail(1, "the file is in UTF-16; save it as UTF-8")
		return d
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 || r == 0 {
			what := "bytes that are no UTF-8"
			if r == 0 {
				what = "a NUL character"
			}
			n.fail(1+bytes.Count(text[:at], []byte("\n")), "there are %s in the file; a SKILL.md is text in UTF-8", what)
			return d
		}
		at += size
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	if strings.TrimRight(first, " \t") != "---" {
		n.hint(1, "there is no front matter; begin the file with a line ---, name: and description:, and another line ---")
		return document{front: &node{kind: mapping, line: 1}, body: strings.TrimSpace(string(text))}
	}
	front, body, ok := cutFront(rest)
	switch {
	case !ok:
		n.fail(1, "the front matter has no end; put a line --- after it")
		return d
	case len(front) > maxFrontBytes:
		n.fail(1, "the front matter has %d bytes; at most %d are taken", len(front), maxFrontBytes)
		return d
	}
	return document{front: parseFront([]byte(front), 2, n), body: strings.TrimSpace(body)}
}

// cutFront cuts a text at the line that ends the front matter.
func cutFront(text string) (front, body string, ok bool) {
	at := 0
	for line := range strings.Lines(text) {
		if bare := strings.TrimRight(line, " \t\n"); bare == "---" || bare == "..." {
			return text[:at], text[at+len(line):], true
		}
		at += len(line)
	}
	return "", "", false
}

// paragraph gives the first paragraph of Markdown that is no heading, on one line.
func paragraph(body string) string {
	for part := range strings.SplitSeq(body, "\n\n") {
		var lines []string
		for line := range strings.Lines(part) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		if len(lines) > 0 {
			return cutText(strings.Join(lines, " "), maxDescription)
		}
	}
	return ""
}

// cutText gives at most the first size bytes of a text, not ending inside a character.
func cutText(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}
