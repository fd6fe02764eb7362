package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/config"
	"a2e/host/guard/private"
	"a2e/host/guard/redact"
	"a2e/host/guard/swap"
	"a2e/plugins/mcp"
	"a2e/protocol"
)

type mcpAddCmd struct {
	Name    string   `arg:"" help:"The server's id: letters, digits, _ and -."`
	Env     []string `sep:"none" placeholder:"NAME[=VALUE]" help:"Its variable; NAME alone: that of the host."`
	URL     string   `name:"url" placeholder:"URL" help:"Where a server runs already, in place of a command."`
	Header  []string `sep:"none" placeholder:"'NAME: VALUE'" help:"With --url: a header of each request."`
	Read    []string `sep:"none" placeholder:"PATH" help:"A further path that the command may read in its sandbox."`
	Try     bool     `default:"true" negatable:"" help:"Try the server. On unless --no-try."`
	Timeout float64  `placeholder:"SECONDS" help:"Seconds to try it. Default: as long as its start may take."`
	User    bool     `help:"Change the user's own servers, which all folders have unless --config names a config."`
	Command []string `arg:"" optional:"" passthrough:"partial" help:"What starts the server, behind --, or the URL of one that runs."`
}

// Run adds the server to the file of servers and tries it out.
func (a *mcpAddCmd) Run(cmd *commands, sys *System) error {
	if len(a.Command) > 0 && a.Command[0] == "--" { // kong leaves the -- in
		a.Command = a.Command[1:]
	}
	if len(a.Command) == 1 && a.URL == "" && isWebURL(a.Command[0]) {
		a.URL, a.Command = a.Command[0], nil
	}
	entry, err := a.entry()
	if err != nil {
		return fail(exitUsage, err)
	}
	raw, err := json.Marshal(entry, json.Deterministic(true))
	if err == nil {
		err = mcp.CheckServer(a.Name, jsontext.Value(raw))
	}
	if err != nil {
		return fail(exitUsage, err)
	}
	f, cfg, err := cmd.serversFile(sys, a.User)
	if err != nil {
		return err
	}
	at, taken := cfg.Servers[a.Name]
	own := filepath.Join(cfg.UserDir, config.UserServersFile) + ":" // the user's own servers, which all others override
	switch {
	case f.member(a.Name) != nil:
		return fail(exitFailed, fmt.Errorf("%s has an MCP server %q already; remove it first (a2e mcp remove %s), or "+
			"choose another name", f.name, a.Name, a.Name))
	case taken && !a.User && !strings.HasPrefix(at, own):
		return fail(exitFailed, fmt.Errorf("%s: there is an MCP server %q already, which wins over one in %s",
			at, a.Name, f.name))
	}
	f.known = f.known || f.text == nil // everything in it is from this command line
	if err := f.change(a.Name, raw); err != nil {
		return err
	}
	say(sys.Err, "added: %s to %s", a.Name, oneLine(f.path))
	for _, pairs := range []map[string]string{entry.Env, entry.Headers} {
		for _, name := range slices.Sorted(maps.Keys(pairs)) {
			if value := pairs[name]; !strings.Contains(value, "${") && redact.IsSecret(name, value) {
				say(sys.Err, "warning: the value of %s is now in that file, for all who can read it; write a variable "+
					"such as ${%s} instead", name, variableOf(a.Name, name))
			}
		}
	}
	f.after(sys)
	if !a.Try {
		return nil
	}
	return a.try(cfg, sys, raw)
}

// isWebURL reports whether a word is the URL of a server and not a program.
func isWebURL(word string) bool {
	return strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "https://")
}

// serverEntry is an MCP server in the form of other clients, plus the field read, which only this host has.
type serverEntry struct {
	Type    string            `json:"type,omitzero"`
	Command string            `json:"command,omitzero"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Read    []string          `json:"read,omitempty"`
	URL     string            `json:"url,omitzero"`
	Headers map[string]string `json:"headers,omitempty"`
}

// entry returns the server of the flags and the command. It returns an error if they do not fit together.
func (a *mcpAddCmd) entry() (e serverEntry, err error) {
	if len(a.Command) == 1 && strings.ContainsAny(a.Command[0], " \t") {
		if _, err := os.Stat(a.Command[0]); err != nil {
			return e, fmt.Errorf("the program and its arguments are words of their own: a2e mcp add %s -- %s", a.Name,
				strings.Join(strings.Fields(a.Command[0]), " "))
		}
	}
	switch {
	case len(a.Command) == 0 && a.URL == "":
		return e, fmt.Errorf("give what starts the server, such as: a2e mcp add %s -- npx -y @scope/server, or --url "+
			"of one that runs", a.Name)
	case len(a.Command) > 0 && a.URL != "":
		return e, errors.New("--url: a command stands behind --; give one of them")
	case len(a.Command) > 0 && len(a.Header) > 0:
		return e, errors.New("--header is for --url; a command takes what it needs from --env")
	case a.URL != "" && len(a.Env) > 0:
		return e, errors.New("--env is for a command; a server at a URL takes what it needs from --header")
	case a.URL != "" && len(a.Read) > 0:
		return e, errors.New("--read is for a command, which runs in a sandbox; a server at a URL does not")
	}
	e = serverEntry{URL: a.URL, Read: a.Read, Env: map[string]string{}, Headers: map[string]string{}}
	if e.URL != "" {
		e.Type = "http"
	} else {
		e.Command, e.Args = a.Command[0], a.Command[1:]
	}
	for _, text := range a.Env {
		name, value, given := strings.Cut(text, "=")
		if !given {
			value = "${" + name + "}"
		}
		if _, twice := e.Env[name]; twice {
			return e, fmt.Errorf("--env: %s is given twice", name)
		}
		e.Env[name] = value
	}
	for _, text := range a.Header {
		name, value, given := strings.Cut(text, ":")
		if !given {
			return e, fmt.Errorf("--header %.40q: it should be such as 'Authorization: Bearer ${TOKEN}'", name)
		}
		if name = strings.TrimSpace(name); e.Headers[name] != "" {
			return e, fmt.Errorf("--header: %s is given twice", name)
		}
		e.Headers[name] = strings.TrimSpace(value)
	}
	return e, nil
}

// variableOf returns the name of a variable that can hold a secret of a server.
func variableOf(server, name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, "MCP_"+strings.ToUpper(server+"_"+name))
}

type mcpRemoveCmd struct {
	Name string `arg:"" help:"The server's id."`
	User bool   `help:"Change the user's own servers."`
}

// Run removes the server from the file of servers.
func (r *mcpRemoveCmd) Run(cmd *commands, sys *System) error {
	f, cfg, err := cmd.serversFile(sys, r.User)
	if err != nil {
		return err
	}
	if f.member(r.Name) == nil {
		if at, there := cfg.Servers[r.Name]; there {
			return fail(exitFailed, fmt.Errorf("the MCP server %q is not in %s but in %s; take it out there", r.Name,
				f.name, at))
		}
		return fail(exitFailed, fmt.Errorf("%s: %w", f.name, unknown("MCP server", r.Name, f.ids())))
	}
	if err := f.change(r.Name, nil); err != nil {
		return err
	}
	say(sys.Err, "removed: %s from %s", r.Name, oneLine(f.path))
	if !f.known {
		f.after(sys)
	}
	return nil
}

// editedFile is a file that a command changes.
type editedFile struct {
	name  string             // for messages
	path  string             // absolute
	text  []byte             // nil = there is no such file yet
	mode  fs.FileMode        // mode of a new file
	trust func([]byte) error // adds a content to the trusted ones; nil = the file needs no trust
	known bool               // the content that was read is trusted

	all, servers protocol.Object // the content of a file of servers, and its member mcpServers
}

// edited reads a file to change. trusts says that the file is used only if it is trusted.
func (c *commands) edited(sys *System, name string, trusts bool) (*editedFile, error) {
	f := &editedFile{name: name, mode: 0o644}
	var err error
	if f.path, err = filepath.Abs(f.name); err != nil {
		return nil, fail(exitConfig, err)
	}
	if f.text, err = f.read(); err != nil || !trusts {
		return f, fail(exitConfig, err)
	}
	if at, err := os.Lstat(f.path); err == nil && at.Mode()&fs.ModeSymlink != 0 {
		return nil, fail(exitConfig, fmt.Errorf("%s is a link, and its target may be any file; change that file itself",
			f.name))
	}
	path, err := config.FolderPath(f.path)
	if err != nil {
		return nil, fail(exitConfig, err)
	}
	list := trusted(c.source(sys))
	f.known = f.text != nil && list.Check(path, f.text) == nil
	f.trust = func(content []byte) error { return list.Add(path, content) }
	return f, nil
}

// serversFile reads the config and the file of MCP servers to change: the one of the workspace, or the user's own.
func (c *commands) serversFile(sys *System, user bool) (*editedFile, *config.Config, error) {
	cfg, err := c.load(sys, func(string) {})
	if err != nil {
		return nil, nil, err
	}
	if cfg.Servers == nil {
		err = errors.New("the plugin mcp is switched off in the config; switch it on first")
		return nil, nil, fail(exitConfig, err)
	}
	name := filepath.Join(cfg.Workspace, config.ServersFile)
	if user {
		if cfg.UserDir == "" {
			return nil, nil, fail(exitUsage, errors.New("--user: this user has no config folder; set HOME"))
		}
		if err := os.MkdirAll(cfg.UserDir, 0o700); err != nil {
			return nil, nil, fail(exitFailed, err)
		}
		name = filepath.Join(cfg.UserDir, config.UserServersFile)
	}
	f, err := c.edited(sys, name, !user)
	if err != nil {
		return nil, nil, err
	}
	if user {
		f.mode = 0o600
	}
	text := f.text
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}")
	}
	if f.all, err = protocol.ParseObject(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))); err == nil {
		servers, there := f.all.Get(mcpServers)
		if !there || servers.Kind() == 'n' {
			servers = []byte("{}")
		}
		f.servers, err = protocol.ParseObject(servers)
	}
	if err != nil {
		return nil, nil, fail(exitConfig, fmt.Errorf("%s: it should be JSON such as {%q: {\"ID\": {\"command\": "+
			"\"…\"}}}: %w", f.name, mcpServers, err))
	}
	return f, cfg, nil
}

// mcpServers is the member with the servers in a file of servers.
const mcpServers = "mcpServers"

// member returns the entry of a server, or nil if there is none.
func (f *editedFile) member(id string) protocol.Value {
	v, _ := f.servers.Get(id)
	return v
}

// ids returns the ids of the servers in the file.
func (f *editedFile) ids() (all []string) {
	for id := range f.servers.All() {
		all = append(all, string(id))
	}
	return all
}

// change writes the file with the entry of a server added or replaced, or removed if entry is nil.
// Everything else stays, in its order.
func (f *editedFile) change(id string, entry []byte) error {
	text := with(f.all, mcpServers, with(f.servers, id, entry))
	indent := "  "
	if i := bytes.IndexByte(f.text, '\n'); i >= 0 {
		line := f.text[i+1:]
		if first := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]; len(first) > 0 {
			indent = string(first)
		}
	}
	pretty := jsontext.Value(text)
	if err := pretty.Indent(jsontext.WithIndent(indent)); err != nil {
		return fail(exitConfig, fmt.Errorf("%s: %w", f.name, err))
	}
	return f.write(append(pretty, '\n'))
}

// with returns an object in which a member has another value. A new member is the last one; a nil
// value removes the member.
func with(object protocol.Object, name string, value []byte) []byte {
	text, there := []byte{'{'}, false
	put := func(key string, v []byte) {
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = append(append(protocol.AppendString(text, key), ':'), v...)
	}
	for key, v := range object.All() {
		if string(key) != name {
			put(string(key), v)
		} else if there = true; value != nil {
			put(name, value)
		}
	}
	if !there && value != nil {
		put(name, value)
	}
	return append(text, '}')
}

// read returns the content of the file, or nil if there is no such file.
func (f *editedFile) read() ([]byte, error) {
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", f.name)
	}
	text, err := os.ReadFile(f.path)
	return append([]byte{}, text...), err
}

// write replaces the content that was read. If that content was trusted, the new one is trusted
// too, as only this command has changed it.
func (f *editedFile) write(text []byte) error {
	if dir, err := os.Open(filepath.Dir(f.path)); err == nil {
		defer dir.Close()
		if ok, err := private.TryLock(dir); err == nil && !ok { // an error means that this system cannot lock folders
			return fail(exitFailed, fmt.Errorf("%s is being changed by another a2e; try again", f.name))
		}
	}
	now, err := f.read()
	switch {
	case err == nil && (!bytes.Equal(now, f.text) || (now == nil) != (f.text == nil)):
		err = fmt.Errorf("%s has changed meanwhile; try again", f.name)
	case err == nil:
		err = f.replace(text)
	}
	if err == nil && f.known && f.trust != nil {
		err = f.trust(text)
	}
	return fail(exitFailed, err)
}

// replace writes the file. A new file gets f.mode; an existing one keeps its owner and its rights.
func (f *editedFile) replace(text []byte) error {
	if f.text == nil {
		return writeWhole(f.path, func(w io.Writer) error {
			_, err := w.Write(text)
			if file, ok := w.(*os.File); ok && err == nil {
				err = file.Chmod(f.mode)
			}
			return err
		})
	}
	path, err := filepath.EvalSymlinks(f.path)
	if err != nil {
		return err
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	base := filepath.Base(path)
	old, err := dir.OpenFile(base, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	return swap.Replace(dir, base, old, string(text), func() error { return nil })
}

// after prints whether the change is in effect, and otherwise what to do.
func (f *editedFile) after(sys *System) {
	switch {
	case f.trust == nil:
	case f.known && f.text == nil:
		say(sys.Err, "the file is new, and trusted as it is; a2e trust --list shows all that are")
	case f.known:
		say(sys.Err, "it was trusted, and stays trusted with this change")
	case f.trust != nil:
		say(sys.Err, "next: a2e trust, as the file is not used until then; a2e doctor --live tries it out")
	}
}
