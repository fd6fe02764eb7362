package exec

import (
	"strings"
	"testing"

	"a2e/protocol"
)

// What the child has in its environment and prints stands in no error and no log.
func TestEnvironmentIsNotShown(t *testing.T) {
	f := newField(t)
	script := `read -r line
echo "junk with $API_KEY"
printf '%0190d%s\n' 0 "$API_KEY"
printf '%04090d%s%08000d\n' 0 "$API_KEY" 0 >&2
echo "I have $API_KEY, and
$TWO_LINES" >&2
exit 3`
	p := f.plugin("x", "", Options{Capabilities: []protocol.Capability{protocol.CapTools}, Command: []string{"sh", "-c", script}, Env: map[string]string{"API_KEY": "sesame-open", "TWO_LINES": "mellon-1\nmellon-2", "N": "1"}})
	s := newStage(t, p)
	m := s.tool("any", `{}`)
	s.refused(m, protocol.CodeRuntimeError, "I have [redacted], and\n[redacted]")
	for where, text := range map[string]string{"the answer": m.String(), "the log": f.log.String()} {
		for _, part := range []string{"ses", "mellon"} {
			if strings.Contains(text, part) {
				t.Errorf("%s has %q: %s", where, part, text)
			}
		}
	}
	if !strings.Contains(f.log.String(), "junk with [redacted]") {
		t.Errorf("the log: %s", f.log)
	}
}
