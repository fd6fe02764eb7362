package fleet_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
)

// TestAudit: each dispatch leaves an entry, whatever becomes of it, and so does a line that
// cannot be read.
func TestAudit(t *testing.T) {
	var a hosttest.Trail
	p := hosttest.New(t, host.Options{
		Plugins: []host.Plugin{&pool{}, newKit()}, Dialects: []host.Dialect{front.New(front.Options{Log: zerolog.Nop()})}, Audit: &a,
	})
	good := dispatch("good", "low", "")
	p.SendRaw(good + "\n")
	done := result(p, "good")
	for _, line := range []string{needing("lacks", `{"required_mcp":["x"]}`, ""), strings.Replace(dispatch("old", "low", ""), `"2.0"`, `"1.0"`, 1), strings.Replace(dispatch("odd", "low", ""), `"work"`, "7", 1)} {
		p.SendRaw(line + "\n")
	}
	for _, id := range []string{"lacks", "old", "odd"} {
		result(p, id)
	}
	p.SendRaw("{\"broken\n")
	result(p, "")
	got := map[string]string{}
	for _, e := range a.Entries() {
		got[e.ReqID] = fmt.Sprint(e.Type, " ", e.Success, " ", e.ErrorCode)
		if e.ReqID == "good" && (e.InputBytes != len(good) || e.OutputBytes != len(done.Line)) {
			t.Errorf("%d bytes in and %d out: %+v", len(good), len(done.Line), e)
		}
	}
	want := "map[: false parse_error good:TASK_DISPATCH true  lacks:TASK_DISPATCH false blocked odd:TASK_DISPATCH false blocked old:TASK_DISPATCH false blocked]"
	if fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
}
