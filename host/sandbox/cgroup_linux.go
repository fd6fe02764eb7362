package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// cgroups is the cgroup below which each tree gets its own cgroup v2.
type cgroups struct {
	dir  string
	next atomic.Int64
}

// treeControllers returns the controllers that the bounds of a tree need.
func treeControllers() []string { return []string{"memory", "pids"} }

// openCgroups finds the host's own cgroup and prepares it for trees. The error says why that is not possible.
func openCgroups() (*cgroups, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	dir, err := ownCgroup(string(mounts), string(own))
	if err != nil {
		return nil, err
	}
	c := &cgroups{dir: dir}
	return c, c.delegate(os.Getpid())
}

// ownCgroup returns the folder of this process's cgroup v2. It gets the texts of /proc/self/mountinfo
// and /proc/self/cgroup.
func ownCgroup(mountinfo, cgroup string) (string, error) {
	var path string
	for line := range strings.Lines(cgroup) {
		if rest, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			path = rest
		}
	}
	if path == "" {
		return "", errors.New("the host is in no cgroup v2")
	}
	const rootField, pointField = 3, 4
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < 0 || dash+1 >= len(fields) || dash <= pointField || fields[dash+1] != "cgroup2" {
			continue
		}
		if rel, err := filepath.Rel(fields[rootField], path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(fields[pointField], rel), nil
		}
	}
	return "", errors.New("no cgroup v2 is mounted")
}

// delegate makes the controllers available to the cgroups below. The kernel requires that the host
// moves into a cgroup below its own for that, which it does if it is alone in its cgroup.
func (c *cgroups) delegate(pid int) error {
	controllers := filepath.Join(c.dir, "cgroup.subtree_control")
	have, err := os.ReadFile(filepath.Join(c.dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var want []string
	for _, name := range treeControllers() {
		if !slices.Contains(strings.Fields(string(have)), name) {
			return fmt.Errorf("the host's cgroup v2 has no %s controller", name)
		}
		want = append(want, "+"+name)
	}
	enabled, err := os.ReadFile(controllers)
	if err != nil {
		return err
	}
	on := strings.Fields(string(enabled))
	if !slices.ContainsFunc(treeControllers(), func(name string) bool { return !slices.Contains(on, name) }) {
		return nil
	}
	if err = writeFile(controllers, strings.Join(want, " ")); err == nil {
		return nil
	}
	procs, readErr := os.ReadFile(filepath.Join(c.dir, "cgroup.procs"))
	if readErr != nil || strings.TrimSpace(string(procs)) != strconv.Itoa(pid) {
		return fmt.Errorf("the host shares its cgroup (%w); one of its own would do: systemd-run --user --scope -p "+
			"Delegate=yes a2e", err)
	}
	leaf := filepath.Join(c.dir, "a2e-host")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := writeFile(filepath.Join(leaf, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		return err
	}
	return writeFile(controllers, strings.Join(want, " "))
}

// cgroup is the cgroup of one tree. Its zero value is no cgroup.
type cgroup struct {
	path string
	dir  *os.File // open, so that the launcher can be started in it
}

// make makes the cgroup of one tree, without bounds.
func (c *cgroups) make() (cgroup, error) {
	path := filepath.Join(c.dir, fmt.Sprintf("a2e-%d-%d", os.Getpid(), c.next.Add(1)))
	if err := os.Mkdir(path, 0o755); err != nil {
		return cgroup{}, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return cgroup{}, errors.Join(err, os.Remove(path))
	}
	return cgroup{path, dir}, nil
}

// bind sets the limits of the tree.
func (g cgroup) bind(limits Limits) error {
	_ = g.set("memory.swap.max", "0") // machines without swap have no such file
	return errors.Join(g.bound("memory.max", limits.MemoryBytes), g.bound("pids.max", limits.Processes),
		g.set("memory.oom.group", "1"))
}

func (g cgroup) bound(name string, value int64) error {
	if value <= 0 {
		return nil
	}
	return g.set(name, strconv.FormatInt(value, 10))
}

func (g cgroup) set(name, value string) error { return writeFile(filepath.Join(g.path, name), value) }

// removeTries is how often remove tries, at intervals of a millisecond: the last process of a tree is
// reaped before it has left the cgroup.
const removeTries = 100

// remove kills processes that may be left in the cgroup, and removes it.
func (g cgroup) remove() {
	if g.path == "" {
		return
	}
	if g.dir != nil {
		g.dir.Close()
	}
	_ = g.set("cgroup.kill", "1") // needs Linux 5.14; normally the tree is dead already
	for range removeTries {
		if err := os.Remove(g.path); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func writeFile(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}
