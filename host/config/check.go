package config

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"

	"a2e/host/config/yamltree"
	"a2e/host/guard/auth"
	"a2e/host/schema"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// check resolves the paths of c and checks the rules that struct tags cannot express.
func (d *decoder) check(c *Config, src Source) {
	if c.HostID == "" || len(c.HostID) > 256 || strings.ContainsFunc(c.HostID, unicode.IsControl) {
		d.fail(d.at("host_id"), "host_id must be a name of 1 to 256 bytes in one line")
	}
	d.checkAuth(c)
	d.checkGroups(c.Groups)
	home := homeDir(src.Getenv)
	in := func(dir, path string) string { return resolve(dir, untilde(home, path)) }
	at, shown := d.at("workspace"), asWritten(d.at("workspace"), c.Workspace)
	c.Workspace = in(src.Dir, c.Workspace)
	if fi, err := os.Stat(c.Workspace); err != nil {
		d.fail(at, "workspace %s cannot be used: %v", shown, cause(err))
	} else if !fi.IsDir() {
		d.fail(at, "workspace %s must be a folder", shown)
	}
	c.StateDir = in(src.Dir, c.StateDir)
	if fi, err := os.Stat(c.StateDir); err == nil && !fi.IsDir() {
		d.fail(d.at("state_dir"), "state_dir must be a folder; there is a file of that name")
	}
	d.checkState(c)
	var err error
	if c.Agent, err = agentOf(src.Getenv); err != nil {
		d.fail(d.at(), "%v", err)
	} else if c.Agent != nil {
		d.secrets.AddSecret(c.Agent.Token)
	}
	for i, path := range c.Children.Read {
		at := below(d.at("children", "read"), strconv.Itoa(i))
		if c.Children.Read[i], err = filepath.Abs(in(src.Dir, path)); err == nil && path != "" {
			_, err = os.Stat(c.Children.Read[i])
		}
		if err != nil {
			d.fail(at, "children.read[%d]: %s cannot be read: %v", i, asWritten(at, path), cause(err))
		}
	}
	d.checkAudit(&c.Audit)
	c.Audit.Path = in(c.StateDir, c.Audit.Path)
	if c.Audit.KeyFile != "" {
		c.Audit.KeyFile = in(c.StateDir, c.Audit.KeyFile)
	}
	d.buildWall(c, src)
}

// asWritten returns a path for messages: with the variables in it, not with their values.
func asWritten(at *node, path string) string {
	if strings.Contains(at.Text, "${") {
		return at.Text
	}
	return path
}

// checkState reports an invalid address of the state.
func (d *decoder) checkState(c *Config) {
	address := c.Postgres()
	if address == "" {
		return
	}
	server, _, _, err := store.PostgresConfig(address)
	if err != nil {
		d.fail(d.at("state"), "state %v; or sqlite: for a file in state_dir", err)
		return
	}
	d.secrets.AddSecret(server.Password)
}

// Postgres returns the address of the PostgreSQL server that keeps the state, with its password. It
// returns "" if the state is the file in StateDir.
func (c *Config) Postgres() string {
	if address := c.State.Reveal(); address != "sqlite:" {
		return address
	}
	return ""
}

// maxGroup is the maximum number of tools in a group.
const maxGroup = 256

// checkGroups reports names that cannot be called, and tools that are in two groups.
func (d *decoder) checkGroups(groups Groups) {
	in := make(map[string]string)
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		at, names := d.at("groups", group), groups[group]
		switch {
		case !protocol.IsTaskName(group):
			d.fail(at, "groups: %.64q is not a valid group name; write 1 to %d bytes without spaces", group,
				protocol.MaxTaskName)
		case len(names) == 0 && at.Kind == list, len(names) > maxGroup: // another kind was reported already
			d.fail(at, "groups.%s has %d tools; it should have between 1 and %d", group, len(names), maxGroup)
		}
		for i, name := range names {
			_, isGroup := groups[name]
			other, taken := in[name]
			switch {
			case name == "" && i < len(at.Items) && at.Items[i].Text != "": // that was reported already
			case !protocol.IsTaskName(name):
				d.fail(at, "groups.%s: %.64q is not a valid tool name", group, name)
			case isGroup:
				d.fail(at, "groups.%s: %.64q is the name of a group; a group has tools only, whose names are others",
					group, name)
			case taken:
				d.fail(at, "groups.%s: the tool %.64q is in groups.%s already; a tool is in one group at most", group,
					name, other)
			}
			in[name] = group
		}
	}
}

// maxAgentID is the maximum length of an agent's name in a handshake, in bytes.
const maxAgentID = 1 << 10

// checkAuth reports tokens that could be for two agents, and names that no agent can have. It shows no
// token.
func (d *decoder) checkAuth(c *Config) {
	seen := map[[sha256.Size]byte]string{c.AuthToken.Hash(): "auth_token"}
	for i, a := range c.Auth {
		name, at := fmt.Sprintf("auth[%d]", i), below(d.at("auth"), strconv.Itoa(i))
		hash := a.Token.Hash()
		if before := seen[hash]; before != "" && a.Token.Reveal() != "" {
			d.fail(at, "%s.token is the same as that of %s; each agent needs its own", name, before)
		}
		seen[hash] = name
		if at.At("agent_id") != nil && a.AgentID == "" || len(a.AgentID) > maxAgentID {
			d.fail(at, "%s.agent_id must be a name of 1 to %d bytes", name, maxAgentID)
		}
		if wrong := auth.WrongName(a.AgentID); wrong != "" {
			d.fail(at, "%s.agent_id %s", name, wrong)
		}
	}
}

func (d *decoder) checkAudit(a *Audit) {
	switch key := a.Key.Reveal(); {
	case key != "" && a.KeyFile != "":
		d.fail(d.at("audit", "key_file"), "audit.key and audit.key_file: set one of them")
	case key != "" && len(key) < 16:
		d.fail(d.at("audit", "key"), "audit.key must have 16 characters or more")
	}
}

// resolve returns a path relative to dir, unless it is absolute.
func resolve(dir, path string) string {
	if filepath.IsAbs(path) || dir == "" {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// untilde replaces a leading ~ by the home folder.
func untilde(home, path string) string {
	rest, ok := strings.CutPrefix(path, "~")
	if !ok || (rest != "" && rest[0] != '/' && rest[0] != filepath.Separator) {
		return path
	}
	return home + rest
}

// homeDir returns the home folder from the environment, or from the user database if the environment
// has none (a parent process may have cleared it).
func homeDir(getenv func(string) string) string {
	name := "HOME"
	if runtime.GOOS == "windows" {
		name = "USERPROFILE"
	}
	if home := getenv(name); home != "" {
		return home
	}
	if u, err := user.Current(); err == nil && u.HomeDir != "" {
		return u.HomeDir
	}
	return os.TempDir()
}

// agentOf returns the child agent for which the host was started, or nil if there is none.
func agentOf(getenv func(string) string) (*fleet.Agent, error) {
	text := envOr(getenv)(fleet.EnvAgent)
	if text == "" {
		return nil, nil
	}
	agent := new(fleet.Agent)
	scopes := []protocol.ToolScope{protocol.ToolsShared, protocol.ToolsRestricted, protocol.ToolsIsolated}
	switch err := json.Unmarshal([]byte(text), agent); {
	case err != nil:
		return nil, fmt.Errorf("the variable %s does not hold a child agent as JSON, such as "+
			`{"agent_id":"a1","tool_scope":"shared"}: %w`, fleet.EnvAgent, err)
	case !slices.Contains(scopes, agent.ToolScope):
		return nil, fmt.Errorf("the variable %s: tool_scope is %.32q; it should be shared, restricted or isolated",
			fleet.EnvAgent, agent.ToolScope)
	case agent.AgentID == "":
		return nil, fmt.Errorf("the variable %s: agent_id is missing", fleet.EnvAgent)
	case agent.Depth < 0 || agent.MaxSteps < 0:
		return nil, fmt.Errorf("the variable %s: depth and max_steps must not be negative", fleet.EnvAgent)
	}
	return agent, nil
}

// EnvState is the environment variable with the state of a host whose config sets none.
const EnvState = "A2E_STATE"

// EnvStateDir is the environment variable with the state_dir of a host whose config sets none.
const EnvStateDir = "A2E_STATE_DIR"

// defaultStateDir returns $A2E_STATE_DIR, or $XDG_STATE_HOME/a2e, or the usual folder of the system.
func defaultStateDir(getenv func(string) string) string {
	getenv = envOr(getenv)
	if dir := getenv(EnvStateDir); filepath.IsAbs(dir) {
		return dir
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "a2e")
	}
	switch runtime.GOOS {
	case "windows":
		if dir := getenv("LOCALAPPDATA"); dir != "" {
			return filepath.Join(dir, "a2e")
		}
		return filepath.Join(homeDir(getenv), "AppData", "Local", "a2e")
	case "darwin", "ios":
		return filepath.Join(homeDir(getenv), "Library", "Application Support", "a2e")
	}
	return filepath.Join(homeDir(getenv), ".local", "state", "a2e")
}

// Problem is one error in a file.
type Problem = yamltree.Problem

// Warning is something in a file that is accepted but has no effect.
type Warning = Problem

// Error contains all problems of a file, in the order of the file.
type Error struct {
	Problems []Problem // at least one
}

// maxShown is the maximum number of problems in the text of an Error; Problems contains all.
const maxShown = 50

// Error returns one line for each problem.
func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i == maxShown {
			fmt.Fprintf(&b, "\n… and %d more", len(e.Problems)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// problemsError sorts the problems by position and removes repetitions (an alias repeats the problems of
// its anchor). It returns nil if there are no problems.
func problemsError(problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	sortProblems(problems)
	return &Error{Problems: slices.Compact(problems)}
}

func sortProblems(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// SuggestName returns a suggestion of what to write instead of s.
func SuggestName(s string, known []string) string {
	if s == "" || !isName(s) {
		return "known are " + strings.Join(known, ", ")
	}
	if hint := schema.DidYouMean(s, known); hint != "" {
		return hint
	}
	return "known are " + strings.Join(known, ", ")
}

// isName reports whether s looks like a key or a name. Error texts must not show other texts.
func isName(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_-./", c) {
			return false
		}
	}
	return len(s) <= 40
}

// named returns s in quotes if it looks like a name, and hides it otherwise.
func named(s string) string {
	if isName(s) {
		return fmt.Sprintf("%q", s)
	}
	return "(not shown: it does not look like a name)"
}
