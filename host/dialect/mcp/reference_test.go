package mcp_test

import (
	"strings"
	"testing"

	"a2e/protocol"
)

// A schema that refers to itself would have the go-sdk hold the answer against it without
// end, which no recover helps against.
func TestQuestionsThatReferToThemselves(t *testing.T) {
	_, got := asking(t, `{"elicitation":{"form":{}}}`, protocol.TypeMCPElicitReq, `{"mode":"form","message":"?","requested_schema":{"type":"object","$ref":"#"}}`)
	if got.Method != "" || !strings.Contains(got.text, "has a reference in it") {
		t.Errorf("%s", got)
	}
}
