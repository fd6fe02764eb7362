package skill

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxNameBytes bounds the name of a skill.
const maxNameBytes = 128

// checkName tells why a text cannot be the name of a skill. The name is a part of
// skill://NAME/FILE and of messages to people, so it may hold nothing that means something
// else there, or that is not seen.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case len(name) > maxNameBytes:
		return fmt.Errorf("has %d bytes; at most %d are taken", len(name), maxNameBytes)
	case name == "." || name == "..":
		return errors.New("is the name of a folder above")
	case strings.TrimSpace(name) != name:
		return errors.New("begins or ends with a space")
	case strings.ContainsAny(name, `/\`):
		return errors.New("has a slash; a name is no path")
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return fmt.Errorf("has the character U+%04X, which cannot be seen", r)
		}
	}
	return nil
}

// public tells whether a name follows the public format.
func public(name string) bool {
	if len(name) > 64 || strings.Contains(name, "--") || strings.Trim(name, "-") != name {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

// quote shows a text of somebody else in a message.
func quote(text string) string {
	const most = 80
	if len(text) <= most {
		return strconv.Quote(text)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strconv.Quote(text[:cut]) + "…"
}

// maxCompared bounds the cost of one comparison.
const maxCompared = 64

// nearest gives those of names that may be meant by a name, at most three, the most alike
// first.
func nearest(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var all []candidate
	for _, known := range names {
		if d := distance(name, known); d <= max(1, len(known)/3) {
			all = append(all, candidate{known, d})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var near []string
	for _, c := range all[:min(len(all), 3)] {
		near = append(near, c.name)
	}
	return near
}

// meant ends a message about an unknown name; "" = nothing looks like it.
func meant(name string, names []string) string {
	near := nearest(name, names)
	for i, n := range near {
		near[i] = strconv.Quote(n)
	}
	if len(near) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// distance counts the bytes to insert, remove or replace to turn a into b; letter case and
// the difference of - and _ count for nothing.
func distance(a, b string) int {
	a, b = folded(a), folded(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			differs := 1
			if a[i-1] == b[j-1] {
				differs = 0
			}
			before, row[j] = row[j], min(row[j]+1, row[j-1]+1, before+differs)
		}
	}
	return row[len(b)]
}

func folded(s string) string {
	s = strings.ToLower(s[:min(len(s), maxCompared)])
	return strings.ReplaceAll(s[:min(len(s), maxCompared)], "_", "-")
}
