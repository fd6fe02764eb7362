//go:build unix

package tools

import (
	"slices"
	"strings"
	"testing"

	"a2e/protocol"
)

// What leads out of the workspace leads out of the folder behind a URI neither.
func TestEscapesByURI(t *testing.T) {
	all := slices.Concat(dotAttempts(), absoluteAttempts(), linkAttempts(), specialAttempts())
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			s := newStage(t)
			if a.setup != nil {
				a.setup(t, s)
			}
			r := newReader(t, t.TempDir(), &library{name: "skills", scheme: "skill", folders: map[string]string{"s": s.dir}})
			if got := data(r.call(t, "read_file", args{"path": "skill://s/a/b/deep.txt"})); !strings.Contains(got, inside) {
				t.Fatalf("a file that may be read: %s", got)
			}
			path, before := "skill://s/"+a.path(s), picture(t, s.outside)
			for _, try := range tries(path) {
				m := r.call(t, try.tool, try.args)
				shown := strings.ReplaceAll(data(m), path, "")
				if strings.Contains(shown, secret) || strings.Contains(shown, marker) || strings.Contains(shown, s.outside) {
					t.Errorf("%s %q shows what is outside: %s", try.tool, try.args, m.Line)
				}
				writes := try.tool == "write_file" || try.tool == "edit_file"
				if writes && m.Code != protocol.CodeToolDenied || m.Code == "" && try.tool != "glob" && a.want == blocked {
					t.Errorf("%s %q is not blocked: %s", try.tool, try.args, m.Line)
				}
			}
			if after := picture(t, s.outside); after != before {
				t.Errorf("what is outside has changed:\n%s\nwas:\n%s", after, before)
			}
		})
	}
}
