package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"a2e/protocol"
	"a2e/protocol/client"
)

// planOf is the argument that names one plan.
type planOf struct {
	sends
	Plan string `complete:"plan" arg:"" help:"The plan's id or name."`
}

func (p planOf) fill(x *exchange) error {
	x.begin = func(ctx context.Context, c *client.Client) error {
		plans, err := listPlans(ctx, c)
		if err == nil {
			plans, err = pickPlans(plans, p.Plan)
		}
		switch {
		case err != nil:
			return err
		case len(plans) != 1:
			return fail(exitUsage, fmt.Errorf("%d plans have the name %q; name one by its id, which "+
				"`a2e plan list --all` shows", len(plans), p.Plan))
		}
		x.members["plan_id"] = plans[0].ID
		return nil
	}
	return nil
}

type planListCmd struct {
	sends
	All  bool `help:"Also the plans of other folders."`
	JSON bool `name:"json" help:"Print the plans as JSON."`
}

func (p planListCmd) fill(x *exchange) error {
	if x.without("all"); !p.All {
		x.members["folder"] = "."
	}
	return nil
}

// printPlans prints a table of plans, with their folders if plans of all folders were asked for.
func printPlans(x *exchange) error {
	none, head := noPlan, []string{"PLAN", "TASKS", "FOLDER", "NAME"}
	_, here := x.members["folder"]
	if here {
		none, head = "no plan was made in this folder; `a2e plan add NAME` makes one, "+
			"`a2e plan list --all` shows all", slices.Delete(head, 2, 3)
	}
	return printRows(x, "plans", none, head, func(plan struct {
		planName
		Done   int    `json:"done"`
		Tasks  int    `json:"tasks"`
		Folder string `json:"folder"`
	},
	) []string {
		row := []string{plan.ID, fmt.Sprintf("%d of %d done", plan.Done, plan.Tasks), plan.Folder, plan.Name}
		if here {
			row = slices.Delete(row, 2, 3)
		}
		return row
	})
}

type planShowCmd struct {
	planOf
	Ready    bool   `help:"Only tasks that are ready, the most urgent first."`
	Status   string `placeholder:"COLUMN" help:"Only tasks of this column."`
	Assignee string `placeholder:"NAME" help:"Only tasks of this one."`
	JSON     bool   `name:"json" help:"Print the tasks as JSON."`
}

// planTask has the fields of a task that tables show.
type planTask struct {
	TaskID    string `json:"task_id"`
	Title     string `json:"title"`
	Status    string `json:"status"`
	Assignee  string `json:"assignee"`
	Priority  string `json:"priority"`
	Due       string `json:"due"`
	ClaimedBy string `json:"claimed_by"`
}

// printTasks prints a table of tasks.
func printTasks(x *exchange) error {
	columns := []string{"TASK", "STATUS", "PRIORITY", "DUE", "TITLE"}
	return printRows(x, "tasks", "no such task", columns, func(t planTask) []string {
		about := t.Title
		if t.Assignee != "" {
			about += " @" + t.Assignee
		}
		if t.ClaimedBy != "" {
			about += ", claimed by " + t.ClaimedBy
		}
		return []string{t.TaskID, t.Status, t.Priority, t.Due, about}
	})
}

type planAddCmd struct {
	sends
	Name        string   `arg:"" help:"The plan's name."`
	Description string   `help:"What it is about."`
	Column      []string `sep:"none" placeholder:"NAME" help:"A column; may be given several times. Default: backlog, todo, in_progress and done."`
	DoneColumn  string   `placeholder:"NAME" help:"The column of tasks that are done. Default: done, or else the last one."`
}

type planDeleteCmd struct {
	planOf
	Force bool `help:"Even if somebody has claimed a task of it."`
}

type planExportCmd struct {
	planOf
	Mermaid bool   `help:"Only which task waits for which, as a Mermaid flowchart."`
	Output  string `short:"o" default:"-" placeholder:"FILE" help:"The file to write; - is stdout."`
}

func (p planExportCmd) fill(x *exchange) error {
	x.members["format"] = protocol.PlanMarkdown
	if p.Mermaid {
		x.members["format"] = protocol.PlanMermaid
	}
	x.output = p.Output
	x.without("mermaid", "output")
	return p.planOf.fill(x)
}

type planTaskCmd struct {
	Add     planTaskAddCmd     `cmd:"" help:"Add a task and print its id."`
	Set     planTaskSetCmd     `cmd:"" help:"Change a task."`
	Claim   planTaskClaimCmd   `cmd:"" help:"Claim a task for a time, or the next that is ready, and print its id and title."`
	Renew   planTaskRenewCmd   `cmd:"" help:"Claim a task for longer."`
	Release planTaskReleaseCmd `cmd:"" help:"Release a task that was claimed."`
	Delete  planTaskReleaseCmd `cmd:"" help:"Delete a task."`
}

// taskFields are the fields of a task that can be set when it is added, and later.
type taskFields struct {
	Status      string   `placeholder:"COLUMN" help:"The column that it is in."`
	Description string   `help:"What to do."`
	Assignee    string   `placeholder:"NAME" help:"Who should do it."`
	After       []string `sep:"none" placeholder:"TASK" help:"The id of a task that must be done first; may be given several times."`
	Priority    string   `placeholder:"PRIORITY" help:"urgent, high, normal or low."`
	Due         string   `placeholder:"TIME" help:"When it should be done, such as 2030-12-31 or 2030-12-31T18:00:00Z."`
	Estimate    string   `placeholder:"TIME" help:"How long it may take, such as 1h30m."`
	Force       bool     `help:"Even if the tasks before it are not done, or somebody else has claimed it."`
}

type planTaskAddCmd struct {
	planOf
	Title string `arg:"" help:"What to do, in a few words."`
	taskFields
}

type planTaskSetCmd struct {
	planOf
	Task string `arg:"" help:"The task's id."`
	taskFields
	Title     string   `help:"What to do, in a few words."`
	Comment   string   `placeholder:"TEXT" help:"Add a comment."`
	Clear     []string `placeholder:"FIELD" help:"Empty a field: assignee, deps, description, due, estimate or metadata."`
	Owner     string   `placeholder:"NAME" help:"Who has claimed it. Default: whoever claimed by this command."`
	IfVersion int      `placeholder:"N" help:"Only if it has this version."`
}

// taskLease says who claims a task, and for how long.
type taskLease struct {
	Owner string `placeholder:"NAME" help:"Who claims it. Default: a2e plan."`
	Lease int    `default:"300" placeholder:"SECONDS" help:"For how long."`
}

type planTaskClaimCmd struct {
	planOf
	Task string `arg:"" optional:"" help:"The task's id. Default: the next that is ready."`
	taskLease
	Force bool `help:"Even if somebody else has it, or the tasks before it are not done."`
}

// printClaimed prints the id and the title of the task.
func printClaimed(x *exchange) error {
	var claimed struct {
		Task planTask `json:"task"`
	}
	if err := x.answer.Decode(&claimed); err != nil {
		return err
	}
	_, err := fmt.Fprintln(x.sys.Out, strings.TrimSpace(claimed.Task.TaskID+" "+oneLine(claimed.Task.Title)))
	return err
}

type planTaskRenewCmd struct {
	planOf
	Task string `arg:"" help:"The task's id."`
	taskLease
}

type planTaskReleaseCmd struct {
	planOf
	Task  string `arg:"" help:"The task's id."`
	Owner string `placeholder:"NAME" help:"Who has claimed it. Default: whoever claimed by this command."`
	Force bool   `help:"Even if somebody else has claimed it, or others wait for it."`
}
