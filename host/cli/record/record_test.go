package record_test

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/cli/record"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestMessagesAreCompact: a record has each message in its shortest form, whatever form it was sent in. A line that
// is not JSON is recorded as a text.
func TestMessagesAreCompact(t *testing.T) {
	for _, line := range []string{
		`{"type":"ping","id":"1"}`, `{ "type" : "ping" }`, "{\"a\":\t1}", `{"a":[1, 2]}`, `{"a b":"c d\n"}`,
		`{"a":"\u0041\/"}`, `{"a":"\\u0041"}`, `{"a":"\\","b": "x"}`, `{"a":"\\\"","b":"y"}`, `{"a":"\\\\" }`,
		`{"a":1,"a": 2}`, `{"a":1,"a":2}`, `[{"a":1}]`, `"a b"`, `{}`,
	} {
		want := jsontext.Value(line)
		must.OK(t, want.Format(jsontext.AllowDuplicateNames(true)))
		entry := record.NewEncoder(nil, nil).Line(nil, time.UnixMicro(1_500_000), record.In, "", []byte(line))
		assert.Equal(t, string(entry), `{"n":1,"ts":1.500000,"dir":"in","msg":`+string(want)+"}\n", "%s became", line)
	}
	for _, line := range []string{`{"a":1`, `{"a":1}}`, `{"a":tru}`, `{"a":"b}`, `plain text`} {
		entry := record.NewEncoder(nil, nil).Line(nil, time.UnixMicro(1_500_000), record.Out, "", []byte(line))
		want := string(must.Get(jsontext.AppendQuote(nil, line))(t))
		assert.Equal(t, string(entry), `{"n":1,"ts":1.500000,"dir":"out","text":`+want+"}\n", "%s became", line)
	}
}
