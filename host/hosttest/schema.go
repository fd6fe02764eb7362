// Package hosttest runs a host in memory for tests. It has the Pair to talk to the host, a check
// of every line that the host writes, and the Contract that every plugin must pass.
package hosttest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"a2e/protocol"
)

// Schema is the entry of messages.json for one message type.
type Schema struct {
	Type       protocol.Type       `json:"type"`
	Capability protocol.Capability `json:"capability"`
	Direction  protocol.Direction  `json:"direction"`
	Schema     map[string]any      `json:"schema"`

	compiled *jsonschema.Schema
}

// Root returns the folder of the project, whichever package is being tested.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("hosttest: no go.mod above the working directory")
		}
		dir = up
	}
}

// ReadTestdata reads a file of the project's testdata folder.
func ReadTestdata(t testing.TB, name string) []byte {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "testdata", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// schemas compiles messages.json on first use. The result does not change afterwards.
var schemas = sync.OnceValues(compile)

func compile() (map[protocol.Type]*Schema, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(root, "testdata", "wire", "messages.json"))
	if err != nil {
		return nil, err
	}
	var rows []*Schema
	if err := json.Unmarshal(raw, &rows); err != nil {
		return nil, err
	}
	docs, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	byType := make(map[protocol.Type]*Schema, len(rows))
	compiler := jsonschema.NewCompiler()
	for i, doc := range docs.([]any) {
		url := "a2e:" + string(rows[i].Type)
		if err := compiler.AddResource(url, doc.(map[string]any)["schema"]); err != nil {
			return nil, err
		}
		if rows[i].compiled, err = compiler.Compile(url); err != nil {
			return nil, err
		}
		byType[rows[i].Type] = rows[i]
	}
	return byType, nil
}

// Schemas returns the entries of messages.json by type.
func Schemas(t testing.TB) map[protocol.Type]*Schema {
	t.Helper()
	all, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// CheckLine checks one line that a host wrote, with or without its newline,
// against protocol/README.md, section 2 and the schema of its type.
func CheckLine(t testing.TB, line []byte) {
	t.Helper()
	if err := Check(line); err != nil {
		t.Errorf("%v\nthe line: %.2000s", err, line)
	}
}

// Check is CheckLine for code without a test. For a type that messages.json
// does not have, as a plugin may declare, it checks only the envelope.
func Check(line []byte) error {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if err := checkText(line); err != nil {
		return err
	}
	var env struct {
		A2E     string         `json:"a2e"`
		Version string         `json:"version"`
		Type    protocol.Type  `json:"type"`
		ID      string         `json:"id"`
		TS      *float64       `json:"ts"`
		ReqID   jsontext.Value `json:"req_id"`
	}
	if err := json.Unmarshal(line, &env); err != nil {
		return err
	}
	switch {
	case env.A2E != "1.0" || env.Version != "1.0":
		return errors.New("not stamped with version 1.0 under both names")
	case len(env.ID) != 32 || strings.Trim(env.ID, "0123456789abcdef") != "":
		return fmt.Errorf("the id %q is not 32 hex digits", env.ID)
	case env.TS == nil:
		return errors.New("has no ts")
	}
	all, err := schemas()
	if err != nil {
		return err
	}
	return all[env.Type].check(env.Type, env.ReqID, line)
}

func (s *Schema) check(t protocol.Type, reqID jsontext.Value, line []byte) error {
	switch {
	case s == nil && t == "":
		return errors.New("has no type")
	case s == nil:
		return nil
	case s.Direction.FromAgent():
		return fmt.Errorf("%s goes from the agent to the host, not the other way", t)
	case s.Direction != protocol.HostRequest && reqID.Kind() != '"' &&
		t != protocol.TypeMCPServerPush: // a push may belong to no request
		return fmt.Errorf("%s needs a req_id", t)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		return err
	}
	return s.compiled.Validate(doc)
}

// checkText returns an error unless the line is strict JSON in UTF-8 without white space between its tokens.
func checkText(line []byte) error {
	v := jsontext.Value(bytes.Clone(line))
	if !v.IsValid() {
		return errors.New("is not valid JSON, or has a key twice")
	}
	if err := v.Compact(jsontext.PreserveRawStrings(true)); err != nil {
		return err
	}
	if len(v) != len(line) {
		return errors.New("is not compact")
	}
	return nil
}
