package fleet

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"
)

// childPrefix is the beginning of the id of each child agent.
const childPrefix = "sub_"

// NewChild returns a random id for a child agent, and the token of 128 random bits that proves it.
// The id is a hash of the token, so that every host can check the two without having seen them.
func NewChild() (id, token string) {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	token = hex.EncodeToString(random[:])
	return childID(token), token
}

func childID(token string) string {
	sum := sha256.Sum256([]byte("a2e child agent\x00" + token))
	return childPrefix + hex.EncodeToString(sum[:16])
}

// IsChildID reports whether a name has the form of a child agent's id: the prefix and 32 hex digits,
// or 8 as in older versions. A session may not choose such a name for itself.
func IsChildID(name string) bool {
	digits, ok := strings.CutPrefix(name, childPrefix)
	return ok && (len(digits) == 32 || len(digits) == 8) && strings.Trim(digits, "0123456789abcdef") == ""
}

// Proven reports whether the token proves the agent's id, or the id is not that of a child agent.
func (a *Agent) Proven() bool {
	return !IsChildID(a.AgentID) || subtle.ConstantTimeCompare([]byte(childID(a.Token)), []byte(a.AgentID)) == 1
}
