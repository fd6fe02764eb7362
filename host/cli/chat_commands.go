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

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"a2e/host/checkpoint"
	"a2e/protocol"
	wire "a2e/protocol/jsonrpc"
)

// chatCommand is one that a person types.
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
		{"/image", "FILE", "an image for the next message", (*chat).image},
		{"/help", "", "list the commands", (*chat).help},
		{"/quit", "", "end the chat", nil},
	}
}

// slash does a command, or runs the tool of that name.
func (t *chat) slash(ctx context.Context, name, rest, raw string) error {
	known := chatCommands()
	if i := slices.IndexFunc(known, func(c chatCommand) bool { return c.name == name }); i >= 0 {
		return known[i].run(t, ctx, rest)
	}
	forPrograms := []string{"/auth", "/compression", "/forgeteverything", "/limits", "/onboarding"}
	if slices.Contains(forPrograms, strings.ToLower(name)) {
		return errors.New("unknown command: " + name + "; /help lists those there are")
	}
	output, err := t.command(ctx, strings.TrimSpace(raw))
	if err != nil {
		return err
	}
	var result struct {
		Data    jsontext.Value `json:"data"`
		Summary string         `json:"summary"`
	}
	if err := json.Unmarshal(output, &result); err != nil {
		return err
	}
	t.screen.line("", cmp.Or(plainly(result.Data), "done"))
	if result.Summary != "" {
		t.screen.line(styleDim, result.Summary)
	}
	return nil
}

// plainly writes JSON as a person reads it: a text as it is, other values as YAML.
func plainly(value jsontext.Value) string {
	if text, ok := protocol.Value(value).Str(); ok {
		return text
	}
	var node yaml.Node
	if yaml.Unmarshal(value, &node) != nil || node.Kind == 0 || value.Kind() == 'n' {
		return ""
	}
	var plain func(n *yaml.Node)
	plain = func(n *yaml.Node) {
		if n.Style = 0; n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "\n") {
			n.Style = yaml.LiteralStyle
		}
		for _, of := range n.Content {
			plain(of)
		}
	}
	plain(&node)
	text, _ := yaml.Marshal(&node) // it was read before
	return strings.TrimSuffix(string(text), "\n")
}

// command has the host execute a slash command and returns its output.
func (t *chat) command(ctx context.Context, raw string) (output jsontext.Value, err error) {
	t.runs.Store(true)
	defer t.runs.Store(false)
	var told struct {
		Output jsontext.Value `json:"output"`
	}
	if err := t.host.call(ctx, wire.CommandExecute, t.of(map[string]any{"raw_command": raw}), &told); err != nil {
		return nil, err
	}
	var refused struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(told.Output, &refused) == nil && refused.Error != "" {
		return nil, errors.New(refused.Error)
	}
	return told.Output, nil
}

// rows shows a table, or says that there is nothing in it.
func (t *chat) rows(none string, rows [][]string) {
	shown := table{rows: each(rows, func(row []string) []string { return each(row, oneLine) })}
	var text strings.Builder
	_ = shown.print(&text, t.screen.columns()-3, false) // into memory
	for line := range strings.Lines(cmp.Or(text.String(), none)) {
		t.screen.line("", "  "+strings.TrimSuffix(line, "\n"))
	}
}

func (t *chat) help(context.Context, string) error {
	t.rows("", each(chatCommands(), func(c chatCommand) []string { return []string{c.name + " " + c.args, c.help} }))
	t.screen.line(styleDim, "  @FILE in a message sends a file of text or an image. Tab completes, the\n"+
		"  arrow keys bring back earlier lines, \\ at the end goes on with the next.\n"+
		"  /diff and /undo need checkpoints: true in the config.")
	return nil
}

// chatNamed is a tool or a skill.
type chatNamed struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

func (n chatNamed) row() []string { return []string{n.Name, firstSentence(n.Description)} }

// list asks for tools or skills.
func (t *chat) list(ctx context.Context, method string) ([]chatNamed, error) {
	var all struct {
		Tools  []chatNamed `json:"tools"`
		Skills []chatNamed `json:"skills"`
	}
	err := t.host.call(ctx, method, nil, &all)
	return append(all.Tools, all.Skills...), err
}

// lister shows tools or skills.
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
	if err := t.host.call(ctx, wire.ModelList, map[string]any{}, &list); err != nil {
		return err
	}
	words := strings.Fields(rest)
	var known []string
	var rows [][]string
	for i, m := range list.Models {
		known = append(known, m.ID)
		row := []string{strconv.Itoa(i + 1), m.Label, ""}
		if m.ID == list.Model && (list.Provider == "" || m.Provider == list.Provider) {
			row[2] = "selected, thinking " + strings.ToLower(list.Thinking)
		}
		rows = append(rows, row)
		if len(words) == 0 || !slices.Contains([]string{row[0], m.ID, m.Provider}, words[0]) {
			continue
		}
		level := append(words[1:], m.Thinking)[0]
		err := t.host.call(ctx, wire.ModelSelect, map[string]any{
			"model_id": m.ID, "provider": m.Provider, "thinking_level": strings.ToUpper(level),
		}, &list)
		if err == nil {
			t.screen.line(styleDim, m.ID+", thinking "+strings.ToLower(list.Thinking))
		}
		return err
	}
	if len(words) > 0 {
		return unknown("model", words[0], known)
	}
	t.rows("there is no model", rows)
	return nil
}

// history lists conversations, those of all folders by their folders, or goes on with one.
func (t *chat) history(ctx context.Context, rest string) error {
	all := slices.Contains([]string{"all", "--all"}, rest)
	if rest != "" && rest != "list" && !all {
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
	if err := t.host.call(ctx, wire.HistoryList, params, &list); err != nil {
		return err
	}
	var folders []string
	rows := make(map[string][][]string)
	for _, s := range list.Sessions {
		if rows[s.Folder] == nil {
			folders = append(folders, s.Folder)
		}
		row := []string{s.ID[:min(8, len(s.ID))], s.Updated.Local().Format("2006-01-02 15:04"), s.Title}
		rows[s.Folder] = append(rows[s.Folder], row)
	}
	for _, folder := range folders {
		if all {
			t.screen.line(styleHead, cmp.Or(folder, "(folder not known)"))
		}
		t.rows("", rows[folder])
	}
	if len(folders) == 0 {
		t.screen.line(styleDim, "no saved chat in this folder; /history all lists those of others")
	}
	return nil
}

func (t *chat) clear(ctx context.Context, _ string) error {
	_, err := t.command(ctx, "/clear")
	if err == nil {
		t.screen.line(styleDim, "a new conversation begins; /history lists the one before")
	}
	return err
}

func (t *chat) image(_ context.Context, rest string) error {
	err := t.attach(t.place(rest))
	if err == nil {
		t.screen.line(styleDim, protocol.Count(len(t.images), "image")+" for the next message")
	}
	return err
}

// diff shows what undo would take back.
func (t *chat) diff(ctx context.Context, _ string) error {
	return keeping(ctx, t.cfg, t.warn, func(ctx context.Context, k *checkpoint.Keeper) error {
		all, err := k.Diff(ctx, checkpoint.DiffOptions{Patch: true})
		if err == nil && len(all) == 0 {
			t.screen.line(styleDim, "nothing differs")
		}
		return cmp.Or(err, t.changes(all))
	})
}

func (t *chat) warn(text string) { t.screen.line(styleDim, "warning: "+text) }

// changes shows changes, and their lines where they are known.
func (t *chat) changes(all []checkpoint.Change) error {
	var text strings.Builder
	err := printChanges(&text, all)
	if text.Len() > 0 {
		t.screen.patch(strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n"), maxAskLines)
	}
	return err
}

// undo takes back the last changes to files, once the person has seen which.
func (t *chat) undo(ctx context.Context, rest string) error {
	steps, err := strconv.Atoi(cmp.Or(rest, "1"))
	if err != nil || steps < 1 {
		return fmt.Errorf("/undo %s: should be how many states to go back, 1 or more", rest)
	}
	return keeping(ctx, t.cfg, t.warn, func(ctx context.Context, k *checkpoint.Keeper) error {
		would, err := k.Restore(ctx, checkpoint.RestoreOptions{Steps: steps, DryRun: true})
		if err != nil {
			return err
		}
		if len(would.Changes) == 0 {
			t.screen.line(styleDim, "nothing differs")
			return nil
		}
		if err := t.changes(would.Changes); err != nil {
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

// words is Tab: what the last word of a line may become.
func (t *chat) words(ctx context.Context, before string) (word string, all []string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	word = before[strings.LastIndexByte(before, ' ')+1:]
	file, named := strings.CutPrefix(word, "@")
	switch {
	case named, strings.HasPrefix(before, "/image "):
		return word, t.filesLike(file, strings.TrimSuffix(word, file))
	case word == before && strings.HasPrefix(word, "/"):
		tools, _ := t.list(ctx, wire.ToolsList) // without the list there are the commands
		all = append(each(chatCommands(), func(c chatCommand) string { return c.name }),
			each(tools, func(n chatNamed) string { return "/" + n.Name })...)
	case strings.HasPrefix(before, "/model "):
		var list struct {
			Models []chatModel `json:"models"`
		}
		_ = t.host.call(ctx, wire.ModelList, map[string]any{}, &list) // nothing, where it does not answer
		all = each(list.Models, func(m chatModel) string { return m.ID })
	}
	all = slices.DeleteFunc(all, func(one string) bool { return !strings.HasPrefix(one, word) })
	slices.Sort(all)
	return word, slices.Compact(all)
}

// filesLike lists the files and folders whose names begin so, each behind a mark.
func (t *chat) filesLike(begun, mark string) (all []string) {
	dir, name := filepath.Split(begun)
	entries, _ := os.ReadDir(t.place(dir)) // of a folder that is none there are none
	for _, e := range entries {
		hidden := strings.HasPrefix(e.Name(), ".") && name == "" || strings.Contains(e.Name(), " ")
		if hidden || !strings.HasPrefix(e.Name(), name) || seen(e.Name()) != e.Name() {
			continue
		}
		one := mark + dir + e.Name()
		if e.IsDir() {
			one += "/"
		}
		all = append(all, one)
	}
	return all
}
