package mcp

import (
	"context"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// What the go-sdk asked and waits for no longer is not kept.
func TestTakenBackQuestionsAreForgotten(t *testing.T) {
	s := New(Options{}).(*server)
	s.out = nowhere{}
	for n := range 3 {
		id, err := jsonrpc.MakeID(float64(n))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []rpcMessage{
			&jsonrpc.Request{ID: id, Method: "elicitation/create"},
			&jsonrpc.Request{Method: notifyCancelled, Params: []byte(`{"reason":"x"}`)}, // of none
			&jsonrpc.Request{Method: notifyCancelled, Params: []byte(`{"requestId":` + string('0'+rune(n)) + `}`)},
		} {
			if err := s.conn.Write(context.Background(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(s.desk.asked) != 0 {
		t.Errorf("%d are kept", len(s.desk.asked))
	}
}

type nowhere struct{}

func (nowhere) Send([]byte) {}

func TestRefers(t *testing.T) {
	for schema, want := range map[string]bool{
		`{"type":"object","properties":{"name":{"type":"string"}}}`: false,
		`{"$ref":"#"}`: true,
		`{"type":"object","allOf":[{"$\u0072ef":"#"}]}`:                      true,
		`{"type":"object","properties":{"a":{"$dynamicRef":"#"}}}`:           true,
		`{"type":"object","description":"as in $ref","properties":{"a":{}}}`: false,
	} {
		if got := refers(jsontext.Value(schema)); got != want {
			t.Errorf("%s: %t", schema, got)
		}
	}
}
