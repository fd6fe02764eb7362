// Package auth tells whom a token lets in. Every protocol on the host's pipe asks it.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
)

// Token is one that lets somebody in.
type Token struct {
	Sum     [sha256.Size]byte // SHA-256 of its text
	AgentID string            // the only agent that it is for; "" = each that no other token is for
}

// Tokens are all of a host. Without one everybody is let in, as whom he says.
type Tokens []Token

// New makes a token of its text.
func New(text, agentID string) Token { return Token{sha256.Sum256([]byte(text)), agentID} }

// Admit reports whether somebody is let in who brings a token and calls himself claimed, and
// as which agent; claimed is "" where he does not say. A token for one agent is for nobody
// else, and who a token is for needs one of those. All tokens are compared, in constant
// time, by way of their hashes.
func (t Tokens) Admit(token, claimed string) (agentID string, ok bool) {
	if len(t) == 0 {
		return claimed, true
	}
	sum := sha256.Sum256([]byte(token))
	which := -1
	for i := range t {
		which = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], t[i].Sum[:]), i, which)
	}
	switch {
	case which < 0:
		return "", false
	case t[which].AgentID == "":
		return claimed, !t.Name(claimed)
	case claimed == "" || claimed == t[which].AgentID:
		return t[which].AgentID, true
	}
	return "", false
}

// AdmitClient is Admit for a protocol in which a client names its program, not an agent: that
// is the agent where the token names none.
func (t Tokens) AdmitClient(token, program string) (agentID string, ok bool) {
	if agentID, ok = t.Admit(token, ""); ok && agentID == "" {
		return t.Admit(token, program)
	}
	return agentID, ok
}

// Name reports whether there is a token for an agent alone.
func (t Tokens) Name(agentID string) bool {
	for i := range t {
		if t[i].AgentID == agentID && agentID != "" {
			return true
		}
	}
	return false
}
