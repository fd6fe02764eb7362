package mcp

import (
	"fmt"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Templates that are dear to hold a URI against cost no more than others, however many a
// server lists.
func TestDearTemplates(t *testing.T) {
	var vars strings.Builder
	for i := range maxTemplate / 4 {
		fmt.Fprintf(&vars, "{a%d}", i%10)
	}
	dear := &sdk.ResourceTemplate{URITemplate: vars.String()}
	all := []*sdk.ResourceTemplate{{URITemplate: "item://{id}"}, {URITemplate: "{broken"}, {URITemplate: strings.Repeat("x", maxTemplate+1)}}
	for range 2 * maxTemplates / maxTemplate {
		all = append(all, dear)
	}
	s := &server{}
	s.takeResources(nil, append(all, &sdk.ResourceTemplate{URITemplate: "late://{id}"}))
	for uri, want := range map[string]bool{
		"item://7": true,
		"item://" + strings.Repeat("7", maxTemplated): false,
		"late://7": true, // there is room for a short one
		strings.Repeat("a", maxTemplated/16) + "!": false,
	} {
		if listed, templated := s.offers(uri); listed || templated != want {
			t.Errorf("%.20s: %t", uri, templated)
		}
	}
}
