package skill

import (
	"errors"
	"fmt"
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
