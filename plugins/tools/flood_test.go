package tools

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"a2e/protocol"
)

// A flood of unknown arguments is answered with the first of them, and no name is sought
// for the others.
func TestFloodOfUnknownArguments(t *testing.T) {
	ps := params{{name: "text", typ: typeString}}
	c := checker{}
	for i := range maxProblems {
		c.unknown(ps, fmt.Sprint("txt", i), nil)
	}
	if len(c.problems) != maxProblems || !strings.Contains(c.problems[0].Message, "text") {
		t.Fatalf("%+v", c.problems)
	}
	if n := testing.AllocsPerRun(100, func() { c.unknown(ps, "text2", nil) }); n != 0 {
		t.Errorf("%v allocations for a problem that is not told", n)
	}
}

// Each term of a query is looked for in each tool, so only its beginning counts.
func TestLongQueryIsCut(t *testing.T) {
	var query strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&query, "w%dx ", i)
	}
	if terms := queryTerms(query.String()); len(terms) > maxQuery {
		t.Errorf("%d terms", len(terms))
	}
	if terms := queryTerms("files " + strings.Repeat("é", maxQuery)); len(terms) != 2 || terms[0] != "fil" {
		t.Errorf("%.100q", terms)
	}
}

// A call whose time was up counts as failed, whoever set the time; one that was stopped
// does not count.
func TestCallsOutOfTimeAreNotCutShort(t *testing.T) {
	late := protocol.Errorf(protocol.CodeTimeout, "its time was up")
	request, stop := context.WithCancelCause(t.Context()) // as the host stops a request
	stop(context.DeadlineExceeded)
	within, cancel := context.WithTimeoutCause(t.Context(), -time.Second, late) // a call within one
	defer cancel()
	below, cancel := context.WithCancel(within)
	defer cancel()
	cancelled, stop := context.WithCancelCause(t.Context())
	stop(protocol.Errorf(protocol.CodeCancelled, "enough"))
	for name, c := range map[string]struct {
		ctx  context.Context
		want bool
	}{"a request": {request, false}, "a call within": {within, false}, "below that": {below, false}, "a cancel": {cancelled, true}, "nothing": {t.Context(), false}} {
		if got := cutShort(c.ctx); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
