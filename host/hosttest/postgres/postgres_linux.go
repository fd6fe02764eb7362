package postgres

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"a2e/host/hosttest/built"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// Superuser is the superuser role of the cluster.
const Superuser = "postgres"

// nobody is the user id of the server if the test runs as root, as PostgreSQL refuses to run as root.
const nobody = 65534

// Server is a running server.
type Server struct {
	Dir string // has its socket, and its files in "data"
	bin string

	settings []string             // in addition to the usual ones
	end      func(syscall.Signal) // ends the running server and waits for its end
}

// Start makes a cluster and starts its server, only for the test. Any user who can open the socket
// can use any role. settings are settings of the server, such as fsync=on. The test fails if PostgreSQL is not
// installed.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	bin := binaries(t)
	// unlike t.TempDir, other users can enter this folder, and the path is short enough for a socket
	dir := must.Get(os.MkdirTemp("/tmp", "pg"))(t)
	t.Cleanup(func() { must.OK(t, os.RemoveAll(dir)) })
	s := &Server{Dir: dir, bin: bin, settings: settings}
	if os.Geteuid() == 0 {
		must.OK(t, os.Chown(dir, nobody, nobody))
	}
	s.makeCluster(t)
	s.Begin(t)
	t.Cleanup(func() { s.end(syscall.SIGINT) }) // fast shutdown
	return s
}

// makeCluster makes the files of a new cluster. initdb takes a second of processor time, a copy
// of its result a tenth. So tests that share a folder of programs also share a template of the cluster.
func (s *Server) makeCluster(t testing.TB) {
	t.Helper()
	data, shared := filepath.Join(s.Dir, "data"), os.Getenv(built.Folder)
	template := filepath.Join(shared, "cluster-"+filepath.Base(filepath.Dir(s.bin)))
	if _, err := os.Stat(template); err == nil && shared != "" {
		must.OK(t, copyAll(template, data))
		return
	}
	initdb := s.command("initdb", "-D", data, "-U", Superuser, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync",
		"--no-instructions", "--wal-segsize=1")
	out, err := initdb.CombinedOutput()
	must.That(t, err == nil, "initdb: %v\n%s", err, out)
	if shared == "" {
		return
	}
	whole := fmt.Sprintf("%s.%s", template, filepath.Base(s.Dir)) // the finished copy is renamed to its final name
	if err := copyAll(data, whole); err != nil || os.Rename(whole, template) != nil {
		_ = os.RemoveAll(whole) // another test was first, or this user may not write there
	}
}

// copyAll copies a folder, with owners and modes.
func copyAll(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return nil
}

// Begin starts the server, also again after Crash.
func (s *Server) Begin(t testing.TB) {
	t.Helper()
	args := []string{
		"-D", filepath.Join(s.Dir, "data"), "-k", s.Dir, "-c", "listen_addresses=", "-c", "fsync=off",
		"-c", "full_page_writes=off",
		"-c", "max_connections=100", "-c", "shared_buffers=16MB",
		"-c", "min_wal_size=2MB", "-c", "wal_recycle=off", "-c", "wal_init_zero=off",
	}
	for _, setting := range s.settings {
		args = append(args, "-c", setting)
	}
	s.run(t, s.command("postgres", args...))
}

// Crash ends the server like a power loss: uncommitted data is lost.
func (s *Server) Crash() { s.end(syscall.SIGQUIT) }

// URL returns the connection string of a role, in the database "postgres".
func (s *Server) URL(role string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User(role), Path: "/postgres",
		RawQuery: url.Values{"host": {s.Dir}}.Encode(),
	}
	return u.String()
}

// Exec runs SQL as the superuser, statement by statement, and returns the output of psql:
// values without a frame.
func (s *Server) Exec(t testing.TB, sql string) string {
	t.Helper()
	out, err := s.psql(sql)
	must.That(t, err == nil, "psql: %v\n%s", err, out)
	return string(bytes.TrimSpace(out))
}

func (s *Server) psql(sql string) ([]byte, error) {
	return s.command("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", s.URL(Superuser), "-c",
		sql).CombinedOutput()
}

// command returns a command for one of PostgreSQL's programs, without the caller's environment.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir, cmd.Env = s.Dir, []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd
}

// run starts the server and waits until it answers. The server ends with the thread that started it, and so
// also if the test is killed.
func (s *Server) run(t testing.TB, server *exec.Cmd) {
	t.Helper()
	var log bytes.Buffer
	server.Stdout, server.Stderr = &log, &log
	server.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		err := server.Start()
		started <- err
		if err == nil {
			ended <- server.Wait()
		}
	}()
	must.OK(t, <-started)
	s.end = func(how syscall.Signal) {
		_ = server.Process.Signal(how) // the server may have ended by itself
		ended <- <-ended               // put back, as another caller may wait too
	}
	poll.Eventually(t, "the server answers", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the server ended: %v\n%s", err, log.Bytes())
		default:
		}
		conn, err := net.Dial("unix", filepath.Join(s.Dir, ".s.PGSQL.5432"))
		if err != nil {
			return false
		}
		_ = conn.Close()
		_, err = s.psql("SELECT 1")
		return err == nil
	})
}

// binaries returns the folder of PostgreSQL's programs, that of the newest version.
func binaries(t testing.TB) string {
	t.Helper()
	found := must.Get(filepath.Glob("/usr/lib/postgresql/*/bin/postgres"))(t)
	if path, err := exec.LookPath("postgres"); err == nil {
		found = append(found, path)
	}
	must.That(t, len(found) > 0, "there is no PostgreSQL here: `make tools` installs it")
	newest := slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(version(a), version(b)) })
	return filepath.Dir(newest)
}

// version returns the version in the path of a program; 0 = none.
func version(path string) (n int) {
	_, _ = fmt.Sscanf(path, "/usr/lib/postgresql/%d/", &n)
	return n
}
