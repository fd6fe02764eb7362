package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host/config"
	"a2e/host/private"
	"a2e/host/redact"
	"a2e/host/swap"
	"a2e/plugins/mcp"
)

type mcpAddCmd struct {
	Name    string   `arg:"" help:"The server's id: letters, digits, _ and -."`
	Env     []string `sep:"none" placeholder:"NAME[=VALUE]" help:"A variable that the server gets; may be given several times. NAME alone is the host's own variable of that name, so that its value does not get into the file."`
	URL     string   `name:"url" placeholder:"URL" help:"Where a server runs already, in place of a command."`
	Header  []string `sep:"none" placeholder:"'NAME: VALUE'" help:"With --url: a header of each request; may be given several times."`
	Read    []string `sep:"none" placeholder:"PATH" help:"A further path that the command may read in its sandbox."`
	Try     bool     `default:"true" negatable:"" help:"Try the server. On unless --no-try."`
	Timeout float64  `placeholder:"SECONDS" help:"Seconds to try it. Default: as long as its start may take."`
	User    bool     `help:"Change the user's own config, which holds where no other is."`
	Command []string `arg:"" optional:"" passthrough:"partial" help:"What starts the server, behind --."`
}

// Run adds the server to the config, and tries it out.
func (a *mcpAddCmd) Run(cmd *commands, sys *System) error {
	if len(a.Command) > 0 && a.Command[0] == "--" { // kong leaves it in
		a.Command = a.Command[1:]
	}
	entry, err := a.entry()
	if err != nil {
		return fail(exitUsage, err)
	}
	f, err := cmd.editedFile(sys, a.User)
	if err != nil {
		return err
	}
	names, err := config.ServerNames(f.name, f.text)
	switch {
	case err != nil:
		return fail(exitConfig, err)
	case slices.Contains(names, a.Name):
		return fail(exitFailed, fmt.Errorf("%s has an MCP server %q already; remove it first (a2e mcp remove %s), or choose another name", f.name, a.Name, a.Name))
	}
	text, err := config.AddServer(f.name, f.text, a.Name, entry)
	if err != nil {
		return fail(exitConfig, err)
	}
	f.known = f.known || f.text == nil && f.folder != "" // all in it was typed here
	if err := f.write(text); err != nil {
		return err
	}
	say(sys.Err, "added: %s to %s", a.Name, oneLine(f.path))
	for _, p := range slices.Concat(entry.Env, entry.Headers) {
		if !strings.Contains(p.Value, "${") && redact.IsSecret(p.Name, p.Value) {
			say(sys.Err, "warning: the value of %s is now in that file, for all who can read it; write a variable "+
				"such as ${%s} instead", p.Name, variableOf(a.Name, p.Name))
		}
	}
	f.after(sys)
	if !a.Try {
		return nil
	}
	return a.try(cmd, sys, &entry)
}

// entry is what the flags and the command say, which the plugin would take.
func (a *mcpAddCmd) entry() (e config.ServerEntry, err error) {
	if len(a.Command) == 1 && strings.ContainsAny(a.Command[0], " \t") {
		if _, err := os.Stat(a.Command[0]); err != nil {
			return e, fmt.Errorf("the program and its arguments are words of their own: a2e mcp add %s -- %s", a.Name, strings.Join(strings.Fields(a.Command[0]), " "))
		}
	}
	switch {
	case len(a.Command) == 0 && a.URL == "":
		return e, fmt.Errorf("give what starts the server, such as: a2e mcp add %s -- npx -y @scope/server, or --url of one that runs", a.Name)
	case len(a.Command) > 0 && a.URL != "":
		return e, errors.New("--url: a command stands behind --; give one of them")
	case len(a.Command) > 0 && len(a.Header) > 0:
		return e, errors.New("--header is for --url; a command takes what it needs from --env")
	case a.URL != "" && len(a.Env) > 0:
		return e, errors.New("--env is for a command; a server at a URL takes what it needs from --header")
	case a.URL != "" && len(a.Read) > 0:
		return e, errors.New("--read is for a command, which runs in a sandbox; a server at a URL does not")
	}
	e = config.ServerEntry{Command: a.Command, URL: a.URL, Read: a.Read}
	for _, text := range a.Env {
		name, value, given := strings.Cut(text, "=")
		if !given {
			value = "${" + name + "}"
		}
		e.Env = append(e.Env, config.Pair{Name: name, Value: value})
	}
	for _, text := range a.Header {
		name, value, given := strings.Cut(text, ":")
		if !given {
			return e, fmt.Errorf("--header %.40q: it should be such as 'Authorization: Bearer ${TOKEN}'", name)
		}
		e.Headers = append(e.Headers, config.Pair{Name: strings.TrimSpace(name), Value: strings.TrimSpace(value)})
	}
	return e, checkEntry(a.Name, e)
}

// checkEntry tells what the plugin would say against a server.
func checkEntry(id string, e config.ServerEntry) error {
	one := map[string]any{}
	if len(e.Command) > 0 {
		one["command"], one["args"], one["read"] = e.Command[0], e.Command[1:], append([]string{}, e.Read...)
	} else {
		one["url"] = e.URL
	}
	for key, pairs := range map[string][]config.Pair{"env": e.Env, "headers": e.Headers} {
		values := map[string]string{}
		for _, p := range pairs {
			if _, twice := values[p.Name]; twice {
				return fmt.Errorf("%s: %s is given twice", key, p.Name)
			}
			values[p.Name] = p.Value
		}
		if len(values) > 0 {
			one[key] = values
		}
	}
	raw, err := json.Marshal(map[string]any{"mcpServers": map[string]any{id: one}})
	if err == nil {
		_, err = mcp.ParseServers(raw)
	}
	return err
}

// variableOf returns the name of the variable that stands for a secret of a server.
func variableOf(server, name string) string {
	text := strings.ToUpper(name)
	if !strings.Contains(name, "_") { // API_KEY speaks for itself, Authorization does not
		text = strings.ToUpper(server) + "_" + text
	}
	text = strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, text)
	if text[0] >= '0' && text[0] <= '9' {
		text = "_" + text
	}
	return text
}

type mcpRemoveCmd struct {
	Name string `arg:"" help:"The server's id."`
	User bool   `help:"Change the user's own config."`
}

// Run takes the server out of the config.
func (r *mcpRemoveCmd) Run(cmd *commands, sys *System) error {
	f, err := cmd.editedFile(sys, r.User)
	if err != nil {
		return err
	}
	names, err := config.ServerNames(f.name, f.text)
	switch {
	case err != nil:
		return fail(exitConfig, err)
	case f.text == nil:
		return fail(exitConfig, fmt.Errorf("there is no config %s", f.name))
	case !slices.Contains(names, r.Name):
		return fail(exitFailed, fmt.Errorf("%s: %w", f.name, unknown("MCP server", r.Name, names)))
	}
	text, err := config.RemoveServer(f.name, f.text, r.Name)
	if err != nil {
		return fail(exitConfig, err)
	}
	if err := f.write(text); err != nil {
		return err
	}
	say(sys.Err, "removed: %s from %s", r.Name, oneLine(f.path))
	if !f.known {
		f.after(sys)
	}
	return nil
}

// editedFile is a config that a command changes.
type editedFile struct {
	name   string             // for messages
	path   string             // absolute
	text   []byte             // nil = there is none yet
	mode   fs.FileMode        // of a new one
	folder string             // the path by which it is trusted, if it is a folder's own; "" = it is not
	trust  func([]byte) error // trusts a content
	known  bool               // its content was trusted
}

// editedFile finds the config to change: that of --config, the user's own, that of A2E_CONFIG, or
// that of this folder, which need not be there yet.
func (c *commands) editedFile(sys *System, user bool) (*editedFile, error) {
	src := c.source(sys)
	f := &editedFile{name: cmp.Or(c.Config, sys.getenv("A2E_CONFIG"), config.FolderFile), mode: 0o644}
	switch {
	case user && c.Config != "":
		return nil, fail(exitUsage, errors.New("--user: --config names a file; give one of them"))
	case user && src.UserConfigDir == "":
		return nil, fail(exitUsage, errors.New("--user: this user has no config folder; set HOME"))
	case user:
		f.name, f.mode = filepath.Join(src.UserConfigDir, "a2e", "config.yaml"), 0o600
		if err := os.MkdirAll(filepath.Dir(f.name), 0o700); err != nil {
			return nil, fail(exitFailed, err)
		}
	}
	var err error
	if f.path, err = filepath.Abs(f.name); err != nil {
		return nil, fail(exitConfig, err)
	}
	if f.text, err = f.read(); err != nil {
		return nil, fail(exitConfig, err)
	}
	if filepath.Base(f.path) == config.FolderFile {
		if at, err := os.Lstat(f.path); err == nil && at.Mode()&fs.ModeSymlink != 0 {
			return nil, fail(exitConfig, fmt.Errorf("%s is a link, and its target may not be a config; name the "+
				"file itself with -c", f.name))
		}
		if f.folder, err = config.FolderPath(filepath.Dir(f.path)); err != nil {
			return nil, fail(exitConfig, err)
		}
		list := trusted(src)
		f.known = f.text != nil && list.Check(f.folder, f.text) == nil
		f.trust = func(content []byte) error { return list.Add(f.folder, content) }
	}
	return f, nil
}

// read returns the content; nil = there is no such file.
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

// write puts a content in the place of the one that was read. Content that was trusted before
// stays so: it is what its owner has changed by this command alone.
func (f *editedFile) write(text []byte) error {
	if dir, err := os.Open(filepath.Dir(f.path)); err == nil {
		defer dir.Close()
		if ok, err := private.TryLock(dir); err == nil && !ok { // an error: this system locks no folders
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
	if err == nil && f.known {
		err = f.trust(text)
	}
	return fail(exitFailed, err)
}

// replace writes the file: a new one with its mode, one that is there with its owner and its rights.
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

// after says whether the change counts, and what is to be done where it does not.
func (f *editedFile) after(sys *System) {
	switch {
	case f.known && f.text == nil:
		say(sys.Err, "the file is new, and trusted as it is; next: a2e trust --list shows all that are")
	case f.known:
		say(sys.Err, "it was trusted, and stays trusted with this change")
	case f.folder != "":
		say(sys.Err, "next: a2e trust, as the file is ignored until then; a2e doctor --live tries it out")
	}
}
