package cli

import (
	"errors"
	"fmt"
	"path/filepath"

	"a2e/plugins/skill"
)

type skillsValidateCmd struct {
	Path []string `complete:"dir" arg:"" optional:"" help:"Folders of skills, each one skill, or their SKILL.md. Default: all that the config's plugins find."`
	JSON bool     `name:"json" help:"Print all of it as JSON."`
}

// Run validates the skills.
func (s skillsValidateCmd) Run(cmd *commands, sys *System) error {
	paths := s.Path
	if len(paths) == 0 {
		found, err := skillsCheckCmd{}.entries(cmd, sys)
		if err != nil {
			return err
		}
		for _, e := range found {
			if !e.Folder {
				paths = append(paths, filepath.Dir(e.File))
			}
		}
	}
	var entries []skill.Entry
	for _, path := range paths {
		e, err := skill.Validate(path)
		if err != nil {
			return fail(exitUsage, err)
		}
		entries = append(entries, e)
	}
	lines, good, broken := checkLines(entries)
	if !s.JSON {
		printCheck(sys.Out, lines)
	} else if err := printJSON(sys.Out, lines); err != nil {
		return err
	}
	say(sys.Err, "%d valid, %d not", good, broken)
	if broken > 0 {
		return fail(exitFailed, errors.New("not all skills follow the public format"))
	}
	return nil
}

type skillsNewCmd struct {
	Name        string `arg:"" help:"Its name: lower-case letters, digits and single hyphens."`
	Description string `placeholder:"TEXT" help:"What it does, and when to use it."`
	User        bool   `xor:"where" help:"Put it into the user's config folder, in place of .a2e/skills of the workspace."`
	In          string `xor:"where" placeholder:"FOLDER" help:"Put it into this folder of skills."`
}

// Run writes the skill and prints the path of its SKILL.md.
func (s skillsNewCmd) Run(cmd *commands, sys *System) error {
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return err
	}
	base, rel := cfg.Workspace, filepath.Join(".a2e", "skills")
	switch {
	case s.In != "":
		base, rel = s.In, "."
	case s.User && cfg.UserDir == "":
		return fail(exitUsage, errors.New("--user: this user has no config folder; set HOME"))
	case s.User:
		base, rel = cfg.UserDir, "skills"
	}
	path, err := skill.NewSkill(base, rel, s.Name, s.Description)
	if err != nil {
		return fail(exitUsage, err)
	}
	_, err = fmt.Fprintln(sys.Out, path)
	return err
}
