package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"a2e/host/config"
	plugin "a2e/plugins/exec/starter"
)

type initPluginCmd struct {
	Name       string `arg:"" optional:"" default:"words" help:"The name of the plugin and of its file."`
	Python     bool   `xor:"language" required:"" help:"Write it in Python."`
	TypeScript bool   `name:"typescript" xor:"language" required:"" help:"Write it in TypeScript."`
	Force      bool   `help:"Replace the plugin if there is one."`
}

// Run writes a plugin with one tool, and the helper file that it needs.
func (i initPluginCmd) Run(cmd *commands, sys *System) error {
	if !regexp.MustCompile(`^[a-z][a-z0-9_]*$`).MatchString(i.Name) || i.Name == "a2e_plugin" {
		return fail(exitUsage, fmt.Errorf("%.64q is the name of a plugin and of its file: write it in lower case "+
			"letters, digits and _, such as word_tools", i.Name))
	}
	program, files, err := i.files()
	if err != nil {
		return fail(exitFailed, err)
	}
	for _, f := range files {
		old, err := os.ReadFile(f.Name)
		if f.Keep && err == nil && !i.Force {
			return fail(exitFailed, fmt.Errorf("%s already exists; give another name, or --force to replace it",
				f.Name))
		}
		if err == nil && bytes.Equal(old, f.Text) {
			continue
		}
		if err := os.WriteFile(f.Name, f.Text, 0o644); err != nil {
			return fail(exitFailed, err)
		}
		say(sys.Err, "written: %s", f.Name)
	}
	return i.configure(cmd, sys, fmt.Sprintf("plugins:\n  %s: {type: exec, command: [%s, %s], capabilities: [tools]}\n",
		i.Name, program, files[0].Name))
}

// files returns the files to write, the plugin itself first, and the program that runs the plugin.
func (i initPluginCmd) files() (program string, files []plugin.File, err error) {
	if i.Python {
		program = "python3"
		if _, err := exec.LookPath(program); errors.Is(err, exec.ErrNotFound) {
			program = "python"
		}
		files, err = plugin.Python(i.Name)
		return program, files, err
	}
	ext := ".ts"
	out, err := exec.Command("node", "-p", "process.features.typescript").Output()
	if err == nil && !bytes.Contains(out, []byte("strip")) && !bytes.Contains(out, []byte("transform")) {
		ext = ".mjs" // this version of node does not run TypeScript
	}
	files, err = plugin.TypeScript(i.Name, ext)
	return "node", files, err
}

// configure writes the plugin into a new config of the folder. If the folder has a config, it
// prints the lines to add instead.
func (i initPluginCmd) configure(cmd *commands, sys *System, lines string) error {
	f, err := cmd.edited(sys, config.FolderFile, true)
	if err != nil {
		return err
	}
	const try = "a2e tools call word_count text='one two three'"
	if _, line, _ := strings.Cut(lines, "\n"); bytes.Contains(f.text, []byte(line)) {
		say(sys.Err, "%s has it; try: %s", config.FolderFile, try)
		return nil
	}
	if f.text != nil {
		say(sys.Err, "add this to %s, then a2e trust, and try: %s", config.FolderFile, try)
		_, err := sys.Out.WriteString(lines)
		return err
	}
	f.known = true
	if err := f.write([]byte(lines)); err != nil {
		return err
	}
	say(sys.Err, "written: %s, which is trusted as it is; try: %s", config.FolderFile, try)
	return nil
}
