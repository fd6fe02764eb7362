package main_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

const ping = `{"type":"ping","id":"1"}` + "\n"

const root = "../../.."

// dist makes a release for this machine's system only, from the sources in a folder, and returns its folder.
func dist(t *testing.T, sources string, env ...string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), hosttest.Program(t, "a2e/host/cli/dist"), "-out", out, "-version", "v1.2.3",
		"-platforms", runtime.GOOS+"/"+runtime.GOARCH)
	cmd.Dir, cmd.Env = sources, append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	must.That(t, err == nil, "dist: %v: %s", err, text)
	return out
}

// TestDist: a release is the same each time, its sums, archive and statements are true, and its packages start the
// host.
func TestDist(t *testing.T) {
	t.Parallel()
	out := dist(t, root)
	t.Run("again", func(t *testing.T) { t.Parallel(); again(t, out) })
	t.Run("sums", func(t *testing.T) {
		t.Parallel()
		run(t, out, "sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS")
		assert.That(t, strings.Count(read(t, out, "SHA256SUMS"), "\n") >= 9, "few files")
	})
	t.Run("archive", func(t *testing.T) { t.Parallel(); archive(t, out) })
	t.Run("statements", func(t *testing.T) { t.Parallel(); statements(t, out) })
	t.Run("npm", func(t *testing.T) { t.Parallel(); npm(t, out) })
	t.Run("pip", func(t *testing.T) { t.Parallel(); pip(t, out) })
	t.Run("systemd", func(t *testing.T) { t.Parallel(); systemd(t, out) })
}

// again makes the release in another folder, home, time zone and locale, and compares the sums. The cache of the
// compiler is the same, so this shows that linking and packing add no path, time or order.
func again(t *testing.T, out string) {
	dir := t.TempDir()
	run(t, root, "sh", "-c", `git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -cT - | tar -xC "$0"`, dir)
	caches := strings.Fields(string(must.Get(exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output())(t)))
	git := strings.TrimSpace(run(t, root, "git", "rev-parse", "--absolute-git-dir"))
	other := dist(t, dir, "HOME="+dir, "GOCACHE="+caches[0], "GOMODCACHE="+caches[1], "GIT_DIR="+git, "TZ=Pacific/Apia",
		"LC_ALL=tr_TR.UTF-8")
	assert.Equal(t, read(t, other, "SHA256SUMS"), read(t, out, "SHA256SUMS"))
}

// archive checks each file of the archive: its owner, time, mode and content.
func archive(t *testing.T, out string) {
	folder := "a2e-v1.2.3-" + runtime.GOOS + "-" + runtime.GOARCH
	packed := must.Get(gzip.NewReader(must.Get(os.Open(filepath.Join(out, folder+".tar.gz")))(t)))(t)
	assert.That(t, packed.ModTime.IsZero() && packed.Name == "", "gzip says %v %q", packed.ModTime, packed.Name)
	var names []string
	var made time.Time
	r := tar.NewReader(packed)
	for {
		head, err := r.Next()
		if err == io.EOF {
			break
		}
		must.OK(t, err)
		name := strings.TrimPrefix(head.Name, folder+"/")
		assert.That(t, head.Uid == 0 && head.Gid == 0 && head.Uname == "" && (made.IsZero() ||
			made.Equal(head.ModTime)), "%+v", head)
		made, names = head.ModTime, append(names, name)
		if name != "a2e" {
			assert.That(t, head.Mode == 0o644 && head.Size > 0, "%+v", head)
			continue
		}
		assert.Equal(t, head.Mode, int64(0o755))
		info := must.Get(buildinfo.Read(bytes.NewReader(must.Get(io.ReadAll(r))(t))))(t)
		assert.Equal(t, info.GoVersion, runtime.Version())
	}
	for _, name := range []string{
		"a2e", "LICENSE", "README.md", "THIRD_PARTY_LICENSES", "a2e.schema.json",
		"completions/_a2e", "man/a2e.1",
	} {
		assert.That(t, slices.Contains(names, name), "no %s among %q", name, names)
	}
}

// statements checks the bill of materials and the provenance against the files themselves.
func statements(t *testing.T, out string) {
	var bill struct {
		Components []struct {
			Name, Version, Purl string
			Licenses            []struct{ License struct{ ID string } }
		}
	}
	must.OK(t, json.Unmarshal([]byte(read(t, out, "a2e.cdx.json")), &bill))
	known, page, texts := map[string]bool{}, read(t, "README.md"), read(t, out, "container", "THIRD_PARTY_LICENSES")
	for _, c := range bill.Components {
		known[c.Name+" "+c.Version] = true
		assert.That(t, c.Purl != "" && len(c.Licenses) > 0, "%+v", c)
		ids := c.Licenses[0].License.ID
		for _, more := range c.Licenses[1:] {
			ids += ", " + more.License.ID
		}
		assert.Contains(t, page, "\n| "+c.Name+" | "+ids+" |\n", "the page lacks")
		assert.Contains(t, texts, "\n"+c.Name+" "+c.Version+" ("+ids+")\n")
	}
	rows := strings.Count(page[strings.Index(page, "\n| module | licence |"):strings.Index(page,
		"\n## What is checked")], "\n| ") - 1
	assert.That(t, rows-len(bill.Components) <= 1, "the page has %d modules, the bill %d; other systems have one more",
		rows, len(bill.Components))
	info := must.Get(buildinfo.ReadFile(hosttest.Program(t, "a2e")))(t)
	for _, dep := range info.Deps {
		assert.That(t, known[dep.Path+" "+dep.Version], "%s is in the binary and not on the bill", dep.Path)
	}
	var made struct {
		Type    string `json:"_type"`
		Subject []struct {
			Name   string
			Digest struct{ SHA256 string }
		}
	}
	must.OK(t, json.Unmarshal([]byte(read(t, out, "provenance.intoto.json")), &made))
	sums := read(t, out, "SHA256SUMS")
	for _, s := range made.Subject {
		assert.That(t, strings.Contains(sums, s.Digest.SHA256+"  "+s.Name+"\n"), "%+v", s)
	}
	assert.That(t, made.Type == "https://in-toto.io/Statement/v1" && len(made.Subject) >= 7, "%+v", made)
}

// npm installs the two local packages offline, and starts the host by npx.
func npm(t *testing.T, out string) {
	dir := t.TempDir()
	packages := must.Get(filepath.Glob(filepath.Join(out, "npm", "*.tgz")))(t)
	assert.Equal(t, len(packages), 2)
	run(t, dir, "npm", append([]string{"install", "--offline", "--no-audit", "--no-fund", "--no-update-notifier"},
		packages...)...)
	cmd := command(t, dir, "npx", "--offline", "a2e")
	cmd.Stdin = strings.NewReader(ping)
	text := must.Get(cmd.Output())(t)
	assert.That(t, strings.Contains(string(text), `"type":"pong"`), "%s", text)
	launched(t, dir, filepath.Join(dir, "node_modules/.bin/a2e"))

	must.OK(t, os.RemoveAll(must.Get(filepath.Glob(filepath.Join(dir, "node_modules/a2e-*")))(t)[0]))
	text, err := command(t, dir, "node_modules/.bin/a2e").CombinedOutput()
	assert.That(t, err != nil && strings.Contains(string(text), "is not installed"), "%v: %s", err, text)
}

// pip installs the local wheel offline.
func pip(t *testing.T, out string) {
	dir := t.TempDir()
	run(t, dir, "python3", "-m", "venv", "venv")
	run(t, dir, "venv/bin/pip", append([]string{"install", "--no-index", "--disable-pip-version-check"},
		must.Get(filepath.Glob(filepath.Join(out, "python", "*.whl")))(t)...)...)
	launched(t, dir, filepath.Join(dir, "venv/bin/a2e"))
	run(t, dir, "venv/bin/pip", "check")
	run(t, dir, "venv/bin/pip", "uninstall", "--yes", "a2e")
	_, err := os.Stat(filepath.Join(dir, "venv/bin/a2e"))
	assert.That(t, os.IsNotExist(err), "the binary stays: %v", err)
}

// launched checks that a launcher behaves like the host: version, exit codes, signals. The host must end with the
// launcher, however that ends.
func launched(t *testing.T, dir, path string) {
	text := run(t, dir, path, "--version")
	assert.That(t, strings.HasPrefix(text, "a2e v1.2.3 "), "%s", text)
	err := command(t, dir, path, "no-such-command").Run()
	exit, ok := err.(*exec.ExitError)
	assert.That(t, ok && exit.ExitCode() == 2, "usage: %v", err)
	for _, end := range []syscall.Signal{0, syscall.SIGTERM, syscall.SIGKILL} { // 0 = the end of stdin
		cmd := command(t, dir, path)
		in, answers := must.Get(cmd.StdinPipe())(t), must.Get(cmd.StdoutPipe())(t)
		must.OK(t, cmd.Start())
		must.Get(io.WriteString(in, ping))(t)
		lines := bufio.NewReader(answers)
		line := must.Get(lines.ReadString('\n'))(t)
		assert.That(t, strings.Contains(line, `"type":"pong"`), "%s", line)
		if end == 0 {
			must.OK(t, in.Close())
		} else {
			must.OK(t, cmd.Process.Signal(end))
		}
		// the host has the other end of answers, so ReadAll returns when the host has ended
		rest, err := io.ReadAll(lines)
		assert.That(t, err == nil && len(rest) == 0, "after %v: %v: %s", end, err, rest)
		err = cmd.Wait()
		assert.That(t, (err == nil) == (end != syscall.SIGKILL), "after %v: %v", end, err)
	}
}

// systemd checks the units, if the machine has systemd, and that a host answers on a socket of systemd.
func systemd(t *testing.T, out string) {
	unit := read(t, out, "systemd/a2e@.service")
	assert.That(t, strings.Contains(unit, "ExecStart=/usr/bin/a2e serve\n"), "%s", unit)
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("no systemd here: the units were not read")
		return
	}
	dir, program := t.TempDir(), hosttest.Program(t, "a2e")
	put := func(name, text string) {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	put("a2e@.service", strings.ReplaceAll(unit, "/usr/bin/a2e", program))
	put("a2e.socket", read(t, out, "systemd/a2e.socket"))
	text := run(t, dir, "systemd-analyze", "verify", "--man=no", "a2e@.service", "a2e.socket")
	assert.That(t, !strings.Contains(text, "a2e"), "%s", text)

	path := filepath.Join(dir, "s")
	listen := command(t, dir, "systemd-socket-activate", "--listen", path, "--accept", "--inetd", program, "serve")
	must.OK(t, listen.Start())
	assert.That(t, strings.Contains(over(t, path), `"type":"pong"`), "no answer over the socket")
	must.OK(t, listen.Process.Kill())
	_ = listen.Wait()
}

// over sends a ping to a host that will listen at path, and returns the answer.
func over(t *testing.T, path string) string {
	var conn net.Conn
	poll.Eventually(t, "the socket", func() (ok bool) { // the file exists before anyone listens
		var err error
		conn, err = (&net.Dialer{}).DialContext(t.Context(), "unix", path)
		return err == nil
	})
	defer conn.Close()
	must.Get(io.WriteString(conn, ping))(t)
	return must.Get(bufio.NewReader(conn).ReadString('\n'))(t)
}

// command prepares a command whose home is dir.
func command(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	if strings.Contains(name, "/") && !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "A2E_CONFIG=")
	return cmd
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	text, err := command(t, dir, name, args...).CombinedOutput()
	must.That(t, err == nil, "%s %q: %v: %s", name, args, err, text)
	return string(text)
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(filepath.Join(parts...)))(t))
}
