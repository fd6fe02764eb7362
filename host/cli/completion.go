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

// completeWord is the hidden command that the scripts ask: its arguments are the words of a
// command line, the last of which is to be completed. It prints a line for each way, with what
// that means behind a tab, or :file or :dir where the shell shall propose those.
const completeWord = "__complete"

// completeWithin bounds what a person waits for: a store that another host has locked, say.
const completeWithin = 2 * time.Second

// completionScripts are the scripts, in which PROGRAM stands for the program. What it proposes
// comes from agents too, so each puts it on the command line quoted.
//
//go:embed completion.*sh
var completionScripts embed.FS

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints the script. It calls the program by its name where that is found on the PATH, and
// by the path of the one that printed it otherwise: never by what is typed, such as ./a2e in a
// folder of someone else's.
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

// completion is a command line as far as it was typed.
type completion struct {
	cmd   *commands
	sys   *System  // without stderr
	word  string   // to be completed
	name  string   // the first argument before it
	given []string // values of the last argument before it
	lines []string
}

// complete prints what the last word may become. It never fails, and says nothing else. Nothing
// of a folder is run: what asks for names has a host with the plugins that only read.
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

// add proposes a value, if it goes on with what was typed and is nothing but text.
func (c *completion) add(value, about string) {
	if strings.HasPrefix(value, c.word) && value != "" && oneLine(value) == value {
		c.lines = append(c.lines, value+"\t"+oneLine(firstSentence(about))+"\n")
	}
}

// propose proposes words to follow those before, as the parser reads them.
func (c *completion) propose(parser *kong.Kong, before []string) {
	line, _ := kong.Trace(parser, before) // what is wrong with the words is in it
	node, arguments := parser.Model.Node, 0
	for _, p := range line.Path {
		switch {
		case p.Command != nil && p.Parent != p.Command: // else it is the default, which no word names
			node = p.Command
		case p.Flag != nil && p.Flag.Name == "config":
			c.cmd.Config = line.Value(p).String() // where names come from
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
	case line.Error != nil: // a flag without its value may be why
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

// values proposes values of a flag or an argument behind a prefix.
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
		c.lines = append(c.lines, ":"+kind+"\n") // for the shell to go on with
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

// names returns the names of a kind of thing, and what is said of each.
func (c *completion) names(kind string) map[string]string {
	names := make(map[string]string)
	cfg, err := c.cmd.load(c.sys, func(string) {})
	kept := err == nil && plugins.StateKept(cfg) // to ask for names makes no state
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

// configured adds the names that stand in the config.
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

// ask asks a host that has the plugins of one capability alone, so that no program is started. Where
// that fails there is nothing to propose.
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

// arguments proposes key= of what a tool or skill takes, and values where these are known.
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
