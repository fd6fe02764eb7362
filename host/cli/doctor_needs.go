package cli

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/host/schema"
	"a2e/plugins"
	"a2e/protocol"
)

// fixOf returns the command or the config line that fixes an error, or "" if it is unknown.
func fixOf(err error) string {
	lack, missing := (*host.Lack)(nil), (*sandbox.NotFoundError)(nil)
	at := (*fs.PathError)(nil)
	switch {
	case errors.As(err, &lack) && lack.Fix != "":
		return lack.Fix
	case errors.As(err, &missing):
		return installs(missing.Name, missing.Workspace)
	case errors.As(err, &at):
		return fixPath(at)
	}
	return ""
}

// fixPath returns the command that makes a file or folder usable, or "" if it is unknown.
func fixPath(at *fs.PathError) string {
	path := at.Path
	if strings.HasPrefix(filepath.Base(path), ".a2e-doctor-") {
		path = filepath.Dir(path)
	}
	_, gone := os.Stat(path)
	switch {
	case errors.Is(at.Err, fs.ErrNotExist) && gone != nil:
		return "mkdir -p " + quoted(path)
	case errors.Is(at.Err, fs.ErrPermission) && runtime.GOOS != "windows":
		if info, err := os.Stat(path); err == nil && sandbox.OwnedByUs(info) {
			return "chmod u+rwX " + quoted(path)
		}
		return `sudo chown "$(id -un)" ` + quoted(path)
	case errors.Is(at.Err, syscall.ENOSPC):
		return "df -h " + quoted(path)
	}
	return ""
}

// plainRunes are the characters that need no quotes in a shell.
const plainRunes = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/._-+:,=@%"

// quoted returns a word quoted for a shell, if it needs quotes.
func quoted(word string) string {
	if word != "" && strings.Trim(word, plainRunes) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// installs returns the command that puts a program where children find it, or "" if it is unknown.
func installs(name, workspace string) string {
	if elsewhere, err := exec.LookPath(name); err == nil && filepath.IsAbs(elsewhere) {
		if wall.Within(workspace, elsewhere) {
			return "sudo cp " + quoted(elsewhere) + " /usr/local/bin/"
		}
		return "sudo ln -s " + quoted(elsewhere) + " /usr/local/bin/"
	}
	packages, manager := packageOf(name), installer()
	if packages == nil || manager == nil {
		return ""
	}
	one, special := packages[manager[0]]
	if !special {
		one = packages[""]
	}
	if command, whole := strings.CutPrefix(one, "!"); whole {
		return command
	}
	return strings.Join(append(manager[1:], one), " ")
}

// installer returns the name of this machine's package manager, followed by the command that
// installs a package with it, or nil if no known manager is found.
func installer() []string {
	var sudo []string
	if os.Geteuid() != 0 {
		sudo = []string{"sudo"}
	}
	for _, m := range [][]string{
		{"brew", "brew", "install"},
		{"apt-get", "apt-get", "install"},
		{"dnf", "dnf", "install"},
		{"pacman", "pacman", "-S"},
		{"apk", "apk", "add"},
		{"zypper", "zypper", "install"},
		{"winget", "winget", "install"},
	} {
		if _, err := exec.LookPath(m[0]); err != nil || m[0] == "brew" && runtime.GOOS != "darwin" {
			continue
		}
		if m[0] == "brew" || m[0] == "winget" {
			return m
		}
		return slices.Concat(m[:1], sudo, m[1:])
	}
	return nil
}

// packagesText has a line for the programs of one package, with cells separated by tabs: the names
// of the programs, the name of the package (= stands for the program's name), and MANAGER=NAME for
// each package manager with another name. A name that begins with ! is a whole command.
//
//go:embed packages.txt
var packagesText string

// packageOf returns the names of the package that has a program, by package manager ("" = any other
// manager), or nil if the program is unknown.
func packageOf(program string) map[string]string {
	for line := range strings.Lines(packagesText) {
		cells := strings.Split(strings.TrimSpace(line), "\t")
		if !slices.Contains(strings.Fields(cells[0]), program) {
			continue
		}
		packages := map[string]string{"": strings.Replace(cells[1], "=", program, 1)}
		for _, cell := range cells[2:] {
			manager, name, _ := strings.Cut(cell, "=")
			packages[manager] = name
		}
		return packages
	}
	return nil
}

// reasonOf returns why something is missing, without the parts that are of no use to a person.
func reasonOf(err error) string {
	missing := (*sandbox.NotFoundError)(nil)
	if told, ok := err.(*protocol.Error); ok {
		return told.Message
	}
	if !errors.As(err, &missing) {
		return err.Error()
	}
	text := strings.Replace(err.Error(), missing.Error(), fmt.Sprintf("there is no program %q", missing.Name), 1)
	hint := schema.DidYouMean(missing.Name, programsIn(missing.Dirs))
	if hint != "" && packageOf(missing.Name) == nil && fixOf(err) == "" {
		text += "; " + hint
	}
	return text
}

// programsIn returns the sorted names of the files in the folders.
func programsIn(dirs []string) (names []string) {
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir) // a folder that cannot be read offers no names
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// fixSandbox returns the command that sets the kernel setting which denies namespaces to this user,
// or "" if the reason is another one.
func fixSandbox(mechanism string) string {
	if mechanism != "user_namespace" {
		return ""
	}
	for _, s := range []struct{ key, closed, open string }{
		{"kernel.unprivileged_userns_clone", "0", "1"},
		{"kernel.apparmor_restrict_unprivileged_userns", "1", "0"},
		{"user.max_user_namespaces", "0", "10000"},
	} {
		text, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(s.key, ".", "/"))
		if err == nil && strings.TrimSpace(string(text)) == s.closed {
			return "sudo sysctl -w " + s.key + "=" + s.open
		}
	}
	return ""
}

const (
	liveTime   = 10 * time.Second // limit of one trial whose need sets no limit
	liveAtOnce = 16               // trials at once
)

// lookAtNeeds looks for the things that the options of plugins name. It starts nothing.
func lookAtNeeds(section string, cfg *config.Config, made []host.Plugin) (all []check) {
	for _, plugin := range made {
		needer, ok := host.As[host.Needer](plugin)
		if !ok {
			continue
		}
		name := plugin.Info().Name
		at := slices.IndexFunc(cfg.Plugins, func(p config.Plugin) bool { return p.Name == name })
		for _, need := range needer.Needs() {
			c := check{Section: section, Name: need.Of, need: need}
			if at >= 0 && need.Option != "" {
				c.Place = cfg.Plugins[at].Options.Where(need.Option)
			}
			c.found(need.Look())
			c.mask(cfg)
			all = append(all, c)
		}
	}
	return all
}

// found stores the result of a look or a trial.
func (c *check) found(text string, err error) {
	lack := (*host.Lack)(nil)
	switch c.Level, c.Text = levelFine, text; {
	case err == nil:
		return
	case errors.As(err, &lack) && lack.Minor:
		c.Level = levelWarning
	default:
		c.Level = levelError
	}
	c.Text, c.Fix = reasonOf(err), fixOf(err)
	if file, _, _ := strings.Cut(c.Place, ":"); strings.HasSuffix(file, ".json") {
		c.Fix = asJSON(c.Fix)
	}
}

// mask hides the secrets of the config: an untrusted config may put any variable anywhere.
func (c *check) mask(cfg *config.Config) {
	for _, text := range []*string{&c.Name, &c.Text, &c.Fix} {
		*text = cfg.Secrets.Text(*text)
	}
}

// try runs the live trials in parallel, except for checks that already failed.
func (o doctorCmd) try(ctx context.Context, all []check, cfg *config.Config, sys *System) {
	var trials errgroup.Group
	trials.SetLimit(liveAtOnce)
	var ended, count atomic.Int64
	done := sys.waiting(func() string { return fmt.Sprintf("tried out: %d of %d", ended.Load(), count.Load()) })
	defer done()
	untried := func(c check) bool { return c.need.Live == nil || c.Level == levelError }
	for i := range all {
		if c := &all[i]; !untried(*c) {
			count.Add(1)
			trials.Go(func() error {
				o.tryOne(ctx, c)
				c.mask(cfg)
				ended.Add(1)
				return nil
			})
		}
	}
	_ = trials.Wait() // no trial returns an error
}

// tryOne runs one live trial and waits no longer than its time limit.
func (o doctorCmd) tryOne(ctx context.Context, c *check) {
	limit := cmp.Or(time.Duration(o.Timeout*float64(time.Second)), c.need.Wait, liveTime)
	ctx, stop := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not answer within %s", limit))
	defer stop()
	ended, seen, began := make(chan func(), 1), *c, time.Now()
	go func() {
		text, err := c.need.Live(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		ended <- func() { c.found(text, err) }
	}()
	select {
	case tell := <-ended:
		tell()
	case <-ctx.Done():
		c.found("", context.Cause(ctx))
	}
	c.Live, c.MS = true, time.Since(began).Milliseconds()
	if seen.Level != levelWarning {
		return
	}
	if c.Level == levelFine {
		c.Level = levelWarning
	}
	c.Fix = cmp.Or(c.Fix, seen.Fix)
	if !strings.Contains(c.Text, seen.Text) { // the earlier finding may be the reason
		c.Text += "; " + seen.Text
	}
}

// checkUntrusted checks the things that untrusted files of the folder name, as if the files were
// trusted. It starts nothing and connects to nothing.
func (d *diagnosis) checkUntrusted(cmd *commands, sys *System, cfg *config.Config) {
	if cfg.Untrusted == nil {
		return
	}
	src := cmd.source(sys)
	src.Trust = func(string, []byte) error { return nil }
	asked, _, err := config.Load(src)
	var made []host.Plugin
	if err == nil {
		made, err = plugins.New(asked, plugins.Deps{})
		defer closePlugins(made)
	}
	if err != nil {
		name := filepath.Base(cfg.Untrusted[0])
		for problem := range strings.SplitSeq(err.Error(), "\n") {
			d.add("untrusted", levelWarning, name, problem)
		}
		d.Checks[len(d.Checks)-1].Fix = fixOf(err)
		return
	}
	for _, c := range lookAtNeeds("untrusted", asked, made) {
		if c.Level == levelError {
			c.Level = levelWarning // the file is not in use yet
		}
		d.Checks = append(d.Checks, c)
	}
}
