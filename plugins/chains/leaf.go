package chains

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/child"
	"a2e/protocol"
)

// leaf makes the call of a node of kind tool, skill or proc.
func (r *run) leaf(ctx context.Context, n *node, it *item, args []byte) (jsontext.Value, error) {
	if n.kind == KindProc {
		out, partial, err := runProc(ctx, r.plugin.services, n, args)
		return r.whole(n, it, out, partial, err)
	}
	c := &call{kind: n.kind, name: n.name, args: args}
	if deadline, ok := ctx.Deadline(); ok { // the time of its chain and node, not the usual one of a call
		c.timeout = max(1, int(math.Ceil(time.Until(deadline).Seconds())))
	}
	if r.correlation != "" {
		c.correlation = r.correlation + "/" + r.prefix + n.id
		if it != nil {
			c.correlation += "/" + strconv.Itoa(it.index)
		}
	}
	var answer protocol.Object
	if err := r.plugin.services.Call(ctx, c.request(), c, &answer, nil); err != nil {
		return nil, err
	}
	out, partial, err := c.output(answer)
	return r.whole(n, it, out, partial, err)
}

// whole returns the output of a call. An output that was cut is a failure of the node, unless the node
// accepts it: later nodes would take a part for the whole.
func (r *run) whole(n *node, it *item, out jsontext.Value, partial bool, err error) (jsontext.Value, error) {
	switch {
	case err != nil || !partial:
		return out, err
	case n.acceptsTruncated:
		r.truncate(r.place(n, it))
		return out, nil
	}
	return nil, protocol.Errorf(protocol.CodeChainNodeError,
		"the result of the %s %q was cut, so the nodes behind it would work with a part of it; "+
			"ask for less (offset and limit, a narrower search), raise max_output_bytes in the config, "+
			`or set "accept_truncated": true on the node`, n.kind, n.name).With(detailTruncated, true)
}

// detailTruncated is the member of an error's detail that marks a result that was cut.
const detailTruncated = "truncated"

// call is tool/call/req or skill/call/req; AppendJSON encodes it.
type call struct {
	kind        Kind
	name        string
	args        []byte
	correlation string
	timeout     int // seconds; 0 = the usual timeout of the type
}

func (c *call) request() protocol.Type {
	if c.kind == KindSkill {
		return protocol.TypeSkillCallReq
	}
	return protocol.TypeToolCallReq
}

// AppendJSON implements protocol.Appender.
func (c *call) AppendJSON(dst []byte) ([]byte, error) {
	field := `{"tool_name":`
	if c.kind == KindSkill {
		field = `{"name":`
	}
	dst = protocol.AppendString(append(dst, field...), c.name)
	dst = append(append(dst, `,"arguments":`...), c.args...)
	if c.timeout > 0 {
		dst = strconv.AppendInt(append(dst, `,"timeout":`...), int64(c.timeout), 10)
	}
	dst = protocol.AppendString(append(dst, `,"correlation_id":`...), c.correlation)
	return append(dst, `,"streaming":false}`...), nil
}

// output returns the data of the answer to a call, or the error of the call. partial = the data was cut.
func (c *call) output(answer protocol.Object) (out jsontext.Value, partial bool, err error) {
	data, ok := answer.Child("data")
	if !ok {
		return nil, false, protocol.Errorf(protocol.CodeChainNodeError, "the %s %q gave no result", c.kind, c.name)
	}
	if success, _ := data.Get("success"); success.Kind() == 't' {
		val, _ := data.Get("data")
		truncated, _ := data.Get("truncated")
		// A clone, as a part of the answer would keep the whole buffer of the answer in memory.
		return slices.Clone(jsontext.Value(val)), truncated.Kind() == 't', nil
	}
	code := protocol.CodeToolError
	if c.kind == KindSkill {
		code = protocol.CodeSkillError
	}
	reason := "it reports no reason"
	if text, ok := textOf(data, "error"); ok && text != "" {
		reason = text
	}
	if own, ok := textOf(data, "error_code"); ok && own != "" {
		code = protocol.ErrorCode(own)
	}
	failed := protocol.Errorf(code, "%s %q failed: %s", c.kind, c.name, reason)
	if exit, ok := data.Get("exit_code"); ok && exit.Kind() == '0' {
		failed.With("exit_code", jsontext.Value(exit))
	}
	return nil, false, failed
}

func textOf(obj protocol.Object, key string) (string, bool) {
	val, _ := obj.Get(key)
	return val.Str()
}

// procInput is the input of a node of kind proc. The command is a list, or one text that is split at white
// space, as the Python SDK does; without a command, the program is the name of the node. args are added to
// it.
type procInput struct {
	Cmd     jsontext.Value    `json:"cmd"`
	Command jsontext.Value    `json:"command"`
	Args    []string          `json:"args"`
	Cwd     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
	Stdin   string            `json:"stdin"`
}

func (p *procInput) command(name string) ([]string, error) {
	for _, raw := range []jsontext.Value{p.Cmd, p.Command} {
		if len(raw) == 0 || raw.Kind() == 'n' {
			continue
		}
		if words, ok := protocol.Value(raw).Strings(); ok && len(words) > 0 {
			return append(words, p.Args...), nil
		}
		if text, ok := protocol.Value(raw).Str(); ok && strings.TrimSpace(text) != "" {
			return append(strings.Fields(text), p.Args...), nil
		}
		return nil, protocol.Wrong("/input/cmd", "should be a list of strings, the program first")
	}
	if name == "" {
		return nil, protocol.Wrong("/input/cmd", "is required, or a name: the program to run")
	}
	return append([]string{name}, p.Args...), nil
}

// procOutput is the output of a node of kind proc.
type procOutput struct {
	Status    protocol.ProcState `json:"status"`
	ExitCode  int                `json:"exit_code"`
	Stdout    string             `json:"stdout"`
	Stderr    string             `json:"stderr"`
	Truncated bool               `json:"truncated"`
}

// runProc runs a program to its end, under the rules of the plugin for processes. An exit status other
// than 0 is a failure of the node. partial = the output was cut.
func runProc(
	ctx context.Context, s *host.Services, n *node, args []byte,
) (out jsontext.Value, partial bool, err error) {
	runner, err := child.Runner(s)
	if err != nil {
		return nil, false, err
	}
	var in procInput
	obj, err := protocol.ParseObject(args)
	if err == nil {
		err = obj.Decode(&in)
	}
	if err != nil {
		return nil, false, err
	}
	cmd, err := in.command(n.name)
	if err != nil {
		return nil, false, err
	}
	host.HandOff(ctx)
	limit := time.Duration(0)
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline)
	}
	res, err := runner.RunProc(ctx, child.ProcRun{Cmd: cmd, Cwd: in.Cwd, Env: in.Env, Stdin: in.Stdin, Timeout: limit})
	if err != nil {
		return nil, false, err
	}
	if res.ExitCode != 0 {
		return nil, false, protocol.Errorf(protocol.CodeChainNodeError, "%q ended with exit status %d: %.500s",
			cmd[0], res.ExitCode, strings.TrimSpace(res.Stderr)).
			With("exit_code", res.ExitCode)
	}
	told := procOutput{protocol.ProcCompleted, res.ExitCode, res.Stdout, res.Stderr, res.Truncated}
	out, err = json.Marshal(told, jsontext.AllowInvalidUTF8(true))
	return out, res.Truncated, err
}
