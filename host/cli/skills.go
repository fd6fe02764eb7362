package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/plugins/skill"
	"a2e/protocol"
	"a2e/protocol/client"
)

// skillsAgent is the agent id of `a2e skills`.
const skillsAgent = "a2e skills"

type skillsCmd struct {
	List     skillsListCmd     `cmd:"" help:"List the skills, or search them."`
	Check    skillsCheckCmd    `cmd:"" help:"Check skills for mistakes."`
	Validate skillsValidateCmd `cmd:"" help:"Check skills against the public Agent Skills format."`
	New      skillsNewCmd      `cmd:"" help:"Write the skeleton of a new skill."`
	Show     skillsShowCmd     `cmd:"" help:"Show what a skill says of itself, and its text."`
	Run      skillsRunCmd      `cmd:"" help:"Run a skill and print its result, or the instructions that a model would get."`
}

// fetchSkills asks a host in this process for its skills.
func (c *commands) fetchSkills(sys *System, req *protocol.SkillDiscoverRequest) ([]protocol.SkillDefinition, error) {
	var resp protocol.SkillDiscoverResponse
	err := c.askWith(sys, skillsAgent, []protocol.Capability{protocol.CapSkill, protocol.CapMCP},
		func(ctx context.Context, conn *client.Client) error {
			return discover(ctx, conn, sys, req, "", 0, &resp)
		})
	return resp.Skills, err
}

// discover asks for the skills after the MCP servers that they name have started, because without
// these some skills would seem blocked. If only is not "", only the servers of this skill matter.
func discover(ctx context.Context, conn *client.Client, sys *System, req *protocol.SkillDiscoverRequest, only string,
	seconds float64, resp *protocol.SkillDiscoverResponse,
) error {
	if err := conn.Call(ctx, protocol.TypeSkillDiscoverReq, req, resp); err != nil {
		return err
	}
	var named strings.Builder
	for _, s := range resp.Skills {
		if only == "" || s.Name == only {
			raw, _ := json.Marshal(s) // cannot fail: it was decoded from JSON
			named.Write(raw)
		}
	}
	wait := serverWait{seconds: seconds, needs: mentions(named.String())}
	if err := wait.settle(ctx, conn, sys); err != nil || wait.waited == 0 {
		return err
	}
	if err := wait.lacking(); err != nil {
		say(sys.Err, "warning: %v", err)
	}
	return conn.Call(ctx, protocol.TypeSkillDiscoverReq, req, resp)
}

type skillsListCmd struct {
	Query    string   `arg:"" optional:"" help:"Words to search for; the best match comes first."`
	Tag      []string `placeholder:"TAG" help:"Only skills with this tag; with several, one of them is enough."`
	Category []string `placeholder:"CATEGORY" help:"Only skills of this category; with several, any of them."`
	JSON     bool     `name:"json" help:"Print the definitions as JSON."`
}

// Run prints a table of the skills.
func (l skillsListCmd) Run(cmd *commands, sys *System) error {
	skills, err := cmd.fetchSkills(sys, &protocol.SkillDiscoverRequest{
		Query: l.Query, FilterTags: l.Tag,
		FilterCategories: l.Category,
	})
	switch {
	case err != nil:
		return err
	case len(skills) == 0 && len(l.Tag)+len(l.Category) > 0:
		return l.misnamed(cmd, sys)
	}
	none := "there are no such skills; they lie in .a2e/skills of the workspace, in a2e/skills of the user's config " +
		"folder, and in skills_path of the config"
	if l.Query != "" {
		none = "no skill has any of these words"
	}
	return list(sys, l.JSON, skills, none, []string{"SKILL", "KIND", "STATUS", "DESCRIPTION"},
		func(s protocol.SkillDefinition) []string {
			kind, _ := s.Metadata["kind"].(string)
			about := firstSentence(s.Description)
			if reason, ok := s.Metadata["blocked_reason"].(string); ok {
				about = reason
			}
			return []string{s.Name, kind, string(s.Status), about}
		})
}

// misnamed returns an error if a filter names a tag or category that no skill has.
func (l skillsListCmd) misnamed(cmd *commands, sys *System) error {
	skills, err := cmd.fetchSkills(sys, &protocol.SkillDiscoverRequest{})
	var tags, categories []string
	for _, s := range skills {
		tags = append(tags, s.Tags...)
		if s.Category != nil {
			categories = append(categories, *s.Category)
		}
	}
	return cmp.Or(err, unknownOf("tag", l.Tag, tags), unknownOf("category", l.Category, categories))
}

type skillsShowCmd struct {
	Name string `complete:"skill" arg:"" help:"The skill."`
	JSON bool   `name:"json" help:"Print the definition as JSON."`
}

// Run prints one skill.
func (s skillsShowCmd) Run(cmd *commands, sys *System) error {
	skills, err := cmd.fetchSkills(sys, &protocol.SkillDiscoverRequest{})
	if err != nil {
		return err
	}
	var names []string
	for _, def := range skills {
		switch {
		case def.Name == s.Name && s.JSON:
			return printJSON(sys.Out, def)
		case def.Name == s.Name:
			showSkill(sys.Out, &def)
			return nil
		}
		names = append(names, def.Name)
	}
	if err := brokenSkill(cmd, sys, s.Name); err != nil {
		return err
	}
	return fail(exitFailed, unknown("skill", s.Name, names))
}

// brokenSkill returns the error of the broken skill with this name, or nil if there is none.
func brokenSkill(cmd *commands, sys *System, name string) error {
	entries, err := skillsCheckCmd{}.entries(cmd, sys)
	if err != nil {
		return err
	}
	lines, _, _ := checkLines(entries)
	for _, l := range lines {
		if l.Skill == name && l.Level == "error" {
			return fail(exitFailed, fmt.Errorf("the skill %q is broken: %s: %s", name, l.place(), oneLine(l.Text)))
		}
	}
	return nil
}

// showSkill prints the definition of a skill.
func showSkill(w io.Writer, def *protocol.SkillDefinition) {
	names := func(values []jsontext.Value) string {
		return strings.Join(each(values, func(v jsontext.Value) string { s, _ := protocol.Value(v).Str(); return s }),
			", ")
	}
	kind, _ := def.Metadata["kind"].(string)
	reason, _ := def.Metadata["blocked_reason"].(string)
	when, file := def.WhenToUse, ""
	if when == def.Description {
		when = ""
	}
	if def.FilePath != nil {
		file = *def.FilePath
	}
	said := maps.Clone(def.Metadata)
	told := func(key string) string {
		text := shortText(said[key])
		delete(said, key)
		return text
	}
	if said["version"] == def.Version {
		delete(said, "version")
	}
	for _, own := range []string{"kind", "uri", "blocked_reason", "routing_weight", "task"} {
		delete(said, own)
	}
	lines := [][2]string{
		{"name", def.Name},
		{"version", def.Version},
		{"description", def.Description},
		{"when to use", when},
		{"status", strings.TrimSuffix(string(def.Status)+": "+reason, ": ")},
		{"kind", kind},
		{"arguments", def.ArgumentHint},
		{"tools", names(def.Tools)},
		{"toolkits", names(def.Toolkits)},
		{"tags", strings.Join(def.Tags, ", ")},
		{"license", told("license")},
		{"compatibility", told("compatibility")},
		{"allowed tools", told("allowed_tools")},
		{"unknown here", told("unknown_tools")},
		{"file", file},
	}
	for _, key := range slices.Sorted(maps.Keys(said)) {
		lines = append(lines, [2]string{cut(oneLine(key), 13), shortText(said[key])})
	}
	for _, line := range lines {
		if text := oneLine(line[1]); text != "" {
			fmt.Fprintf(w, "%-13s %s\n", line[0], text)
		}
	}
	if def.Instructions != nil && *def.Instructions != "" {
		fmt.Fprintf(w, "\n%s\n", seen(*def.Instructions))
	}
}

// shortText formats a value of the metadata for a person.
func shortText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case []any:
		return strings.Join(each(v, shortText), ", ")
	}
	raw, _ := json.Marshal(v, json.Deterministic(true)) // cannot fail: it was decoded from JSON
	return string(raw)
}

type skillsRunCmd struct {
	Name    string   `complete:"skill" arg:"" help:"The skill."`
	Values  []string `complete:"skill-argument" arg:"" optional:"" help:"Arguments as key=value, read as the skill's schema wants them; key:=JSON is JSON in any case."`
	Args    string   `placeholder:"JSON" help:"All arguments as one JSON object, or @FILE, or - for stdin."`
	Record  bool     `help:"Count the call, and those that it makes, into what the host learns."`
	Timeout int      `default:"60" help:"Seconds that the skill may take, and before it the start of the MCP servers that it names."`
	Quiet   bool     `help:"Do not show on stderr what the skill does."`
	JSON    bool     `name:"json" help:"Print the whole result, not only its data or text."`
}

// Run calls the skill on a host in this process and prints the result.
func (s skillsRunCmd) Run(cmd *commands, sys *System) error {
	given, err := readArguments(sys, "--args", s.Args, s.Values)
	if err != nil {
		return fail(exitUsage, err)
	}
	cmd.record = s.Record
	req := &protocol.SkillCallRequest{Name: s.Name, Timeout: s.Timeout, Streaming: !s.Quiet}
	var resp protocol.SkillCallResponse
	err = cmd.askWith(sys, skillsAgent, []protocol.Capability{protocol.CapSkill, protocol.CapMCP},
		func(ctx context.Context, c *client.Client) error {
			var known protocol.SkillDiscoverResponse
			if err := discover(ctx, c, sys, &protocol.SkillDiscoverRequest{}, s.Name, float64(s.Timeout),
				&known); err != nil {
				return err
			}
			if req.Arguments, err = given.object(s.Name, skillParameters(known.Skills, s.Name)); err != nil {
				return err
			}
			return c.Call(ctx, protocol.TypeSkillCallReq, req, &resp,
				client.OnEvent(func(m client.Message) { tellEvent(sys.Err, m) }))
		})
	if err != nil {
		return err
	}
	result := resp.Data
	if result == nil {
		return fail(exitFailed, fmt.Errorf("%s gave no result", s.Name))
	}
	if s.JSON {
		err = printJSON(sys.Out, result)
	} else {
		err = printResult(sys.Out, result)
	}
	if err != nil {
		return err
	}
	tellCut(sys, result.Truncated, nil)
	return failedCall(s.Name, result.Success, result.Error)
}

// printResult prints the data of a result. Instructions are printed as plain text.
func printResult(w io.Writer, result *protocol.SkillResult) error {
	var data struct {
		Instructions *string  `json:"instructions"`
		Files        []string `json:"files"`
	}
	obj, err := protocol.ParseObject(result.Data)
	if err != nil || obj.Decode(&data) != nil || data.Instructions == nil || data.Files == nil {
		if result.Data == nil {
			result.Data = jsontext.Value("null")
		}
		return printJSON(w, result.Data)
	}
	_, err = fmt.Fprintln(w, seen(*data.Instructions))
	return err
}

// tellEvent prints one event of a skill to stderr.
func tellEvent(w io.Writer, m client.Message) {
	var e protocol.Event
	if m.Decode(&e) != nil {
		return
	}
	text, _ := e.Data["message"].(string)
	if name, ok := e.Data["tool_name"].(string); ok {
		text = name
	}
	if pct, ok := e.Data["pct"].(float64); ok {
		text = fmt.Sprintf("%.0f%% %s", pct, text)
	}
	if text != "" {
		say(w, "%s: %s", oneLine(string(e.Kind)), oneLine(text))
	}
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
