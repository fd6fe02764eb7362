package cli

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"a2e/host/config"
	"a2e/plugins"
	"a2e/plugins/mcp"
	"a2e/plugins/multiagent"
	"a2e/protocol"
	"a2e/protocol/client"
)

// completeWord is the hidden command that the completion scripts call. Its arguments are the words
// of a command line; the last one is to be completed. It prints a line for each completion, with a
// description after a tab, or :file or :dir if the shell should propose files or folders.
const completeWord = "__complete"

// completeWithin limits how long a person waits, for example if another host has locked the store.
const completeWithin = 2 * time.Second

// completionScripts has the scripts. PROGRAM in them stands for the program. The proposed words may
// come from agents, so each script quotes them on the command line.
//
//go:embed completion.*sh
var completionScripts embed.FS

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints the script. The script calls the program by its name if the PATH has it, otherwise by
// the path of this program. It never calls what is typed, such as ./a2e in a folder of someone
// else.
func (c completionCmd) Run(sys *System) error {
	program := "a2e"
	own, err := os.Executable()
	if err != nil {
		return err
	}
	if found, err := exec.LookPath(program); err != nil || !sameFile(found, own) {
		program = own
	}
	quoted := "'" + strings.ReplaceAll(program, "'", `'\''`) + "'"
	if c.Shell == "fish" {
		quoted = "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(program) + "'"
	}
	script, err := completionScripts.ReadFile("completion." + c.Shell)
	if err == nil {
		_, err = io.WriteString(sys.Out, strings.ReplaceAll(string(script), "PROGRAM", quoted))
	}
	return err
}

// completion is a command line that is not complete.
type completion struct {
	cmd   *commands
	sys   *System  // a copy that writes nothing to stderr
	word  string   // the word to complete
	name  string   // the first argument before word
	given []string // values of the last argument before word
	lines []string
}

// complete prints the possible completions of the last word. It never fails and prints nothing
// else. It runs no program of the folder: names come from a host that has only the plugins of one
// capability.
func complete(parser *kong.Kong, cmd *commands, sys *System, words []string) {
	quiet := *sys
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		quiet.Err = null
		defer null.Close()
	}
	timer := time.AfterFunc(completeWithin, func() { sys.Exit(exitOK) })
	defer timer.Stop()
	if len(words) > 0 {
		c := &completion{cmd: cmd, sys: &quiet, word: words[len(words)-1]}
		c.propose(parser, words[:len(words)-1])
		fmt.Fprint(sys.Out, strings.Join(c.lines, ""))
	}
}

// add proposes a value if it begins with the typed word and is plain text.
func (c *completion) add(value, about string) {
	if strings.HasPrefix(value, c.word) && value != "" && oneLine(value) == value {
		c.lines = append(c.lines, value+"\t"+oneLine(firstSentence(about))+"\n")
	}
}

// propose proposes the words that may follow the words before, as the parser reads them.
func (c *completion) propose(parser *kong.Kong, before []string) {
	line, _ := kong.Trace(parser, before) // line also has the parser's error
	node, arguments := parser.Model.Node, 0
	for _, p := range line.Path {
		switch {
		case p.Command != nil && p.Parent != p.Command: // otherwise it is the default command, which no word names
			node = p.Command
		case p.Flag != nil && p.Flag.Name == "config":
			c.cmd.Config = line.Value(p).String() // the config with the names to propose
		case p.Positional != nil:
			if arguments++; arguments == 1 && p.Positional.Target.Kind() == reflect.String {
				c.name = line.Value(p).String()
			}
			c.given, _ = line.Value(p).Interface().([]string)
		}
	}
	flag := func(word string) *kong.Value {
		for _, f := range line.Flags() {
			if word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) {
				return f.Value
			}
		}
		return nil
	}
	name, _, valued := strings.Cut(c.word, "=")
	dashed := strings.HasPrefix(c.word, "-") && !slices.Contains(before, "--")
	switch {
	case line.Error != nil: // perhaps a flag that still needs its value
		if waits := flag(before[len(before)-1]); waits != nil && !waits.IsBool() {
			c.values("", waits)
		}
	case dashed && valued && flag(name) != nil:
		c.values(name+"=", flag(name))
	case dashed:
		for _, f := range line.Flags() {
			if !f.Hidden {
				c.add("--"+f.Name, f.Help)
			}
		}
	case arguments < len(node.Positional):
		c.values("", node.Positional[arguments])
	case arguments > 0 && node.Positional[arguments-1].IsCumulative():
		c.values("", node.Positional[arguments-1])
	default:
		for _, child := range node.Children {
			if !child.Hidden {
				c.add(child.Name, child.Help)
			}
		}
	}
}

// values proposes values of a flag or an argument, each with a prefix.
func (c *completion) values(prefix string, v *kong.Value) {
	kind := v.Tag.Get("complete")
	switch place := v.Tag.PlaceHolder; {
	case kind != "":
	case v.Enum != "":
		for _, one := range v.EnumSlice() {
			c.add(prefix+one, "")
		}
	case strings.HasPrefix(place, "FILE"), slices.Contains([]string{"file", "path", "paths", "image"}, v.Name):
		kind = "file"
	case place == "FOLDER", place == "DIR":
		kind = "dir"
	}
	switch kind {
	case "":
	case "file", "dir":
		c.lines = append(c.lines, ":"+kind+"\n") // the shell proposes these
	case "tool-argument":
		c.arguments(toolParameters(c.tools(), c.name))
	case "skill-argument":
		c.arguments(skillParameters(c.skills(), c.name))
	default:
		names := c.names(kind)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			c.add(prefix+name, names[name])
		}
	}
}

// names returns the names of things of a kind, each with a description.
func (c *completion) names(kind string) map[string]string {
	names := make(map[string]string)
	cfg, err := c.cmd.load(c.sys, func(string) {})
	kept := err == nil && plugins.StateKept(cfg) // asking for names must not create state
	switch {
	case kind == "topic":
		all, _ := helpPages(c.sys.Pages)
		for _, p := range all {
			names[p.topic] = p.about()
		}
	case kind == "part":
		for _, name := range partNames() {
			names[name] = ""
		}
	case kind == "request":
		for _, name := range requestTypes() {
			info, _ := requestType(name)
			names[name] = protocol.Describe(info.Type).Text
		}
	case kind == "tool":
		for _, t := range c.tools() {
			names[t.Name] = t.Description
		}
	case kind == "skill":
		for _, s := range c.skills() {
			names[s.Name] = s.Description
		}
	case kind == "plan" && kept:
		c.ask(protocol.CapPlanning, func(ctx context.Context, conn *client.Client) error {
			plans, err := listPlans(ctx, conn)
			for _, p := range plans {
				names[p.Name] = p.ID
			}
			return err
		})
	case kind == "chain" && kept:
		found, _ := c.cmd.journals(c.sys, "", false)
		for _, j := range found {
			names[j.ID] = j.State
		}
	case err == nil:
		configured(cfg, kind, names)
	}
	return names
}

// configured adds the names from the config.
func configured(cfg *config.Config, kind string, names map[string]string) {
	switch kind {
	case "env":
		rows, _ := environments(cfg)
		for _, r := range rows {
			names[r.Name] = r.Env
		}
	case "server":
		none, _ := errors.AsType[unknownServer](withServer(cfg, "", func(*mcp.Plugin) error { return nil }))
		for _, id := range none.known {
			names[id] = ""
		}
	case "worker":
		for _, p := range cfg.Plugins {
			opts := multiagent.DefaultOptions()
			if p.Type == string(protocol.CapMultiAgent) && p.Options.Decode(&opts) == nil {
				for _, w := range opts.Workers {
					names[w.Name] = cmp.Or(w.Model, strings.Join(w.Command, " "))
				}
			}
		}
	}
}

// ask asks a host that has only the plugins of one capability, so that no program is started. If
// that fails, there is nothing to propose.
func (c *completion) ask(capability protocol.Capability, do func(context.Context, *client.Client) error) {
	only := *c.cmd
	only.only = string(capability)
	_ = only.ask(c.sys, "a2e completion", capability, do)
}

func (c *completion) tools() []protocol.ToolDefinition {
	var resp protocol.ToolListResponse
	c.ask(protocol.CapTools, func(ctx context.Context, conn *client.Client) error {
		return conn.Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &resp)
	})
	return resp.Tools
}

func (c *completion) skills() []protocol.SkillDefinition {
	var resp protocol.SkillDiscoverResponse
	c.ask(protocol.CapSkill, func(ctx context.Context, conn *client.Client) error {
		return conn.Call(ctx, protocol.TypeSkillDiscoverReq, &protocol.SkillDiscoverRequest{}, &resp)
	})
	return resp.Skills
}

// arguments proposes the key= of each argument of a tool or skill, and values if these are known.
func (c *completion) arguments(params []parameter) {
	key, _, valued := strings.Cut(c.word, "=")
	for _, p := range params {
		there := slices.ContainsFunc(c.given, func(w string) bool { return strings.HasPrefix(w, p.Name+"=") })
		switch {
		case !valued && !there:
			c.add(p.Name+"=", p.Description)
		case !valued || key != p.Name:
		case slices.Contains(p.types, "boolean"):
			c.add(key+"=true", "")
			c.add(key+"=false", "")
		case slices.Contains([]string{"path", "file", "cwd", "folder"}, key):
			c.lines = append(c.lines, ":file\n")
		default:
			for _, one := range p.Enum {
				c.add(key+"="+one, "")
			}
		}
	}
}
