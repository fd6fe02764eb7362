// Package auth decides whether a token lets a client in, and as which agent. Every protocol on the host's pipe asks it.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"slices"
	"strings"

	"a2e/protocol/fleet"
)

// Token lets clients in.
type Token struct {
	Sum     [sha256.Size]byte // SHA-256 of its text
	AgentID string            // the only agent that it is for; "" = all agents that no other token is for
}

// Tokens are all tokens of a host. If there are none, everybody is let in, as the agent that they claim to be.
type Tokens []Token

// New makes a token from its text.
func New(text, agentID string) Token { return Token{sha256.Sum256([]byte(text)), agentID} }

// Admit reports whether a client with this token is let in, and as which agent. claimed is the agent
// that the client claims to be, or "" if it claims none. A token for one agent lets in no other agent,
// and an agent with its own token needs such a token. No token lets in a child agent, or a name below
// that of another agent. The token's hash is compared with all tokens, in constant time.
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

// AdmitFor is Admit for a task that is done as an agent; nil = the task names none. A child agent that
// proves its identity is let in with any token. Another agent without its own token gets a name below
// the agent of the token, such as bob/child-1, so that its things belong to that agent.
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

// below reports whether a name lies below the agent of a token, as the names that AdmitFor makes.
func (t Tokens) below(name string) bool {
	return slices.ContainsFunc(t, func(one Token) bool {
		return one.AgentID != "" && strings.HasPrefix(name, one.AgentID+"/")
	})
}

// AdmitClient is Admit for a protocol in which a client names its program instead of an agent. If the
// token is for no single agent, the program's name is used as the agent.
func (t Tokens) AdmitClient(token, program string) (agentID string, ok bool) {
	if agentID, ok = t.Admit(token, ""); ok && agentID == "" {
		return t.Admit(token, program)
	}
	return agentID, ok
}

// Apart returns the owner of an agent's things: the agent itself if a token is for it alone, or "" for all other agents
// together. apart is false if no token is for one agent alone; then all agents share their things.
func (t Tokens) Apart(agentID string) (owner string, apart bool) {
	for i := range t {
		apart = apart || t[i].AgentID != ""
		if agentID != "" && t[i].AgentID == agentID {
			owner = agentID
		}
	}
	return owner, apart
}

// WrongName returns the reason why a session may not choose a name, or "" if it may.
func WrongName(name string) string {
	if fleet.IsChildID(name) {
		return "has the form of a child agent's id, which no session may take; choose a name that is not sub_ and " +
			"8 or 32 hex digits"
	}
	return ""
}

// Name reports whether a token is for this agent alone.
func (t Tokens) Name(agentID string) bool {
	return agentID != "" && slices.ContainsFunc(t, func(one Token) bool { return one.AgentID == agentID })
}
