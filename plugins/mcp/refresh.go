package mcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/plugins/mcp/link"
	"a2e/protocol"
)

// The bounds of the lists of one server.
const (
	maxPages     = 200
	maxTools     = 1_000
	maxResources = 10_000
	maxPrompts   = 1_000
	maxListBytes = 32 << 20 // of one list
)

// The pace at which lists are fetched.
const (
	debounce     = 100 * time.Millisecond // changes within this time are handled together
	retryAfter   = 10 * time.Second       // for a list that could not be read, of a connected server
	pinsRefresh  = 2 * time.Second        // how soon an approval by another process counts
	refreshLimit = 30 * time.Second       // of one page
)

// linkChanged handles a new state of the connection.
func (s *server) linkChanged(l *link.Link) {
	switch l.State().Status {
	case link.Connecting:
		return
	case link.Connected:
		s.mu.Lock()
		s.dirty, s.renew = kindAll, true
		s.mu.Unlock()
		s.signal()
	default:
		s.gotLists()
	}
}

// listChanged notes that the server said that lists of it have changed.
func (s *server) listChanged(what kind) {
	s.mu.Lock()
	s.dirty |= what
	s.changed |= what
	s.mu.Unlock()
	s.signal()
}

// run keeps the lists up to date until ctx ends. A server that says a thousand times a
// second that they have changed is asked a few times a second.
func (s *server) run(ctx context.Context) {
	defer close(s.done)
	clock := time.NewTimer(time.Hour)
	clock.Stop()
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-clock.C:
		}
		s.mu.Lock()
		renew := s.renew
		s.mu.Unlock()
		if !renew && !link.Pause(ctx, debounce) {
			return
		}
		switch failed := s.refresh(ctx); {
		case failed:
			clock.Reset(retryAfter)
		case s.awaitsApproval():
			clock.Reset(pinsRefresh)
		}
	}
}

// refresh fetches the lists that are dirty. failed = some of them could not be read and the server is
// connected.
func (s *server) refresh(ctx context.Context) (failed bool) {
	s.mu.Lock()
	dirty, changed, renew := s.dirty, s.changed, s.renew
	s.dirty, s.changed, s.renew = 0, 0, false
	s.mu.Unlock()
	if renew {
		s.greet(ctx)
	}
	s.unsubscribeStale(ctx)
	s.tellRoots()
	lost := kind(0)
	for _, step := range []struct {
		what  kind
		fetch func(context.Context) (news bool, err error)
	}{{kindTools, s.fetchTools}, {kindPrompts, s.fetchPrompts}, {kindResources, s.fetchResources}} {
		if dirty&step.what == 0 {
			continue
		}
		news, err := step.fetch(ctx)
		if err != nil {
			s.p.env.Log.Warn().Err(err).Str("mcp_server", s.opts.ID).Msg("a list of the MCP server could not be read")
			lost |= step.what
			continue
		}
		if news {
			changed |= step.what
		}
		s.known(step.what)
	}
	if dirty&kindTools == 0 && s.awaitsApproval() {
		s.repin(ctx)
	}
	s.tellChanged(changed &^ lost)
	s.mu.Lock()
	s.dirty |= lost
	s.changed |= changed & lost
	s.mu.Unlock()
	if dirty == kindAll || lost != 0 {
		s.gotLists()
	}
	return lost != 0 && s.link.State().Status == link.Connected
}

// tellChanged tells the agent that lists have changed, after they were fetched.
func (s *server) tellChanged(what kind) {
	for _, list := range []struct {
		kind   kind
		method string
	}{
		{kindTools, "notifications/tools/list_changed"},
		{kindResources, "notifications/resources/list_changed"},
		{kindPrompts, "notifications/prompts/list_changed"},
	} {
		if what&list.kind != 0 {
			s.push.add(list.method, "", nil)
		}
	}
}

// greet sets up a new connection: it sets the log level and subscribes again, as the old connection's state
// is lost.
func (s *server) greet(ctx context.Context) {
	if err := s.setLogLevel(ctx); err != nil {
		s.p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).Msg("the MCP server takes no log level")
	}
	s.mu.Lock()
	uris := make([]string, 0, len(s.subs))
	for uri := range s.subs {
		uris = append(uris, uri)
	}
	s.stale = nil
	s.mu.Unlock()
	for _, uri := range uris {
		if err := s.subscribeUpstream(ctx, uri); err != nil {
			s.p.env.Log.Warn().Err(err).Str("mcp_server", s.opts.ID).Msg("a subscription could not be renewed")
		}
	}
}

// capabilities returns the capabilities of the server as it last introduced itself.
func (s *server) capabilities() *sdk.ServerCapabilities {
	if known := s.link.State().Capabilities; known != nil {
		return known
	}
	return new(sdk.ServerCapabilities)
}

// collect fetches all pages of a list and returns their entries, at most `most`. The entries are in the
// member name of the results of method. has reports whether the server has such a list.
func (s *server) collect(
	ctx context.Context, most int, has func(*sdk.ServerCapabilities) bool, method, name string,
) (all []jsontext.Value, err error) {
	cursor, size := jsontext.Value(nil), 0
	for range maxPages {
		var page []jsontext.Value
		var next jsontext.Value
		pageCtx, cancel := context.WithTimeout(ctx, refreshLimit)
		err := s.link.Call(pageCtx, func(ctx context.Context, cs *sdk.ClientSession) error {
			if !has(s.capabilities()) {
				return nil
			}
			params := map[string]any{}
			if cursor != nil {
				params["cursor"] = cursor
			}
			raw, err := rawCall(ctx, cs, method, params)
			if err == nil {
				page, next, err = readPage(raw, name)
			}
			return err
		})
		cancel()
		if err != nil {
			return nil, err
		}
		for _, item := range page {
			if size += len(item); item.Kind() != 'n' && size <= maxListBytes {
				all = append(all, item)
			}
		}
		if len(all) > most || size > maxListBytes {
			all = all[:min(len(all), most)]
			s.p.env.Log.Warn().Str("mcp_server", s.opts.ID).Int("taken", len(all)).Msg("the MCP server lists more " +
				"than is taken in")
			return all, nil
		}
		if next == nil || string(next) == string(cursor) {
			return all, nil
		}
		cursor = next
	}
	return all, fmt.Errorf("the list has more than %d pages", maxPages)
}

// readPage returns the entries of a page of a list, and the cursor of the next page as the server wrote it,
// or nil if there is none. A cursor should be a text; a number is sent back as it came.
func readPage(raw jsontext.Value, name string) (page []jsontext.Value, next jsontext.Value, err error) {
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return nil, nil, errors.New("the result is not a JSON object")
	}
	list, there := obj.Get(name)
	if items, err := listItems(list); err == nil {
		for _, item := range items {
			page = append(page, jsontext.Value(item))
		}
	} else if there && list.Kind() != 'n' {
		return nil, nil, fmt.Errorf("%q of the result is %s; it should be a list", name, kindName(list))
	}
	if cursor, _ := obj.Get("nextCursor"); cursor.Kind() == '0' || cursor.Kind() == '"' && string(cursor) != `""` {
		next = jsontext.Value(cursor)
	}
	return page, next, nil
}

func (s *server) fetchTools(ctx context.Context) (bool, error) {
	has := func(c *sdk.ServerCapabilities) bool { return c.Tools != nil }
	found, err := s.collect(ctx, maxTools, has, "tools/list", "tools")
	if err != nil {
		return false, err
	}
	return s.takeTools(ctx, found), nil
}

func (s *server) fetchPrompts(ctx context.Context) (bool, error) {
	has := func(c *sdk.ServerCapabilities) bool { return c.Prompts != nil }
	found, err := s.collect(ctx, maxPrompts, has, "prompts/list", "prompts")
	if err == nil {
		s.takePrompts(found)
	}
	return false, err
}

func (s *server) fetchResources(ctx context.Context) (bool, error) {
	has := func(c *sdk.ServerCapabilities) bool { return c.Resources != nil }
	found, err := s.collect(ctx, maxResources, has, "resources/list", "resources")
	if err != nil {
		return false, err
	}
	templates, err := s.collect(ctx, maxResources, has, "resources/templates/list", "resourceTemplates")
	if err != nil && !isMethodNotFound(err) { // older servers have resources but no templates
		return false, err
	}
	s.takeResources(found, templates)
	return false, nil
}

// isMethodNotFound reports whether an error means that the server does not know a method.
func isMethodNotFound(err error) bool {
	var known *protocol.Error
	return errors.As(err, &known) && known.Code == protocol.CodeMCPCapabilityMissing
}
