package fleetdb_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"a2e/host/dialect/fleetdb"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/postgres"
	"a2e/protocol/fleet"
)

// workerOf is a variable with the URL of a fleet: if it is set, this binary is a worker of that fleet instead of
// running tests.
const workerOf = "A2E_TEST_FLEET_WORKER"

func TestMain(m *testing.M) {
	if url := os.Getenv(workerOf); url != "" {
		os.Exit(serve(url))
	}
	goleak.VerifyTestMain(m)
}

// serve runs a worker until stdin ends, and returns the exit status.
func serve(url string) int {
	f, err := fleetdb.Open(url)
	if err != nil {
		return 1
	}
	w := f.NewWorker(4, zerolog.Nop())
	name := strconv.Itoa(os.Getpid())
	w.Announced(&fleet.Announce{
		Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version,
		Worker: fleet.Worker{AgentID: name},
	}, nil)
	ctx, stop := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); stop() }()
	if w.Run(ctx, &host{does: done}) != nil {
		return 1
	}
	return 0
}

// process is a worker in a process of its own, which the test can kill.
type process struct {
	*exec.Cmd
	in io.Closer
}

func begin(t *testing.T, url string) *process {
	cmd := exec.Command(must.Get(os.Executable())(t))
	cmd.Env = append(os.Environ(), workerOf+"="+url)
	p := &process{cmd, must.Get(cmd.StdinPipe())(t)}
	must.OK(t, cmd.Start())
	t.Cleanup(func() { _ = p.Process.Kill() }) // it has ended already, unless the test failed
	return p
}

// TestKilledWorkers: each of many tasks is done and its result reported exactly once, however many workers are killed
// meanwhile.
func TestKilledWorkers(t *testing.T) {
	const workers, tasks = 16, 10_000
	server := postgres.Start(t)
	url := server.URL(postgres.Superuser) + "&lease=2s"
	s := sends(t, url)
	f := must.Get(fleetdb.Open(url))(t)
	must.OK(t, f.Ping(t.Context()))
	f.Close()
	server.Exec(t, fmt.Sprintf(`CREATE TABLE ends (number bigint);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.ends VALUES (OLD.number); RETURN NULL; END $$;
		CREATE TRIGGER note AFTER UPDATE ON %s.tasks FOR EACH ROW WHEN (NEW.state = 2 OR OLD.state = 2) EXECUTE FUNCTION note()`, tables))
	results := make(chan *fleet.Result)
	var all sync.WaitGroup
	for i := range tasks {
		all.Go(func() {
			one := task(strconv.Itoa(i))
			one.Retries = 100
			obj, err := s.Do(t.Context(), one)
			r := new(fleet.Result)
			if err == nil {
				err = obj.Decode(r)
			}
			assert.OK(t, err)
			results <- r
		})
	}
	var alive []*process
	for range workers {
		alive = append(alive, begin(t, url))
	}
	seen := make(map[string]bool)
	for n := 1; n <= tasks; n++ {
		r := <-results
		assert.That(t, r.Status == fleet.StatusDone && !seen[r.TaskID], "%s is %s: %s", r.TaskID, r.Status, r.Error)
		seen[r.TaskID] = true
		if n%(tasks/workers) == 0 {
			must.OK(t, alive[0].Process.Kill())
			_ = alive[0].Wait() // the error says that it was killed
			alive = append(alive[1:], begin(t, url))
		}
	}
	all.Wait()
	for _, p := range alive {
		must.OK(t, p.in.Close())
		must.OK(t, p.Wait())
	}
	assert.Equal(t, len(seen), tasks)
	assert.Equal(t, server.Exec(t, "SELECT count(*) || ' ' || count(DISTINCT number) FROM ends"),
		fmt.Sprintf("%d %[1]d", tasks), "each ends once")
	assert.Equal(t, server.Exec(t, "SELECT sum(losses) > 0 FROM "+tables+".tasks"), "t", "workers died of tasks")
}
