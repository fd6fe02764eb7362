package fleetdb_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"a2e/host/dialect/fleetdb"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/host/hosttest/postgres"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// host answers each task with the result of a function; nil = no answer.
type host struct {
	does func(*fleet.Dispatch) *fleet.Result
	out  sync.Mutex
}

func (h *host) Serve(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	var all sync.WaitGroup
	defer all.Wait()
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil
		}
		var d fleet.Dispatch
		does := h.does
		obj, err := protocol.ParseObject(line)
		if err != nil || obj.Decode(&d) != nil {
			continue
		}
		if d.Type == fleet.TypeCancel {
			_ = obj.Decode(&d.Task) // a cancel has the task's id at its top level
			does = func(d *fleet.Dispatch) *fleet.Result { return fleet.NewResult(d.Task.TaskID, fleet.StatusError) }
		}
		all.Go(func() {
			if r := does(&d); r != nil {
				text, _ := protocol.AppendJSON(nil, r)
				h.out.Lock()
				defer h.out.Unlock()
				_, _ = out.Write(append(text, '\n'))
			}
		})
	}
}

func (h *host) Interrupt() {}

func done(d *fleet.Dispatch) *fleet.Result {
	return fleet.NewResult(d.Task.TaskID, fleet.StatusDone)
}

// works starts a worker, which ends with the test.
func works(t testing.TB, url, name string, places int, does func(*fleet.Dispatch) *fleet.Result, able ...string) {
	t.Helper()
	w := must.Get(fleetdb.Open(url))(t).NewWorker(places, zerolog.Nop())
	a := &fleet.Announce{
		Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version,
		Worker: fleet.Worker{AgentID: name, Model: "m-" + name},
	}
	w.Announced(a, able)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, &host{does: does}) }()
	t.Cleanup(func() { stop(); must.OK(t, <-ended) })
}

func sends(t testing.TB, url string) *fleetdb.Sender {
	t.Helper()
	s := must.Get(fleetdb.Open(url))(t).NewSender(zerolog.Nop())
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

func task(id string, needs ...string) fleetdb.Task {
	t := fleetdb.Task{Retries: 2}
	t.Dispatch.Task.TaskID, t.Dispatch.Brief, t.Dispatch.Requirements.RequiredCapabilities = id, "do "+id, needs
	return t
}

// does sends a task and returns its result, which must arrive within a minute.
func does(t testing.TB, s *fleetdb.Sender, one fleetdb.Task) *fleet.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	obj := must.Get(s.Do(ctx, one))(t)
	r := new(fleet.Result)
	must.OK(t, obj.Decode(r))
	return r
}

// TestTasksGoToWhoCanDoThem: only workers that have what a task requires, and the model that it names, take the task.
// If no worker has the model, Fallback lets another one take it.
func TestTasksGoToWhoCanDoThem(t *testing.T) {
	t.Parallel()
	url := postgres.Start(t).URL(postgres.Superuser)
	s := sends(t, url)
	said := func(name string) func(*fleet.Dispatch) *fleet.Result {
		return func(d *fleet.Dispatch) *fleet.Result {
			r := done(d)
			r.Summary = name
			return r
		}
	}
	works(t, url, "plain", 4, said("plain"))
	search := task("search", "search")
	got := make(chan *fleet.Result, 2)
	go func() { got <- does(t, s, search) }()
	tier := task("model")
	tier.Model = "m-able"
	go func() { got <- does(t, s, tier) }()
	assert.Equal(t, does(t, s, task("any")).Summary, "plain")
	works(t, url, "able", 1, said("able"), "search", "file")
	assert.Equal(t, (<-got).Summary+(<-got).Summary, "ableable")
	tier.Dispatch.Task.TaskID, tier.Model, tier.Fallback = "other", "m-nobody", true
	assert.Contains(t, strings.Join(does(t, s, tier).NextSteps, ""), "got the task instead")
}

func TestUrgentFirst(t *testing.T) {
	t.Parallel()
	url := postgres.Start(t).URL(postgres.Superuser)
	s := sends(t, url)
	var all sync.WaitGroup
	f := must.Get(fleetdb.Open(url))(t)
	t.Cleanup(f.Close)
	for i, p := range []fleet.Priority{
		fleet.PriorityLow, fleet.PriorityNormal, fleet.PriorityUrgent,
		fleet.PriorityHigh,
	} {
		one := task(string(p))
		one.Dispatch.Task.Priority = p
		all.Go(func() { does(t, s, one) })
		poll.Eventually(t, "the task waits", func() bool { return waiting(t, f) == i+1 })
	}
	var order []string // one place, so tasks run one after the other
	works(t, url, "w", 1, func(d *fleet.Dispatch) *fleet.Result {
		order = append(order,
			d.Task.TaskID)
		return done(d)
	})
	all.Wait()
	assert.Slice(t, order, []string{"urgent", "high", "normal", "low"})
}

// waiting returns the number of tasks that wait.
func waiting(t testing.TB, f *fleetdb.Fleet) (n int) {
	t.Helper()
	for _, q := range must.Get(f.Queue(context.Background()))(t) {
		n += q.Waiting
	}
	return n
}

// TestOneIDOneTask: an id stands for one task in the whole fleet. A failed task can be done again; a task that was
// done is not, and another task with its id is refused.
func TestOneIDOneTask(t *testing.T) {
	t.Parallel()
	url := postgres.Start(t).URL(postgres.Superuser)
	count := 0
	works(t, url, "w", 1, func(d *fleet.Dispatch) *fleet.Result {
		if count++; d.Task.TaskID == "fails" && count == 1 {
			return fleet.NewResult("fails", fleet.StatusError)
		}
		return done(d)
	})
	first, second := sends(t, url), sends(t, url)
	assert.Equal(t, does(t, first, task("fails")).Status, fleet.StatusError)
	assert.Equal(t, does(t, second, task("fails")).Status, fleet.StatusDone, "what failed is done anew")
	assert.Equal(t, does(t, first, task("fails")).Status, fleet.StatusDone)
	assert.Equal(t, count, 2, "what is done is done once")
	other := task("fails")
	other.Dispatch.Brief = "another"
	r := does(t, first, other)
	assert.That(t, r.Status == fleet.StatusBlocked && r.Duplicate, "another task by that id: %+v", r)
}

// TestCancelAndDeadline: a task that is cancelled or too late ends, at its worker too.
func TestCancelAndDeadline(t *testing.T) {
	t.Parallel()
	url := postgres.Start(t).URL(postgres.Superuser)
	s := sends(t, url)
	late := task("late")
	late.Dispatch.Deadline = time.Now().Add(300 * time.Millisecond).Format(time.RFC3339Nano)
	assert.Equal(t, does(t, s, late).Error, "deadline", "what waits beyond its deadline")
	begun := make(chan string, 8)
	works(t, url, "stuck", 2, func(d *fleet.Dispatch) *fleet.Result {
		begun <- d.Task.TaskID
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-begun; cancel() }()
	_, err := s.Do(ctx, task("hangs"))
	assert.Is(t, err, context.Canceled)
	f := must.Get(fleetdb.Open(url))(t)
	t.Cleanup(f.Close)
	poll.Eventually(t, "its worker ends it", func() bool {
		return must.Get(f.Task(context.Background(),
			"hangs"))(t).State == "error"
	})
}

// TestRefusedTaskGoesOn: a task that one worker refuses goes to the next, and is blocked only if there is no other.
func TestRefusedTaskGoesOn(t *testing.T) {
	t.Parallel()
	url := postgres.Start(t).URL(postgres.Superuser)
	s := sends(t, url)
	works(t, url, "unable", 1, func(d *fleet.Dispatch) *fleet.Result {
		return fleet.Blocked(d.Task.TaskID,
			"not here")
	})
	assert.Equal(t, *does(t, s, task("alone")).BlockedReason, "not here")
	works(t, url, "able", 1, done)
	f := must.Get(fleetdb.Open(url))(t)
	t.Cleanup(f.Close)
	poll.Eventually(t, "both are there", func() bool { return len(must.Get(f.Workers(context.Background()))(t)) == 2 })
	for _, id := range []string{"a", "b", "c"} {
		assert.Equal(t, does(t, s, task(id)).Status, fleet.StatusDone)
	}
}

// TestServerAway: while the server is away, a worker continues and delivers its result later, and a sender gets an
// error that it can retry. When the server starts again, workers keep their tasks.
func TestServerAway(t *testing.T) {
	t.Parallel()
	server := postgres.Start(t)
	url := strings.Replace(server.URL(postgres.Superuser), "postgres@", "postgres:hunter2secret@", 1) + "&lease=1s"
	s := sends(t, url)
	begun, end := make(chan bool, 8), make(chan bool)
	works(t, url, "w", 2, func(d *fleet.Dispatch) *fleet.Result {
		begun <- true
		if d.Task.TaskID == "long" {
			<-end
		}
		return done(d)
	})
	got := make(chan *fleet.Result, 1)
	go func() { got <- does(t, s, task("long")) }()
	<-begun
	server.Crash()
	_, err := sends(t, url).Do(context.Background(), task("refused"))
	var own *protocol.Error
	must.That(t, errors.As(err, &own), "the error is %v", err)
	assert.That(t, own.Code == protocol.CodeStoreUnavailable && own.Retryable &&
		!strings.Contains(err.Error(), "hunter2"), "the error is %v", err)
	close(end)
	server.Begin(t)
	assert.Equal(t, (<-got).Status, fleet.StatusDone)
	assert.Equal(t, len(begun), 0, "done once")
	assert.Equal(t, does(t, s, task("next")).Status, fleet.StatusDone)
}

// TestFleetsApart: several fleets in one database do not see each other, tables of a newer version are refused, and
// reading a fleet does not create it.
func TestFleetsApart(t *testing.T) {
	t.Parallel()
	server := postgres.Start(t)
	url := server.URL(postgres.Superuser)
	ctx := context.Background()
	a, b := must.Get(fleetdb.Open(url+"&fleet=a"))(t), must.Get(fleetdb.Open(url+"&fleet=b"))(t)
	t.Cleanup(a.Close)
	t.Cleanup(b.Close)
	_, err := b.Existing().Workers(ctx)
	assert.Fails(t, err, `there is no fleet "b"`)
	var all sync.WaitGroup
	for range 8 { // at the same time
		all.Go(func() {
			f := must.Get(fleetdb.Open(url + "&fleet=a"))(t)
			assert.OK(t, f.Ping(ctx))
			f.Close()
		})
	}
	all.Wait()
	works(t, url+"&fleet=a", "w", 1, done)
	poll.Eventually(t, "the worker is there", func() bool { return len(must.Get(a.Workers(ctx))(t)) == 1 })
	_, err = b.Workers(ctx)
	assert.Fails(t, err, `there is no fleet "b"`)
	server.Exec(t, "CREATE SCHEMA a2e_fleet_b; CREATE TABLE a2e_fleet_b.version AS SELECT 99 AS version")
	assert.Fails(t, b.Ping(ctx), "use a newer a2e")
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for url, part := range map[string]string{
		"":                                          "should be such as",
		"mysql://u:hunter2@h/d":                     "should be such as",
		"postgres://u:hunter2@h:x/d":                "should be such as",
		"postgres://h/d?fleet=A-B":                  "small letters",
		"postgres://h/d?lease=1":                    "from 1s",
		"postgres://h/d?schema=other":               "has no schema",
		"postgres://u:hunter2@h/d?fleet=a;b":        "cannot be read",
		"postgres://u:hunter2@h/d?fleet=a&fleet=b":  "twice",
		"postgres://u:hunter2@h/d?Fleet=a":          "should it be fleet",
		"postgres://u:hunter2@h/d?lease=5s#fleet=a": "has a #",
		"postgres://u:hunter2@h/d?search_path=a":    "no search_path",
	} {
		_, err := fleetdb.Open(url)
		assert.Fails(t, err, part, url)
		assert.That(t, err == nil || !strings.Contains(err.Error(), "hunter2"), "the error shows the password: %v", err)
	}
}

const tables = "a2e_fleet_main"

// TestLostTaskGoesOn: a worker continues a task that it lost, if no other worker has taken it since, whichever of its
// statements finds the loss.
func TestLostTaskGoesOn(t *testing.T) {
	t.Parallel()
	const losses = 30
	server := postgres.Start(t)
	url := server.URL(postgres.Superuser) + "&lease=3s"
	s := sends(t, url)
	begun, end := make(chan bool, losses+1), make(chan bool)
	works(t, url, "w", 2, func(d *fleet.Dispatch) *fleet.Result {
		begun <- true
		<-end
		return done(d)
	})
	got := make(chan *fleet.Result, 1)
	long := task("long")
	long.Retries = 2 * losses
	go func() { got <- does(t, s, long) }()
	<-begun
	server.Exec(t, fmt.Sprintf(`CREATE SEQUENCE %[1]s.lost;
		CREATE FUNCTION %[1]s.lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF pg_trigger_depth() = 1 AND nextval('%[1]s.lost') <= %[2]d THEN
				UPDATE %[1]s.tasks SET state = 0, losses = losses + 1 WHERE state = 1;
				PERFORM pg_notify('%[1]s', worker) FROM %[1]s.tasks;
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER lose AFTER UPDATE ON %[1]s.tasks FOR EACH STATEMENT EXECUTE FUNCTION %[1]s.lose()`, tables, losses))
	again := fmt.Sprintf("SELECT state = 1 AND losses > 2 AND last_value > %d FROM %s.tasks, %[2]s.lost", losses,
		tables)
	poll.Eventually(t, "the worker has it again", func() bool { return server.Exec(t, again) == "t" })
	server.Exec(t, "BEGIN; UPDATE "+tables+".workers SET lease = now() - interval '1s'; UPDATE "+tables+".tasks SET state = 0; COMMIT")
	poll.Eventually(t, "and when its lease was over", func() bool { return server.Exec(t, again) == "t" })
	close(end)
	assert.Equal(t, (<-got).Status, fleet.StatusDone)
	assert.Equal(t, len(begun), 0, "begun once")
}

// TestCancelOnTheWay: a task that is cancelled while the server is still adding it is taken back, even if its sender
// closes. Another task with the same id stays.
func TestCancelOnTheWay(t *testing.T) {
	t.Parallel()
	server := postgres.Start(t)
	url := server.URL(postgres.Superuser)
	s := sends(t, url)
	locks := must.Get(pgconn.Connect(t.Context(), url))(t)
	defer locks.Close(context.Background())
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	waits := func(id string) {
		all.Go(func() { _, _ = s.Do(ctx, task(id)) })
		poll.Eventually(t, "it waits", func() bool {
			return server.Exec(t, "SELECT to_regclass('"+tables+".tasks') IS NOT NULL") == "t" &&
				server.Exec(t, "SELECT count(*) FROM "+tables+".tasks WHERE task_id = '"+id+"'") == "1"
		})
	}
	waits("other")
	for _, id := range []string{"other", "own"} {
		must.OK(t, locks.Exec(t.Context(), "BEGIN; LOCK TABLE "+tables+".tasks IN EXCLUSIVE MODE").Close())
		one, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() {
			second := task(id)
			second.Dispatch.Brief = "another one"
			_, err := s.Do(one, second)
			got <- err
		}()
		poll.Eventually(t, "the server is asked", func() bool {
			return server.Exec(t, "SELECT count(*) FROM pg_locks WHERE NOT granted") == "1"
		})
		cancel()
		assert.Is(t, <-got, context.Canceled)
		if id == "own" {
			all.Go(func() { s.Close(context.Background()) })
		}
		must.OK(t, locks.Exec(t.Context(), "COMMIT").Close())
		if id == "other" {
			waits("next") // "next" is sent after the cancel
		}
	}
	states := "SELECT string_agg(task_id || ': ' || coalesce(fate, 'waits'), ', ' ORDER BY task_id) FROM " + tables +
		".tasks"
	poll.Eventually(t, "it is taken back", func() bool {
		return server.Exec(t, states) == "next: waits, other: waits, own: cancelled"
	})
}

// TestTaskTakenOut: the sender of a task that was deleted from the queue gets an answer.
func TestTaskTakenOut(t *testing.T) {
	t.Parallel()
	server := postgres.Start(t)
	s := sends(t, server.URL(postgres.Superuser))
	got := make(chan *fleet.Result, 1)
	go func() { got <- does(t, s, task("gone")) }()
	poll.Eventually(t, "it is there", func() bool {
		return server.Exec(t, "SELECT to_regclass('"+tables+".tasks') IS NOT NULL") == "t" &&
			server.Exec(t, "WITH d AS (DELETE FROM "+tables+".tasks RETURNING 1) SELECT count(*) FROM d") == "1"
	})
	assert.Contains(t, (<-got).Error, "not in the queue any more")
}

// TestWorkerGivesBackAll: a worker that ends gives back all tasks that the server has as its own, and cancelled tasks
// end. Rows that no sender would write take no place.
func TestWorkerGivesBackAll(t *testing.T) {
	t.Parallel()
	server := postgres.Start(t)
	url := server.URL(postgres.Superuser) + "&lease=1h"
	put := func(id string, state int, canceled bool) {
		server.Exec(t, fmt.Sprintf(`INSERT INTO %s.tasks (task_id, digest, sender, rank, requires, model, tier, dispatch, seconds, retries, state, canceled, worker)
			VALUES ('%s', '', 'x', 1, '{}', '', '', '{"task":{},"brief":"b"}', 0, 2, %d, %t, (SELECT id
			FROM %[1]s.workers))`, tables, id, state, canceled))
	}
	state := func(id string) string {
		return server.Exec(t, "SELECT concat_ws(' ', state, fate, worker, losses) FROM "+tables+".tasks WHERE "+
			"task_id = '"+id+"'")
	}
	t.Run("worker", func(t *testing.T) {
		works(t, url, "w", 1, done)
		f := must.Get(fleetdb.Open(url))(t)
		t.Cleanup(f.Close)
		poll.Eventually(t, "the worker is there", func() bool { return len(must.Get(f.Workers(context.Background()))(t)) == 1 })
		put("", 0, false)
		poll.Eventually(t, "junk ends", func() bool { return strings.HasPrefix(state(""), "2") })
		put("waits", 1, false)
		put("off", 1, true)
	})
	assert.Equal(t, state("waits")+", "+state("off"), "0 0, 2 cancelled 0")
}
