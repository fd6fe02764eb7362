package mcp

import (
	"context"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/plugins/mcp/link"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// taskRequired is what a tool says that is called as a task only.
const taskRequired = "required"

// taskStop bounds the request that ends a task whose call is over.
const taskStop = 2 * time.Second

// listTools asks for a page of the server's tools, and notes what they say of tasks, which
// the SDK has no types for.
func (s *server) listTools(ctx context.Context, cs *sdk.ClientSession, cursor string) (*sdk.ListToolsResult, error) {
	if !link.HasRaw(cs) {
		return cs.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
	}
	params := jsontext.Value("{}")
	if cursor != "" {
		params = append(protocol.AppendString([]byte(`{"cursor":`), cursor), '}')
	}
	raw, err := link.Raw(ctx, cs, "tools/list", params)
	if err != nil {
		return nil, err
	}
	res := new(sdk.ListToolsResult)
	var more struct {
		Tools []struct {
			Name      string `json:"name"`
			Execution struct {
				TaskSupport string `json:"taskSupport"`
			} `json:"execution"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(raw, res); err != nil {
		return nil, err
	}
	_ = json.Unmarshal(raw, &more) // what does not fit says nothing of tasks
	s.mu.Lock()
	defer s.mu.Unlock()
	if cursor == "" {
		s.tasks = make(map[string]string)
	}
	for _, t := range more.Tools {
		if support := t.Execution.TaskSupport; support == taskRequired || support == "optional" {
			s.tasks[t.Name] = support
		}
	}
	return res, nil
}

// taskSupport is what a tool says of tasks; "" = it cannot be one.
func (s *server) taskSupport(tool string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks[tool]
}

// created is the result of a call that is a task.
type created struct {
	Task struct {
		ID string `json:"taskId"`
	} `json:"task"`
}

// callTask begins a task for a client that asked for one, and else waits for its result: so
// tools that must be tasks are there for all.
func (s *server) callTask(ctx context.Context, name string, args protocol.Object, emit host.Emitter) (*tools.Outcome, error) {
	task := host.MCPTask(ctx)
	c := &activeCall{ctx: ctx, emit: emit}
	var out *tools.Outcome
	err := s.within(c, func(ctx context.Context, cs *sdk.ClientSession, token string) error {
		params := map[string]any{"name": name, "arguments": jsontext.Value(args.Raw()), "task": struct{}{}, "_meta": map[string]string{"progressToken": token}}
		if task != nil {
			params["task"] = task
		}
		raw, err := rawCall(ctx, cs, "tools/call", params)
		if err != nil {
			return err
		}
		var begun created
		if err := json.Unmarshal(raw, &begun); err != nil || begun.Task.ID == "" {
			return protocol.Errorf(protocol.CodeMCPProtocolError, "the MCP server %q began no task, which it should for this tool", s.opts.ID)
		}
		if task != nil {
			raw, err = s.named(raw)
			out = &tools.Outcome{Data: raw}
			return err
		}
		raw, err = rawCall(ctx, cs, "tasks/result", map[string]any{"taskId": begun.Task.ID})
		if err != nil {
			s.stopTask(ctx, cs, begun.Task.ID)
			return err
		}
		res := new(sdk.CallToolResult)
		if err := res.UnmarshalJSON(raw); err != nil {
			return err
		}
		out, err = outcome(res, emit)
		return err
	})
	return out, err
}

// stopTask ends a task that nobody waits for any more.
func (s *server) stopTask(ctx context.Context, cs *sdk.ClientSession, id string) {
	if ctx.Err() == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), taskStop)
	defer stop()
	if _, err := rawCall(ctx, cs, "tasks/cancel", map[string]any{"taskId": id}); err != nil {
		s.p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).Msg("a task of the MCP server could not be ended")
	}
}

func rawCall(ctx context.Context, cs *sdk.ClientSession, method string, params any) (jsontext.Value, error) {
	raw, err := encode(params)
	if err != nil {
		return nil, err
	}
	return link.Raw(ctx, cs, method, raw)
}

// task makes a request about one task, of the server that its id begins with.
func (p *Plugin) task(ctx context.Context, method string, raw jsontext.Value) (jsontext.Value, error) {
	var params struct {
		ID string `json:"taskId"`
	}
	if err := json.Unmarshal(raw, &params); err != nil {
		return nil, badParams(err)
	}
	for _, s := range p.all() {
		id, ok := strings.CutPrefix(params.ID, s.opts.ID+separator)
		if !ok || s.usable() != nil {
			continue
		}
		var res jsontext.Value
		err := s.asked(ctx, func(ctx context.Context, cs *sdk.ClientSession) (err error) {
			res, err = rawCall(ctx, cs, method, map[string]any{"taskId": id})
			return err
		})
		if err != nil {
			return nil, err
		}
		return s.named(res)
	}
	return nil, host.NotMine(protocol.Errorf(protocol.CodeSchemaViolation, "no MCP server has the task %q", shortened(params.ID)))
}

// taskList lists the tasks of all servers that have any.
func (p *Plugin) taskList(ctx context.Context) (jsontext.Value, error) {
	all := []jsontext.Value{}
	for _, s := range p.all() {
		s.mu.Lock()
		has := len(s.tasks) > 0
		s.mu.Unlock()
		if !has {
			continue
		}
		found, err := collect(ctx, s, maxTools, func(*sdk.ServerCapabilities) bool { return true },
			func(ctx context.Context, cs *sdk.ClientSession, cursor string) ([]jsontext.Value, string, error) {
				params := map[string]any{}
				if cursor != "" {
					params["cursor"] = cursor
				}
				raw, err := rawCall(ctx, cs, "tasks/list", params)
				if err == nil {
					raw, err = s.named(raw)
				}
				var page struct {
					Tasks []jsontext.Value `json:"tasks"`
					Next  string           `json:"nextCursor"`
				}
				if err == nil {
					err = json.Unmarshal(raw, &page)
				}
				return page.Tasks, page.Next, err
			})
		if err != nil {
			p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).Msg("the tasks of the MCP server could not be listed")
			continue
		}
		all = append(all, found...)
	}
	return encode(map[string]any{"tasks": all})
}

// named puts the server's id before the ids of tasks in a result: at the top, in `task`, in
// each of `tasks`, and where _meta says what the result belongs to.
func (s *server) named(raw jsontext.Value) (jsontext.Value, error) {
	var obj map[string]jsontext.Value
	if err := json.Unmarshal(raw, &obj); err != nil {
		return nil, err
	}
	for key, val := range obj {
		var err error
		switch key {
		case "taskId":
			id, _ := protocol.Value(val).Str()
			val = protocol.AppendString(nil, s.opts.ID+separator+id)
		case "task", "_meta", "io.modelcontextprotocol/related-task":
			val, err = s.named(val)
		case "tasks":
			var list []jsontext.Value
			if err = json.Unmarshal(val, &list); err == nil {
				for i := range list {
					if list[i], err = s.named(list[i]); err != nil {
						return nil, err
					}
				}
				val, err = encode(list)
			}
		}
		if err != nil {
			return nil, err
		}
		obj[key] = val
	}
	return encode(obj)
}
