package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/mattn/go-isatty"

	"a2e/protocol"
	"a2e/protocol/client"
)

// person answers what the host of a command asks: approvals of chains and forms of MCP servers
// (mcp/elicit/req), and texts that a model would write (mcp/sample/req). Where the command has no terminal,
// the person is told once how to answer from elsewhere.
type person struct {
	sys  *System
	told func(req *protocol.MCPElicitRequest) string // how to answer from elsewhere; "" = that cannot be done
	out  io.Writer                                   // what the person reads
	over <-chan struct{}                             // closed once the command is interrupted; nil = it never is

	// prompt asks on a screen; nil = out shows the question, and stdin has the answer.
	prompt func(ctx context.Context, question string) (line string, ok bool)

	turn  sync.Mutex  // one question after the other; guards the fields below
	lines chan string // what is typed; nil = nothing was read yet
	seen  []string    // what the person was told
}

// newPerson returns the person at the command's terminal.
func newPerson(sys *System) *person {
	return &person{sys: sys, out: sys.Err, told: func(*protocol.MCPElicitRequest) string { return "" }}
}

// there reports whether somebody reads stderr and types on stdin.
func (p *person) there() bool {
	return p.prompt != nil || isatty.IsTerminal(p.sys.In.Fd()) && isatty.IsTerminal(p.sys.Err.Fd())
}

// answers has the person answer what the host of conn asks.
func (p *person) answers(conn *client.Client) {
	conn.Handle(protocol.TypeMCPElicitReq, answering(p.elicit))
	conn.Handle(protocol.TypeMCPSampleReq, answering(p.sample))
}

// answering has a function answer a message of the host.
func answering[Q, A any](answer func(context.Context, *Q) (A, error)) client.Handler {
	return func(ctx context.Context, m client.Message) (any, error) {
		var req Q
		if err := m.Decode(&req); err != nil {
			return nil, err
		}
		return answer(ctx, &req)
	}
}

// errNobody is the answer to a question that nobody reads.
var errNobody = errors.New("nobody is at a terminal to answer")

// say tells the person something once. It must be called with turn held.
func (p *person) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(p.seen, text) {
		p.seen = append(p.seen, text)
		_ = p.sys.aside(func() error { say(p.out, "%s", text); return nil }) // a terminal that is gone shows nothing
	}
}

// ask prints a question and returns the line that is typed; ok = false at the end of the input.
func (p *person) ask(ctx context.Context, format string, args ...any) (line string, ok bool) {
	question := fmt.Sprintf(format+" ", args...)
	if p.prompt != nil {
		line, ok = p.prompt(ctx, question)
		return strings.TrimSpace(line), ok
	}
	if p.lines == nil {
		p.lines = make(chan string)
		go p.read() // ends with the input, or with the process: a terminal's read cannot be stopped
	}
	fmt.Fprint(p.out, question)
	select {
	case line, ok = <-p.lines:
		return strings.TrimSpace(line), ok
	case <-p.over: // before the host tells what became of its question
	case <-ctx.Done():
	}
	fmt.Fprintln(p.out)
	return "", false
}

func (p *person) read() {
	defer close(p.lines)
	for in := bufio.NewReader(p.sys.In); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		p.lines <- line
	}
}

// elicit asks the person a question of an MCP server or of a chain.
func (p *person) elicit(ctx context.Context, req *protocol.MCPElicitRequest) (*protocol.MCPElicitResponse, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	if !p.there() {
		if how := p.told(req); how != "" {
			p.say("%s", how)
		} else {
			p.say("%s asks: %s; run the command on a terminal to answer", oneLine(req.ServerID), oneLine(req.Message))
		}
		return nil, errNobody
	}
	resp := &protocol.MCPElicitResponse{ServerID: req.ServerID, MCPRequestID: req.MCPRequestID, Action: "cancel"}
	err := p.sys.aside(func() (err error) {
		if req.Mode == "url" {
			resp.Action = p.visit(ctx, req)
			return nil
		}
		resp.Action, resp.Content, err = p.fill(ctx, req)
		return err
	})
	return resp, err
}

// visit asks the person to open a page.
func (p *person) visit(ctx context.Context, req *protocol.MCPElicitRequest) (action string) {
	fmt.Fprintf(p.out, "%s asks: %s\n", oneLine(req.ServerID), oneLine(req.Message))
	fmt.Fprintf(p.out, "It wants you to open %s\n", oneLine(req.URL))
	return answered(p.yes(ctx, "Will you open it yourself?"))
}

// answered is how the protocol calls an answer; ok = false: there is none.
func answered(yes, ok bool) string {
	switch {
	case !ok:
		return "cancel"
	case yes:
		return "accept"
	}
	return "decline"
}

// yes asks a question that is answered by y or n; an empty line is n.
func (p *person) yes(ctx context.Context, question string) (answer, ok bool) {
	for {
		line, ok := p.ask(ctx, "%s [y/N]", question)
		switch strings.ToLower(line) {
		case "y", "yes":
			return true, ok
		case "", "n", "no":
			return false, ok
		}
	}
}

// field is one of a form.
type field struct {
	Type        string           `json:"type"`
	Title       string           `json:"title"`
	Description string           `json:"description"`
	Enum        []jsontext.Value `json:"enum"`
	Default     jsontext.Value   `json:"default"`

	name     string
	required bool
}

// form lists the fields of a form, in the order of the schema.
func form(schema protocol.Object) (fields []field, err error) {
	required, _ := schema.Get("required")
	names, _ := required.Strings()
	properties, _ := schema.Child("properties")
	for key, val := range properties.All() {
		f := field{name: string(key), required: slices.Contains(names, string(key))}
		if err := json.Unmarshal(val, &f); err != nil {
			return nil, fmt.Errorf("the field %.100q of the form cannot be read", key)
		}
		fields = append(fields, f)
	}
	return fields, nil
}

// fill has the person fill in a form. A form with one yes or no is one question.
func (p *person) fill(
	ctx context.Context, req *protocol.MCPElicitRequest,
) (action string, content protocol.Object, err error) {
	fields, err := form(req.RequestedSchema)
	if err != nil {
		return "", content, err
	}
	values := map[string]jsontext.Value{}
	switch {
	case len(fields) == 1 && fields[0].Type == "boolean":
		yes, ok := p.yes(ctx, oneLine(req.Message))
		if !ok {
			return "cancel", content, nil
		}
		values[fields[0].name] = jsontext.Value(strconv.FormatBool(yes))
	case len(fields) == 0:
		fmt.Fprintf(p.out, "%s asks: %s\n", oneLine(req.ServerID), oneLine(req.Message))
		if action := answered(p.yes(ctx, "Accept?")); action != "accept" {
			return action, content, nil
		}
	default:
		fmt.Fprintf(p.out, "%s asks: %s\nAn empty line leaves a field out, and declines where the field is required.\n",
			oneLine(req.ServerID), oneLine(req.Message))
		for _, f := range fields {
			val, ok := p.value(ctx, &f)
			switch {
			case !ok:
				return "cancel", content, nil
			case val != nil:
				values[f.name] = val
			case f.required:
				return "decline", content, nil
			}
		}
	}
	raw, err := json.Marshal(values, json.Deterministic(true))
	if err != nil {
		return "", content, err
	}
	content, err = protocol.ParseObject(raw)
	return "accept", content, err
}

// value asks for one field until the answer fits; nil = it is left out.
func (p *person) value(ctx context.Context, f *field) (val jsontext.Value, ok bool) {
	label := oneLine(cmp.Or(f.Title, f.name))
	if f.Description != "" && f.Description != f.Title {
		label += " (" + oneLine(f.Description) + ")"
	}
	if want := f.want(); want != "" {
		label += ", " + want
	}
	if f.required {
		label += ", required"
	}
	if len(f.Default) > 0 {
		label += fmt.Sprintf(" [%s]", oneLine(shown(f.Default)))
	}
	for {
		line, ok := p.ask(ctx, "%s:", label)
		if !ok || line == "" {
			return f.Default, ok
		}
		if val, ok := f.read(line); ok {
			return val, true
		}
	}
}

// want says in words what a field takes; "" = any text.
func (f *field) want() string {
	if len(f.Enum) > 0 {
		return "one of " + strings.Join(each(f.Enum, func(v jsontext.Value) string { return oneLine(shown(v)) }), ", ")
	}
	return map[string]string{"boolean": "y or n", "integer": "an integer", "number": "a number"}[f.Type]
}

// shown is a value as a person reads it: a text without quotes.
func shown(v jsontext.Value) string {
	if text, ok := protocol.Value(v).Str(); ok {
		return text
	}
	return string(v)
}

// read makes the value of a line; ok = false where the line does not fit the field.
func (f *field) read(line string) (val jsontext.Value, ok bool) {
	raw := jsontext.Value(line)
	switch {
	case len(f.Enum) > 0:
		i := slices.IndexFunc(f.Enum, func(v jsontext.Value) bool { return shown(v) == line })
		if i < 0 {
			return nil, false
		}
		return f.Enum[i], true
	case f.Type == "boolean":
		word := strings.ToLower(line)
		yes := slices.Contains([]string{"y", "yes", "true"}, word)
		return jsontext.Value(strconv.FormatBool(yes)), yes || slices.Contains([]string{"n", "no", "false"}, word)
	case f.Type == "integer":
		_, err := strconv.ParseInt(line, 10, 64)
		return raw, err == nil
	case f.Type == "number":
		return raw, raw.Kind() == '0' && raw.IsValid()
	}
	return protocol.AppendString(nil, line), true
}

// sample has the person write what a model would. Without a terminal there is no model.
func (p *person) sample(ctx context.Context, req *protocol.MCPSampleRequest) (*protocol.MCPSampleResponse, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	who := oneLine(cmp.Or(req.ServerID, "the host"))
	if !p.there() {
		p.say("%s asks for a text of a model, and this command has none; "+
			"name one as llm in the config, or run the command on a terminal and write the text yourself", who)
		return nil, errors.New("this command has no model, and nobody is at a terminal to answer in its place")
	}
	var lines []string
	_ = p.sys.aside(func() error {
		fmt.Fprintf(p.out, "%s asks for a text of a model:\n", who)
		for _, m := range req.Messages {
			content, _ := m.Child("content")
			text := cmp.Or(content.Text("text"), m.Text("content"))
			fmt.Fprintf(p.out, "  %s: %s\n", oneLine(m.Text("role")), oneLine(text))
		}
		fmt.Fprintln(p.out, "Write it; an empty line ends it, and refuses where it is the first.")
		for {
			line, ok := p.ask(ctx, ">")
			if !ok || line == "" {
				return nil
			}
			lines = append(lines, line)
		}
	})
	if len(lines) == 0 {
		return nil, errors.New("the person at the terminal refused")
	}
	raw := protocol.AppendString([]byte(`{"type":"text","text":`), strings.Join(lines, "\n"))
	content, err := protocol.ParseObject(append(raw, '}'))
	return &protocol.MCPSampleResponse{
		ServerID: req.ServerID, MCPRequestID: req.MCPRequestID,
		Role: "assistant", Content: content, Model: "person", StopReason: "endTurn",
	}, err
}
