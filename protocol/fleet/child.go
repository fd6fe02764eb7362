package fleet

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"
)

// childPrefix begins the id of each child agent.
const childPrefix = "sub_"

// NewChild returns an id for a child agent with 128 random bits, and the token that proves it.
// The id follows from the token, so that every host can check the two without having seen them.
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

// IsChildID reports whether a name has the form of a child agent's id: 32 hex digits behind the
// prefix, or 8 as in older versions. No session may choose such a name for itself.
func IsChildID(name string) bool {
	digits, ok := strings.CutPrefix(name, childPrefix)
	return ok && (len(digits) == 32 || len(digits) == 8) && strings.Trim(digits, "0123456789abcdef") == ""
}

// Proven reports whether the agent is the child that its id names, or no child by its id.
func (a *Agent) Proven() bool {
	return !IsChildID(a.AgentID) || subtle.ConstantTimeCompare([]byte(childID(a.Token)), []byte(a.AgentID)) == 1
}
