package cli

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host/config"
	"a2e/host/redact"
	"a2e/host/sandbox"
	"a2e/plugins/mcp"
	"a2e/protocol"
)

type initCmd struct {
	Force bool `help:"Replace the file if there is one."`
	Print bool `help:"Print the config, and write nothing."`
}

// Run writes a config for this folder.
func (i initCmd) Run(cmd *commands, sys *System) error {
	f, err := cmd.editedFile(sys, false)
	if err != nil {
		return err
	}
	if f.text != nil && !i.Force && !i.Print {
		return fail(exitFailed, fmt.Errorf("%s is there already; --force replaces it, --print only shows what would be written", f.name))
	}
	dir, err := os.Getwd()
	if err != nil {
		return fail(exitFailed, err)
	}
	w := &starter{dir: dir, getenv: sys.getenv, taken: map[string]string{}}
	text := w.config()
	if i.Print {
		_, err := sys.Out.WriteString(text)
		return err
	}
	f.known = false // what nobody has looked at is not trusted
	if err := f.write([]byte(text)); err != nil {
		return err
	}
	for _, note := range w.notes {
		say(sys.Err, "%s", oneLine(note))
	}
	say(sys.Err, "written: %s", oneLine(f.path))
	if len(w.unset) > 0 {
		say(sys.Err, "set these variables where a2e is started: %s", strings.Join(w.unset, ", "))
	}
	src := cmd.source(sys)
	src.Path = f.path
	if err := loads(src); err != nil {
		return fail(exitConfig, fmt.Errorf("%s does not load yet: %w", f.name, err))
	}
	if f.folder != "" {
		say(sys.Err, "next: look at it, then a2e trust, and a2e doctor")
	}
	return nil
}

// loads reports what is wrong with a config.
func loads(src config.Source) error {
	cfg, _, err := config.Load(src)
	if err != nil {
		return err
	}
	return tryPlugins(cfg)
}

// starter writes the first config of a folder by what is there.
type starter struct {
	dir    string
	getenv func(string) string
	notes  []string          // for the person
	unset  []string          // variables that the config takes and that are not set
	taken  map[string]string // the secret that each variable stands for
}

// there reports whether the folder has something of that name.
func (w *starter) there(name string) bool {
	_, err := os.Stat(filepath.Join(w.dir, name))
	return err == nil
}

// config returns the text.
func (w *starter) config() string {
	parts := []string{"# The config of a2e for this folder, which counts once it is trusted: a2e trust.\n# All settings: a2e help config.\n"}
	if text := w.servers(); text != "" {
		parts = append(parts, text)
	}
	inner := []string{w.commands(), w.skills(), w.git()}
	if inner = slices.DeleteFunc(inner, func(text string) bool { return text == "" }); len(inner) == 0 {
		return strings.Join(append(parts, "# Nothing else here asks for a setting: the defaults hold, with all plugins.\n"), "\n")
	}
	return strings.Join(append(parts, "plugins:\n"+strings.Join(inner, "")), "\n")
}

// need is a file that shows what a folder is worked on with.
type need struct {
	file     string
	programs []string
}

func needs() []need {
	return []need{
		{"package.json", []string{"node", "npm"}}, {"pnpm-lock.yaml", []string{"pnpm"}}, {"yarn.lock", []string{"yarn"}}, {"deno.json", []string{"deno"}},
		{"go.mod", []string{"go"}}, {"pyproject.toml", []string{"python3", "pytest"}}, {"requirements.txt", []string{"python3", "pytest"}}, {"uv.lock", []string{"uv"}},
		{"Cargo.toml", []string{"cargo"}}, {"Gemfile", []string{"ruby", "bundle"}}, {"CMakeLists.txt", []string{"cmake"}}, {"Makefile", []string{"make"}},
	}
}

// commands lists the programs that agents may start.
func (w *starter) commands() string {
	dirs := sandbox.SafePath(os.Getenv("PATH"), w.dir)
	usual := sandbox.DefaultCommands()
	var lines, missing []string
	seen := map[string]bool{}
	for _, n := range needs() {
		var here []string
		for _, name := range n.programs {
			if !w.there(n.file) || seen[name] {
				continue
			}
			seen[name] = true
			usual = slices.DeleteFunc(usual, func(u string) bool { return u == name })
			if _, err := sandbox.LookPath(name, dirs, w.dir); err != nil {
				missing = append(missing, fmt.Sprintf("    # %s, for %s, is not on this machine. %s\n", name, n.file, installs(name, w.dir)))
				continue
			}
			here = append(here, name)
		}
		if here != nil {
			lines = append(lines, fmt.Sprintf("      %s, # %s is here\n", strings.Join(here, ", "), n.file))
		}
	}
	if lines == nil && missing == nil {
		return ""
	}
	usual = slices.DeleteFunc(usual, func(name string) bool {
		_, err := sandbox.LookPath(name, dirs, w.dir)
		return err != nil
	})
	return "  tools:\n    # The programs that agents may start: what this folder is worked on with, and the usual ones.\n" + strings.Join(missing, "") +
		"    allowed_commands: [\n" + strings.Join(lines, "") + "      " + strings.Join(usual, ", ") + ",\n    ]\n"
}

// skills names the folders of skills.
func (w *starter) skills() string {
	var b strings.Builder
	for _, dir := range []string{".a2e/skills", ".agents/skills", ".claude/skills"} {
		if n := w.countSkills(dir); n > 0 {
			fmt.Fprintf(&b, "    # %s: %s, found without a setting\n", dir, counted(n, "skill"))
		}
	}
	var named []string
	for _, dir := range []string{"skills", "agent/skills", ".cursor/skills", ".github/skills"} {
		if n := w.countSkills(dir); n > 0 {
			fmt.Fprintf(&b, "    # %s: %s\n", dir, counted(n, "skill"))
			named = append(named, dir)
		}
	}
	switch {
	case named != nil:
		return "  skill:\n" + b.String() + "    skills_path: [" + strings.Join(named, ", ") + "]\n"
	case b.Len() > 0:
		return "  skill:\n" + b.String() + "    workspace_skills: true\n"
	}
	return ""
}

func (w *starter) countSkills(dir string) int {
	found, _ := filepath.Glob(filepath.Join(w.dir, dir, "*", "SKILL.md")) // the pattern is good
	return len(found)
}

// git configures the toolkit of a repository.
func (w *starter) git() string {
	if !w.there(".git") {
		return ""
	}
	if _, err := sandbox.LookPath("git", sandbox.SafePath(os.Getenv("PATH"), w.dir), w.dir); err != nil {
		return "  toolkits: true # this folder is a git repository, and there is no git on this machine. " + installs("git", w.dir) + "\n"
	}
	return "  toolkits:\n    git: {repo: .} # this folder is a git repository; read_only: true leaves git_add and git_commit out\n"
}

// servers takes over the MCP servers of other clients.
func (w *starter) servers() string {
	var b strings.Builder
	var from []string
	seen := map[string]string{}
	for _, file := range []string{".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json"} {
		raw, err := os.ReadFile(filepath.Join(w.dir, file))
		if err != nil {
			continue
		}
		part, err := mcp.ServersPart(raw)
		if err != nil {
			w.notes = append(w.notes, fmt.Sprintf("left out: %s: %v", file, err))
			continue
		}
		all, err := protocol.ParseObject(mcp.OwnVariables(part))
		if err != nil {
			w.notes = append(w.notes, fmt.Sprintf("left out: %s: the servers should be an object of ids", file))
			continue
		}
		from = append(from, file)
		for key, v := range all.All() {
			id := string(key)
			if first, twice := seen[id]; twice {
				w.notes = append(w.notes, fmt.Sprintf("left out: %s of %s, as %s has one of that name", id, file, first))
				continue
			}
			seen[id] = file
			text, err := w.server(id, v)
			if err != nil {
				w.notes = append(w.notes, fmt.Sprintf("left out: %s: %v", file, err))
				continue
			}
			b.WriteString(text)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	w.notes = append(w.notes, "MCP servers: taken over from "+strings.Join(from, ", "))
	return "# MCP servers, taken over from " + strings.Join(from, ", ") + ". Secrets are not: the variables of the environment named here hold them.\nmcpServers:\n" + b.String()
}

// server writes an entry, without its secrets.
func (w *starter) server(id string, v protocol.Value) (string, error) {
	var entry map[string]any
	if err := json.Unmarshal(v, &entry); err != nil {
		return "", fmt.Errorf("server %q should be an object", id)
	}
	if command, ok := entry["command"].(string); ok && strings.Contains(command, " ") { // some clients take a line of a shell
		if _, err := os.Stat(command); err != nil {
			args, _ := entry["args"].([]any)
			words := strings.Fields(command)
			entry["command"] = words[0]
			for i, word := range words[1:] {
				args = slices.Insert(args, i, any(word))
			}
			entry["args"] = args
		}
	}
	one, err := json.Marshal(map[string]any{"mcpServers": map[string]any{id: entry}})
	if err != nil {
		return "", err
	}
	parsed, err := mcp.ParseServers(one)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "  %s:\n", config.Scalar(id))
	w.program(id, parsed[id], &b)
	for _, key := range []string{"type", "transport", "cwd", "timeout", "start_timeout", "disabled", "enabled", "allow", "tool_allow_list", "deny", "resource_allow_list", "network", "read", "sampling", "roots", "elicitation"} {
		if value, ok := entry[key]; ok && value != nil {
			fmt.Fprintf(&b, "    %s: %s\n", key, w.flow(id, key, value))
		}
	}
	for _, key := range []string{"env", "headers"} {
		pairs, _ := entry[key].(map[string]any) // it was parsed
		if len(pairs) > 0 {
			fmt.Fprintf(&b, "    %s:\n", key)
		}
		for _, name := range slices.Sorted(maps.Keys(pairs)) {
			fmt.Fprintf(&b, "      %s: %s\n", config.Scalar(name), config.Scalar(w.hidden(id, name, fmt.Sprint(pairs[name]))))
		}
	}
	return b.String(), nil
}

// program writes what a server is started or reached by.
func (w *starter) program(id string, o mcp.ServerOptions, b *strings.Builder) {
	if o.URL != "" {
		fmt.Fprintf(b, "    url: %s\n", config.Scalar(w.hiddenURL(id, o.URL)))
		return
	}
	words := append([]string{o.Command}, o.Args...)
	before := ""
	for i, word := range words {
		words[i], before = w.hiddenArgument(id, before, word), word
	}
	fmt.Fprintf(b, "    command: %s\n", config.Scalar(words[0]))
	if len(words) > 1 {
		all := make([]string, len(words)-1)
		for i, word := range words[1:] {
			all[i] = config.Scalar(word)
		}
		fmt.Fprintf(b, "    args: [%s]\n", strings.Join(all, ", "))
	}
}

// flow writes a value of JSON.
func (w *starter) flow(id, key string, value any) string {
	switch value := value.(type) {
	case string:
		return config.Scalar(w.known(value))
	case []any:
		all := make([]string, len(value))
		for i, v := range value {
			all[i] = w.flow(id, key, v)
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	return fmt.Sprint(value)
}

// hidden returns what stands for a value that came under a name: a variable, if it is secret.
func (w *starter) hidden(id, name, value string) string {
	if strings.Contains(value, "${") {
		return w.known(value)
	}
	if !redact.IsSecret(name, value) {
		return value
	}
	if kind, _, ok := strings.Cut(value, " "); ok && strings.EqualFold(kind, "bearer") {
		return kind + " " + w.variable(id, name, value)
	}
	return w.variable(id, name, value)
}

// variable returns a reference to the variable that holds a secret.
func (w *starter) variable(id, name, secret string) string {
	as := variableOf(id, strings.ReplaceAll(name, "_", "-"))
	if other, used := w.taken[name]; regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`).MatchString(name) && (!used || other == secret) {
		as = name
	}
	first := as
	for n := 2; ; n++ {
		if other, used := w.taken[as]; !used || other == secret {
			break
		}
		as = fmt.Sprintf("%s_%d", first, n)
	}
	w.taken[as] = secret
	return w.known("${" + as + "}")
}

// known gives references to variables that are not set a default, without which the config would
// not load.
func (w *starter) known(text string) string {
	return regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`).ReplaceAllStringFunc(text, func(ref string) string {
		name := ref[2 : len(ref)-1]
		if w.getenv(name) != "" {
			return ref
		}
		if !slices.Contains(w.unset, name) {
			w.unset = append(w.unset, name)
		}
		return "${" + name + ":-}"
	})
}

// hiddenArgument is hidden for an argument, behind another one.
func (w *starter) hiddenArgument(id, before, word string) string {
	name, value, assigned := strings.Cut(word, "=")
	flag := strings.TrimLeft(before, "-")
	token := regexp.MustCompile(`^(sk|pk|ghp|gho|github_pat|glpat|xox[a-z]|AKIA|AIza|ya29|npm|hf)[-_A-Za-z0-9.]{12,}$`)
	switch {
	case strings.Contains(word, "://"):
		return w.hiddenURL(id, word)
	case strings.Contains(word, "${"):
		return w.known(word)
	case assigned && redact.SpeaksOfSecret(name) && value != "":
		return name + "=" + w.variable(id, strings.TrimLeft(name, "-"), value)
	case strings.HasPrefix(before, "-") && !strings.Contains(before, "=") && redact.SpeaksOfSecret(flag) && !strings.HasPrefix(word, "-"):
		return w.variable(id, flag, word)
	case token.MatchString(word):
		return w.variable(id, "token", word)
	case strings.Contains(word, ": ") && redact.SpeaksOfSecret(word[:strings.Index(word, ": ")]): // --header 'Authorization: …'
		name, value, _ := strings.Cut(word, ": ")
		return name + ": " + w.hidden(id, name, value)
	}
	return word
}

// hiddenURL returns a text with a URL without what that says in confidence.
func (w *starter) hiddenURL(id, text string) string {
	replace := func(pattern string, name func(m []string) string) {
		at := regexp.MustCompile(pattern)
		text = at.ReplaceAllStringFunc(text, func(part string) string {
			m := at.FindStringSubmatch(part)
			if as := name(m); as != "" && !strings.Contains(m[3], "${") {
				return m[1] + m[2] + w.variable(id, as, m[3]) + m[4]
			}
			return part
		})
	}
	replace(`(://[^/@\s:]*)(:)([^/@\s]+)(@)`, func([]string) string { return "password" })
	replace(`(://)()([^/@\s:$]+)(@)`, func(m []string) string {
		if len(m[3]) > 16 { // a token in place of a name
			return "token"
		}
		return ""
	})
	replace(`([?&])([^=&#\s]+=)([^&#\s]+)()`, func(m []string) string {
		if name := strings.TrimSuffix(m[2], "="); redact.IsSecret(name, m[3]) {
			return name
		}
		return ""
	})
	return w.known(text)
}
