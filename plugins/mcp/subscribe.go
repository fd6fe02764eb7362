package mcp

import (
	"context"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// maxSubscriptions bounds the resources of one server that somebody listens to.
const maxSubscriptions = 1_000

// subscribe answers mcp/resource/subscribe/req: from then on changes of the resource come
// as mcp/server/push with the req_id of the request, until the session ends.
func (p *Plugin) subscribe(ctx context.Context, req *protocol.MCPResourceSubscribeRequest, _ host.Emitter) (*protocol.MCPResourceSubscribeResponse, error) {
	if req.URI == "" {
		return nil, protocol.Violation(protocol.FieldError{Path: "/uri", Message: "is empty; should be the URI of a resource"})
	}
	s, err := p.serverOf(ctx, req.URI, req.ServerID)
	if err != nil {
		return nil, err
	}
	if err := s.usable(); err != nil {
		return nil, err
	}
	feed := host.OpenFeed(ctx)
	err = s.listen(req.URI, feed)
	if err == nil {
		err = s.subscribeUpstream(ctx, req.URI)
	}
	if err != nil {
		s.forget(func(uri string, f *host.Feed) bool { return f == feed })
		feed.Close()
		return nil, err
	}
	return &protocol.MCPResourceSubscribeResponse{OK: true}, nil
}

// listen adds a listener, in place of one that its session had for the same resource.
func (s *server) listen(uri string, feed *host.Feed) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	there, known := s.subs[uri]
	if !known && len(s.subs) >= maxSubscriptions {
		return protocol.Errorf(protocol.CodeOverloaded, "%d resources of the MCP server %q are subscribed to, and no more are possible", maxSubscriptions, s.opts.ID)
	}
	s.stale = slices.DeleteFunc(s.stale, func(old string) bool { return old == uri })
	kept := make([]*host.Feed, 0, len(there)+1)
	for _, f := range there {
		if f.Session() == feed.Session() {
			f.Close()
			continue
		}
		kept = append(kept, f)
	}
	s.subs[uri] = append(kept, feed)
	return nil
}

// subscribeUpstream asks the server for news of a resource.
func (s *server) subscribeUpstream(ctx context.Context, uri string) error {
	return s.link.Call(ctx, func(ctx context.Context, cs *sdk.ClientSession) error {
		if r := capabilities(cs).Resources; r == nil || !r.Subscribe {
			return protocol.Errorf(protocol.CodeMCPCapabilityMissing, "the MCP server %q has no subscriptions", s.opts.ID)
		}
		return cs.Subscribe(ctx, &sdk.SubscribeParams{URI: uri})
	})
}

// feeds gives those who listen to a resource, or to one that it is a part of.
func (s *server) feeds(uri string) []*host.Feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if exact := s.subs[uri]; len(exact) > 0 {
		return slices.Clone(exact)
	}
	var out []*host.Feed
	for of, feeds := range s.subs {
		if strings.HasPrefix(uri, strings.TrimSuffix(of, "/")+"/") {
			out = append(out, feeds...)
		}
	}
	return out
}

// endSession ends the subscriptions of a session.
func (s *server) endSession(sess *host.Session) {
	s.forget(func(_ string, f *host.Feed) bool { return f.Session() == sess })
	s.forgetCaller(sess)
}

// forget takes listeners away, and leaves it to run to tell the server what nobody listens
// to any more.
func (s *server) forget(which func(uri string, f *host.Feed) bool) {
	s.mu.Lock()
	gone := false
	for uri, feeds := range s.subs {
		kept := slices.DeleteFunc(slices.Clone(feeds), func(f *host.Feed) bool { return which(uri, f) })
		s.subs[uri] = kept
		if len(kept) == 0 {
			delete(s.subs, uri)
			s.stale = append(s.stale, uri)
			gone = true
		}
	}
	s.mu.Unlock()
	if gone {
		s.signal()
	}
}

// unsubscribeStale tells the server what nobody listens to any more.
func (s *server) unsubscribeStale(ctx context.Context) {
	s.mu.Lock()
	uris := s.stale
	s.stale = nil
	s.mu.Unlock()
	for _, uri := range uris {
		err := s.link.Call(ctx, func(ctx context.Context, cs *sdk.ClientSession) error {
			return cs.Unsubscribe(ctx, &sdk.UnsubscribeParams{URI: uri})
		})
		s.mu.Lock()
		_, again := s.subs[uri]
		s.mu.Unlock()
		if again { // somebody came meanwhile
			err = s.subscribeUpstream(ctx, uri)
		}
		if err != nil { // then it tells of changes that nobody asked for
			s.p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).Msg("a subscription could not be ended")
		}
	}
}
