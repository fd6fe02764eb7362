package link

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Installs tells whether the program of a stdio server is one that may install the server
// before it runs it.
func (c *Config) Installs() bool {
	if c.transport() != Stdio {
		return false
	}
	words := append([]string{strings.TrimSuffix(filepath.Base(c.Command), ".exe")}, c.Args...)
	for _, installer := range [][]string{
		{"npx"}, {"npm", "exec"}, {"npm", "x"}, {"uvx"}, {"uv", "tool", "run"}, {"uv", "run"}, {"pipx", "run"}, {"bunx"}, {"bun", "x"},
		{"pnpx"}, {"pnpm", "dlx"}, {"pnpm", "exec"}, {"yarn", "dlx"}, {"docker", "run"}, {"podman", "run"}, {"deno", "run"},
	} {
		if startsWith(words, installer) {
			return true
		}
	}
	return false
}

// startsWith tells whether a command line is one of a program and its subcommand. Options
// may stand between them, also with a value.
func startsWith(words, installer []string) bool {
	if words[0] != installer[0] {
		return false
	}
	rest := words[1:]
	for _, want := range installer[1:] {
		i := slices.Index(rest, want)
		if i < 0 || i > 0 && !strings.HasPrefix(rest[0], "-") {
			return false
		}
		rest = rest[i+1:]
	}
	return true
}

// installer is a carrier that may install the server first. filled gives the bytes of what
// it has installed; 0 = it does nothing of the kind.
type installer interface{ filled() int64 }

// expire stops a handshake that takes too long. An installer that still fills its home is
// at work, and has more time.
func (c *conn) expire(done <-chan struct{}, stop func(error)) {
	limit := c.link.cfg.ConnectTimeout
	const parts, most = 4, 5
	tick := time.NewTicker(max(limit/parts, time.Millisecond))
	defer tick.Stop()
	before := int64(0)
	for n := 1; ; n++ {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if n < parts-1 {
			continue
		}
		size := int64(0)
		if i, ok := c.carrier.(installer); ok {
			size = i.filled()
		}
		if n >= parts && (size <= before || n >= most*parts) {
			stop(fmt.Errorf("it did not complete the MCP handshake within %s; start_timeout in its config sets that", limit*time.Duration(n)/parts))
			return
		}
		before = size
	}
}
