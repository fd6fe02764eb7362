package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
	"a2e/protocol/client"
)

// sends is a command that sends one request and prints the answer as its row in requests says. The
// members of the request are the command's arguments and flags, under the names that fieldOf
// returns.
type sends struct{}

// request is a row of the table: the type of the request, members that no flag sets, and the
// function that prints the answer.
type request struct {
	kind  protocol.Type
	with  map[string]any
	print func(*exchange) error
}

// exchange is a request and its answer.
type exchange struct {
	cmd     *commands
	sys     *System
	members map[string]any
	begin   func(context.Context, *client.Client) error // completes the members in the session; nil = they are complete
	answer  client.Message
	json    bool // the answer is printed as JSON

	agent     string // who asks
	namespace string // of a memory command
	output    string // the file to write the answer to
}

// filler is a command whose flags must be changed before they are members of the request.
type filler interface{ fill(*exchange) error }

// Run sends the request of the command's row and prints the answer.
func (sends) Run(cmd *commands, sys *System, parsed *kong.Context) error {
	node := parsed.Selected()
	row := requests()[node.Path()]
	first, _, _ := strings.Cut(node.Path(), " ")
	x := &exchange{cmd: cmd, sys: sys, agent: "a2e " + first, members: map[string]any{}}
	for name, value := range row.with {
		x.members[name] = value
	}
	for _, value := range node.Positional {
		x.take(value)
	}
	for _, flag := range node.Flags {
		x.take(flag.Value)
	}
	if command, ok := node.Target.Addr().Interface().(filler); ok {
		if err := command.fill(x); err != nil {
			return err
		}
	}
	if err := x.send(row.kind); err != nil {
		return err
	}
	return row.print(x)
}

// take adds an argument or a flag with a value to the members.
func (x *exchange) take(value *kong.Value) {
	switch of := value.Target; {
	case value.Name == "json":
		x.json = of.Bool()
	case of.IsZero(), of.Kind() == reflect.Slice && of.Len() == 0:
	default:
		x.members[fieldOf(value.Name)] = of.Interface()
	}
}

// without removes members that the protocol does not have.
func (x *exchange) without(flags ...string) {
	for _, name := range flags {
		delete(x.members, name)
	}
}

// send sends the request. It also returns an error if the answer itself says that it was no success.
func (x *exchange) send(kind protocol.Type) error {
	info, _ := protocol.Lookup(kind)
	return x.cmd.ask(x.sys, x.agent, info.Capability, func(ctx context.Context, c *client.Client) error {
		if x.begin != nil {
			if err := x.begin(ctx, c); err != nil {
				return err
			}
		}
		if err := c.Call(ctx, kind, x.members, &x.answer); err != nil {
			return err
		}
		return refusal(x.answer)
	})
}

// refusal returns the error of an answer with success = false, or nil for other answers.
func refusal(m client.Message) error {
	if success, _ := m.Field("success"); string(success) != "false" {
		return nil
	}
	why, _ := m.Field("error")
	return fail(exitFailed, errors.New(cmp.Or(oneLine(textOf(jsontext.Value(why))), "the host did not do it")))
}

// requests returns the table of the commands that send one request. The keys are the words of the command.
func requests() map[string]request {
	update := func(action string, print func(*exchange) error) request {
		return request{protocol.TypeTaskUpdateReq, map[string]any{"action": action}, print}
	}
	versions := map[string]any{"history": true, "limit": 10_000}
	return map[string]request{
		"plan list":         {protocol.TypePlanListReq, nil, printPlans},
		"plan show":         {protocol.TypeTaskListReq, nil, printTasks},
		"plan add":          {protocol.TypePlanCreateReq, nil, printMember("plan_id")},
		"plan export":       {protocol.TypePlanBoardReq, nil, printText},
		"plan delete":       {protocol.TypePlanCreateReq, map[string]any{"delete": true}, printNothing},
		"plan task add":     {protocol.TypeTaskAddReq, nil, printMember("task_id")},
		"plan task set":     {protocol.TypeTaskUpdateReq, nil, printNothing},
		"plan task claim":   update(protocol.TaskClaim, printClaimed),
		"plan task renew":   update(protocol.TaskRenew, printNothing),
		"plan task release": update(protocol.TaskRelease, printNothing),
		"plan task delete":  update(protocol.TaskDelete, printNothing),
		"memory search":     {protocol.TypeMemoryRetrieveReq, nil, printFound},
		"memory list":       {protocol.TypeMemoryRetrieveReq, nil, printFound},
		"memory history":    {protocol.TypeMemoryRetrieveReq, versions, printVersions},
		"memory namespaces": {protocol.TypeMemoryRetrieveReq, map[string]any{"list_namespaces": true}, printNamespaces},
		"memory forget":     {protocol.TypeMemoryForgetReq, nil, printForgotten},
		"memory add":        {protocol.TypeMemoryStoreReq, nil, printStored},
		"env close":         {protocol.TypeEnvCloseReq, nil, printClosed},
	}
}

func printNothing(*exchange) error { return nil }

// printMember returns a function that prints one member of the answer on a line.
func printMember(name string) func(*exchange) error {
	return func(x *exchange) error {
		value, _ := x.answer.Field(name)
		_, err := fmt.Fprintln(x.sys.Out, oneLine(textOf(jsontext.Value(value))))
		return err
	}
}

// printRows prints the list in a member of the answer, one row for each item.
func printRows[T any](x *exchange, member, none string, columns []string, row func(T) []string) error {
	var all []jsontext.Value
	value, _ := x.answer.Field(member)
	if err := json.Unmarshal(value, &all); err != nil {
		return fmt.Errorf("the answer has no list %s: %w", member, err)
	}
	var wrong error
	err := list(x.sys, x.json, all, none, columns, func(raw jsontext.Value) []string {
		var one T
		if err := json.Unmarshal(raw, &one); err != nil {
			wrong = fmt.Errorf("a row of %s cannot be read: %w", member, err)
		}
		return row(one)
	})
	return errors.Join(wrong, err)
}

// moment is a flag that takes a time, in seconds since 1970.
type moment float64

// UnmarshalText reads a time, or a duration before now.
func (m *moment) UnmarshalText(text []byte) error {
	if ago, err := time.ParseDuration(string(text)); err == nil && ago >= 0 {
		*m = moment(time.Now().Add(-ago).UnixMicro()) / 1e6
		return nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if at, err := time.ParseInLocation(layout, string(text), time.Local); err == nil && at.Unix() > 0 {
			*m = moment(at.UnixMicro()) / 1e6
			return nil
		}
	}
	return errors.New("should be a time after 1970 such as 2026-01-31, 2026-01-31T12:00:00Z, or 24h for a day ago")
}

// object is a flag that takes a JSON object.
type object struct{ protocol.Object }

// UnmarshalText reads the object.
func (o *object) UnmarshalText(text []byte) (err error) {
	o.Object, err = protocol.ParseObject(text)
	if wrong, ok := errors.AsType[*protocol.Error](err); ok {
		err = errors.New(wrong.Message)
	}
	return err
}

type callCmd struct {
	Type   string   `arg:"" complete:"request" help:"The type, such as tool/list/req; /req may be left out."`
	Values []string `arg:"" optional:"" help:"Its fields as key=value, or as JSON by key:=JSON."`
	Args   string   `placeholder:"JSON" help:"All fields as one JSON object, or @FILE, or - for stdin."`
	JSON   bool     `name:"json" help:"Print the answer as it came, on one line."`
}

// Run sends a request of any type to a host in this process.
func (c callCmd) Run(cmd *commands, sys *System) error {
	info, err := requestType(c.Type)
	if err != nil {
		return fail(exitUsage, err)
	}
	given, err := readArguments(sys, "--args", c.Args, c.Values)
	if err != nil {
		return fail(exitUsage, err)
	}
	params, err := requestParameters(info)
	if err != nil {
		return err
	}
	body, err := given.object(string(info.Type), params)
	if err != nil {
		return err
	}
	fields := each(params, func(p parameter) string { return p.Name })
	for _, w := range given.words { // the host would ignore a field that it does not know
		if !slices.Contains(fields, w.key) {
			return fail(exitUsage, unknown("field", w.key, fields))
		}
	}
	var answer client.Message
	needs, whole := serversOf(info.Type, body)
	wait := serverWait{needs: needs}
	wanted := []protocol.Capability{info.Capability, protocol.CapMCP}
	if info.Capability == protocol.CapCore {
		wanted = append(wanted, protocol.PluginCapabilities()...)
	}
	err = cmd.askWith(sys, "a2e call", wanted, func(ctx context.Context, conn *client.Client) error {
		if err := wait.settle(ctx, conn, sys); err != nil {
			return err
		}
		tell := func(m client.Message) { tellEvent(sys.Err, m) }
		return conn.Call(ctx, info.Type, body, &answer, client.OnEvent(tell))
	})
	switch {
	case err != nil:
		return err
	case c.JSON:
		_, err = fmt.Fprintf(sys.Out, "%s\n", escapeUnseen(answer.Raw))
	default:
		err = printJSON(sys.Out, jsontext.Value(answer.Raw))
	}
	if err == nil {
		err = refusal(answer)
	}
	if err == nil && whole {
		err = wait.lacking()
	}
	return err
}

// serversOf says which MCP servers a request needs: those whose tools it mentions, or for a request
// that lists things, the servers in the list. list is true for such a request: its answer is
// complete only with all these servers.
func serversOf(t protocol.Type, body protocol.Object) (needs func(id string) bool, list bool) {
	lists := []protocol.Type{protocol.TypeToolListReq, protocol.TypeMCPResourceListReq, protocol.TypeMCPPromptListReq}
	if !slices.Contains(lists, t) {
		return mentions(string(body.Raw())), false
	}
	kind, server := body.Text("filter_kind"), body.Text("server_id")
	return func(id string) bool { return (kind == "" || kind == "mcp") && (server == "" || id == server) }, true
}

// isRequest reports whether an agent may send this type and gets an answer.
func isRequest(info *protocol.Info) bool {
	return info.Direction == protocol.AgentRequest && info.Response != ""
}

// requestTypes returns the request types, without the /req that most end with.
func requestTypes() (names []string) {
	for _, info := range protocol.Types() {
		if isRequest(&info) {
			names = append(names, strings.TrimSuffix(string(info.Type), "/req"))
		}
	}
	return names
}

// requestType returns the entry of a request type. Its /req may be missing in name.
func requestType(name string) (*protocol.Info, error) {
	for _, name := range []string{name, name + "/req", strings.TrimSuffix(name, "/req")} {
		if info, ok := protocol.Lookup(protocol.Type(name)); ok && isRequest(info) {
			return info, nil
		}
	}
	return nil, unknown("request", name, requestTypes())
}

// requestParameters returns the fields of a request as parameters.
func requestParameters(info *protocol.Info) ([]parameter, error) {
	of, err := schemaOf(*info)
	if err != nil {
		return nil, err
	}
	of.Required = info.Required
	raw, err := json.Marshal(of)
	var input map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &input)
	}
	return parametersOf(input), err
}

// printText writes the text of the answer to the output file.
func printText(x *exchange) error {
	text, _ := x.answer.Field("text")
	return x.sys.output(x.output, "", func(w io.Writer) error {
		_, err := io.WriteString(w, textOf(jsontext.Value(text)))
		return err
	})
}
