package planning

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"a2e/host/state/store"
	"a2e/protocol"
)

// export sets resp.Text to a plan in the format of the request; equal plans have equal texts.
func (p *Plugin) export(ctx context.Context, req *protocol.PlanBoardRequest, resp *protocol.PlanBoardResponse) error {
	write, known := map[string]func(*plan, []*task) string{
		protocol.PlanMarkdown: markdownOf, protocol.PlanMermaid: mermaidOf,
	}[req.Format]
	switch {
	case !known:
		return protocol.Wrong("/format", "is %.40q; should be %s or %s", req.Format, protocol.PlanMarkdown,
			protocol.PlanMermaid)
	case req.PlanID == "":
		return protocol.Wrong("/plan_id", "is missing; a text is of one plan, planning/plan/list names them")
	}
	return p.kept.Read(ctx, func(tx *store.Tx) error {
		pl, err := findPlan(tx, req.PlanID)
		if err != nil || pl == nil {
			return err
		}
		tasks, err := findTasks(tx, &filter{PlanID: pl.ID})
		resp.Text = write(pl, tasks)
		return err
	})
}

// markdownOf returns a plan as a Markdown page: a list of tasks for each column, and a graph of the dependencies.
func markdownOf(pl *plan, tasks []*task) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", plain(pl.Name))
	paragraph(&b, "", pl.Description)
	byColumn := make(map[string][]*task, len(pl.Columns))
	waits := false
	for _, t := range tasks {
		byColumn[t.Status] = append(byColumn[t.Status], t)
		waits = waits || len(t.Deps) > 0
	}
	for _, column := range pl.Columns {
		fmt.Fprintf(&b, "\n## %s\n", plain(column))
		for i, t := range byColumn[column] {
			if i == 0 {
				b.WriteString("\n")
			}
			t.markdown(&b, pl.isDone(t))
		}
	}
	if waits {
		fmt.Fprintf(&b, "\n## Dependencies\n\n```mermaid\n%s```\n", mermaidOf(pl, tasks))
	}
	return b.String()
}

// markdown writes the task as an entry of a list.
func (t *task) markdown(b *strings.Builder, done bool) {
	box := " "
	if done {
		box = "x"
	}
	fmt.Fprintf(b, "- [%s] %s `%s`", box, plain(t.Title), t.ID)
	var facts []string
	if t.Priority != 0 {
		facts = append(facts, "priority "+t.Priority.String())
	}
	for _, f := range [][2]string{
		{"due ", t.Due.String()},
		{"takes ", t.Estimate.String()},
		{"assigned to ", plain(t.Assignee)},
	} {
		if f[1] != "" {
			facts = append(facts, f[0]+f[1])
		}
	}
	if len(t.Deps) > 0 {
		facts = append(facts, "after `"+strings.Join(t.Deps, "`, `")+"`")
	}
	if facts != nil {
		b.WriteString(" · " + strings.Join(facts, " · "))
	}
	b.WriteString("\n")
	paragraph(b, "  ", t.Description)
	for _, c := range t.Comments {
		paragraph(b, "  > ", c.Author+", "+timeText(c.CreatedAt)+": "+c.Text)
	}
}

// paragraph writes text as separate lines, with the characters escaped that have a meaning in Markdown.
func paragraph(b *strings.Builder, indent, text string) {
	if text = strings.TrimSpace(text); text == "" {
		return
	}
	b.WriteString("\n")
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(indent+plain(line), " ") + "\n")
	}
}

// oneLine returns a text without line breaks, control characters and bidirectional controls.
func oneLine(text string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && !unicode.IsSpace(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, text)), " ")
}

// plain returns a text as one line, with the characters escaped that have a meaning in Markdown.
func plain(text string) string {
	var b strings.Builder
	line := oneLine(text)
	for i, r := range line {
		switch {
		// the last condition finds a number that would begin a list
		case strings.ContainsRune("\\`*_[]<>|~&", r), i == 0 && strings.ContainsRune("#-+=", r),
			i > 0 && i < 10 && (r == '.' || r == ')') && strings.Trim(line[:i], "0123456789") == "":
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// maxLabel is the longest title in a graph, in characters.
const maxLabel = 60

// mermaidOf returns the dependencies as a Mermaid flowchart. It leaves out tasks without dependencies
// that no task waits for.
func mermaidOf(pl *plan, tasks []*task) string {
	// %%{…}%% sets options
	escape := strings.NewReplacer("#", "#35;", `"`, "#quot;", "&", "#amp;", "<", "#lt;", ">", "#gt;", "`", "#96;", `\`, "#92;", "%", "#37;")
	drawn := make(map[string]bool)
	for _, t := range tasks {
		for _, dep := range t.Deps {
			drawn[t.ID], drawn[dep] = true, true
		}
	}
	var nodes, edges strings.Builder
	for _, t := range tasks {
		if !drawn[t.ID] {
			continue
		}
		label := []rune(oneLine(t.Title))
		if len(label) > maxLabel {
			label = append(label[:maxLabel-1], '…')
		}
		style := ""
		if pl.isDone(t) {
			style = ":::done"
		}
		fmt.Fprintf(&nodes, "  t%s[\"%s\"]%s\n", t.ID, escape.Replace(string(label)), style)
		for _, dep := range t.Deps {
			fmt.Fprintf(&edges, "  t%s --> t%s\n", dep, t.ID)
		}
	}
	return "flowchart TD\n" + nodes.String() + edges.String() + "  classDef done fill:#ddd,stroke:#999,color:#555\n"
}
