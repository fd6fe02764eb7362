package cli

import (
	"errors"
	"fmt"
	"io/fs"
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
		return fail(exitFailed, fmt.Errorf("%s already exists; --force replaces it, --print only shows what would "+
			"be written", f.name))
	}
	dir, err := os.Getwd()
	if err != nil {
		return fail(exitFailed, err)
	}
	w := &starter{dir: dir, getenv: sys.getenv, taken: map[string]string{}, last: map[string]int{}, patterns: map[string]*regexp.Regexp{}}
	text := w.config()
	if i.Print {
		w.tell(sys)
		_, err := sys.Out.WriteString(text)
		return err
	}
	f.known = false // what nobody has looked at is not trusted
	if err := f.write([]byte(text)); err != nil {
		return err
	}
	w.tell(sys)
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

// tell says what was taken over, and what was not.
func (w *starter) tell(sys *System) {
	for _, note := range w.notes {
		say(sys.Err, "%s", oneLine(note))
	}
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
	last   map[string]int    // the number behind the last of those that would have one name

	patterns map[string]*regexp.Regexp // those used so far
}

// pattern compiles a pattern, once.
func (w *starter) pattern(text string) *regexp.Regexp {
	if w.patterns[text] == nil {
		w.patterns[text] = regexp.MustCompile(text)
	}
	return w.patterns[text]
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
		return strings.Join(append(parts, "# Nothing else here needs a setting: the defaults apply, with all "+
			"plugins.\n"), "\n")
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
			fmt.Fprintf(&b, "    # %s: %s, found without a setting\n", dir, protocol.Count(n, "skill"))
		}
	}
	var named []string
	for _, dir := range []string{"skills", "agent/skills", ".cursor/skills", ".github/skills"} {
		if n := w.countSkills(dir); n > 0 {
			fmt.Fprintf(&b, "    # %s: %s\n", dir, protocol.Count(n, "skill"))
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
		raw, err := config.ReadRegular(filepath.Join(w.dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var part []byte
		switch {
		case err != nil:
		case len(raw) > 1<<20:
			err = errors.New("the file is larger than 1 MiB")
		default:
			part, err = mcp.ServersPart(raw)
		}
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
		fmt.Fprintf(b, "    url: %s\n", config.Scalar(w.hiddenParts(id, o.URL)))
		return
	}
	words := append([]string{o.Command}, o.Args...)
	before := ""
	for i, word := range words {
		words[i], before = w.hiddenArgument(id, before, word), word
	}
	fmt.Fprintf(b, "    command: %s\n", config.Scalar(words[0]))
	if len(words) > 1 {
		fmt.Fprintf(b, "    args: [%s]\n", strings.Join(each(words[1:], config.Scalar), ", "))
	}
}

// flow writes a value of JSON.
func (w *starter) flow(id, key string, value any) string {
	switch value := value.(type) {
	case string:
		return config.Scalar(w.known(value))
	case []any:
		return "[" + strings.Join(each(value, func(v any) string { return w.flow(id, key, v) }), ", ") + "]"
	}
	return fmt.Sprint(value)
}

// hidden returns what stands for a value that came under a name: a variable, if it is secret.
func (w *starter) hidden(id, name, value string) string {
	literal := w.pattern(variableRef).ReplaceAllString(value, "$2") // what is written here in confidence, beside variables
	kind, rest, ok := strings.Cut(literal, " ")
	scheme := ok && slices.Contains([]string{"bearer", "basic", "token"}, strings.ToLower(kind))
	if !scheme {
		rest = literal
	}
	switch referring := literal != value; {
	case strings.TrimSpace(rest) == "", referring && !redact.SpeaksOfSecret(name), !redact.IsSecret(name, value):
		return w.hiddenArgument(id, "", value)
	case scheme && !referring:
		return kind + " " + w.variable(id, name, value)
	}
	return w.variable(id, name, value)
}

// variableRef matches a reference to a variable: its name and the default.
const variableRef = `\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}`

// variable returns a reference to the variable that holds a secret.
func (w *starter) variable(id, name, secret string) string {
	as := variableOf(id, strings.ReplaceAll(name, "_", "-"))
	if other, used := w.taken[name]; w.pattern(`^[A-Z_][A-Z0-9_]*$`).MatchString(name) && (!used || other == secret) {
		as = name
	}
	first := as
	for n := max(2, w.last[first]); ; n++ {
		if other, used := w.taken[as]; !used || other == secret {
			break
		}
		as, w.last[first] = fmt.Sprintf("%s_%d", first, n), n
	}
	w.taken[as] = secret
	return w.known("${" + as + "}")
}

// known gives references to variables that are not set a default, without which the config would
// not load. A default that is a secret goes.
func (w *starter) known(text string) string {
	return w.pattern(variableRef).ReplaceAllStringFunc(text, func(ref string) string {
		m := w.pattern(variableRef).FindStringSubmatch(ref)
		if w.getenv(m[1]) != "" && m[2] == "" || m[2] != "" && !redact.SpeaksOfSecret(m[1]) && w.hiddenParts("", m[2]) == m[2] {
			return ref
		}
		if !slices.Contains(w.unset, m[1]) {
			w.unset = append(w.unset, m[1])
		}
		return "${" + m[1] + ":-}"
	})
}

// hiddenArgument is hidden for an argument, behind another one.
func (w *starter) hiddenArgument(id, before, word string) string {
	header := w.pattern(`(?s)^(?:--?[\w-]+=)?([A-Za-z][\w-]*):[ \t]*(.+)$`).FindStringSubmatch(word)
	name, value, assigned := strings.Cut(word, "=")
	flag := strings.TrimLeft(before, "-")
	switch {
	case header != nil && redact.SpeaksOfSecret(header[1]):
		return strings.TrimSuffix(word, header[2]) + w.hidden(id, header[1], header[2])
	case assigned && redact.SpeaksOfSecret(name) && value != "" && !strings.ContainsAny(name, " ?&/"):
		return name + "=" + w.hidden(id, strings.TrimLeft(name, "-"), value)
	case strings.HasPrefix(before, "-") && !strings.Contains(before, "=") && redact.SpeaksOfSecret(flag) && !strings.HasPrefix(word, "-"):
		return w.hidden(id, flag, word)
	}
	return w.hiddenParts(id, word)
}

// hide finds parts of a text, by the second group of a pattern, and says what stands for one;
// ok = false: it may be seen.
type hide struct {
	pattern string
	as      func(before, part string) (text string, ok bool)
}

// hiddenParts returns a text, such as a URL, a header or a line of a shell, with variables in
// place of the secrets that stand in it.
func (w *starter) hiddenParts(id, text string) string {
	always := func(name string) func(_, part string) (string, bool) {
		return func(_, part string) (string, bool) { return w.variable(id, name, part), true }
	}
	named := func(before, part string) (string, bool) {
		name := w.pattern(`(?i)["'=: \t]+(bearer|basic|token)?["'=: \t]*$`).ReplaceAllString(before, "")
		if !redact.SpeaksOfSecret(name) {
			return "", false
		}
		return w.variable(id, strings.TrimLeft(name, "-"), part), true
	}
	const secretName = `[\w.-]*(?i:key|token|secret|pass|credential|auth|cookie)[\w.-]*`
	all := []hide{
		{`()(` + variableRef + `)`, func(_, part string) (string, bool) { return w.known(part), true }},
		{`(://[^/@\s:]*:)([^/\s]+)@`, always("password")},
		{`(://)([^/@\s:]{17,})@`, always("token")}, // in place of a name
		{`([?&#][^=&#\s]+=)([^&#\s]+)`, func(before, part string) (string, bool) {
			name := strings.Trim(before, "?&#=")
			if !redact.IsSecretQuery(name, part) {
				return "", false
			}
			return w.variable(id, name, part), true
		}},
		// NAME=VALUE, "name": "value", Name: Bearer VALUE
		{`(` + secretName + `["']?[ \t]*[=:][ \t]*["']?(?:(?i:bearer|basic|token) +)?)([^\s"'&;,{}\[\]]+)`, named},
		{`(--?` + secretName + `[ \t]+["']?)([^\s"'-][^\s"']*)`, named},
		{`(\b)((?:(?:sk|pk|xox[a-z]|npm|hf|ghp|gho|github_pat|glpat)[-_]|AKIA|AIza|ya29\.|eyJ)[-\w.]{12,})`, always("token")},
	}
	if strings.Contains(text, "://") { // some services have their secret in the path
		all = append(all, hide{`(/)([A-Za-z0-9_=-]{20,})`, func(_, part string) (string, bool) {
			odd := w.pattern(`[A-Za-z0-9]{20}|^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(part)
			if !odd || !strings.ContainsAny(part, "0123456789") {
				return "", false
			}
			return always("token")("", part)
		}})
	}
	return w.hideParts(text, all)
}

// hideParts looks for each kind of part in what those before it have left.
func (w *starter) hideParts(text string, all []hide) string {
	if len(all) == 0 {
		return text
	}
	var b strings.Builder
	from := 0
	for _, m := range w.pattern(all[0].pattern).FindAllStringSubmatchIndex(text, -1) {
		if as, ok := all[0].as(text[m[2]:m[3]], text[m[4]:m[5]]); ok {
			b.WriteString(w.hideParts(text[from:m[4]], all[1:]) + as)
			from = m[5]
		}
	}
	return b.String() + w.hideParts(text[from:], all[1:])
}
