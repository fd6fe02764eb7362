package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/protocol"
)

type initCmd struct {
	Folder initFolderCmd `cmd:"" default:"withargs" help:"Write a config for this folder (the default)."`
	Plugin initPluginCmd `cmd:"" help:"Write a plugin with a tool, in Python or TypeScript."`
}

type initFolderCmd struct {
	Force bool `help:"Replace the file if there is one."`
	Print bool `help:"Print the config, and write nothing."`
}

// Run writes a config for this folder and trusts it: nothing in the config comes from a file of the folder.
func (i initFolderCmd) Run(cmd *commands, sys *System) error {
	name := cmp.Or(cmd.Config, sys.getenv("A2E_CONFIG"), config.FolderFile)
	f, err := cmd.edited(sys, name, filepath.Base(name) == config.FolderFile)
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
	w := &starter{dir: dir}
	text := w.config()
	if i.Print {
		_, err := sys.Out.WriteString(text)
		return err
	}
	f.known = true
	if err := f.write([]byte(text)); err != nil {
		return err
	}
	say(sys.Err, "written: %s", oneLine(f.path))
	for _, file := range []string{".cursor/mcp.json", ".vscode/mcp.json"} {
		if w.there(file) {
			say(sys.Err, "%s is not read; what you want of its MCP servers belongs in %s", file, config.ServersFile)
		}
	}
	src := cmd.source(sys)
	src.Path = f.path
	cfg, warnings, err := config.Load(src)
	for _, warning := range warnings {
		sys.warn(warning.String())
	}
	if err == nil {
		err = tryPlugins(cfg)
	}
	if err != nil {
		return fail(exitConfig, fmt.Errorf("%s does not load yet: %w", f.name, err))
	}
	if f.trust != nil {
		say(sys.Err, "it is trusted as it is; next: a2e doctor")
	}
	return nil
}

// starter writes the first config of a folder, based on the files in it.
type starter struct{ dir string }

// there reports whether the folder has a file or folder with this name.
func (w *starter) there(name string) bool {
	_, err := os.Stat(filepath.Join(w.dir, name))
	return err == nil
}

// config returns the text of the config.
func (w *starter) config() string {
	parts := []string{"# The config of a2e for this folder. Once it is changed it counts again after a2e trust.\n" +
		"# All settings: a2e help config.\n"}
	inner := []string{w.commands(), w.skills(), w.git()}
	if inner = slices.DeleteFunc(inner, func(text string) bool { return text == "" }); len(inner) == 0 {
		return strings.Join(append(parts, "# Nothing else here needs a setting: the defaults apply, with all "+
			"plugins.\n"), "\n")
	}
	return strings.Join(append(parts, "plugins:\n"+strings.Join(inner, "")), "\n")
}

// need is a file that shows which programs a folder is worked on with.
type need struct {
	file     string
	programs []string
}

func needs() []need {
	return []need{
		{"package.json", []string{"node", "npm"}},
		{"pnpm-lock.yaml", []string{"pnpm"}},
		{"yarn.lock", []string{"yarn"}},
		{"deno.json", []string{"deno"}},
		{"go.mod", []string{"go"}},
		{"pyproject.toml", []string{"python3", "pytest"}},
		{"requirements.txt", []string{"python3", "pytest"}},
		{"uv.lock", []string{"uv"}},
		{"Cargo.toml", []string{"cargo"}},
		{"Gemfile", []string{"ruby", "bundle"}},
		{"CMakeLists.txt", []string{"cmake"}},
		{"Makefile", []string{"make"}},
	}
}

// commands returns the setting with the programs that agents may start, or "" if no program of needs applies.
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
				missing = append(missing, fmt.Sprintf("    # %s, for %s, is not on this machine. %s\n", name, n.file,
					installs(name, w.dir)))
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
	return "  tools:\n    # The programs that agents may start: what this folder is worked on with, and the usual " +
		"ones.\n" + strings.Join(missing, "") +
		"    allowed_commands: [\n" + strings.Join(lines, "") + "      " + strings.Join(usual, ", ") + ",\n    ]\n"
}

// skills returns the setting with the folders of skills, or "" if there are none.
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
	found, _ := filepath.Glob(filepath.Join(w.dir, dir, "*", "SKILL.md")) // the pattern is valid
	return len(found)
}

// git returns the setting of the toolkit for a git repository, or "" if the folder is not one.
func (w *starter) git() string {
	if !w.there(".git") {
		return ""
	}
	if _, err := sandbox.LookPath("git", sandbox.SafePath(os.Getenv("PATH"), w.dir), w.dir); err != nil {
		return "  toolkits: true # this folder is a git repository, and there is no git on this machine. " +
			installs("git", w.dir) + "\n"
	}
	return "  toolkits:\n    git: {repo: .} # this folder is a git repository; read_only: true leaves git_add and " +
		"git_commit out\n"
}
