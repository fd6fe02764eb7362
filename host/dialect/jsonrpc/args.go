package jsonrpc

import (
	"context"
	"errors"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// splitCommand takes the name off a command.
func splitCommand(raw string) (name, rest string, err error) {
	raw = strings.TrimSpace(raw)
	if !strings.HasPrefix(raw, "/") {
		return "", "", errors.New(`must be a tool with its arguments, such as /NAME {"key":"value"} or /NAME key=value`)
	}
	raw = raw[1:]
	end := strings.IndexFunc(raw, unicode.IsSpace)
	if end < 0 {
		end = len(raw)
	}
	if end == 0 {
		return "", "", errors.New("has no name of a tool after the slash")
	}
	return raw[:end], strings.TrimSpace(raw[end:]), nil
}

// arguments reads the arguments of a command, JSON or key=value pairs.
func (f *Front) arguments(ctx context.Context, tool, rest string) (protocol.Object, error) {
	if rest == "" {
		return protocol.Object{}, nil
	}
	if strings.HasPrefix(rest, "{") {
		obj, err := protocol.ParseObject([]byte(rest))
		if err != nil {
			return obj, errors.New("the arguments: " + jsonrpc.From(err).Message)
		}
		return obj, nil
	}
	pairs, err := splitPairs(rest)
	if err != nil {
		return protocol.Object{}, err
	}
	types := f.types(ctx, tool)
	raw := []byte{'{'}
	for i, p := range pairs {
		if i > 0 {
			raw = append(raw, ',')
		}
		raw = append(protocol.AppendString(raw, p.key), ':')
		raw = append(raw, p.json(types[p.key])...)
	}
	obj, err := protocol.ParseObject(append(raw, '}'))
	if err != nil {
		return obj, errors.New(jsonrpc.From(err).Message)
	}
	return obj, nil
}

// types gives the types of a tool's parameters, as far as they are known.
func (f *Front) types(ctx context.Context, tool string) map[string]string {
	var resp protocol.ToolListResponse
	if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &resp, nil); err != nil {
		return nil
	}
	types := make(map[string]string)
	for _, t := range resp.Tools {
		if t.Name == tool {
			for _, p := range t.InputParameters {
				types[p.Name] = p.Type
			}
		}
	}
	return types
}

// pair is one key=value of a command.
type pair struct {
	key, value string
	quoted     bool
}

// json gives the value as JSON. Where the parameter's type is not known, a bare value that
// is JSON is taken as that.
func (p *pair) json(typ string) []byte {
	text := jsontext.Value(strings.TrimSpace(p.value))
	if p.quoted && typ == "" || typ == "string" || !text.IsValid() {
		return protocol.AppendString(nil, p.value)
	}
	return text
}

// splitPairs reads key=value pairs. A value, or a part of one, may stand in quotes; within
// double quotes a backslash escapes as in JSON, and a line break is one.
func splitPairs(rest string) (pairs []pair, err error) {
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		end := strings.IndexFunc(rest, func(r rune) bool { return r == '=' || unicode.IsSpace(r) || r == '"' || r == '\'' })
		if end <= 0 || rest[end] != '=' {
			return nil, errors.New("the arguments should be a JSON object, or key=value pairs with quotes around values that have spaces")
		}
		p := pair{key: rest[:end]}
		if rest, err = p.read(rest[end+1:]); err != nil {
			return nil, err
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// read takes a value off the text; rest is what follows it.
func (p *pair) read(text string) (rest string, err error) {
	if text != "" && (text[0] == '{' || text[0] == '[') {
		dec := jsontext.NewDecoder(strings.NewReader(text))
		if val, err := dec.ReadValue(); err == nil {
			p.value = string(val)
			return text[dec.InputOffset():], nil
		}
	}
	var b strings.Builder
	for text != "" {
		switch c := text[0]; {
		case c == '\'':
			inner, after, ok := strings.Cut(text[1:], "'")
			if !ok {
				return "", errors.New("a quote in the value of " + quoted(p.key) + " is not closed")
			}
			p.quoted, text = true, after
			b.WriteString(inner)
		case c == '"':
			end := closingQuote(text)
			if end < 0 {
				return "", errors.New("a quote in the value of " + quoted(p.key) + " is not closed")
			}
			var inner string
			if err := json.Unmarshal([]byte(escapeBreaks(text[:end+1])), &inner); err != nil {
				return "", errors.New("the value of " + quoted(p.key) + " has an escape that JSON does not have")
			}
			p.quoted, text = true, text[end+1:]
			b.WriteString(inner)
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			p.value = b.String()
			return text, nil
		default:
			b.WriteByte(c)
			text = text[1:]
		}
	}
	p.value = b.String()
	return "", nil
}

// escapeBreaks writes line breaks and tabs in a text in double quotes as JSON wants them.
func escapeBreaks(text string) string {
	return strings.NewReplacer(`\\`, `\\`, "\\\n", "\\\n", "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(text)
}

// closingQuote finds the end of a text in double quotes; -1 = there is none.
func closingQuote(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}
