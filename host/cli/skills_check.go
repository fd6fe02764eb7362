package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"a2e/host"
	"a2e/plugins/skill"
	"a2e/protocol"
)

type skillsCheckCmd struct {
	Path string `complete:"dir" arg:"" optional:"" help:"A skill's folder, or a folder of skills. Default: all that the config's plugins find."`
	JSON bool   `name:"json" help:"Print all of it as JSON."`
}

// checkLine is one finding about skills.
type checkLine struct {
	File  string `json:"file"`
	Line  int    `json:"line"` // 0 = the file as a whole
	Skill string `json:"skill"`
	Level string `json:"level"` // error, hint, shadowed or blocked
	Text  string `json:"text"`
}

// place returns FILE:LINE, or FILE if there is no line.
func (l *checkLine) place() string {
	if l.Line == 0 {
		return oneLine(l.File)
	}
	return fmt.Sprintf("%s:%d", oneLine(l.File), l.Line)
}

// Run checks the skills and prints the findings.
func (s skillsCheckCmd) Run(cmd *commands, sys *System) error {
	entries, err := s.entries(cmd, sys)
	if err != nil {
		return err
	}
	lines, good, broken := checkLines(entries)
	if s.Path == "" && good > 0 {
		blocked, err := cmd.blockedSkills(sys)
		if err != nil {
			return err
		}
		lines = append(lines, blocked...)
	}
	return tellChecked(sys, s.JSON, lines, broken, fmt.Sprintf("%d good, %d broken", good, broken),
		"not all skills can be used")
}

// tellChecked prints the findings about skills. It returns an error if some skills are broken.
func tellChecked(sys *System, asJSON bool, lines []checkLine, broken int, count, wrong string) error {
	if !asJSON {
		printCheck(sys.Out, lines)
	} else if err := printJSON(sys.Out, lines); err != nil {
		return err
	}
	say(sys.Err, "%s", count)
	if broken > 0 {
		return fail(exitFailed, errors.New(wrong))
	}
	return nil
}

// entries checks the skills and returns an entry for each.
func (s skillsCheckCmd) entries(cmd *commands, sys *System) ([]skill.CheckResult, error) {
	if s.Path != "" {
		all, err := skill.CheckFolder(s.Path)
		return all, fail(exitUsage, err)
	}
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return nil, err
	}
	var all []skill.CheckResult
	found := false
	for _, p := range cfg.Plugins {
		if p.Type != string(protocol.CapSkill) || !p.Enabled {
			continue
		}
		found = true
		opts := skill.DefaultOptions()
		if err := p.Options.Decode(&opts); err != nil {
			return nil, fail(exitConfig, err)
		}
		entries, err := skill.Check(opts, host.Env{Workspace: cfg.Workspace, UserDir: cfg.UserDir, Wall: cfg.Wall})
		if err != nil {
			return nil, fail(exitConfig, fmt.Errorf("plugin %q: %w", p.Name, err))
		}
		all = append(all, entries...)
	}
	if !found {
		return nil, fail(exitConfig, fmt.Errorf("no plugin of the config provides %s", protocol.CapSkill))
	}
	return all, nil
}

// checkLines turns entries into findings, and counts the good and broken skills.
func checkLines(entries []skill.CheckResult) (lines []checkLine, good, broken int) {
	lines = []checkLine{}
	for _, e := range entries {
		if len(e.Problems) > 0 {
			broken++
		} else if !e.Folder {
			good++
		}
		for _, n := range e.Problems {
			lines = append(lines, checkLine{e.File, n.Line, e.Name, "error", n.Text})
		}
		for _, n := range e.Hints {
			lines = append(lines, checkLine{e.File, n.Line, e.Name, "hint", n.Text})
		}
		if e.ShadowedBy != "" {
			lines = append(lines, checkLine{e.File, 0, e.Name, "shadowed", "the name " + e.Name + " is that of " +
				e.ShadowedBy + ", which comes first"})
		}
	}
	return lines, good, broken
}

// blockedSkills returns findings about skills that need something that this host does not have.
func (c *commands) blockedSkills(sys *System) (lines []checkLine, err error) {
	skills, err := c.fetchSkills(sys, &protocol.SkillDiscoverRequest{})
	for _, s := range skills {
		file := s.Name
		if s.FilePath != nil {
			file = *s.FilePath
		}
		if reason, ok := s.Metadata["blocked_reason"].(string); ok {
			lines = append(lines, checkLine{file, 0, s.Name, "blocked", reason})
		}
		unknown, _ := s.Metadata["unknown_tools"].([]any)
		for _, tool := range unknown {
			if name, ok := tool.(string); ok && !strings.Contains(name, "(") { // names with a rule already have a hint
				lines = append(lines, checkLine{file, 0, s.Name, "hint", "allowed-tools: there is no tool " + name +
					" here; that does not block the skill"})
			}
		}
	}
	return lines, err
}

// printCheck prints FILE:LINE: TEXT for each finding.
func printCheck(w io.Writer, lines []checkLine) {
	for _, l := range lines {
		level := ""
		if l.Level != "error" {
			level = l.Level + ": "
		}
		fmt.Fprintf(w, "%s: %s%s\n", l.place(), level, oneLine(l.Text))
	}
}

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
	var entries []skill.CheckResult
	for _, path := range paths {
		e, err := skill.Validate(path)
		if err != nil {
			return fail(exitUsage, err)
		}
		entries = append(entries, e)
	}
	lines, good, broken := checkLines(entries)
	return tellChecked(sys, s.JSON, lines, broken, fmt.Sprintf("%d valid, %d not", good, broken),
		"not all skills follow the public format")
}
