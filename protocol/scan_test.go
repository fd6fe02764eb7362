package protocol_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

// maxDepth is the scanner's own limit, which json/v2 does not share.
const maxDepth = 1000

// seeds adds real messages, odd ones, and JSONTestSuite, if it exists beside the project, to a fuzz
// target.
func seeds(f *testing.F) {
	for line := range bytes.Lines(hosttest.ReadTestdata(f, "wire/samples.ndjson")) {
		f.Add(bytes.TrimSpace(line))
	}
	for _, part := range [][]reading{duplicates(), surrogates(), numbers(), shapes()} {
		for _, c := range part {
			if len(c.line) < 1000 {
				f.Add([]byte(c.line))
			}
		}
	}
	files, _ := filepath.Glob("../../shared/jsontestsuite/*.json")
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && len(b) < 10_000 {
			f.Add(b)
		}
	}
}

// depth returns the nesting depth of a valid text.
func depth(text []byte) (deepest int) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		if _, err := dec.ReadToken(); err != nil {
			return deepest
		}
		deepest = max(deepest, dec.StackDepth())
	}
}

// FuzzScan: the scanner and json/v2 agree which texts are JSON without duplicate names, and on the
// members of an object.
func FuzzScan(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		obj, err := protocol.ParseObject(text)
		must.That(t, bytes.Equal(before, text), "the text was changed")
		valid := jsontext.Value(text).IsValid() && depth(text) <= maxDepth
		isObject := valid && jsontext.Value(text).Kind() == '{'
		must.Equal(t, isObject, (err == nil), "ParseObject says %v, json/v2 says valid: %t, object: …: %q", err, valid,
			text)
		var line protocol.Line
		lineErr := line.Scan(text)
		must.Equal(t, (lineErr == nil), (err == nil), "Scan says %v, ParseObject %v: %q", lineErr, err, text)
		if err == nil {
			sameMembers(t, obj, text)
			sameMembers(t, line.Object(), text)
			sameMembers(t, obj.Clone(), text)
			sameDecoded(t, obj, text)
			return
		}
		for key, val := range line.Object().All() { // the members of a text with a fault can be read
			got, ok := line.Object().Get(string(key))
			must.That(t, ok && bytes.Equal(got, val), "two members %q are told: %q", key, text)
			val.Str()
		}
	})
}

// TestFaultyMembers: a fault within a value removes only this value; a fault of syntax also removes
// everything after it.
func TestFaultyMembers(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{"a":1,"b":"\ud800","c":{"d":"\ud800"},"e":[1,]}`, `a=1 c={"d":"\ud800"} e=[1,] `},
		{`{"a":1,"a":1,"b":01,"c":tru,"d":null}`, `d=null `},
		{`{"a":1 "b":2}`, `a=1 `},
		{`{"a":1,"b" 2,"c":3}`, `a=1 `},
		{`{"a":1,"b`, `a=1 `},
		{`{"a":"x`, ``},
		{`{"a":12`, ``},
		{`{"a":"x"`, `a="x" `},
		{`{"a":1,}`, `a=1 `},
		{`{"a":1}]`, `a=1 `},
		{`{"a":1}{"b":2}`, ``},
		{`[{"a":1,}]`, ``},
		{` {"a" : [ "\ud800" ] , "b" : 2 } `, `a=[ "\ud800" ] b=2 `},
		{`{"\ud800":1,"\u0061":2}`, `a=2 `},
		{`{"a":{"b":[{},"}"]},"c":}`, `a={"b":[{},"}"]} `},
		{``, ``},
		{`{`, ``},
		{`{"a"`, ``},
		{`x`, ``},
	} {
		var line protocol.Line
		err := line.Scan([]byte(c.text))
		told := ""
		for key, val := range line.Object().All() {
			told += fmt.Sprintf("%s=%s ", key, val)
		}
		assert.That(t, err != nil && told == c.want, "of %s is told %s, should be %s (%v)", c.text, told, c.want, err)
	}
}

// TestSplitArray: the elements of an array are separated, whatever faults they have.
func TestSplitArray(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string // nil = not an array
	}{
		{`[]`, []string{}},
		{` [ 1 , "a,]" , {"b":[1,{"c":"]"}]} ] `, []string{`1`, `"a,]"`, `{"b":[1,{"c":"]"}]}`}},
		{`[{"a":"\ud800"},{"a":1,"a":}]`, []string{`{"a":"\ud800"}`, `{"a":1,"a":}`}},
		{`[1,]`, nil},
		{`[1`, nil},
		{`[1]]`, nil},
		{`[1 2]`, nil},
		{`{}`, nil},
		{``, nil},
		{`[,]`, nil},
		{`[ ] x`, nil},
	} {
		all, ok := protocol.SplitArray([]byte(c.text))
		assert.That(t, ok == (c.want != nil) && (!ok || fmt.Sprintf("%s", all) == fmt.Sprint(c.want)), "%s: %s %t",
			c.text, all, ok)
	}
}

// sameMembers checks that an object has the members that json/v2 reads.
func sameMembers(t *testing.T, obj protocol.Object, text []byte) {
	t.Helper()
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	must.Get(dec.ReadToken())(t)
	i := 0
	for ; dec.PeekKind() != '}'; i++ {
		name := must.Get(dec.ReadToken())(t)
		key := name.String()
		val := must.Get(dec.ReadValue())(t)
		must.That(t, i < obj.Len() && obj.Key(i) == key && bytes.Equal(obj.Value(i), val), "member %d is not %q: %q", i,
			key, text)
		if got, ok := obj.Get(key); !ok || !bytes.Equal(got, val) {
			t.Fatalf("Get(%q) gives %q: %q", key, got, text)
		}
		sameString(t, got(obj, key), val)
	}
	must.Equal(t, obj.Len(), i, "… members, should be …: %q", text)
	i = 0
	for key, val := range obj.All() {
		must.That(t, string(key) == obj.Key(i) && bytes.Equal(val, obj.Value(i)), "All gives %q at %d: %q", key, i,
			text)
		i++
	}
}

func got(obj protocol.Object, key string) protocol.Value {
	val, _ := obj.Get(key)
	return val
}

func sameString(t *testing.T, val protocol.Value, raw jsontext.Value) {
	t.Helper()
	text, ok := val.Str()
	var want string
	err := json.Unmarshal(raw, &want)
	isString := raw.Kind() == '"'
	must.That(t, ok == isString && (!isString || err == nil && text == want), "Str of %q gives %q, %t", raw, text, ok)
}

// sameDecoded checks that the handwritten decoder of a tool call returns the same as json/v2.
func sameDecoded(t *testing.T, obj protocol.Object, text []byte) {
	t.Helper()
	var mine protocol.ToolCallRequest
	err := protocol.Decode(obj, nil, &mine)
	type plain struct {
		SessionID     string         `json:"session_id"`
		ToolName      string         `json:"tool_name"`
		Arguments     jsontext.Value `json:"arguments"`
		CorrelationID string         `json:"correlation_id"`
		Streaming     bool           `json:"streaming"`
		Timeout       jsontext.Value `json:"timeout"`
	}
	var theirs plain
	wantErr := json.Unmarshal(text, &theirs)
	if kind := theirs.Arguments.Kind(); wantErr == nil && kind != 0 && kind != 'n' && kind != '{' {
		wantErr = errors.New("arguments are not object")
	}
	if kind := theirs.Timeout.Kind(); wantErr == nil && kind != 0 && kind != 'n' {
		var seconds float64
		if wantErr = json.Unmarshal(theirs.Timeout, &seconds); wantErr == nil && seconds != float64(int(seconds)) {
			wantErr = errors.New("timeout is not an integer")
		}
		if seconds > 1e15 || seconds < -1e15 { // the borders of the range are tested elsewhere
			return
		}
	}
	must.Equal(t, (err == nil), (wantErr == nil), "Decode says %v, json/v2 says %v: %q", err, wantErr, text)
	if err != nil {
		return
	}
	args := string(theirs.Arguments)
	if args == "" || args == "null" {
		args = "{}"
	}
	if mine.SessionID != theirs.SessionID || mine.ToolName != theirs.ToolName || string(mine.Arguments.Raw()) != args ||
		mine.CorrelationID != theirs.CorrelationID || mine.Streaming != theirs.Streaming {
		t.Fatalf("decoded as %+v, should be %+v: %q", mine, theirs, text)
	}
	if mine.Arguments.Len() > 0 || args != "{}" {
		sameMembers(t, mine.Arguments, []byte(args))
	}
}

// FuzzEnvelope: the envelope of a line has the members that json/v2 reads, and the line is encoded as
// valid JSON.
func FuzzEnvelope(f *testing.F) {
	seeds(f)
	var line protocol.Line // reused for each line, as in the host
	f.Fuzz(func(t *testing.T, text []byte) {
		if line.Scan(text) != nil {
			return
		}
		var want map[string]jsontext.Value
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%v: %q", err, text)
		}
		kind, _ := protocol.Value(want["type"]).Str()
		if code := checkModel(want, kind); code != codeOf(line.Check()) {
			t.Fatalf("Check says %v, want %q: %q", line.Check(), code, text)
		}
		must.Equal(t, string(line.Type), kind, "type %q, want …: %q", line.Type, text)
		for key, val := range map[string]protocol.Value{"id": line.ID, "req_id": line.ReqID} {
			same := string(want[key])
			if want[key].Kind() == '0' {
				same = strconv.Quote(same)
			}
			must.That(t, (val != nil || same == "" || same[0] != '"') && (val == nil || string(val) == same),
				"%s is %q: %q", key, val, text)
		}
		must.Equal(t, string(line.CorrelationID), string(want["correlation_id"]), "correlation_id is %q: %q",
			line.CorrelationID, text)
		_, rpc := want["jsonrpc"]
		must.Equal(t, rpc, line.RPC, "RPC is …: %q", text)
		encoded, err := protocol.AppendJSON(nil, line.Object())
		must.That(t, err == nil && jsontext.Value(encoded).IsValid() && !bytes.Contains(encoded, []byte("\n")),
			"encodes as %q, %v: %q", encoded, err, text)
	})
}

// checkModel returns the code with which Check must refuse an envelope, or "".
func checkModel(want map[string]jsontext.Value, kind string) protocol.ErrorCode {
	for _, key := range []string{"id", "req_id"} {
		if k := want[key].Kind(); k != 0 && k != '"' && k != 'n' && k != '0' {
			return protocol.CodeInvalidMessage
		}
	}
	if kind == "" {
		return protocol.CodeInvalidMessage
	}
	for _, key := range []string{"a2e", "version"} {
		text, ok := protocol.Value(want[key]).Str()
		if k := want[key].Kind(); k != 0 && k != 'n' && (!ok || text != "1" && !strings.HasPrefix(text, "1.")) {
			return protocol.CodeVersionMismatch
		}
	}
	return ""
}

func codeOf(err error) protocol.ErrorCode {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e.Code
	}
	return ""
}

// TestDepth: a text may nest as deep as the scanner's limit, and no deeper.
func TestDepth(t *testing.T) {
	for _, n := range []int{2, 999, 1000} {
		_, err := protocol.ParseObject(nested(n))
		assert.That(t, err == nil, "%d deep: %v", n, err)
	}
	for _, n := range []int{1001, 1002, 100_000} {
		_, err := protocol.ParseObject(nested(n))
		assert.Equal(t, codeOf(err), protocol.CodeParseError, "%d deep: %v", n, err)
	}
}

// TestMembers: the limit of members holds for the outermost object and for those directly in it.
func TestMembers(t *testing.T) {
	object := func(n int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, `%q:0,`, strconv.Itoa(i))
		}
		return "{" + strings.TrimSuffix(text.String(), ",") + "}"
	}
	whole := object(100_000)
	for text, ok := range map[string]bool{
		whole: true, object(100_000 + 1): false, `{"a":[` + whole + `]}`: true,
		`{"a":` + whole + `}`: false, `{"a":{"b":` + whole + `}}`: true,
	} {
		_, err := protocol.ParseObject([]byte(text))
		assert.That(t, err == nil == ok && (ok || codeOf(err) == protocol.CodeParseError), "%.20s… of %d bytes: %v",
			text, len(text), err)
	}
}

// nested returns an object with arrays in it, n levels in all.
func nested(n int) []byte {
	return []byte(`{"a":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + "}")
}

// TestAppendString: AppendString writes the same text as jsontext.AppendQuote, also for invalid UTF-8.
func TestAppendString(t *testing.T) {
	for c := range 256 {
		for _, text := range []string{
			string([]byte{byte(c)}), "abcdefgh" + string([]byte{byte(c)}) + "€",
			"é" + string([]byte{byte(c)}),
		} {
			want, _ := jsontext.AppendQuote(nil, text)
			assert.Equal(t, string(protocol.AppendString(nil, text)), string(want), "%q", text)
		}
	}
	pieces := rapid.SliceOf(rapid.SampledFrom([]string{
		"a", "abcdefghi", "\n", "\r\n", "\t", "\"", "\\", "\x00", "\x7f",
		"é", "€", "😀", "\xff", "\xe2\x82", "\u2028", "\ufffd", "<&>",
	}))
	property.Check(t, func(r *rapid.T) {
		text := strings.Join(pieces.Draw(r, "text"), "")
		want, _ := jsontext.AppendQuote([]byte("before"), text)
		assert.Equal(r, string(protocol.AppendString([]byte("before"), []byte(text))), string(want), "%q", text)
	})
	text := strings.Repeat("0123456789\n", 1000)
	dst := make([]byte, 0, 2*len(text))
	assert.Equal(t, testing.AllocsPerRun(10, func() { protocol.AppendString(dst, text) }), 0, "allocations: …")
}
