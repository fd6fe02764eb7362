package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"a2e/host/schema"
	"a2e/host/state/checkpoint"
	"a2e/protocol"
	wire "a2e/protocol/jsonrpc"
)

// chatCommand is a slash command that a person types.
type chatCommand struct {
	name, args, help string
	run              func(t *chat, ctx context.Context, rest string) error
}

func chatCommands() []chatCommand {
	return []chatCommand{
		{"/model", "[NAME [LEVEL]]", "list the models; select one by number or name", (*chat).model},
		{"/tools", "", "list the tools; /NAME key=value runs one", lister(wire.ToolsList)},
		{"/skills", "", "list the skills", lister(wire.SkillsList)},
		{"/history", "[all, last, ID]", "list conversations, or go on with one", (*chat).history},
		{"/clear", "", "begin a new conversation; /history has this one", (*chat).clear},
		{"/diff", "", "show the last changes to files", (*chat).diff},
		{"/undo", "[STEPS]", "take them back, once you have seen which", (*chat).undo},
		{"/help", "", "list the commands", (*chat).help},
		{"/quit", "", "end the chat", nil},
	}
}

// slash runs a command of the chat, or the tool with that name.
func (t *chat) slash(ctx context.Context, name, rest, raw string) error {
	commands := chatCommands()
	if i := slices.IndexFunc(commands, func(c chatCommand) bool { return c.name == strings.ToLower(name) }); i >= 0 {
		return commands[i].run(t, ctx, rest)
	}
	known, err := t.slashNames(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(known, name) { // the host also has commands for programs
		return fmt.Errorf("unknown command: %s; %s", name,
			strings.TrimSpace(schema.DidYouMean(name, known)+" /help lists those there are"))
	}
	result, err := t.command(ctx, strings.TrimSpace(raw))
	if err != nil {
		return err
	}
	t.screen.line("", cmp.Or(plainly(result.Data), "done"))
	if result.Summary != "" {
		t.screen.line(styleDim, result.Summary)
	}
	return nil
}

// slashNames returns the names of the commands and of the tools, each with a slash in front.
func (t *chat) slashNames(ctx context.Context) ([]string, error) {
	tools, err := t.list(ctx, wire.ToolsList)
	return append(each(chatCommands(), func(c chatCommand) string { return c.name }),
		each(tools, func(n chatNamed) string { return "/" + n.Name })...), err
}

// plainly formats JSON for a person: a string as it is, other values as YAML.
func plainly(value jsontext.Value) string {
	if text, ok := protocol.Value(value).Str(); ok {
		return text
	}
	var any any
	if yaml.Unmarshal(value, &any) != nil || any == nil {
		return ""
	}
	text, _ := yaml.Marshal(any) // cannot fail: the value was just decoded
	return strings.TrimSuffix(string(text), "\n")
}

// chatResult is the output of a slash command that the host runs.
type chatResult struct {
	Data    jsontext.Value `json:"data"`
	Summary string         `json:"summary"`
	Error   string         `json:"error"`
}

// command makes the host run a slash command.
func (t *chat) command(ctx context.Context, raw string) (chatResult, error) {
	t.runs.Store(true)
	defer t.runs.Store(false)
	var told struct {
		Output chatResult `json:"output"`
	}
	err := t.call(ctx, wire.CommandExecute, map[string]any{"raw_command": raw}, &told)
	if err == nil && told.Output.Error != "" {
		err = errors.New(told.Output.Error)
	}
	return told.Output, err
}

// rows shows a table, or the text none if there are no rows.
func (t *chat) rows(none string, rows [][]string) {
	var shown table
	for _, row := range rows {
		shown.row(row...)
	}
	var text strings.Builder
	_ = shown.print(&text, t.screen.columns(), false) // writing to memory cannot fail
	t.screen.line("", strings.TrimSuffix(cmp.Or(text.String(), none), "\n"))
}

func (t *chat) help(context.Context, string) error {
	for _, c := range chatCommands() {
		between := "\n   "
		if t.screen.columns() >= usualColumns {
			between = strings.Repeat(" ", 25-len(c.name+c.args))
		}
		t.screen.line("", c.name+" "+c.args+between+c.help)
	}
	t.screen.line(styleDim, "@FILE in a message sends a file of text or an image. Tab completes, the arrow keys\n"+
		"bring back earlier messages, and \\ at the end of a line begins another one.\n"+
		"/diff and /undo need checkpoints: true in the config.")
	return nil
}

// chatNamed is a tool or a skill.
type chatNamed struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

func (n chatNamed) row() []string { return []string{n.Name, firstSentence(n.Description)} }

// list returns the tools or the skills, depending on the method.
func (t *chat) list(ctx context.Context, method string) ([]chatNamed, error) {
	var all struct {
		Tools  []chatNamed `json:"tools"`
		Skills []chatNamed `json:"skills"`
	}
	err := t.call(ctx, method, map[string]any{"include_deferred": true}, &all)
	return append(all.Tools, all.Skills...), err
}

// lister returns a command that shows the tools or the skills.
func lister(method string) func(*chat, context.Context, string) error {
	return func(t *chat, ctx context.Context, _ string) error {
		all, err := t.list(ctx, method)
		if err == nil {
			t.rows("there are none", each(all, chatNamed.row))
		}
		return err
	}
}

// chatModel is a worker of the host.
type chatModel struct {
	ID       string `json:"id"`
	Provider string `json:"provider"`
	Label    string `json:"label"`
	Thinking string `json:"defaultThinkingLevel"`
}

// model lists the models, or selects one.
func (t *chat) model(ctx context.Context, rest string) error {
	var list struct {
		Models   []chatModel `json:"models"`
		Model    string      `json:"selected_model"`
		Provider string      `json:"selected_provider"`
		Thinking string      `json:"selected_thinking"`
	}
	if err := t.call(ctx, wire.ModelList, nil, &list); err != nil {
		return err
	}
	name, level, _ := strings.Cut(rest, " ")
	var rows [][]string
	for i, m := range list.Models {
		number, state := strconv.Itoa(i+1), ""
		if m.ID == list.Model && (list.Provider == "" || m.Provider == list.Provider) {
			state = "selected, thinking " + strings.ToLower(list.Thinking)
		}
		rows = append(rows, []string{number, m.Label, state})
		if name == "" || !slices.Contains([]string{number, m.ID, m.Provider}, name) {
			continue
		}
		level = strings.ToUpper(cmp.Or(strings.TrimSpace(level), m.Thinking))
		selected := map[string]any{"model_id": m.ID, "provider": m.Provider, "thinking_level": level}
		err := t.call(ctx, wire.ModelSelect, selected, &list)
		if err == nil {
			t.screen.line(styleDim, m.ID+", thinking "+strings.ToLower(list.Thinking))
		}
		return err
	}
	if name != "" {
		return unknown("model", name, each(list.Models, func(m chatModel) string { return m.ID }))
	}
	t.rows("there is no model", rows)
	return nil
}

// history lists the conversations of this folder, or with "all" of every folder, or continues one.
func (t *chat) history(ctx context.Context, rest string) error {
	all := rest == "all"
	if rest != "" && !all {
		_, err := t.command(ctx, "/history "+rest)
		if err == nil {
			t.recall(ctx)
		}
		return err
	}
	var list struct {
		Sessions []struct {
			ID      string    `json:"id"`
			Title   string    `json:"title"`
			Folder  string    `json:"folder"`
			Updated time.Time `json:"updatedAt"`
		} `json:"sessions"`
	}
	params := map[string]any{"folder": "."}
	if all {
		params = nil
	}
	if err := t.call(ctx, wire.HistoryList, params, &list); err != nil {
		return err
	}
	var rows [][]string
	for _, s := range list.Sessions {
		row := []string{s.ID[:min(8, len(s.ID))], s.Updated.Local().Format("2006-01-02 15:04"), s.Title}
		if all {
			row = slices.Insert(row, 2, cmp.Or(s.Folder, "(folder not known)"))
		}
		rows = append(rows, row)
	}
	t.rows("no saved chat in this folder; /history all lists those of others", rows)
	return nil
}

func (t *chat) clear(ctx context.Context, _ string) error {
	_, err := t.command(ctx, "/clear")
	if err == nil {
		t.screen.line(styleDim, "a new conversation begins; /history lists the one before")
	}
	return err
}

// diff shows what /undo would take back.
func (t *chat) diff(ctx context.Context, _ string) error {
	return t.keeping(ctx, func(ctx context.Context, k *checkpoint.Keeper) error {
		all, err := k.Diff(ctx, checkpoint.DiffOptions{Patch: true})
		if err != nil {
			return err
		}
		return t.changes(all)
	})
}

// keeping passes the checkpoints of the workspace to do.
func (t *chat) keeping(ctx context.Context, do func(context.Context, *checkpoint.Keeper) error) error {
	return keeping(ctx, t.cfg, func(text string) { t.screen.say(styleDim, "warning: "+text) }, do)
}

// kept reports whether a checkpoint has the current state of a file, so that /undo restores it.
func (t *chat) kept(ctx context.Context, file, content string) bool {
	if c := t.cfg.Checkpoints; !c.Enabled || int64(len(content)) > c.MaxFileBytes {
		return false
	}
	return nil == t.keeping(ctx, func(ctx context.Context, k *checkpoint.Keeper) error {
		_, err := k.Take(ctx, "")
		if err == nil { // the checkpoint does not know a file that .gitignore excludes
			_, err = k.Diff(ctx, checkpoint.DiffOptions{Paths: []string{file}})
		}
		return err
	})
}

// changes shows changes of files, with their lines where these are known.
func (t *chat) changes(all []checkpoint.Change) error {
	var text strings.Builder
	if err := printChanges(&text, all); err != nil {
		return err
	}
	if len(all) == 0 {
		text.WriteString("nothing differs")
	}
	t.screen.patch(strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n"), maxAskLines)
	return nil
}

// undo takes back the last changes to files, after showing them to the person.
func (t *chat) undo(ctx context.Context, rest string) error {
	steps, err := strconv.Atoi(cmp.Or(rest, "1"))
	if err != nil || steps < 1 {
		return fmt.Errorf("/undo %s: should be how many states to go back, 1 or more", rest)
	}
	return t.keeping(ctx, func(ctx context.Context, k *checkpoint.Keeper) error {
		would, err := k.Restore(ctx, checkpoint.RestoreOptions{Steps: steps, DryRun: true})
		if err == nil {
			err = t.changes(would.Changes)
		}
		if err != nil || len(would.Changes) == 0 {
			return err
		}
		t.person.turn.Lock()
		yes, _ := t.person.yes(ctx, "Do this?")
		t.person.turn.Unlock()
		if !yes {
			t.screen.line(styleDim, "nothing was changed")
			return nil
		}
		done, err := k.Restore(ctx, checkpoint.RestoreOptions{To: would.To})
		for _, p := range done.Problems {
			t.screen.line(styleBad, "not restored: "+p.Path+": "+p.Why)
		}
		if err == nil {
			const text = "restored checkpoint %d (a2e checkpoints restore %d undoes that)"
			t.screen.line(styleDim, fmt.Sprintf(text, done.To, done.From))
		}
		return err
	})
}

// words handles Tab: it returns the last word of a line and its possible completions.
func (t *chat) words(ctx context.Context, before string) (word string, all []string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	word = before[strings.LastIndexAny(before, " \n")+1:]
	switch {
	case strings.HasPrefix(word, "@"):
		all = t.filesLike(word[1:])
	case word == before && strings.HasPrefix(word, "/"):
		all, _ = t.slashNames(ctx) // without the list of tools, only the commands are offered
	case strings.HasPrefix(before, "/model "):
		var list struct {
			Models []chatModel `json:"models"`
		}
		_ = t.call(ctx, wire.ModelList, nil, &list) // without an answer, nothing is offered
		all = each(list.Models, func(m chatModel) string { return m.ID })
	}
	all = slices.DeleteFunc(all, func(one string) bool { return !strings.HasPrefix(one, word) })
	slices.Sort(all)
	return word, slices.Compact(all)
}

// filesLike returns the files and folders whose names begin with begun, each with an @ in front.
func (t *chat) filesLike(begun string) (all []string) {
	dir, name := filepath.Split(begun)
	entries, _ := os.ReadDir(t.place(dir)) // a folder that cannot be read offers nothing
	for _, e := range entries {
		one := "@" + dir + e.Name()
		if e.IsDir() {
			one += "/"
		}
		hidden := name == "" && strings.HasPrefix(e.Name(), ".")
		if !hidden && !strings.Contains(one, " ") && seen(one) == one {
			all = append(all, one)
		}
	}
	return all
}
