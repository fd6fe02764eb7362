package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"a2e/protocol"
	"a2e/protocol/client"
)

// How a person is told of what takes its time.
const (
	quietFor   = time.Second      // before the first line
	tellEvery  = 10 * time.Second // in a pipe, where none can be drawn anew
	lookEvery  = 20 * time.Millisecond
	shownWords = 300 // characters of a server's own words
)

// serverWait says which MCP servers a command needs, and tells how that went.
type serverWait struct {
	needs   func(id string) bool
	seconds float64 // 0 = as long as their start may take

	waited  int         // servers that were not there at first
	missing []mcpServer // those that are not connected after all
}

// mentions reports whether a text names a tool of a server.
func mentions(text string) func(id string) bool {
	return func(id string) bool { return strings.Contains(text, id+"__") }
}

// askServers is ask once the servers that wait needs have started, or the time is up.
func (c *commands) askServers(sys *System, agentID string, capability protocol.Capability, wait *serverWait, do func(context.Context, *client.Client) error) error {
	return c.askWith(sys, agentID, []protocol.Capability{capability, protocol.CapMCP}, func(ctx context.Context, conn *client.Client) error {
		if err := wait.settle(ctx, conn, sys); err != nil {
			return err
		}
		return do(ctx, conn)
	})
}

// settle waits, and tells on stderr which servers are still starting.
func (w *serverWait) settle(ctx context.Context, c *client.Client, sys *System) error {
	start := time.Now()
	tell := start.Add(quietFor)
	var waitsFor atomic.Value
	waitsFor.Store("the host")
	defer sys.waiting(func() string { return "waiting for " + waitsFor.Load().(string) })()
	for first := true; ; first = false {
		_, servers, err := listServers(ctx, c)
		if known := new(protocol.Error); errors.As(err, &known) && first {
			return nil // a host without the plugin has none
		}
		if err != nil {
			return err
		}
		servers = slices.DeleteFunc(servers, func(s mcpServer) bool { return s.State == "disabled" || !w.needs(s.ServerID) })
		busy := slices.DeleteFunc(slices.Clone(servers), func(s mcpServer) bool { return !s.starts() })
		if first {
			w.waited = len(busy)
		}
		if len(busy) == 0 || w.seconds > 0 && time.Since(start).Seconds() >= w.seconds {
			w.missing = slices.DeleteFunc(servers, func(s mcpServer) bool { return s.Status == "ready" && s.Listed })
			return nil
		}
		waitsFor.Store("MCP servers: " + described(busy))
		if !sys.showsLive() && time.Now().After(tell) {
			say(sys.Err, "waiting for MCP servers: %s", described(busy))
			tell = time.Now().Add(tellEvery)
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// starts reports whether a server is still on its way.
func (s *mcpServer) starts() bool {
	return s.State == "connecting" || s.State == "installing" || s.Status == "ready" && !s.Listed
}

// described names servers, each with its state and last words.
func described(servers []mcpServer) string {
	words := make([]string, len(servers))
	for i, s := range servers {
		words[i] = s.ServerID + " (" + s.why() + ")"
	}
	return strings.Join(words, ", ")
}

// why returns the state of a server, and its last words.
func (s *mcpServer) why() string {
	if words := []rune(oneLine(cmp.Or(s.LastError, s.Progress))); len(words) > 0 {
		return s.State + ": " + string(words[:min(len(words), shownWords)])
	}
	return s.State
}

// lacking is the error of a list without what some servers have; nil = it is whole.
func (w *serverWait) lacking() error {
	switch len(w.missing) {
	case 0:
		return nil
	case 1:
		s := w.missing[0]
		return fail(exitFailed, fmt.Errorf("the MCP server %s is not connected, and what it has is missing here: %s", s.ServerID, s.why()))
	}
	return fail(exitFailed, fmt.Errorf("%d MCP servers are not connected, and what they have is missing here: %s", len(w.missing), described(w.missing)))
}
