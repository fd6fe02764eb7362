package tools

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

const (
	searchBytes = 256 << 10 // read at a time; a longer line is searched in pieces
	sniffBytes  = 8000      // a NUL in these makes a file binary
	maxLineText = 400       // bytes of a line in the answer
	leadText    = 100       // of those, before the match
)

// file searches what was opened, a buffer at a time.
func (s *grepRun) file(ctx context.Context, file *os.File, name string) error {
	kept, number := 0, 1 // bytes of an unfinished line at the start of buf, and its number
	for first := true; ; first = false {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(file, s.buf[kept:])
		end := err != nil // of the file, or of what can be read of it
		if end && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			s.data.Skipped++
			return nil
		}
		text := s.buf[:kept+n]
		if first && bytes.IndexByte(text[:min(len(text), sniffBytes)], 0) >= 0 {
			s.data.Skipped++
			return nil
		}
		if first {
			s.searched++
		}
		whole := bytes.LastIndexByte(text, '\n') + 1
		if end || whole == 0 {
			whole = len(text)
		}
		if err := s.lines(ctx, name, number, text[:whole]); err != nil {
			return err
		}
		if end {
			return nil
		}
		number += bytes.Count(text[:whole], []byte("\n"))
		kept = copy(s.buf, text[whole:])
	}
}

// lines searches text, which starts with line number. Where every match has to
// have the needle, only the lines with it are looked at.
func (s *grepRun) lines(ctx context.Context, name string, number int, text []byte) error {
	for len(text) > 0 {
		if len(s.needle) > 0 {
			at := bytes.Index(text, s.needle)
			if at < 0 {
				return nil
			}
			start := bytes.LastIndexByte(text[:at], '\n') + 1
			number += bytes.Count(text[:start], []byte("\n"))
			text = text[start:]
		}
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		at, err := s.find(ctx, line)
		if err == nil && at >= 0 {
			err = s.hit(name, number, line, at)
		}
		if err != nil {
			return err
		}
		text, number = rest, number+1
	}
	return nil
}

// needleOf gives a text that each match of the expression has in it, the longest
// that is easily told, or "".
func needleOf(expr string) string {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return ""
	}
	return literalIn(re.Simplify())
}

func literalIn(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		// U+FFFD also matches bytes that are no UTF-8.
		if s := string(re.Rune); re.Flags&syntax.FoldCase == 0 && !strings.ContainsAny(s, "\n\uFFFD") {
			return s
		}
	case syntax.OpCapture, syntax.OpPlus:
		return literalIn(re.Sub[0])
	case syntax.OpConcat:
		longest := ""
		for _, sub := range re.Sub {
			if s := literalIn(sub); len(s) > len(longest) {
				longest = s
			}
		}
		return longest
	}
	return ""
}

// excerpt gives a line, or the part of a long one that starts a little before
// the match.
func excerpt(line []byte, match int) []byte {
	if len(line) <= maxLineText {
		return line
	}
	start := max(0, min(match-leadText, len(line)-maxLineText))
	for start > 0 && start < len(line) && !utf8.RuneStart(line[start]) {
		start++
	}
	return runePrefix(line[start:], maxLineText)
}
