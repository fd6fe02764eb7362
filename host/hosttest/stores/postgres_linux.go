package stores

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"testing"
	"time"

	"a2e/host/hosttest/must"
	"a2e/host/hosttest/postgres"
)

// OnPostgres runs the package's tests that match the pattern again, in another process of the test
// binary, with a PostgreSQL server that ends with the test.
func OnPostgres(t *testing.T, pattern string) {
	t.Helper()
	if IsPostgres() {
		return // the pattern matches the calling test
	}
	server := postgres.Start(t)
	args := []string{"-test.v", "-test.run=" + pattern}
	if end, some := t.Deadline(); some {
		args = append(args, "-test.timeout="+time.Until(end).String())
	}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	if flag.Lookup("rapid.checks") != nil {
		args = append(args, "-rapid.checks=30") // few checks are enough to find differences between the engines
	}
	tests := exec.CommandContext(t.Context(), must.Get(os.Executable())(t), args...)
	tests.Env = append(os.Environ(), variable+"="+server.URL(postgres.Superuser))
	out, err := tests.CombinedOutput()
	must.That(t, err == nil, "on PostgreSQL: %v\n%s", err, out)
	passed := bytes.Count(out, []byte("\n--- PASS: "))
	must.That(t, passed > 0, "no test matches %q", pattern)
	t.Logf("%d tests passed on PostgreSQL", passed)
}
