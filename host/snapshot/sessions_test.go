package snapshot

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

func states(text string) map[string]jsontext.Value {
	return map[string]jsontext.Value{"p": jsontext.Value(text)}
}

// give makes a state one that Take gives.
func give(t *testing.T, s *Sessions, all ...session) {
	t.Helper()
	next := s.restoration()
	defer next.discard()
	for _, one := range all {
		if err := next.add(one); err != nil {
			t.Fatal(err)
		}
	}
	if err := next.commit(); err != nil {
		t.Fatal(err)
	}
}

// agents returns what a snapshot would have, by agent.
func agents(t *testing.T, s *Sessions) map[string]string {
	t.Helper()
	got := map[string]string{}
	broken, err := s.each(func(one session) error {
		got[one.AgentID] = string(one.States["p"])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range broken {
		got["broken"] += b.Error()
	}
	return got
}

func files(t *testing.T, s *Sessions) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestPutAndTake(t *testing.T) {
	s := NewSessions(filepath.Join(t.TempDir(), "a", "sessions"))
	if got, err := s.Take("x"); got != nil || err != nil {
		t.Errorf("without a folder: %v, %v", got, err)
	}
	if err := s.Put("x", nil); err != nil {
		t.Errorf("nothing to keep: %v", err)
	}
	if present(s.dir) {
		t.Error("a folder was made for nothing")
	}
	odd := []string{"x", "", "../../etc/passwd", "a/b\x00", strings.Repeat("long", 1000), "X"}
	for i, agent := range odd {
		if err := s.Put(agent, states(fmt.Sprint(i))); err != nil {
			t.Errorf("%.20q: %v", agent, err)
		}
	}
	want := map[string]string{}
	for i, agent := range odd {
		want[agent] = fmt.Sprint(i)
	}
	if diff := cmp.Diff(want, agents(t, s)); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if got, err := s.Take("x"); got != nil || err != nil {
		t.Errorf("nothing was restored, and yet: %v, %v", got, err)
	}
	if runtime.GOOS != "windows" {
		stat, _ := os.Stat(s.path("x", lastSuffix))
		folder, _ := os.Stat(s.dir)
		if stat.Mode().Perm() != 0o600 || folder.Mode().Perm() != 0o700 {
			t.Errorf("modes %v, %v", stat.Mode(), folder.Mode())
		}
	}
	for _, agent := range odd {
		if err := s.Put(agent, nil); err != nil {
			t.Error(err)
		}
	}
	if names := files(t, s); len(names) != 0 {
		t.Errorf("these are left: %q", names)
	}
}

func TestRestoredStateIsTakenOnce(t *testing.T) {
	s := NewSessions(t.TempDir())
	if err := s.Put("x", states("1")); err != nil {
		t.Fatal(err)
	}
	give(t, s, session{"x", states("2")}, session{"y", states("3")})
	if diff := cmp.Diff(map[string]string{"x": "2", "y": "3"}, agents(t, s)); diff != "" {
		t.Errorf("a snapshot made now (-want +got):\n%s", diff)
	}
	var takers atomic.Int64
	var all sync.WaitGroup
	for range 16 { // hosts that ask at the same time
		all.Go(func() {
			got, err := NewSessions(s.dir).Take("x")
			if err != nil || got != nil && string(got["p"]) != "2" {
				t.Errorf("%v, %v", got, err)
			}
			if got != nil {
				takers.Add(1)
			}
		})
	}
	all.Wait()
	if n := takers.Load(); n != 1 {
		t.Errorf("%d took it", n)
	}
	if diff := cmp.Diff(map[string]string{"x": "1", "y": "3"}, agents(t, s)); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
	give(t, s, session{"z", states("4")})
	if got, err := s.Take("y"); got != nil || err != nil {
		t.Errorf("what an earlier restore left: %v, %v", got, err)
	}
}

func TestSessionsThatCannotBeRead(t *testing.T) {
	s := NewSessions(t.TempDir())
	for _, agent := range []string{"good", "bad", "cut"} {
		if err := s.Put(agent, states("1")); err != nil {
			t.Fatal(err)
		}
	}
	give(t, s, session{"bad", states("2")}, session{"swapped", states("2")})
	for path, text := range map[string]string{
		s.path("bad", pendingSuffix):     "{",
		s.path("cut", lastSuffix):        `{"agent_id":"cut","sta`,
		s.path("swapped", pendingSuffix): `{"agent_id":"good","states":{"p":2}}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := agents(t, s)
	if got["good"] == "" || !strings.Contains(got["broken"], s.path("bad", "")) || !strings.Contains(got["broken"], s.path("cut", "")) {
		t.Errorf("a snapshot has %q", got)
	}
	for _, agent := range []string{"bad", "swapped"} {
		if got, err := s.Take(agent); got != nil || err == nil {
			t.Errorf("%s: %v, %v", agent, got, err)
		}
		if got, err := s.Take(agent); got != nil || err != nil {
			t.Errorf("%s again: %v, %v", agent, got, err)
		}
	}
}

func TestStateThatIsTooLarge(t *testing.T) {
	s := NewSessions(t.TempDir())
	s.maxBytes = 1000
	if err := s.Put("x", states("1")); err != nil {
		t.Fatal(err)
	}
	large := states(`"` + strings.Repeat("x", s.maxBytes) + `"`)
	if err := s.Put("x", large); err == nil || !strings.Contains(err.Error(), "more than the 1000") {
		t.Errorf("it gave %v", err)
	}
	if got := agents(t, s); got["x"] != "1" || len(files(t, s)) != 1 {
		t.Errorf("there is %v in %v", got, files(t, s))
	}
	if err := os.Truncate(s.path("x", lastSuffix), int64(s.maxBytes)+1); err != nil {
		t.Fatal(err)
	}
	if got := agents(t, s); !strings.Contains(got["broken"], "more than 1000") {
		t.Errorf("a file that is too large: %.200v", got)
	}
}

func TestOldAndTooManySessionsAreRemoved(t *testing.T) {
	s := NewSessions(t.TempDir())
	ages := map[string]time.Duration{
		s.path("old", lastSuffix):                      maxSessionAge + time.Minute,
		s.path("old", pendingSuffix):                   maxSessionAge + time.Minute,
		s.path("young", pendingSuffix):                 maxSessionAge - time.Minute,
		filepath.Join(s.dir, ".x.last.json.1.tmp"):     tempAge + time.Minute,
		filepath.Join(s.dir, ".y.last.json.1.tmp"):     tempAge - time.Minute,
		filepath.Join(s.dir, "note of somebody's own"): maxSessionAge + time.Minute,
	}
	for i := range maxSessions {
		ages[s.path(fmt.Sprint("agent", i), lastSuffix)] = time.Duration(i+1) * time.Minute
	}
	for path, age := range ages {
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put("new", states("1")); err != nil {
		t.Fatal(err)
	}
	gone := []string{s.path("old", lastSuffix), s.path("old", pendingSuffix), filepath.Join(s.dir, ".x.last.json.1.tmp"), s.path(fmt.Sprint("agent", maxSessions-1), lastSuffix)}
	for _, path := range gone {
		if present(path) {
			t.Errorf("%s is still there", path)
		}
	}
	if got, want := len(files(t, s)), len(ages)+1-len(gone); got != want {
		t.Errorf("%d files are there, want %d", got, want)
	}
	if !present(s.path("new", lastSuffix)) {
		t.Error("the new one is gone")
	}
}
