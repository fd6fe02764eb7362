package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/config/trust"
	"a2e/host/guard/redact"
)

type trustCmd struct {
	File   string `arg:"" optional:"" help:"The a2e.yaml or .mcp.json, or the folder with them. Default: this one."`
	List   bool   `xor:"do" help:"Print the trusted files and whether they are unchanged."`
	Remove bool   `xor:"do" help:"Stop trusting the files."`
	DryRun bool   `xor:"do" help:"Only show what they do."`
}

// Run trusts the files of a folder, or does what the flags ask for.
func (t trustCmd) Run(cmd *commands, sys *System) error {
	src := cmd.source(sys)
	list := trusted(src)
	if t.List {
		if t.File != "" {
			return fail(exitUsage, errors.New("--list is of all files; give no file"))
		}
		return listTrusted(sys, list)
	}
	names, err := t.names()
	if err != nil {
		return err
	}
	if t.Remove {
		return t.remove(sys, list, names)
	}
	contents := make([][]byte, len(names))
	for i, name := range names { // all files are shown before any is trusted
		if contents[i], err = config.ReadRegular(name); err != nil {
			return fail(exitConfig, fmt.Errorf("%s: %w", name, reasonOfPath(err)))
		}
		asked, variables, err := config.Asks(name, contents[i])
		if err != nil {
			return fail(exitConfig, err)
		}
		if err := printAsked(sys.Out, name, asked, variables); err != nil {
			return err
		}
	}
	for i, name := range names {
		if t.DryRun {
			break
		}
		path, err := config.FolderPath(name)
		if err == nil {
			err = list.Add(path, contents[i])
		}
		if err != nil {
			return fail(exitFailed, err)
		}
		say(sys.Err, "trusted until it changes: %s", oneLine(path))
	}
	if !t.DryRun {
		src.Dir = filepath.Dir(names[0])
		tellWrong(sys, src)
	}
	return nil
}

// tellWrong prints what is wrong with a config that was just trusted, as the next command would refuse it.
func tellWrong(sys *System, src config.Source) {
	cfg, warnings, err := config.Load(src)
	for _, w := range warnings {
		sys.warn(w.String())
	}
	if err == nil {
		var made []host.Plugin
		made, err = tryConfig(cfg, func(string) {})
		closePlugins(made)
	}
	if err != nil {
		say(sys.Err, "the config is wrong, though: %v", err)
	}
}

// reasonOfPath returns an error without its path, which the caller prints itself.
func reasonOfPath(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// folderFiles returns the names of the files of a folder that are used once they are trusted.
func folderFiles() []string { return []string{config.FolderFile, config.ServersFile} }

// names returns the files to trust. A file with another name is used only if --config or A2E_CONFIG names it.
func (t trustCmd) names() ([]string, error) {
	dir := t.File
	if info, err := os.Stat(dir); dir != "" && (err != nil || !info.IsDir()) {
		if !slices.Contains(folderFiles(), filepath.Base(dir)) {
			return nil, fail(exitUsage, fmt.Errorf("%s: only files named %s are found without being named; others "+
				"are trusted where --config or A2E_CONFIG names them", oneLine(dir),
				strings.Join(folderFiles(), " and ")))
		}
		return []string{dir}, nil
	}
	var names []string
	for _, file := range folderFiles() {
		name := filepath.Join(dir, file)
		if _, err := os.Lstat(name); err == nil || t.Remove {
			names = append(names, name)
		}
	}
	if names == nil {
		return nil, fail(exitConfig, fmt.Errorf("there is neither %s", strings.Join(folderFiles(), " nor ")))
	}
	return names, nil
}

// remove removes files from the list. At least one of them must be on it.
func (t trustCmd) remove(sys *System, list trust.List, names []string) error {
	var wrong []error
	for _, name := range names {
		path, err := config.FolderPath(name)
		if err == nil {
			err = list.Remove(path)
		}
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		say(sys.Err, "no longer trusted: %s", oneLine(path))
	}
	if len(wrong) == len(names) {
		return fail(exitFailed, wrong[0])
	}
	return nil
}

// trusted returns the trust list of the current user.
func trusted(src config.Source) trust.List {
	if src.UserConfigDir == "" {
		return trust.List{}
	}
	return trust.List{Dir: filepath.Join(src.UserConfigDir, "a2e")}
}

func listTrusted(sys *System, list trust.List) error {
	entries, err := list.Files()
	if err != nil {
		return fail(exitFailed, err)
	}
	if len(entries) == 0 {
		files := strings.Join(folderFiles(), " or ")
		say(sys.Err, "no file is trusted; `a2e trust` in a folder with an %s does that", files)
		return nil
	}
	var t table
	t.header("STATE", "FILE")
	for _, e := range entries {
		state := "trusted"
		if content, err := config.ReadRegular(e.Path); err != nil {
			state = "gone"
		} else if trust.Sum(content) != e.SHA256 {
			state = "changed"
		}
		t.row(state, e.Path)
	}
	return t.print(sys.Out, unbounded, sys.colors(sys.Out.File)) // a shortened path would be useless
}

// printAsked prints what a file sets.
func printAsked(w io.Writer, name string, asked []config.Setting, variables []string) error {
	does := make(map[string][]string)
	for _, set := range asked {
		effect := effectOf(set.Path)
		does[effect] = append(does[effect], "  "+oneLine(set.Path)+": "+oneLine(shownValue(set))+"\n")
	}
	var b strings.Builder
	if len(asked) == 0 {
		fmt.Fprintf(&b, "%s sets nothing\n", oneLine(name))
	} else {
		fmt.Fprintf(&b, "%s, once it is trusted:\n", oneLine(name))
	}
	for _, e := range effects() {
		if lines := does[e.title]; lines != nil {
			b.WriteString(e.title + "\n" + strings.Join(lines, ""))
		}
	}
	if len(variables) > 0 {
		b.WriteString("it takes environment variables\n  " + strings.Join(variables, ", ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// effect groups config keys by what they do. A path with one of the keys as a part has this effect.
type effect struct {
	title string
	keys  []string
}

// effects returns all effects, in the order in which they are printed and searched.
func effects() []effect {
	return []effect{
		{"it starts programs", []string{"command", "args", "env", "custom_command", "merge_command", "check"}},
		{"it changes what is allowed", []string{
			"sandbox", "children", "allowed_commands", "env_allow", "read_only", "network", "network_disabled",
			"http_allow_private", "allow_private", "auth_token", "auth",
			"register", "locked", "deny", "allow", "trust_workspace", "trust_agent_env",
			"allow_llm_override", "share_state", "pin",
		}},
		{"it talks to", []string{"url", "base_url", "headers", "api_key", "llm", "embeddings"}},
		{"it reads and writes", []string{
			"workspace", "state_dir", "audit", "skills_path", "chains_path", "folders", "filesystem", "git", "read",
			"write", "cwd", "tasks",
		}},
		{"it also sets", nil},
	}
}

func effectOf(path string) string {
	path = strings.TrimPrefix(path, "plugins.env.") // here env is a type of plugin
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
	all := effects()
	for _, e := range all {
		if slices.ContainsFunc(parts, func(part string) bool { return slices.Contains(e.keys, part) }) {
			return e.title
		}
	}
	return all[len(all)-1].title
}

// shownValue hides a value that is a secret or whose name suggests one. A reference to a variable is shown.
func shownValue(s config.Setting) string {
	name := s.Path[strings.LastIndexByte(s.Path, '.')+1:]
	secret := s.Path == "state" || strings.Contains(s.Path, ".headers.") || name == "key" || redact.SpeaksOfSecret(name)
	if secret && !strings.Contains(s.Value, "${") {
		return "(not shown)"
	}
	return s.Value
}
