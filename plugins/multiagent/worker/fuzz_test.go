package worker

import (
	"testing"

	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// FuzzOutput: whatever a worker prints, the result at the end is found, and any result that is found is complete.
func FuzzOutput(f *testing.F) {
	const last = `{"status":"partial","summary":"the last","remaining":[1]}`
	for _, s := range []string{
		"", "text\n```json\n" + last + "\n```\n", `{"status":"done","tokens_spent":1e3,"artifacts":{"pr":null,"files_changed":["a"],"files":[{"path":"a"}]}}`, `{"a":[` + "\n" + `{"status":"blocked"}`,
		`{"status":"error","error":"x"}` + "\n" + `{"status":"fine"}`, `{"status":7}`, `{"x":"`,
		"[\n{\"status\":\"done\"}\n]", `{"status":"done","status":"done"}`,
		`{"status":"done","tokens_spent":-1,"summary":{"a":1}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		one := &task{WorkerTask: brief("t", "b")}
		if obj, ok := resultIn(text); ok {
			res := one.read(obj, len(text))
			checkResult(t, res, "t")
			must.That(t, res.Status == fleet.StatusDone || res.Status == fleet.StatusPartial ||
				res.Status == fleet.StatusBlocked || res.Status == fleet.StatusError, "the status %q", res.Status)
			must.That(t, res.TokensSpent >= 0, "%d tokens", res.TokensSpent)
			checkResult(t, one.shaped(res), "t")
		}
		obj, ok := resultIn(append(text, "\n"+last...))
		must.That(t, ok && string(obj.Raw()) == last, "found %s", obj.Raw())
	})
}
