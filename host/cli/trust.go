package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host/config"
	"a2e/host/trust"
)

type trustCmd struct {
	File   string `arg:"" optional:"" help:"The a2e.yaml, or the folder that it lies in. Default: that of the current folder."`
	List   bool   `xor:"do" help:"Print the trusted files and whether they are unchanged."`
	Remove bool   `xor:"do" help:"Stop trusting the file."`
	DryRun bool   `xor:"do" help:"Only show what it does."`
}

// Run trusts a file, or does what the flags say.
func (t trustCmd) Run(cmd *commands, sys *System) error {
	src := cmd.source(sys)
	list := trusted(src)
	if t.List {
		if t.File != "" {
			return fail(exitUsage, errors.New("--list is of all files; give no file"))
		}
		return listTrusted(sys, list)
	}
	dir, path, err := t.place()
	if err != nil {
		return err
	}
	if t.Remove {
		if err := list.Remove(path); err != nil {
			return fail(exitFailed, err)
		}
		say(sys.Err, "no longer trusted: %s", oneLine(path))
		return nil
	}
	content, err := config.ReadFolder(dir)
	if err != nil {
		return fail(exitConfig, fmt.Errorf("%s: %w", filepath.Join(dir, config.FolderFile), err))
	}
	left, variables, err := config.Beyond(src, filepath.Join(dir, config.FolderFile), content)
	if err != nil {
		return fail(exitConfig, err)
	}
	if err := printBeyond(sys.Out, filepath.Join(dir, config.FolderFile), left, variables); err != nil || t.DryRun {
		return err
	}
	if err := list.Add(path, content); err != nil {
		return fail(exitFailed, err)
	}
	say(sys.Err, "trusted until it changes: %s", oneLine(path))
	return nil
}

// place returns the folder of the file, and the path by which that is known. A file of another
// name counts only where somebody names it.
func (t trustCmd) place() (dir, path string, err error) {
	dir = t.File
	if info, err := os.Stat(dir); dir != "" && (err != nil || !info.IsDir()) {
		if filepath.Base(dir) != config.FolderFile {
			return "", "", fail(exitUsage, fmt.Errorf("%s: only a file named %s is found without being named; others are trusted where --config or A2E_CONFIG names them", oneLine(dir), config.FolderFile))
		}
		dir = filepath.Dir(dir)
	}
	if dir == "" {
		dir = "."
	}
	path, err = config.FolderPath(dir)
	return dir, path, fail(exitConfig, err)
}

// trusted returns the list of the user who runs this.
func trusted(src config.Source) trust.List {
	if src.UserConfigDir == "" {
		return trust.List{}
	}
	return trust.List{Dir: filepath.Join(src.UserConfigDir, "a2e")}
}

func listTrusted(sys *System, list trust.List) error {
	entries, err := list.Entries()
	if err != nil {
		return fail(exitFailed, err)
	}
	if len(entries) == 0 {
		say(sys.Err, "no file is trusted; `a2e trust` in a folder with an %s does that", config.FolderFile)
		return nil
	}
	var t table
	t.header("STATE", "FILE")
	for _, e := range entries {
		state := "trusted"
		if content, err := config.ReadFolder(filepath.Dir(e.Path)); err != nil {
			state = "gone"
		} else if trust.Sum(content) != e.SHA256 {
			state = "changed"
		}
		t.row(state, e.Path)
	}
	return t.print(sys.Out, unbounded, sys.colors(sys.Out.File)) // a path that is cut is of no use
}

// printBeyond shows what a file does beyond what it may without being trusted.
func printBeyond(w io.Writer, name string, left []config.LeftOut, variables []string) error {
	does := make(map[string][]string)
	for _, l := range left {
		for _, set := range l.Settings {
			effect := effectOf(set.Path)
			does[effect] = append(does[effect], "  "+oneLine(set.Path)+": "+oneLine(shownValue(set))+"\n")
		}
	}
	var b strings.Builder
	if len(left) == 0 {
		fmt.Fprintf(&b, "%s only tightens: it counts as it is\n", oneLine(name))
	} else {
		fmt.Fprintf(&b, "%s does more than tighten\n", oneLine(name))
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

// effect is what keys of the config are for; a path that has one of them as a part has it.
type effect struct {
	title string
	keys  []string
}

// effects are in the order in which they are told, and looked for.
func effects() []effect {
	return []effect{
		{"it starts programs", []string{"command", "args", "env", "custom_command", "merge_command", "check"}},
		{"it loosens the walls", []string{
			"sandbox", "children", "allowed_commands", "env_allow", "read_only", "network", "network_disabled", "http_allow_private", "allow_private",
			"register", "locked", "deny", "allow", "trust_workspace", "trust_agent_env", "allow_llm_override", "share_state", "pin",
		}},
		{"it talks to", []string{"url", "base_url", "headers", "api_key", "llm", "embeddings"}},
		{"it reads and writes", []string{
			"workspace", "state_dir", "audit", "snapshot_store", "skills_path", "chains_path", "folders", "filesystem", "git", "read", "write", "cwd", "tasks",
		}},
		{"it also sets", nil},
	}
}

func effectOf(path string) string {
	path = strings.TrimPrefix(path, "plugins.env.") // there env is a type of plugin
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
	all := effects()
	for _, e := range all {
		if slices.ContainsFunc(parts, func(part string) bool { return slices.Contains(e.keys, part) }) {
			return e.title
		}
	}
	return all[len(all)-1].title
}

// shownValue hides what is a secret wherever it stands; a variable is none.
func shownValue(s config.Setting) string {
	secret := s.Path == "state" || strings.HasSuffix(s.Path, "auth_token") || strings.HasSuffix(s.Path, "api_key") || strings.Contains(s.Path, ".headers.")
	if secret && !strings.Contains(s.Value, "${") {
		return "(not shown)"
	}
	return s.Value
}
