package protocol_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// recorder is a plugin that records the calls that reach it.
type recorder struct {
	mu   sync.Mutex // guards seen
	seen []string
}

func (r *recorder) Info() host.PluginInfo {
	return host.PluginInfo{Name: "recorder", Capability: protocol.CapTools}
}

func (r *recorder) Close(context.Context) error { return nil }

func (r *recorder) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeToolCallReq, r.call)}
}

func (r *recorder) call(_ context.Context, req *protocol.ToolCallRequest, _ host.Emitter) (*protocol.ToolCallResponse,
	error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, meaning(req.ToolName, string(req.Arguments.Raw()), req.Timeout, req.Streaming))
	return &protocol.ToolCallResponse{Data: protocol.ToolResult{Success: true, ToolName: req.ToolName}}, nil
}

// take returns the calls since the last take.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := strings.Join(r.seen, "; ")
	r.seen = nil
	return all
}

func meaning(tool, args string, timeout int, streaming bool) string {
	return fmt.Sprintf("%q %s %d %t", tool, args, timeout, streaming)
}

// reading is a line and its only allowed result: an error with a code, or one meaning that reaches the
// plugin.
type reading struct {
	name, line string
	code       protocol.ErrorCode
	means      string
}

// usual is the meaning of an unchanged call.
var usual = meaning("t", `{"a":1}`, 30, false)

// call makes the line of a tool call with extra members. replace has old and new texts in turn.
func call(extra string, replace ...string) string {
	line := strings.NewReplacer(replace...).Replace(`{"type":"tool/call/req","id":"ID","tool_name":"t","arguments":{"a":1}EXTRA}`)
	return strings.Replace(line, "EXTRA", extra, 1)
}

// TestOneMeaning: no line reaches a plugin with another meaning than its own, and each line is answered
// once.
func TestOneMeaning(t *testing.T) {
	rec := &recorder{}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{rec}})
	p.Handshake(protocol.CapTools)
	var all []reading
	for _, part := range [][]reading{
		duplicates(), strangeKeys(), badUTF8(), surrogates(), controls(), numbers(),
		shapes(),
	} {
		all = append(all, part...)
	}
	assert.That(t, len(all) >= 200, "only %d cases", len(all))
	p.Recv()
	for i, c := range all {
		t.Run(c.name, func(t *testing.T) {
			p.SendRaw(strings.ReplaceAll(c.line, `"ID"`, fmt.Sprintf(`"m%d"`, i)) + "\n")
			ping := p.Go(protocol.TypePing, "")
			got := p.Recv()
			if pong := p.Recv(); pong.ReqID != ping { // a slow call may be overtaken
				got, pong = pong, got
				must.Equal(t, pong.ReqID, ping, "%q was answered by %s and %s", c.line, got, pong)
			}
			assert.Equal(t, got.Code, c.code, "%q was answered by %s, want code", c.line, got.Line)
			means := rec.take()
			assert.Equal(t, means, c.means, "%q reached the plugin as", c.line)
		})
	}
	last := p.Go(protocol.TypePing, "")
	assert.Equal(t, p.Recv().ReqID, last, "something was answered twice")
	t.Logf("%d cases", len(all))
}

// duplicates are lines with the same key twice in one object, also in another spelling or deep inside.
func duplicates() (all []reading) {
	for key, values := range map[string][2]string{
		"type": {`"tool/call/req"`, `"shutdown"`}, "id": {`"ID"`, `"other"`}, "tool_name": {`"t"`, `"u"`},
		"arguments": {`{"a":1}`, `{"a":2}`},
	} {
		first := fmt.Sprintf(`\u%04x`, key[0])
		for name, spelled := range map[string]string{
			"plain": key, "escaped": first + key[1:], "escaped upper": strings.ToUpper(first[:2]) +
				strings.ToUpper(first[2:]) + key[1:],
			"escaped last": key[:len(key)-1] + fmt.Sprintf(`\u%04X`, key[len(key)-1]),
		} {
			spelled = strings.Replace(spelled, `\U`, `\u`, 1)
			for same, value := range map[string]string{"same": values[0], "other": values[1]} {
				all = append(all, reading{
					name: fmt.Sprintf("duplicate/%s/%s/%s", key, name, same), code: protocol.CodeInvalidMessage,
					line: call(fmt.Sprintf(`,"%s":%s`, spelled, value)),
				})
			}
		}
	}
	many := ""
	for i := range 400 {
		many += fmt.Sprintf(`"k%d":%d,`, i, i)
	}
	for name, args := range map[string]string{
		"nested": `{"x":{"a":1,"a":2}}`, "in array": `{"x":[1,{"a":1,"\u0061":2}]}`, "of arguments": `{"a":1,"a":1}`,
		"deep": `{"x":[[[{"y":{"z":[{"a":1,"b":2,"a":3}]}}]]]}`, "empty key": `{"":1,"":2}`,
		"apart":       `{"a":1,"b":{"a":1},"a":2}`,
		"many, first": `{` + many + `"k0":1}`, "many, last": `{` + many + `"k399":1}`,
		"many, escaped": `{` + many + `"\u006b3":1}`,
		"escaped slash": `{"a/b":1,"a\/b":2}`, "surrogates": `{"😀":1,"\ud83d\ude00":2}`,
		"NUL": `{"\u0000":1,"\u0000":2}`,
	} {
		all = append(all, reading{
			name: "duplicate/" + name, code: protocol.CodeInvalidMessage,
			line: call("", `{"a":1}`, args),
		})
	}
	for _, args := range []string{`{"a":{"a":{"a":1}}}`, `{"x":[{"a":1},{"a":2}]}`, `{` + many + `"a":{"k0":1}}`} {
		all = append(all, reading{
			name: "no duplicate", line: call("", `{"a":1}`, args),
			means: meaning("t", args, 30, false),
		})
	}
	return all
}

// strangeKeys are lines with keys that look like real ones: beside the real key they change nothing,
// and in its place they do not count.
func strangeKeys() (all []reading) {
	for _, key := range []string{"type", "id", "tool_name", "arguments", "timeout", "streaming"} {
		for name, strange := range map[string]string{
			"upper": strings.ToUpper(key), "title": strings.ToUpper(key[:1]) + key[1:], "NUL after": key + `\u0000`,
			"NUL before": `\u0000` + key, "space after": key + " ", "tab before": `\t` + key,
			"Cyrillic":   strings.NewReplacer("a", "а", "e", "е", "i", "і", "o", "о").Replace(key),
			"full width": string(rune(key[0])+0xfee0) + key[1:], "zero width": key[:1] + "\u200b" + key[1:],
			"BOM":       "\ufeff" + key,
			"combining": key + "\u0301", "soft hyphen": key[:1] + "\u00ad" + key[1:], "underscore": "_" + key,
			"Kelvin": key + "\u212a",
		} {
			all = append(all, reading{
				name: "strange key/" + key + "/beside/" + name, means: usual,
				line: call(fmt.Sprintf(`,"%s":"shutdown"`, strange)),
			})
			c := reading{name: "strange key/" + key + "/instead/" + name, line: call("", `"`+key+`"`, `"`+strange+`"`)}
			switch key {
			case "type":
				c.code = protocol.CodeInvalidMessage
			case "arguments", "tool_name":
				c.code = protocol.CodeSchemaViolation
			default:
				c.means = usual
			}
			all = append(all, c)
		}
	}
	return all
}

// badUTF8 are lines with bytes that are not UTF-8, in every place where text can be.
func badUTF8() (all []reading) {
	for name, bytes := range map[string]string{
		"lone continuation": "\x80", "last continuation": "\xbf", "overlong slash": "\xc0\xaf",
		"overlong NUL": "\xc0\x80", "overlong 2": "\xc1\x81",
		"overlong 3": "\xe0\x80\xaf", "overlong 4": "\xf0\x80\x80\xaf", "high surrogate": "\xed\xa0\x80",
		"low surrogate":  "\xed\xbf\xbf",
		"surrogate pair": "\xed\xa0\xbd\xed\xb8\x80", "past the end": "\xf4\x90\x80\x80",
		"five bytes": "\xf8\x88\x80\x80\x80", "FE": "\xfe", "FF": "\xff",
		"cut 2": "\xc3", "cut 3": "\xe2\x82", "cut 4": "\xf0\x9f\x98", "Latin 1": "caf\xe9", "too many": "\xc3\xa9\xa9",
	} {
		for place, line := range map[string]string{
			"key": call(`,"` + bytes + `":1`), "value": call("", `{"a":1}`, `{"a":"`+bytes+`"}`),
			"type": call("", "tool/call/req", "tool/call/req"+bytes), "tool": call("", `"t"`, `"t`+bytes+`"`),
		} {
			all = append(all, reading{name: "UTF-8/" + name + "/" + place, line: line, code: protocol.CodeParseError})
		}
	}
	for _, good := range []string{"é", "€", "😀", "\uffff", "\ufffd", "\U0010ffff", "\u2028", "\x7f"} {
		args := `{"a":"` + good + `"}`
		all = append(all, reading{
			name: "UTF-8/good", line: call("", `{"a":1}`, args),
			means: meaning("t", args, 30, false),
		})
	}
	return all
}

// surrogates are lines with escapes of half a character.
func surrogates() (all []reading) {
	for _, half := range []string{
		`\ud800`, `\udbff`, `\udc00`, `\udfff`, `\uD800`, `\ud800\ud800`, `\udc00\ud800`, `\ud800x`, `\ud800\n`,
		`\ud83d\u0041`, `x\ude00`,
		`\ud83d\ude0`, `\ud83d\ud`, `\ud83d\`, `\ud83d \ude00`, `\ud83d\ude00\ud83d`, `\udc00\udc00`, `\udfff\udc01`,
		`\ud83d\\ude00`, `\ud83d\uff00`,
	} {
		for place, line := range map[string]string{
			"value": call("", `{"a":1}`, `{"a":"`+half+`"}`), "key": call(`,"` + half + `":1`),
			"tool": call("", `"t"`, `"`+half+`"`),
		} {
			all = append(all, reading{
				name: "surrogate/" + half + "/" + place, line: line,
				code: protocol.CodeParseError,
			})
		}
	}
	for _, whole := range []string{`\ud83d\ude00`, `\uD83D\uDE00`, `\udbff\udfff`, `\ud800\udc00`, `\ufffe`, `\u0000`} {
		args := `{"a":"` + whole + `"}`
		all = append(all, reading{
			name: "surrogate/whole", line: call("", `{"a":1}`, args),
			means: meaning("t", args, 30, false),
		})
	}
	return append(all, reading{
		name: "surrogate/tool", line: call("", `"t"`, `"\ud83d\ude00"`),
		means: meaning("😀", `{"a":1}`, 30, false),
	})
}

// controls are lines with a control character that is not escaped in its string.
func controls() (all []reading) {
	for c := range byte(0x20) {
		if c != '\n' {
			all = append(all, reading{name: fmt.Sprintf("control/%#x", c), line: call("", `{"a":1}`,
				`{"a":"`+string(rune(c))+`"}`), code: protocol.CodeParseError})
		}
	}
	return all
}

// numbers are lines with numbers, which arrive as they were sent, or are refused.
func numbers() (all []reading) {
	for _, bad := range []string{
		"01", "-01", "+1", ".5", "1.", "1.e1", "1e", "1e+", "0x10", "NaN", "Infinity", "-Infinity", "-", "--1", "1_000",
		"1,5", "٣", "1e1.5", "0b1", "1f",
	} {
		all = append(all, reading{
			name: "number/" + bad, line: call("", `{"a":1}`, `{"a":`+bad+`}`),
			code: protocol.CodeParseError,
		})
	}
	for _, good := range []string{
		"0", "-0", "9007199254740993", "123456789012345678901234567890", "1e400", "-1E-400", "0.1000", "1.0", "1e0",
		"-0.0e+0",
	} {
		args := `{"a":` + good + `}`
		all = append(all, reading{
			name: "number/" + good, line: call("", `{"a":1}`, args),
			means: meaning("t", args, 30, false),
		})
	}
	for _, bad := range []string{"1.5", "1e-1", "1e30", "9223372036854775808", `"5"`, "true", "[]"} {
		all = append(all, reading{
			name: "number/timeout/" + bad, line: call(`,"timeout":` + bad),
			code: protocol.CodeSchemaViolation,
		})
	}
	for sent, seconds := range map[string]int{"7": 7, "1.0": 1, "1e1": 10, "-0": 0} {
		all = append(all, reading{
			name: "number/timeout/" + sent, line: call(`,"timeout":` + sent),
			means: meaning("t", `{"a":1}`, seconds, false),
		})
	}
	return append(all, reading{
		name: "number/timeout", line: call(`,"timeout":5,"streaming":true`),
		means: meaning("t", `{"a":1}`, 5, true),
	},
		reading{name: "null is absent", line: call(`,"timeout":null,"streaming":null,"session_id":null`), means: usual})
}

// shapes are lines that are almost one object.
func shapes() (all []reading) {
	whole := call("")
	for name, line := range map[string]string{
		"two objects": whole + whole, "comma after": whole + ",", "text after": whole + "x",
		"open": whole[:len(whole)-1], "twice closed": whole + "}",
		"trailing comma": call(","), "comment": call("/* */"), "hash": whole + "# x",
		"single quotes": strings.ReplaceAll(whole, `"`, `'`),
		"bare key":      call(`,x:1`), "no colon": call(`,"x" 1`), "no value": call(`,"x":`), "no comma": call(` "x":1`),
		"form feed":    whole + "\f",
		"vertical tab": "\v" + whole, "NBSP": "\u00a0" + whole, "BOM": "\ufeff" + whole, "NUL": whole + "\x00",
		"True": call(`,"x":True`), "nul": call(`,"x":nul`),
		"bad escape": call(`,"x":"\a"`), "short escape": call(`,"x":"\u12"`), "octal": call(`,"x":"\101"`),
		"JSONP": "f(" + whole + ")", "number key": call(`,1:1`),
		"too deep": call(`,"x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000)),
	} {
		all = append(all, reading{name: "shape/" + name, line: line, code: protocol.CodeParseError})
	}
	for name, line := range map[string]string{
		"array": "[" + whole + "]", "string": `"{}"`, "null": "null", "empty": "{}",
		"id list":   call("", `"ID"`, `["ID"]`),
		"type of 7": call("", `"tool/call/req"`, "7"), "type null": call("", `"tool/call/req"`, "null"),
		"type upper":  call("", "tool/call/req", "TOOL/CALL/REQ"),
		"type spaced": call("", "tool/call/req", "tool/call/req "), "type NUL": call("", "tool/call/req",
			`tool/call/req\u0000`),
	} {
		all = append(all, reading{name: "shape/" + name, line: line, code: protocol.CodeInvalidMessage})
	}
	for name, line := range map[string]string{
		"spaces":       " \t" + strings.NewReplacer(":", " : ", ",", "\t,\r ").Replace(whole) + " \r",
		"deep":         call(`,"x":` + strings.Repeat("[", 999) + strings.Repeat("]", 999)),
		"escaped type": call("", "tool/call/req", `\u0074ool\/call\u002freq`), "escaped keys": call("", `"tool_name"`,
			`"\u0074ool\u005fname"`, `"type"`, `"typ\u0065"`),
		"id of 7": call("", `"ID"`, "7"), "req_id of 7": call(`,"req_id":7`),
		"order": `{"arguments":{"a":1},"id":"ID","tool_name":"t","type":"tool/call/req"}`,
	} {
		means := usual
		if name == "spaces" {
			means = meaning("t", `{"a" : 1}`, 30, false)
		}
		all = append(all, reading{name: "shape/" + name, line: line, means: means})
	}
	return all
}
