package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
)

// The host names a tool of a server by the server's id, the separator and the tool's own name. If that name
// has other characters or is too long, an alias stands in its place.

// leastHash is the least number of digits of a hash in an alias; the hash is that of the tool's own name.
const leastHash = 8

// fits reports whether a name can stand behind the server's id, where room bytes are left.
func fits(name string, room int) bool {
	return name != "" && len(name) <= room && strings.Trim(name, idChars) == ""
}

// aliases returns the names of a server's tools behind the server's id, by their own names. They depend on
// the set of the own names, not on the order in which the server lists them. A name that fits stays. In
// other names _ replaces the characters that do not fit. Where the result is the name of another tool, or
// is cut because it is too long, a hash is added.
func aliases(names []string, room int) map[string]string {
	out := make(map[string]string, len(names))
	wanted := make(map[string]int, len(names))
	odd := make(map[string]string) // the names that do not fit, with _ in place of characters
	for _, name := range names {
		if _, known := odd[name]; known || out[name] != "" || name == "" {
			continue
		}
		if fits(name, room) {
			out[name] = name
			wanted[name]++
			continue
		}
		odd[name] = plainName(name)
		wanted[odd[name]]++
	}
	taken := make(map[string]bool, len(wanted))
	for _, name := range out {
		taken[name] = true
	}
	for name, alias := range odd {
		if wanted[alias] == 1 && fits(alias, room) {
			out[name], taken[alias] = alias, true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(odd)) {
		sum := sha256.Sum256([]byte(name))
		digits := hex.EncodeToString(sum[:])
		for n := leastHash; out[name] == "" && n <= min(len(digits), room-1); n++ {
			alias := odd[name][:min(len(odd[name]), room-1-n)] + "_" + digits[:n]
			if !taken[alias] {
				out[name], taken[alias] = alias, true
			}
		}
	}
	return out
}

// plainName returns a name with _ for each character that does not fit.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(idChars, r) {
			return r
		}
		return '_'
	}, name)
}
