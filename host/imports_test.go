package host_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// levels lists the folders from the lowest level to the highest, with the folders that each may import. The engine is
// "host". A folder may always import itself and protocol. Imports of tests do not count.
var levels = []struct{ folder, imports string }{
	{"schema", ""},
	{"guard", ""},
	{"observe", "guard"},
	{"sandbox", "guard observe"},
	{"state", "schema guard sandbox"},
	{"config", "schema guard sandbox state"},
	{"host", "schema guard observe sandbox state"},
	{"child", "guard sandbox host"},
	{"agent", "schema guard observe config host"},
	{"middleware", "schema host"},
	{"dialect", "schema guard observe sandbox state host child agent"},
	{"plugins", "schema guard observe sandbox state config host child agent dialect"},
	{"cli", "schema guard observe sandbox state config host child agent middleware dialect plugins"},
	{"hosttest", "guard observe sandbox state host middleware"},
}

// folder returns the name in levels of the folder of a package.
func folder(pkg string) string {
	parts := strings.Split(pkg, "/")
	switch {
	case len(parts) > 2 && parts[1] == "host":
		return parts[2]
	case len(parts) > 1:
		return parts[1]
	}
	return "main"
}

// TestImportsGoDown: packages import only packages of lower levels. doc.go draws the levels.
func TestImportsGoDown(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "a2e/...").Output()
	must.That(t, err == nil, "%v", err)
	may := map[string][]string{}
	for i, l := range levels {
		may[l.folder] = append(strings.Fields(l.imports), l.folder, "protocol")
		for _, lower := range strings.Fields(l.imports) {
			assert.That(t, slices.ContainsFunc(levels[:i],
				func(b struct{ folder, imports string }) bool { return b.folder == lower }),
				"%s imports %s, which is not below it", l.folder, lower)
		}
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		from := folder(words[0])
		seen[from] = true
		for _, to := range words[1:] {
			if strings.HasPrefix(to, "a2e/") && from != "main" {
				assert.That(t, from == "protocol" && folder(to) == "protocol" || slices.Contains(may[from], folder(to)),
					"%s must not import %s", words[0], to)
			}
		}
	}
	for _, l := range levels {
		assert.That(t, seen[l.folder], "there is no folder %s", l.folder)
	}
	// main and protocol have no level
	assert.That(t, len(seen) == len(levels)+2, "folders that have no level: %v", seen)
}
