package mcp

import (
	"context"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
)

// listener is a request subscriptions/listen under way: what a modern client wants to hear.
type listener struct {
	id   jsontext.Value // of the request
	want mcp.NotificationSubscriptions
}

// listen answers subscriptions/listen, when it is cancelled or the client is gone.
func (s *server) listen(ctx context.Context, r *request, params mcp.Params) (mcp.Result, error) {
	asked := params.(*mcp.SubscriptionsListenParams).Notifications
	if asked == nil {
		return nil, rpcErrorf(codeInvalidParams, `"notifications" is required; it says what to listen to`)
	}
	l := &listener{id: r.id, want: *asked}
	l.want.ResourceSubscriptions = nil
	l.want.ResourcesListChanged = asked.ResourcesListChanged && s.hasServers()
	for _, uri := range asked.ResourceSubscriptions {
		if s.follow(ctx, uri) == nil { // the answer names those that are listened to
			l.want.ResourceSubscriptions = append(l.want.ResourceSubscriptions, uri)
		}
	}
	want, err := json.Marshal(l.want)
	if err != nil {
		return nil, err
	}
	s.listeners.Store(l, l)
	defer s.listeners.Delete(l)
	s.tell(r, noticeLine(notifyListening, l.stamp(append(append(jsontext.Value(`{"notifications":`), want...), '}'))))
	if want := l.want; want.ToolsListChanged || want.PromptsListChanged || want.ResourcesListChanged || want.ResourceSubscriptions != nil {
		<-ctx.Done()
	}
	for _, uri := range l.want.ResourceSubscriptions {
		s.unfollow(context.WithoutCancel(ctx), uri)
	}
	return &rawResult{raw: l.stamp(jsontext.Value("{}"))}, nil
}

// stamp adds to params, or to a result, whose news they are.
func (l *listener) stamp(params jsontext.Value) jsontext.Value {
	return withMember(params, `"_meta":{"`+mcp.MetaKeySubscriptionID+`":`+string(l.id)+`}`)
}

// notify tells the client of news; a modern one where it listens to them.
func (s *server) notify(method string, params jsontext.Value, wanted func(mcp.NotificationSubscriptions) bool) {
	if !s.isModern.Load() {
		s.send(noticeLine(method, params))
		return
	}
	s.listeners.Range(func(key, _ any) bool {
		if l := key.(*listener); wanted(l.want) {
			s.send(noticeLine(method, l.stamp(params)))
		}
		return true
	})
}

// notifyChanged tells of a list that has changed.
func (s *server) notifyChanged(method string) {
	s.notify(method, nil, func(want mcp.NotificationSubscriptions) bool {
		switch method {
		case notifyToolsChanged:
			return want.ToolsListChanged
		case notifyPromptsChanged:
			return want.PromptsListChanged
		}
		return want.ResourcesListChanged
	})
}

// uriParams are the params of resources/updated and resources/unsubscribe.
func uriParams(uri string) jsontext.Value {
	return append(protocol.AppendString([]byte(`{"uri":`), uri), '}')
}
