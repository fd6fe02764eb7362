package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/postgres"
	"a2e/protocol"
)

// crowd is a group of hosts that share a state on a server.
type crowd struct {
	t       *testing.T
	hosts   []*durableHost
	plan    string
	stop    atomic.Bool
	acked   atomic.Int64
	refused atomic.Int64 // while the server was away

	mu      sync.Mutex
	entries map[string]bool // true = acknowledged; guarded by mu
	tasks   map[string]bool // guarded by mu
}

// TestHostsShareAServer: hosts of two users with folders of their own share a memory and a plan. Once one host has
// acknowledged a write, every other host has it, also after a crash of the server; nothing is there twice. With
// A2E_SOAK_POSTGRES=64 as many hosts live through 20 crashes in ten minutes.
func TestHostsShareAServer(t *testing.T) {
	t.Parallel()
	const usual = 8
	n, crashes, least := hosttest.Soak(t, "A2E_SOAK_POSTGRES", usual), 3, time.Duration(0)
	if n > usual {
		crashes, least = 20, 30*time.Second
	}
	server := postgres.Start(t)
	must.OK(t, os.Chmod(server.Dir, 0o755)) // both users open its socket
	server.Exec(t, "CREATE ROLE team LOGIN; GRANT CREATE ON DATABASE postgres TO team")
	c := &crowd{t: t, entries: map[string]bool{}, tasks: map[string]bool{}}
	c.start(server, n)
	var load sync.WaitGroup
	for i, h := range c.hosts {
		for w := range 2 {
			load.Go(func() { c.work(h, i, w) })
		}
	}
	most := 0
	for range crashes {
		acked, until := c.acked.Load(), time.Now().Add(least)
		hosttest.Eventually(t, "writes are acknowledged", func() bool {
			return t.Failed() || c.acked.Load() > acked+int64(5*n) && time.Now().After(until)
		})
		most = max(most, must.Get(strconv.Atoi(server.Exec(t, "SELECT count(*) FROM pg_stat_activity WHERE usename "+
			"= 'team'")))(t))
		refused := c.refused.Load()
		server.Crash()
		hosttest.Eventually(t, "requests are refused", func() bool { return t.Failed() || c.refused.Load() > refused })
		server.Begin(t)
	}
	acked := c.acked.Load()
	hosttest.Eventually(t, "writes are acknowledged again", func() bool { return t.Failed() || c.acked.Load() > acked })
	c.stop.Store(true)
	load.Wait()
	c.verify()
	assert.That(t, most <= 4*n, "%d hosts have %d connections", n, most)
	t.Logf("%d hosts, %d crashes: %d acknowledged, %d refused, at most %d connections", n, crashes, c.acked.Load(),
		c.refused.Load(), most)
}

// start starts hosts, two in a folder. If the test runs as root, every other folder and its hosts are another user's.
func (c *crowd) start(server *postgres.Server, n int) {
	c.t.Helper()
	var dir string
	for i := range n {
		uid := uint32(65534 - i/2%2)
		if i%2 == 0 {
			dir = workDir(c.t)
			writeConfig(c.t, dir, durableConfig+"state: "+server.URL("team")+"&schema=team\n")
			c.give(dir, int(uid))
		}
		cmd := command(c.t, dir, "./a2e")
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		}
		c.hosts = append(c.hosts, durableSession(c.t, cmd))
	}
	var made protocol.PlanCreateResponse
	must.OK(c.t, c.hosts[0].Call(c.t.Context(), protocol.TypePlanCreateReq, map[string]any{"name": "shared"}, &made))
	c.plan = made.PlanID
}

// give makes uid the owner of a folder, if the test runs as root. The program in it keeps its owner: it is a link.
func (c *crowd) give(dir string, uid int) {
	if os.Geteuid() != 0 {
		return
	}
	must.OK(c.t, os.Chmod(filepath.Dir(dir), 0o755), filepath.WalkDir(dir,
		func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() == "a2e" && !d.IsDir() {
				return err
			}
			return os.Lchown(path, uid, uid)
		}))
}

// work writes by one host, and reads by another.
func (c *crowd) work(h *durableHost, i, w int) {
	for k := 0; !c.stop.Load() && !c.t.Failed(); k++ {
		id := fmt.Sprintf("h%d-%d-%d", i, w, k)
		if k%4 == 3 {
			var added protocol.TaskAddResponse
			err := h.Call(context.Background(), protocol.TypeTaskAddReq, &protocol.TaskAddRequest{
				PlanID: c.plan,
				Title:  id,
			}, &added)
			if err == nil && !added.Success {
				err = errors.New(added.Error)
			}
			c.note(c.tasks, id, err)
			continue
		}
		if c.note(c.entries, id, h.store(durableSemantic(id, "shared by all"))) {
			c.read(c.hosts[(i+k+1)%len(c.hosts)], id)
		}
	}
}

// note records the outcome of a write, and reports whether it was acknowledged.
func (c *crowd) note(of map[string]bool, id string, err error) bool {
	if err != nil && !c.away(err) {
		c.t.Errorf("%s: %v", id, err)
	}
	if err == nil {
		c.acked.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of[id] = err == nil
	return err == nil
}

// away reports whether a request was refused because the server is away, and counts such requests.
func (c *crowd) away(err error) bool {
	var refusal *protocol.Error
	is := errors.As(err, &refusal) && refusal.Code == protocol.CodeStoreUnavailable && refusal.Retryable
	if is {
		c.refused.Add(1)
	}
	return is
}

// read checks that a host has an entry that another has acknowledged.
func (c *crowd) read(h *durableHost, id string) {
	for !c.t.Failed() {
		found, err := h.retrieve(map[string]any{"keys": []any{map[string]string{"id": id}}, "limit": 1})
		switch {
		case err == nil && len(found.Entries) != 1:
			c.t.Errorf("%s was acknowledged; another host has %d of it", id, len(found.Entries))
			return
		case err == nil:
			return
		case !c.away(err):
			c.t.Errorf("%s: reading: %v", id, err)
			return
		}
		if c.stop.Load() {
			return
		}
	}
}

// verify compares the entries and tasks of the last host with those that were acknowledged.
func (c *crowd) verify() {
	last, titles := c.hosts[len(c.hosts)-1], map[string]int{}
	hosttest.Eventually(c.t, "the last host has found the server again", func() bool {
		_, err := last.retrieve(map[string]any{"limit": 1})
		return err == nil
	})
	entries := last.versions(slices.Collect(maps.Keys(c.entries)))
	var plan protocol.TaskListResponse
	must.OK(c.t, last.Call(c.t.Context(), protocol.TypeTaskListReq, &protocol.TaskListRequest{PlanID: c.plan}, &plan))
	for _, task := range plan.Tasks {
		titles[fmt.Sprint(task["title"])]++
	}
	for what, is := range map[string]struct {
		acked map[string]bool
		times map[string]int
	}{"entry": {c.entries, entries}, "task": {c.tasks, titles}} {
		for id, acked := range is.acked {
			n := is.times[id]
			assert.That(c.t, n == 1 || n == 0 && !acked, "%s %s: acknowledged %v, there %d times", what, id, acked, n)
		}
	}
}
