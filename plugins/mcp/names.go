package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
)

// The name that a tool of a server has at the host is the server's id, the separator and the
// tool's own name, or an alias where that has other characters or is too long.

// leastHash is how many digits of the hash of a tool's own name an alias ends with at least.
const leastHash = 8

// fits reports whether a name can be that of a tool here, of which so many bytes may stand behind
// the server's id.
func fits(name string, room int) bool {
	return name != "" && len(name) <= room && strings.Trim(name, idChars) == ""
}

// aliases returns the names, behind the server's id, of the tools of one server. They follow from
// the set of the tools' own names, in whatever order the server lists them: a name that fits stays;
// of others, characters that do not fit become _, and a hash tells apart those that would be the
// same as another name, or are cut off.
func aliases(names []string, room int) map[string]string {
	out := make(map[string]string, len(names))
	wanted := make(map[string]int, len(names))
	odd := make(map[string]string) // what the others would be called
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
