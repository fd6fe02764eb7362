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

// person answers the questions of a command's host: approvals of chains and forms of MCP servers
// (mcp/elicit/req), and texts that a model would write (mcp/sample/req). If the command has no
// terminal, the person is told once how to answer from elsewhere.
type person struct {
	sys  *System
	told func(req *protocol.MCPElicitRequest) string // returns how to answer from elsewhere; "" = impossible
	out  io.Writer                                   // shows the questions
	over <-chan struct{}                             // closed once the command is interrupted; nil = never

	// prompt asks on a screen; nil = the question goes to out, and the answer comes from stdin.
	prompt func(ctx context.Context, question string) (line string, ok bool)

	turn  sync.Mutex  // held during a question; guards the fields below
	lines chan string // typed lines; nil = nothing was read yet
	seen  []string    // notes that the person was shown
}

// newPerson returns the person at the command's terminal.
func newPerson(sys *System) *person {
	return &person{sys: sys, out: sys.Err, told: func(*protocol.MCPElicitRequest) string { return "" }}
}

// there reports whether a person reads stderr and types on stdin, or is asked with prompt.
func (p *person) there() bool {
	return p.prompt != nil || isatty.IsTerminal(p.sys.In.Fd()) && isatty.IsTerminal(p.sys.Err.Fd())
}

// answers makes the person answer the questions of the host of conn.
func (p *person) answers(conn *client.Client) {
	conn.Handle(protocol.TypeMCPElicitReq, answering(p.elicit))
	conn.Handle(protocol.TypeMCPSampleReq, answering(p.sample))
}

// answering returns a handler that answers a message of the host with a function.
func answering[Q, A any](answer func(context.Context, *Q) (A, error)) client.Handler {
	return func(ctx context.Context, m client.Message) (any, error) {
		var req Q
		if err := m.Decode(&req); err != nil {
			return nil, err
		}
		return answer(ctx, &req)
	}
}

// errNobody is the answer if no person can read the question.
var errNobody = errors.New("nobody is at a terminal to answer")

// say shows a text to the person once. The caller must hold turn.
func (p *person) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(p.seen, text) {
		p.seen = append(p.seen, text)
		_ = p.sys.withoutBoard(func() error { say(p.out, "%s", text); return nil }) // a closed terminal shows nothing
	}
}

// ask prints a question and returns the typed line. ok is false at the end of the input, or if the
// command is interrupted.
func (p *person) ask(ctx context.Context, format string, args ...any) (line string, ok bool) {
	question := fmt.Sprintf(format+" ", args...)
	if p.prompt != nil {
		line, ok = p.prompt(ctx, question)
		return strings.TrimSpace(line), ok
	}
	if p.lines == nil {
		p.lines = make(chan string)
		go p.read() // ends with the input or with the process: a read from a terminal cannot be stopped
	}
	fmt.Fprint(p.out, question)
	select {
	case line, ok = <-p.lines:
		return strings.TrimSpace(line), ok
	case <-p.over: // before the host reports what became of its question
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
	err := p.sys.withoutBoard(func() (err error) {
		if req.Mode == "url" {
			resp.Action = p.visit(ctx, req)
			return nil
		}
		resp.Action, resp.Content, err = p.fill(ctx, req)
		return err
	})
	return resp, err
}

// visit asks the person to open a web page.
func (p *person) visit(ctx context.Context, req *protocol.MCPElicitRequest) (action string) {
	fmt.Fprintf(p.out, "%s asks: %s\n", oneLine(req.ServerID), oneLine(req.Message))
	fmt.Fprintf(p.out, "It wants you to open %s\n", oneLine(req.URL))
	return answered(p.yes(ctx, "Will you open it yourself?"))
}

// answered returns the protocol's word for an answer. ok = false means that there is no answer.
func answered(yes, ok bool) string {
	switch {
	case !ok:
		return "cancel"
	case yes:
		return "accept"
	}
	return "decline"
}

// yes asks a question whose answer is y or n; an empty line means n.
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

// field is a field of a form.
type field struct {
	Type        string           `json:"type"`
	Title       string           `json:"title"`
	Description string           `json:"description"`
	Enum        []jsontext.Value `json:"enum"`
	Default     jsontext.Value   `json:"default"`

	name     string
	required bool
}

// form returns the fields of a form, in the order of the schema.
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

// fill asks the person to fill in a form. A form with a single boolean field is one yes-or-no question.
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

// value asks for one field until the answer is valid. It returns nil if the field is left out.
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

// want returns in words what a field accepts; "" = any text.
func (f *field) want() string {
	if len(f.Enum) > 0 {
		return "one of " + strings.Join(each(f.Enum, func(v jsontext.Value) string { return oneLine(shown(v)) }), ", ")
	}
	return map[string]string{"boolean": "y or n", "integer": "an integer", "number": "a number"}[f.Type]
}

// shown formats a value for a person: a string without quotes.
func shown(v jsontext.Value) string {
	if text, ok := protocol.Value(v).Str(); ok {
		return text
	}
	return string(v)
}

// read returns the value of a line. ok is false if the line is not valid for the field.
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

// sample asks the person to write what a model would write. Without a terminal it returns an error.
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
	_ = p.sys.withoutBoard(func() error {
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
