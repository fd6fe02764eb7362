package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
	"a2e/protocol/client"
)

// noPlan is the message if there is no plan.
const noPlan = "there is no plan yet; `a2e plan add NAME` makes one"

// maxOffered is how many known names an error lists.
const maxOffered = 20

type planCmd struct {
	List   planListCmd   `cmd:"" help:"List the plans of this folder, or all."`
	Board  planBoardCmd  `cmd:"" help:"Show plans as boards: the tasks by column."`
	Show   planShowCmd   `cmd:"" help:"Show the tasks of a plan, or those that are ready."`
	Add    planAddCmd    `cmd:"" help:"Make a plan and print its id."`
	Task   planTaskCmd   `cmd:"" help:"Add, change, claim and delete tasks."`
	Export planExportCmd `cmd:"" help:"Write a plan as Markdown."`
	Delete planDeleteCmd `cmd:"" help:"Delete a plan with its tasks."`
}

type planBoardCmd struct {
	Plan   string   `complete:"plan" arg:"" optional:"" help:"The plan's id or name. Default: all plans."`
	Status []string `sep:"none" placeholder:"COLUMN" help:"Only this column; may be given several times."`
	JSON   bool     `name:"json" help:"Print the boards as JSON."`
}

// planBoard is a board as planning/plan/board sends it.
type planBoard struct {
	PlanID      string          `json:"plan_id"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Columns     []string        `json:"columns"`
	Tasks       protocol.Object `json:"tasks"` // a list of tasks for each column
}

// Run asks for the boards and prints them.
func (p planBoardCmd) Run(cmd *commands, sys *System) error {
	var boards []*planBoard
	err := cmd.ask(sys, "a2e plan", protocol.CapPlanning, func(ctx context.Context, c *client.Client) (err error) {
		boards, err = p.fetch(ctx, c)
		return err
	})
	if err == nil {
		boards, err = onlyColumns(boards, p.Status)
	}
	switch {
	case err != nil:
		return err
	case p.JSON:
		return printJSON(sys.Out, boards)
	case len(boards) == 0:
		say(sys.Err, noPlan)
	}
	for i, b := range boards {
		if i > 0 {
			fmt.Fprintln(sys.Out)
		}
		if err := b.print(sys.Out, sys.columns()); err != nil {
			return err
		}
	}
	return nil
}

// planName has the fields that identify a plan.
type planName struct {
	ID   string `json:"plan_id"`
	Name string `json:"name"`
}

// fetch gets the boards one by one, because all of them may be too large for one answer.
func (p planBoardCmd) fetch(ctx context.Context, c *client.Client) ([]*planBoard, error) {
	plans, err := listPlans(ctx, c)
	if err == nil {
		plans, err = pickPlans(plans, p.Plan)
	}
	if err != nil {
		return nil, err
	}
	boards := []*planBoard{}
	for _, plan := range plans {
		var resp struct {
			Boards []*planBoard `json:"boards"`
		}
		if err := c.Call(ctx, protocol.TypePlanBoardReq, &protocol.PlanBoardRequest{PlanID: plan.ID},
			&resp); err != nil {
			return nil, err
		}
		boards = append(boards, resp.Boards...)
	}
	return boards, nil
}

// listPlans returns the ids and names of all plans.
func listPlans(ctx context.Context, c *client.Client) ([]planName, error) {
	var list struct {
		Plans []planName `json:"plans"`
	}
	err := c.Call(ctx, protocol.TypePlanListReq, &protocol.PlanListRequest{}, &list)
	return list.Plans, err
}

// pickPlans returns the plan with this id, or else all plans with this name. wanted = "" selects all.
func pickPlans(all []planName, wanted string) ([]planName, error) {
	if wanted == "" {
		return all, nil
	}
	if i := slices.IndexFunc(all, func(p planName) bool { return p.ID == wanted }); i >= 0 {
		return all[i : i+1], nil
	}
	var found []planName
	var names, offers []string
	for _, p := range all {
		if p.Name == wanted {
			found = append(found, p)
		}
		names, offers = append(names, p.Name, p.ID), append(offers, p.ID+" "+p.Name)
	}
	if found != nil {
		return found, nil
	}
	return nil, fail(exitFailed, unknownAs("plan with the id or name", wanted, names, offers))
}

// onlyColumns keeps only the named columns of the boards, and drops boards without any of them.
// Without names it keeps everything.
func onlyColumns(boards []*planBoard, names []string) ([]*planBoard, error) {
	if len(names) == 0 {
		return boards, nil
	}
	left, unused, there := []*planBoard{}, slices.Clone(names), []string{}
	for _, b := range boards {
		there = append(there, b.Columns...)
		b.Columns = slices.DeleteFunc(b.Columns, func(column string) bool { return !slices.Contains(names, column) })
		unused = slices.DeleteFunc(unused, func(name string) bool { return slices.Contains(b.Columns, name) })
		if len(b.Columns) == 0 {
			continue
		}
		text := []byte{'{'}
		for i, column := range b.Columns {
			if i > 0 {
				text = append(text, ',')
			}
			rows, _ := b.Tasks.Get(column)
			text = append(append(protocol.AppendString(text, column), ':'), rows...)
		}
		var err error
		if b.Tasks, err = protocol.ParseObject(append(text, '}')); err != nil {
			return nil, fmt.Errorf("the board of %s cannot be read: %w", b.PlanID, err)
		}
		left = append(left, b)
	}
	if len(unused) > 0 && len(boards) > 0 {
		slices.Sort(there)
		return nil, fail(exitFailed, unknown("column", unused[0], slices.Compact(there)))
	}
	return left, nil
}

// print writes the board, one column below the other. No line is wider than the given number of terminal columns.
func (b *planBoard) print(w io.Writer, columns int) error {
	var list []string
	tasks := 0
	for _, column := range b.Columns {
		raw, _ := b.Tasks.Get(column)
		var rows []struct {
			Title    string `json:"title"`
			Assignee string `json:"assignee"`
		}
		if err := json.Unmarshal(raw, &rows); err != nil {
			return fmt.Errorf("the board of %s cannot be read: its column %s: %w", b.PlanID, oneLine(column), err)
		}
		list = append(list, "", fmt.Sprintf("%s (%d)", oneLine(column), len(rows)))
		for _, r := range rows {
			task := "- " + oneLine(r.Title)
			if r.Assignee != "" {
				task += " @" + oneLine(r.Assignee)
			}
			list = append(list, task)
		}
		tasks += len(rows)
	}
	count := protocol.Count(tasks, "task")
	name := cut(oneLine(b.Name), max(columns-len(b.PlanID)-len(count)-2*len(columnGap), leastColumns))
	text := []string{name + columnGap + b.PlanID + columnGap + count}
	if about := oneLine(b.Description); about != "" {
		text = append(text, about)
	}
	for _, line := range append(text, list...) {
		if _, err := fmt.Fprintln(w, cut(line, columns)); err != nil {
			return err
		}
	}
	return nil
}
