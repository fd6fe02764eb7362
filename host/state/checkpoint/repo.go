package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/guard/private"
	"a2e/host/state/git"
)

// Files in the repository; those without a comment belong to git.
const (
	branch      = "refs/heads/checkpoints"
	indexFile   = "index"
	lockFile    = "lock"         // locked while the repository is used or files are restored
	pendingFile = "restore"      // exists while files are restored
	addFile     = "add"          // names to add; exists until the commit is made
	dropFile    = "drop"         // names to remove
	changedFile = "changed"      // names of files that differ from the index
	othersFile  = "others"       // names that are not in the index
	messageFile = "message"      // message of the next commit
	renameFile  = "rename"       // message of the commit that replaces the last one if nothing changed
	objectsFile = "objects.list" // ids of objects to read
)

// attributes keep all contents unchanged, whatever the workspace's own .gitattributes say.
const attributes = "* -text -eol -ident -filter -working-tree-encoding -diff -merge -export-subst\n"

// config is the configuration of the repository. The configurations of the system and the user are not
// used, and host/state/git switches off all settings that could run programs.
const config = `[core]
	repositoryformatversion = 0
	bare = true
	fileMode = true
	symlinks = true
	autocrlf = false
	ignoreCase = false
	precomposeUnicode = false
	logAllRefUpdates = false
	sharedRepository = 0600
	fsync = none
	compression = 1
[pack]
	window = 0
[index]
	version = 4
`

// meta is a checkpoint as JSON in the message of its commit, below the title.
type meta struct {
	Info
	IncludesIgnored bool                   `json:"includes_ignored,omitzero"`
	Left            map[string]left        `json:"left,omitzero"`   // files whose content is not kept, by quoted path
	Narrow          map[string]fs.FileMode `json:"narrow,omitzero"` // rights of files that have fewer than usual
	Nested          []string               `json:"nested,omitzero"` // nested repositories, quoted

	commit, tree, parent string
}

// hold waits for the lock among all hosts, and makes the repository if it is missing.
func (k *Keeper) hold() error {
	d, err := private.MakeDir(k.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	f, err := d.Open(lockFile, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		ok, err := private.TryLock(f)
		if ok {
			break
		}
		if err == nil {
			select {
			case <-time.After(wait):
				continue
			case <-k.ctx.Done():
				err = fmt.Errorf("another host uses the checkpoints of this workspace: %w", context.Cause(k.ctx))
			}
		}
		return errors.Join(err, f.Close())
	}
	k.lock = f
	if err := k.ready(); err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// ready makes the files that git needs, and removes the locks of a git that was killed.
func (k *Keeper) ready() error {
	for _, name := range []string{indexFile, branch, "HEAD", "shallow", "packed-refs"} {
		_ = os.Remove(filepath.Join(k.dir, name+".lock"))
	}
	exclude := ".hg/\n.jj/\n.svn/\n"
	for _, name := range k.o.Hidden {
		exclude += "/" + strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, " ", `\ `).Replace(name) + "\n"
	}
	if now, err := os.ReadFile(filepath.Join(k.dir, "info", "exclude")); err == nil && string(now) == exclude {
		return nil
	}
	for _, dir := range []string{"objects/info", "objects/pack", "refs/heads", "info"} {
		if err := os.MkdirAll(filepath.Join(k.dir, dir), 0o700); err != nil {
			return err
		}
	}
	return errors.Join(k.write("HEAD", "ref: "+branch+"\n"), k.write("info/attributes", attributes),
		k.write("config", config), k.write("info/exclude", exclude))
}

// write writes a file of the repository, which is never seen incomplete.
func (k *Keeper) write(name, content string) error {
	path := filepath.Join(k.dir, name)
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// names reads a list of names from a file of the repository.
func (k *Keeper) names(name string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(k.dir, name))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// list returns names in the form that scripts read with -z.
func list(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return strings.Join(names, "\x00") + "\x00"
}

// script runs git commands in the repository; vars are pairs of name and value.
func (k *Keeper) script(out io.Writer, script string, vars ...string) error {
	launcher, err := k.o.Launcher()
	if err != nil {
		return err
	}
	repo, err := git.Open(git.Repo{
		Dir: k.o.Workspace, GitDir: k.dir, Launcher: launcher,
		AuthorName: "a2e", AuthorEmail: "checkpoints@a2e.invalid",
	})
	if err != nil {
		return err
	}
	all := map[string]string{"TIP": ""}
	if last := k.last(); last != nil {
		all["TIP"] = last.commit
	}
	for pair := range slices.Chunk(vars, 2) {
		all[pair[0]] = pair[1]
	}
	return repo.Script(k.ctx, script, all, k.lock, out)
}

// last returns the latest checkpoint, or nil if there is none.
func (k *Keeper) last() *meta {
	if len(k.metas) == 0 {
		return nil
	}
	return &k.metas[len(k.metas)-1]
}

// find returns the checkpoint with an id, or nil if there is none.
func (k *Keeper) find(id uint64) *meta {
	at, ok := slices.BinarySearchFunc(k.metas, id, func(m meta, id uint64) int { return cmp.Compare(m.ID, id) })
	if !ok {
		return nil
	}
	return &k.metas[at]
}

// refresh reads the checkpoints that other hosts have made since.
func (k *Keeper) refresh() error {
	text, err := os.ReadFile(filepath.Join(k.dir, branch))
	tip := strings.TrimSpace(string(text))
	last := k.last()
	first, _ := os.ReadFile(filepath.Join(k.dir, "shallow"))
	if last != nil && len(first) > 0 && k.metas[0].commit != strings.TrimSpace(string(first)) {
		last = nil // another host has removed the oldest ones
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		k.metas = nil
		return nil
	case err != nil || last != nil && last.commit == tip:
		return err
	}
	k.metas, k.bytes = nil, 0
	var out bytes.Buffer
	err = k.script(&out, `git log --format=tformat:'%H%x00%T%x00%P%x00%B%x00' "$TIP"`, "TIP", tip)
	fields := strings.Split(out.String(), "\x00")
	for err == nil && len(fields) >= 4 {
		m := meta{commit: strings.TrimSpace(fields[0]), tree: fields[1], parent: fields[2]}
		_, text, _ := strings.Cut(fields[3], "\n\n")
		err = json.Unmarshal([]byte(text), &m)
		k.metas, fields = append(k.metas, m), fields[4:]
	}
	slices.Reverse(k.metas)
	if err == nil && len(k.metas) == 0 {
		err = errors.New("it has no commit")
	}
	if err != nil {
		k.metas = nil
		return fmt.Errorf("the repository %s is damaged: %w; move the folder away to start over", k.dir, err)
	}
	return nil
}

// message returns the commit message of a checkpoint.
func (m *meta) message() (string, error) {
	text, err := json.Marshal(m, json.Deterministic(true))
	title := strings.Join(strings.Fields(strings.ToValidUTF8(m.Before, "\uFFFD")), " ")
	return cmp.Or(strings.ReplaceAll(title, "\x00", ""), "checkpoint") + "\n\n" + string(text) + "\n", err
}

// commit makes a commit the last checkpoint: a new one, or one that replaces the last because the tree is the same.
const commit = `commit() {
	export GIT_AUTHOR_DATE="$GIT_COMMITTER_DATE"
	c=$(git commit-tree "$1" ${2:+-p "$2"} -F "$GIT_DIR/$3") && git update-ref ` + branch + ` "$c" && echo "$3 $c $1"
}; `

// stage writes the input for the next commit. tree is the tree of the last commit if a commit of the
// same tree may replace it, otherwise "".
func (k *Keeper) stage(now *state) (tree, parent string, err error) {
	now.LeftOut = len(now.Left)
	message, err := now.message()
	if err != nil {
		return "", "", err
	}
	rename := ""
	if last := k.last(); last != nil && now.like(last) && now.Restored == 0 {
		same := *last
		same.Before, same.Made = cmp.Or(now.Before, last.Before), now.Made
		if rename, err = same.message(); err != nil {
			return "", "", err
		}
		tree, parent = last.tree, last.parent
	}
	return tree, parent, errors.Join(k.write(addFile, list(now.add)), k.write(dropFile, list(now.drop)),
		k.write(messageFile, message), k.write(renameFile, rename))
}

// keep adds the changes and makes a commit if the checkpoint differs from the last one.
func (k *Keeper) keep(now *state) (*meta, error) {
	if err := k.room(now); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for tries := 0; ; tries++ {
		tree, parent, err := k.stage(now)
		if err != nil {
			return nil, err
		}
		big := "512m"
		if len(now.add) > 200 || tries > 0 { // one pack, not a file for each; each is read only once
			big = "1"
		}
		err = k.script(&out, commit+`
			[ ! -s "$GIT_DIR/drop" ] || git update-index --force-remove -z --stdin <"$GIT_DIR/drop" || exit
			[ ! -s "$GIT_DIR/add" ] || git -c core.bigFileThreshold=$BIG \
				update-index --add --remove --replace -z --stdin <"$GIT_DIR/add" || exit
			tree=$(git write-tree) || exit
			if [ "$tree" != "$TREE" ]; then commit "$tree" "$TIP" message; else commit "$tree" "$PARENT" rename; fi`,
			"BIG", big, "TREE", tree, "PARENT", parent, "GIT_COMMITTER_DATE", date(now.Made))
		if err == nil {
			return k.made(&now.meta, out.String())
		}
		if !(tries < maxTries && changing(err)) && !now.closed(err) {
			return nil, err
		}
		if err := k.ready(); err != nil { // a git that was killed has left its lock
			return nil, err
		}
	}
}

// maxTries is how often git is restarted if files changed while it read them.
const maxTries = 8

// changing reports whether git failed because a file changed or became shorter meanwhile.
func changing(err error) bool {
	return slices.ContainsFunc([]string{"Bus error", "unstable object source data", "short read", shortRead},
		func(said string) bool { return strings.Contains(err.Error(), said) })
}

func date(t time.Time) string { return fmt.Sprintf("@%d +0000", t.Unix()) }

// made records the commit that a script has made.
func (k *Keeper) made(m *meta, told string) (*meta, error) {
	words := strings.Fields(told)
	if len(words) != 3 {
		return nil, fmt.Errorf("git said %q", told)
	}
	if words[0] == renameFile {
		last := k.last()
		last.Before, last.Made = cmp.Or(m.Before, last.Before), m.Made
		last.commit = words[1]
	} else {
		if last := k.last(); last != nil {
			m.parent = last.commit
		}
		m.commit, m.tree = words[1], words[2]
		k.metas = append(k.metas, *m)
	}
	return k.last(), os.Remove(filepath.Join(k.dir, addFile))
}

// unfinished reports whether a checkpoint was begun but not made: the index may be newer than the last checkpoint.
func (k *Keeper) unfinished() bool {
	_, err := os.Stat(filepath.Join(k.dir, addFile))
	return err == nil
}

// rename changes the text before of the last checkpoint.
func (k *Keeper) rename(before string) error {
	m := *k.last()
	m.Before = before
	text, err := m.message()
	if err := errors.Join(err, k.write(renameFile, text), k.write(addFile, "")); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := k.script(&out, commit+`commit "$TREE" "$PARENT" rename`, "TREE", m.tree, "PARENT", m.parent,
		"GIT_COMMITTER_DATE", date(m.Made)); err != nil {
		return err
	}
	_, err = k.made(&m, out.String())
	return err
}

// counts returns the number of files that differ from the previous commit, by commit.
func (k *Keeper) counts() (map[string]int, error) {
	var out bytes.Buffer
	err := k.script(&out, `git log -r --no-renames --raw --format=tformat:%H "$TIP"`)
	all, commit := map[string]int{}, ""
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, ":") {
			all[commit]++
		} else if line != "" {
			commit = line
		}
	}
	return all, err
}

// trim removes all but the latest count checkpoints: the history ends at the oldest of them, as in a shallow clone.
func (k *Keeper) trim(count int) error {
	if count = max(count, 1); len(k.metas) > count {
		k.metas = slices.Delete(k.metas, 0, len(k.metas)-count)
		k.metas[0].parent = ""
		if err := k.write("shallow", k.metas[0].commit+"\n"); err != nil {
			return err
		}
	}
	k.bytes = 0
	return k.script(io.Discard, `git repack -a -d -q && git prune --expire=now`)
}

// room removes the oldest checkpoints until the new contents fit, and drops contents that still do not fit.
func (k *Keeper) room(now *state) error {
	if k.bytes == 0 || k.bytes+now.need > k.o.MaxBytes {
		if err := k.measure(); err != nil {
			return err
		}
	}
	for k.bytes+now.need > k.o.MaxBytes && len(k.metas) > 1 {
		if err := cmp.Or(k.trim(len(k.metas)-max(len(k.metas)/8, 1)), k.measure()); err != nil {
			return err
		}
	}
	now.fit(k.o.MaxBytes - k.bytes)
	k.bytes += now.need
	return nil
}

// measure adds up the sizes of the objects.
func (k *Keeper) measure() error {
	k.bytes = 1
	return filepath.WalkDir(filepath.Join(k.dir, "objects"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				k.bytes += info.Size()
			}
		}
		return err
	})
}

// indexed returns the number of files in the index, from its header.
func (k *Keeper) indexed() int {
	f, err := os.Open(filepath.Join(k.dir, indexFile))
	if err != nil {
		return 0
	}
	defer f.Close()
	var header [12]byte
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return 0
	}
	return int(binary.BigEndian.Uint32(header[8:]))
}

// unquote returns a name without quotes.
func unquote(name string) string {
	raw, err := strconv.Unquote(name)
	if err != nil {
		return name
	}
	return raw
}
