package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	expsys "github.com/tetratelabs/wazero/experimental/sys"
)

// TestWallWASIHardLinks guards against a second name, in the workspace, of a file outside:
// no path and no os.Root sees it, and a module read and changed what lies behind it.
func TestWallWASIHardLinks(t *testing.T) {
	p, cache := guestPlace(t)
	secret := filepath.Join(p.up, "secret")
	before := must.Get(os.ReadFile(secret))(t)
	for _, err := range []error{
		os.Mkdir(filepath.Join(p.work, "sub"), 0o755), os.Link(secret, filepath.Join(p.work, "second")), os.Link(secret, filepath.Join(p.work, "sub", "third")),
		os.Symlink("second", filepath.Join(p.work, "to-second")), os.Link(secret, filepath.Join(p.work, "moved")), os.Link(secret, filepath.Join(p.skill, "in-skill")),
	} {
		must.OK(t, err)
	}
	for name, do := range map[string]string{
		"read": `{"do":"read","path":"second"}`, "read below": `{"do":"read","path":"sub/third"}`, "read by a link": `{"do":"read","path":"to-second"}`,
		"read of the skill": `{"do":"read","path":"/skill/in-skill"}`, "write": `{"do":"write","path":"second","n":3}`, "write by a link": `{"do":"write","path":"to-second","n":3}`,
		"append": `{"do":"append","path":"sub/third"}`, "truncate": `{"do":"truncate","path":"second","n":0}`, "moved and read": `{"do":"rename","path":"moved","to":"m"},{"do":"read","path":"m"}`,
	} {
		t.Run(name, func(t *testing.T) {
			j := p.job("guest.wasm")
			j.Args, j.Write, j.CacheDir = jsontext.Value(`{"all":[`+do+`]}`), true, cache
			r, _, err := p.module(t, j)
			var went []string
			if err != nil || json.Unmarshal(r.Data, &went) != nil || len(went) == 0 || !strings.HasPrefix(went[len(went)-1], "error: ") {
				t.Errorf("it went well: %+v, %v", r, err)
			}
			if now, err := os.ReadFile(secret); err != nil || string(now) != string(before) {
				t.Errorf("the file outside was changed: %q, %v", now, err)
			}
		})
	}
	t.Run("times", func(t *testing.T) {
		d, up := newFolder(t, true)
		must.OK(t, os.Link(filepath.Join(up, "secret"), filepath.Join(up, "in", "second")))
		was, err := os.Stat(filepath.Join(up, "secret"))
		errno := d.Utimens("second", 0, 0)
		assert.That(t, errno == expsys.EPERM && err == nil, "%v, %v", errno, err)
		if now, err := os.Stat(filepath.Join(up, "secret")); err != nil || !now.ModTime().Equal(was.ModTime()) {
			t.Errorf("the time of the file outside is %v, was %v (%v)", now.ModTime().Format(time.RFC3339), was.ModTime(), err)
		}
		assert.Equal(t, d.Utimens("file", 0, 0), 0, "a file of one name")
	})
}
