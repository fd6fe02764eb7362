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
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"a2e/plugins"
	"a2e/plugins/mcp"
	"a2e/plugins/multiagent"
	"a2e/protocol"
	"a2e/protocol/client"
)

// completeWord is the hidden command that the scripts ask: its arguments are the words of a
// command line, the last of which is to be completed. It prints a line for each way, with what
// that means behind a tab, or one of the words below.
const (
	completeWord    = "__complete"
	completeFiles   = ":file"
	completeFolders = ":dir"
)

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
	ctx   context.Context
	cmd   *commands
	sys   *System // without stderr
	node  *kong.Node
	given []string   // arguments
	flag  *kong.Flag // whose value comes next
	rest  bool       // what follows is no flag: there was a --
	word  string     // to be completed
	lines []string
}

// complete prints what the last word may become. It never fails, and says nothing else. Nothing
// of a folder is run: what asks for names has a host with the plugins that only read.
func complete(model *kong.Application, cmd *commands, sys *System, words []string) {
	quiet := *sys
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		quiet.Err = null
		defer null.Close()
	}
	timer := time.AfterFunc(completeWithin, func() { sys.Exit(exitOK) })
	defer timer.Stop()
	c := &completion{ctx: context.Background(), cmd: cmd, sys: &quiet, node: model.Node}
	cmd.LogLevel = "error"
	for i, word := range words {
		if c.word = word; i < len(words)-1 {
			c.pass(word)
		}
	}
	c.propose()
	fmt.Fprint(sys.Out, strings.Join(c.lines, ""))
}

// pass takes in a word before the last.
func (c *completion) pass(word string) {
	switch {
	case c.flag != nil:
		c.setFlag(word)
	case c.rest:
		c.given = append(c.given, word)
	case word == "--":
		c.rest = true
	case len(word) > 1 && word[0] == '-':
		name, value, whole := strings.Cut(word, "=")
		if c.flag = c.find(name); c.flag != nil && c.flag.IsBool() {
			c.flag = nil
		} else if c.flag != nil && whole {
			c.setFlag(value)
		}
	default:
		for _, child := range c.node.Children {
			if len(c.given) == 0 && child.Name == word {
				c.node = child
				return
			}
		}
		c.given = append(c.given, word)
	}
}

// setFlag takes in a value; that of --config says where names come from.
func (c *completion) setFlag(value string) {
	if c.flag.Name == "config" {
		c.cmd.Config = value
	}
	c.flag = nil
}

// flags returns those of the command and of all above it.
func (c *completion) flags() (all []*kong.Flag) {
	for n := c.node; n != nil; n = n.Parent {
		all = append(all, n.Flags...)
	}
	return all
}

func (c *completion) find(name string) *kong.Flag {
	for _, f := range c.flags() {
		if name == "--"+f.Name || f.Short != 0 && name == "-"+string(f.Short) {
			return f
		}
	}
	return nil
}

// add proposes a value, if it goes on with what was typed and is nothing but text.
func (c *completion) add(value, about string) {
	if strings.HasPrefix(value, c.word) && value != "" && oneLine(value) == value {
		c.lines = append(c.lines, value+"\t"+oneLine(firstSentence(about))+"\n")
	}
}

func (c *completion) propose() {
	name, value, whole := strings.Cut(c.word, "=")
	switch {
	case c.flag != nil:
		c.values("", c.word, c.flag.Value)
	case !c.rest && strings.HasPrefix(c.word, "--") && whole:
		if f := c.find(name); f != nil {
			c.values(name+"=", value, f.Value)
		}
	case !c.rest && strings.HasPrefix(c.word, "-"):
		for _, f := range c.flags() {
			if !f.Hidden {
				c.add("--"+f.Name, f.Help)
			}
		}
	case len(c.node.Children) > 0:
		for _, child := range c.node.Children {
			if !child.Hidden && len(c.given) == 0 {
				c.add(child.Name, child.Help)
			}
		}
	case len(c.node.Positional) > 0:
		at := min(len(c.given), len(c.node.Positional)-1)
		if p := c.node.Positional[at]; at == len(c.given) || p.IsCumulative() {
			c.values("", c.word, p)
		}
	}
}

// values proposes values of a flag or an argument behind a prefix; typed is what there is of one.
func (c *completion) values(prefix, typed string, v *kong.Value) {
	for _, one := range v.EnumSlice() {
		if v.Enum != "" && one != "" {
			c.add(prefix+one, "")
		}
	}
	kind := v.Tag.Get("complete")
	switch place := v.Tag.PlaceHolder; {
	case kind != "":
	case strings.HasPrefix(place, "FILE"), slices.Contains([]string{"file", "path", "paths", "image"}, v.Name):
		kind = completeFiles
	case place == "FOLDER", place == "DIR":
		kind = completeFolders
	}
	switch kind {
	case "":
	case completeFiles, completeFolders:
		c.lines = append(c.lines, kind+"\n")
	case "dir":
		c.lines = append(c.lines, completeFolders+"\n")
	case "tool-argument", "skill-argument":
		c.arguments(kind, typed)
	default:
		names := c.names(kind)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			c.add(prefix+name, names[name])
		}
	}
}

// names returns the names of a kind of thing, and what is said of each.
func (c *completion) names(kind string) (names map[string]string) {
	names = make(map[string]string)
	switch kind {
	case "topic":
		all, _ := helpPages(c.sys.Pages)
		for _, p := range all {
			names[p.topic] = p.about()
		}
	case "part":
		for _, name := range partNames() {
			names[name] = ""
		}
	case "request":
		for _, name := range requestTypes() {
			info, _ := requestType(name)
			names[name] = protocol.Describe(info.Type).Text
		}
	case "tool":
		for _, t := range c.tools() {
			names[t.Name] = t.Description
		}
	case "skill":
		for _, s := range c.skills() {
			names[s.Name] = s.Description
		}
	case "plan":
		c.kept(func() {
			_ = c.ask(protocol.CapPlanning, func(ctx context.Context, conn *client.Client) error {
				plans, err := listPlans(ctx, conn)
				for _, p := range plans {
					names[p.Name] = p.ID
				}
				return err
			})
		})
	case "chain":
		c.kept(func() {
			found, _ := c.cmd.journals(c.sys, "", false)
			for _, j := range found {
				names[j.ID] = j.State
			}
		})
	default:
		c.configured(kind, names)
	}
	return names
}

// configured adds the names that stand in the config.
func (c *completion) configured(kind string, names map[string]string) {
	cfg, err := c.cmd.load(c.sys, func(string) {})
	if err != nil {
		return
	}
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

// kept calls do if there is a state: to ask for names makes none.
func (c *completion) kept(do func()) {
	if cfg, err := c.cmd.load(c.sys, func(string) {}); err == nil && plugins.StateKept(cfg) {
		do()
	}
}

// ask asks a host that has the plugins of one capability alone, so that no program is started.
func (c *completion) ask(capability protocol.Capability, do func(context.Context, *client.Client) error) error {
	only := *c.cmd
	only.only = string(capability)
	return only.ask(c.sys, "a2e completion", capability, do)
}

func (c *completion) tools() []protocol.ToolDefinition {
	var resp protocol.ToolListResponse
	_ = c.ask(protocol.CapTools, func(ctx context.Context, conn *client.Client) error {
		return conn.Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &resp)
	})
	return resp.Tools
}

func (c *completion) skills() []protocol.SkillDefinition {
	var resp protocol.SkillDiscoverResponse
	_ = c.ask(protocol.CapSkill, func(ctx context.Context, conn *client.Client) error {
		return conn.Call(ctx, protocol.TypeSkillDiscoverReq, &protocol.SkillDiscoverRequest{}, &resp)
	})
	return resp.Skills
}

// arguments proposes key= of what a tool or skill takes, and values where these are known.
func (c *completion) arguments(kind, typed string) {
	var params []parameter
	if kind == "skill-argument" {
		params = skillParameters(c.skills(), c.given[0])
	} else {
		params = toolParameters(c.tools(), c.given[0])
	}
	key, _, valued := strings.Cut(typed, "=")
	for _, p := range params {
		switch there := slices.ContainsFunc(c.given, func(w string) bool { return strings.HasPrefix(w, p.Name+"=") }); {
		case !valued && !there:
			c.add(p.Name+"=", p.Description)
		case !valued || key != p.Name:
		case slices.Contains(p.types, "boolean"):
			c.add(key+"=true", "")
			c.add(key+"=false", "")
		case slices.Contains([]string{"path", "file", "cwd", "folder"}, key):
			c.lines = append(c.lines, completeFiles+"\n")
		default:
			for _, one := range p.Enum {
				c.add(key+"="+one, "")
			}
		}
	}
}
