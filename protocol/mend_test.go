package protocol_test

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

// Every null that another program could put into a message, at every place of every type,
// is mended to what the schema has there, or refused.
func TestWallNulls(t *testing.T) {
	wire := map[string]*wireType{}
	for _, w := range loadWire(t) {
		wire[w.Type] = &w
	}
	file, err := os.Open(samplesFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var whole map[string]any
		if err := json.Unmarshal(lines.Bytes(), &whole); err != nil {
			t.Fatal(err)
		}
		typ := whole["type"].(string)
		t.Run(typ, func(t *testing.T) {
			for key := range whole {
				switch key {
				case "a2e", "version", "type", "id", "ts", "req_id":
				default:
					nullEach(whole[key], func(val any) { whole[key] = val }, "/"+key, func(path string) {
						checkMended(t, wire[typ], whole, path)
					})
				}
			}
		})
	}
}

// nullEach puts a null in place of a value, and of each one in it, and calls try.
func nullEach(val any, set func(any), path string, try func(path string)) {
	set(nil)
	try(path)
	set(val)
	switch val := val.(type) {
	case map[string]any:
		for key := range val {
			nullEach(val[key], func(v any) { val[key] = v }, path+"/"+key, try)
		}
	case []any:
		for i := range val {
			nullEach(val[i], func(v any) { val[i] = v }, path+"/"+strconv.Itoa(i), try)
		}
	}
}

func checkMended(t *testing.T, w *wireType, whole map[string]any, path string) {
	t.Helper()
	line, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := protocol.ParseObject(line)
	if err != nil {
		t.Fatal(err)
	}
	mended, err := protocol.Mend(protocol.Type(w.Type), obj)
	if err != nil {
		if !bytes.Contains([]byte(err.Error()), []byte(path)) {
			t.Errorf("%s: %v", path, err)
		}
		return
	}
	w.validate(t, mended.Raw())
}
