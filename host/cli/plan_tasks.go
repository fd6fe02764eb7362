package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"a2e/protocol"
	"a2e/protocol/client"
)

// planOf names one plan.
type planOf struct {
	Plan string `complete:"plan" arg:"" help:"The plan's id or name."`
}

// ask runs do with the plan's id.
func (p planOf) ask(cmd *commands, sys *System, do func(context.Context, *client.Client, string) error) error {
	return cmd.ask(sys, "a2e plan", protocol.CapPlanning, func(ctx context.Context, c *client.Client) error {
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
		return do(ctx, c, plans[0].ID)
	})
}

type planListCmd struct {
	All  bool `help:"Also the plans of other folders."`
	JSON bool `name:"json" help:"Print the plans as JSON."`
}

// Run prints a table of the plans.
func (p planListCmd) Run(cmd *commands, sys *System) error {
	folder, none := ".", "no plan was made in this folder; `a2e plan add NAME` makes one, "+
		"`a2e plan list --all` shows all"
	head := []string{"PLAN", "TASKS", "NAME"}
	if p.All {
		folder, none, head = "", noPlan, []string{"PLAN", "TASKS", "FOLDER", "NAME"}
	}
	var resp protocol.PlanListResponse
	err := cmd.ask(sys, "a2e plan", protocol.CapPlanning, func(ctx context.Context, c *client.Client) error {
		return c.Call(ctx, protocol.TypePlanListReq, &protocol.PlanListRequest{Folder: folder}, &resp)
	})
	if err != nil {
		return err
	}
	return list(sys, p.JSON, resp.Plans, none, head, func(plan map[string]any) []string {
		row := []string{fmt.Sprint(plan["plan_id"]), fmt.Sprintf("%v of %v done", plan["done"], plan["tasks"])}
		if p.All {
			where, _ := plan["folder"].(string)
			row = append(row, where)
		}
		return append(row, fmt.Sprint(plan["name"]))
	})
}

type planShowCmd struct {
	planOf
	Ready    bool   `help:"Only tasks that are ready, the most urgent first."`
	Status   string `placeholder:"COLUMN" help:"Only tasks of this column."`
	Assignee string `placeholder:"NAME" help:"Only tasks of this one."`
	JSON     bool   `name:"json" help:"Print the tasks as JSON."`
}

// planTask is a task as answers show it, as far as a table does.
type planTask struct {
	TaskID    string  `json:"task_id"`
	Title     string  `json:"title"`
	Status    string  `json:"status"`
	Assignee  string  `json:"assignee"`
	Priority  string  `json:"priority"`
	Due       string  `json:"due"`
	ClaimedBy string  `json:"claimed_by"`
	Until     float64 `json:"claimed_until"`
}

// Run prints a table of the tasks.
func (p planShowCmd) Run(cmd *commands, sys *System) error {
	var found struct {
		Tasks []protocol.Object `json:"tasks"`
	}
	if err := p.ask(cmd, sys, func(ctx context.Context, c *client.Client, plan string) error {
		return c.Call(ctx, protocol.TypeTaskListReq, &protocol.TaskListRequest{PlanID: plan, Ready: p.Ready, Status: p.Status, Assignee: p.Assignee}, &found)
	}); err != nil {
		return err
	}
	var wrong error
	err := list(sys, p.JSON, found.Tasks, "no such task", []string{"TASK", "STATUS", "PRIORITY", "DUE", "TITLE"}, func(obj protocol.Object) []string {
		var t planTask
		wrong = cmp.Or(wrong, obj.Decode(&t))
		about := t.Title
		if t.Assignee != "" {
			about += " @" + t.Assignee
		}
		if t.ClaimedBy != "" {
			about += ", claimed by " + t.ClaimedBy
		}
		return []string{t.TaskID, t.Status, t.Priority, t.Due, about}
	})
	return cmp.Or(wrong, err)
}

type planAddCmd struct {
	Name        string   `arg:"" help:"The plan's name."`
	Description string   `help:"What it is about."`
	Column      []string `sep:"none" placeholder:"NAME" help:"A column; may be given several times. Default: backlog, todo, in_progress and done."`
	DoneColumn  string   `placeholder:"NAME" help:"The column of tasks that are done. Default: done, or else the last one."`
}

// Run makes a plan and prints its id.
func (p planAddCmd) Run(cmd *commands, sys *System) error {
	var resp protocol.PlanCreateResponse
	err := cmd.ask(sys, "a2e plan", protocol.CapPlanning, func(ctx context.Context, c *client.Client) error {
		return c.Call(ctx, protocol.TypePlanCreateReq, &protocol.PlanCreateRequest{Name: p.Name, Description: p.Description, Columns: p.Column, DoneColumn: p.DoneColumn}, &resp)
	})
	return printID(sys, resp.PlanID, err)
}

func printID(sys *System, id string, err error) error {
	if err == nil {
		_, err = fmt.Fprintln(sys.Out, id)
	}
	return err
}

type planDeleteCmd struct {
	planOf
	Force bool `help:"Even if somebody has claimed a task of it."`
}

// Run deletes a plan.
func (p planDeleteCmd) Run(cmd *commands, sys *System) error {
	return p.ask(cmd, sys, func(ctx context.Context, c *client.Client, plan string) error {
		var resp protocol.PlanCreateResponse
		err := c.Call(ctx, protocol.TypePlanCreateReq, &protocol.PlanCreateRequest{Delete: true, PlanID: plan, Force: p.Force}, &resp)
		return unless(resp.Success, resp.Error, err)
	})
}

// unless is the error of an answer that itself may say why there is no success.
func unless(success bool, why string, err error) error {
	if err != nil || success {
		return err
	}
	return fail(exitFailed, errors.New(why))
}

type planExportCmd struct {
	planOf
	Mermaid bool   `help:"Only which task waits for which, as a Mermaid flowchart."`
	Output  string `short:"o" default:"-" placeholder:"FILE" help:"The file to write; - is stdout."`
}

// Run writes a plan as Markdown.
func (p planExportCmd) Run(cmd *commands, sys *System) error {
	format := protocol.PlanMarkdown
	if p.Mermaid {
		format = protocol.PlanMermaid
	}
	var resp protocol.PlanBoardResponse
	if err := p.ask(cmd, sys, func(ctx context.Context, c *client.Client, plan string) error {
		return c.Call(ctx, protocol.TypePlanBoardReq, &protocol.PlanBoardRequest{PlanID: plan, Format: format}, &resp)
	}); err != nil {
		return err
	}
	return sys.output(p.Output, "", func(w io.Writer) error {
		_, err := io.WriteString(w, resp.Text)
		return err
	})
}

type planTaskCmd struct {
	Add     planTaskAddCmd     `cmd:"" help:"Add a task and print its id."`
	Set     planTaskSetCmd     `cmd:"" help:"Change a task."`
	Claim   planTaskClaimCmd   `cmd:"" help:"Claim a task for a time, or the next that is ready, and print its id and title."`
	Renew   planTaskRenewCmd   `cmd:"" help:"Claim a task for longer."`
	Release planTaskReleaseCmd `cmd:"" help:"Release a task that was claimed."`
	Delete  planTaskDeleteCmd  `cmd:"" help:"Delete a task."`
}

// taskFields are what a task can be given from the start, and later.
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

// Run adds a task.
func (p planTaskAddCmd) Run(cmd *commands, sys *System) error {
	var resp protocol.TaskAddResponse
	err := p.ask(cmd, sys, func(ctx context.Context, c *client.Client, plan string) error {
		err := c.Call(ctx, protocol.TypeTaskAddReq, &protocol.TaskAddRequest{
			PlanID: plan, Title: p.Title, Status: p.Status, Description: p.Description, Assignee: p.Assignee, Deps: p.After,
			Priority: p.Priority, Due: p.Due, Estimate: p.Estimate, Force: p.Force,
		}, &resp)
		return unless(resp.Success, resp.Error, err)
	})
	return printID(sys, resp.TaskID, err)
}

// update changes a task of the plan.
func (p planOf) update(cmd *commands, sys *System, req *protocol.TaskUpdateRequest) (t planTask, err error) {
	var resp struct {
		Success bool     `json:"success"`
		Error   string   `json:"error"`
		Task    planTask `json:"task"`
	}
	err = p.ask(cmd, sys, func(ctx context.Context, c *client.Client, plan string) error {
		req.PlanID = plan
		err := c.Call(ctx, protocol.TypeTaskUpdateReq, req, &resp)
		return unless(resp.Success, resp.Error, err)
	})
	return resp.Task, err
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

// Run changes a task.
func (p planTaskSetCmd) Run(cmd *commands, sys *System) error {
	_, err := p.update(cmd, sys, &protocol.TaskUpdateRequest{
		TaskID: p.Task, Status: p.Status, Assignee: p.Assignee, Deps: p.After, Title: p.Title, Description: p.Description, Priority: p.Priority, Due: p.Due,
		Estimate: p.Estimate, Comment: p.Comment, Clear: p.Clear, Owner: p.Owner, IfVersion: p.IfVersion, Force: p.Force,
	})
	return err
}

// taskLease is who claims, and for how long.
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

// Run claims a task.
func (p planTaskClaimCmd) Run(cmd *commands, sys *System) error {
	t, err := p.update(cmd, sys, &protocol.TaskUpdateRequest{TaskID: p.Task, Action: protocol.TaskClaim, Owner: p.Owner, Lease: p.Lease, Force: p.Force})
	return printID(sys, strings.TrimSpace(t.TaskID+" "+oneLine(t.Title)), err)
}

type planTaskRenewCmd struct {
	planOf
	Task string `arg:"" help:"The task's id."`
	taskLease
}

// Run renews a claim.
func (p planTaskRenewCmd) Run(cmd *commands, sys *System) error {
	_, err := p.update(cmd, sys, &protocol.TaskUpdateRequest{TaskID: p.Task, Action: protocol.TaskRenew, Owner: p.Owner, Lease: p.Lease})
	return err
}

// heldTask is a task, and who has it.
type heldTask struct {
	planOf
	Task  string `arg:"" help:"The task's id."`
	Owner string `placeholder:"NAME" help:"Who has claimed it. Default: whoever claimed by this command."`
	Force bool   `help:"Even if somebody else has claimed it, or others wait for it."`
}

// act does something with the task.
func (p heldTask) act(cmd *commands, sys *System, action string) error {
	_, err := p.update(cmd, sys, &protocol.TaskUpdateRequest{TaskID: p.Task, Action: action, Owner: p.Owner, Force: p.Force})
	return err
}

type planTaskReleaseCmd struct{ heldTask }

// Run gives a task back.
func (p planTaskReleaseCmd) Run(cmd *commands, sys *System) error {
	return p.act(cmd, sys, protocol.TaskRelease)
}

type planTaskDeleteCmd struct{ heldTask }

// Run deletes a task.
func (p planTaskDeleteCmd) Run(cmd *commands, sys *System) error {
	return p.act(cmd, sys, protocol.TaskDelete)
}
