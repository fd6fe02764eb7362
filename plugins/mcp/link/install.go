package link

import (
	"path/filepath"
	"slices"
	"strings"
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
