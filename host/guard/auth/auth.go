// Package auth tells whom a token lets in. Every protocol on the host's pipe asks it.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"strings"

	"a2e/protocol/fleet"
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
// else, and who a token is for needs one of those. No token is for the id of a child agent,
// nor for a name below that of another agent. All tokens are compared, in constant time, by
// way of their hashes.
func (t Tokens) Admit(token, claimed string) (agentID string, ok bool) {
	if fleet.IsChildID(claimed) {
		return "", false
	}
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
		return claimed, !t.Name(claimed) && !t.below(claimed)
	case claimed == "" || claimed == t[which].AgentID:
		return t[which].AgentID, true
	}
	return "", false
}

// AdmitFor is Admit for a task that is done as an agent, nil = it does not say. A child agent
// that proves itself is let in with any token. Another agent that no token is for gets a name
// below that of the agent whose token it is, such as bob/child-1: what it keeps is that agent's.
func (t Tokens) AdmitFor(token string, agent *fleet.Agent) (agentID string, ok bool) {
	switch {
	case agent == nil:
		return t.Admit(token, "")
	case fleet.IsChildID(agent.AgentID):
		_, ok = t.Admit(token, "")
		return agent.AgentID, ok && agent.Proven()
	case t.Name(agent.AgentID):
		return t.Admit(token, agent.AgentID)
	}
	owner, ok := t.Admit(token, "")
	if !ok || owner == "" || strings.HasPrefix(agent.AgentID, owner+"/") {
		return agent.AgentID, ok && (owner != "" || !t.below(agent.AgentID))
	}
	return owner + "/" + agent.AgentID, true
}

// below reports whether a name is one that AdmitFor gives to an agent below one with a token.
func (t Tokens) below(name string) bool {
	for i := range t {
		if t[i].AgentID != "" && strings.HasPrefix(name, t[i].AgentID+"/") {
			return true
		}
	}
	return false
}

// AdmitClient is Admit for a protocol in which a client names its program, not an agent: that
// is the agent where the token names none.
func (t Tokens) AdmitClient(token, program string) (agentID string, ok bool) {
	if agentID, ok = t.Admit(token, ""); ok && agentID == "" {
		return t.Admit(token, program)
	}
	return agentID, ok
}

// Apart returns the agent whose an agent's own things are: the one that a token is for, "" for all others
// together. apart is false where no token is for one agent alone, so that nobody's things are kept from others.
func (t Tokens) Apart(agentID string) (owner string, apart bool) {
	for i := range t {
		apart = apart || t[i].AgentID != ""
		if agentID != "" && t[i].AgentID == agentID {
			owner = agentID
		}
	}
	return owner, apart
}

// WrongName says why no session may choose a name for itself; "" = it may.
func WrongName(name string) string {
	if fleet.IsChildID(name) {
		return "has the form of a child agent's id, which no session may take; choose a name that is not sub_ and " +
			"8 or 32 hex digits"
	}
	return ""
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
