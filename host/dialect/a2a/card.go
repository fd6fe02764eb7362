package a2a

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"a2e/protocol"
	wire "a2e/protocol/a2a"
	"a2e/protocol/fleet"
)

// serveCard writes the agent card. A client that names version 1 gets the card of 1.0, any other client a card that
// clients of both versions can read.
func (a *Agent) serveCard(w http.ResponseWriter, r *http.Request) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	card := a.card(scheme+"://"+r.Host+wire.PathRPC, a.link.who(r.Context()),
		strings.HasPrefix(r.Header.Get(wire.VersionHeader),
			"1"))
	text, err := protocol.AppendJSON(nil, card)
	if err != nil {
		http.Error(w, "the card does not encode", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Vary", wire.VersionHeader)
	_, _ = w.Write(append(text, '\n')) // fails if the client has gone
}

// card returns the agent card.
func (a *Agent) card(url string, who *fleet.Announce, only10 bool) object {
	if who == nil {
		who = new(fleet.Announce)
	}
	about := "Does tasks of the fleet protocol 2.0, or in plain words."
	if who.Worker.Model != "" {
		about = fmt.Sprintf("Does tasks of the fleet protocol 2.0, or in plain words, with the model %s.",
			who.Worker.Model)
	}
	tags := append([]string{}, who.Capabilities.Tools...)
	modes := []string{"text/plain", "application/json"}
	card := object{
		"name": cmp.Or(who.Worker.AgentID, "a2e"), "description": about, "version": a.opts.Version,
		"supportedInterfaces": []any{
			object{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
			object{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
		},
		"capabilities": object{
			"streaming": true, "pushNotifications": false,
			"extensions": []any{object{"uri": wire.FleetExtension, "description": "The text of a message may be a " +
				"TASK_DISPATCH."}},
		},
		"defaultInputModes": modes, "defaultOutputModes": modes,
		"skills": []any{object{"id": "task", "name": "Tasks", "description": about, "tags": tags}},
	}
	if !only10 {
		card["protocolVersion"], card["url"], card["preferredTransport"] = "0.3.0", url, "JSONRPC"
		card["capabilities"].(object)["stateTransitionHistory"] = false
	}
	switch {
	case !a.opts.Secured:
	case only10:
		card["securitySchemes"] = object{"bearer": object{"httpAuthSecurityScheme": object{"scheme": "Bearer"}}}
		card["securityRequirements"] = []any{object{"schemes": object{"bearer": object{"list": []string{}}}}}
	default:
		card["securitySchemes"] = object{"bearer": object{"type": "http", "scheme": "bearer"}}
		card["security"] = []any{object{"bearer": []string{}}}
	}
	return card
}
