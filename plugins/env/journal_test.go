package env

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// TestAHostThatIsKilled: answered steps are not lost if a host is killed: another host reads them at once from the
// journal, and a moment later from the tables.
func TestAHostThatIsKilled(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, dir)
	defer s.Close()
	open := func(context.Context) (store.Store, error) { return s, nil }
	var dead atomic.Bool
	killed := newStage(t, pluginOf(t, Options{}, host.Env{Store: func(context.Context) (store.Store, error) {
		if dead.Load() {
			return nil, errors.New("a dead host saves nothing")
		}
		return s, nil
	}}))
	id, closed, later := killed.begin("counter"), killed.begin("counter"), killed.begin("counter")
	for range 3 {
		killed.step(id, "inc")
	}
	killed.Call(protocol.TypeEnvCloseReq, about(closed))
	dead.Store(true)
	look := func(steps, experiences int) {
		t.Helper()
		next := newStage(t, pluginOf(t, Options{}, host.Env{Store: open}))
		o := next.step(id, "inc")
		assert.That(t, o.StepNum == steps && o.State["count"] == float64(steps), "%+v", o)
		exp := next.experiences(`{}`)
		assert.That(t, len(exp) == experiences, "%d experiences of %d", len(exp), experiences)
		next.Refused(protocol.TypeEnvObserveReq, about(closed), protocol.CodeUnknownEpisode)
	}
	look(4, 4)
	hosttest.Eventually(t, "the save", func() bool { return savedSteps(t, s, id) == 4 })
	look(5, 5)
	hostAt(t, dir, func(e host.Env) *Plugin { return pluginOf(t, Options{}, e) }, func(n *stage) {
		n.Call(protocol.TypeEnvCloseReq, about(later))
	})
	newStage(t, pluginOf(t, Options{}, host.Env{Store: open})).Refused(protocol.TypeEnvObserveReq,
		about(later), protocol.CodeUnknownEpisode,
		later) // although a journal that is still there has its beginning
	next := newStage(t, pluginOf(t, Options{}, host.Env{Store: open}))
	lines := func() (n int) {
		must.OK(t, s.Read(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Get("SELECT count(*) FROM env_lines", nil, &n)
			return err
		}))
		return n
	}
	must.That(t, lines() > 0, "the killed host has left no line")
	must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec("UPDATE env_journals SET owner = 'another machine', leased_until = 0")
		return err
	}))
	next.step(next.begin("counter"), "inc")
	hosttest.Eventually(t, "the end of old journals", func() bool { return lines() == 0 })
	var out bytes.Buffer
	err := s.Export(t.Context(), &out)
	assert.That(t, err == nil && strings.Contains(out.String(), id) && !strings.Contains(out.String(), closed),
		"exported %s, %v", out.String(), err)
}

// lineOfBefore returns the journal line of a step of the episode e1, as older hosts wrote it.
func lineOfBefore(step int) string {
	return fmt.Sprintf(`{"plugin":"myenv","at":1,"experiences":[{"episode_id":"e1","step":%d,"ts":1}],"episodes":[`+
		`{"episode_id":"e1","plugin":"myenv","env":"counter","seed":1,"options":{},"created_at":1,"used_at":%d,`+
		`"steps":%[1]d,"done":false,"truncated":false,"reward":0,"failure":"","saved":%[1]d}]}`, step,
		time.Now().Unix())
}

// TestAHostOfBefore: the journal lines of a host from before the tables were changed are taken over like those of any
// other host.
func TestAHostOfBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	s := must.Get(stores.At(t.Context(), path, filepath.Dir(path), stores.Older(t, Part(), 2)))(t)
	must.OK(t, s.Write(t.Context(), func(tx *store.Tx) error {
		for step := range 3 {
			if _, err := tx.Exec("INSERT INTO env_journal (owner, seq, at, body) VALUES ('dead', $1, unixepoch() - "+
				"3600, $2)", step, []byte(lineOfBefore(step+1))); err != nil {
				return err
			}
		}
		return nil
	}))
	must.OK(t, s.Close())
	hostAt(t, filepath.Dir(path), func(e host.Env) *Plugin { return pluginOf(t, Options{}, e) }, func(s *stage) {
		m := s.Call(protocol.TypeEnvObserveReq, `{"episode_id":"e1"}`)
		assert.That(t, m.Get("/obs/step_num") == "3", "%s", m.Line)
		assert.Equal(t, len(s.experiences(`{}`)), 3)
	})
}

// TestFilesOfHostsOfBefore: the journal files of older hosts are read by the first request, and removed. A damaged file
// stays.
func TestFilesOfHostsOfBefore(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "env")
	must.OK(t, os.Mkdir(folder, 0o700))
	body := lineOfBefore(1)
	line := fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)), body)
	// The last line is not complete.
	must.OK(t, os.WriteFile(filepath.Join(folder, "x.0.journal"), []byte(line+"0000"), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(folder, "damaged.0.journal"), []byte("00000000"+line[8:]), 0o600))
	for range 2 {
		hostAt(t, dir, func(e host.Env) *Plugin { return pluginOf(t, Options{}, e) }, func(s *stage) {
			m := s.Call(protocol.TypeEnvObserveReq, `{"episode_id":"e1"}`)
			assert.That(t, m.Get("/obs/step_num") == "1", "%s", m.Line)
			assert.Equal(t, len(s.experiences(`{}`)), 1)
			s.begin("counter") // new episodes are kept, although a file is damaged
		})
	}
	left, _ := os.ReadDir(folder)
	must.That(t, len(left) == 1 && left[0].Name() == "damaged.0.journal", "files that stay: %v", left)
}
