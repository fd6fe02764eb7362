package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"a2e/host/config"
	"a2e/host/dialect/jsonrpc"
	"a2e/host/guard/private"
	"a2e/host/guard/redact"
	"a2e/protocol"
)

const (
	maxTextFile  = 256 << 10 // bytes of a file that is sent, or whose changes are shown
	maxDiffLines = 20        // lines of a change that is shown
	maxAskLines  = 200       // lines of a change that the person is asked about, or asks for
	maxChatLines = 500       // messages of a folder that are kept for the arrow keys
	maxChatLine  = 2 << 10   // bytes of each message
	chatFolder   = "chat"    // folder in the state_dir

	fileBegun = "\n\nThe file " // begins the text of a file that the person named in a message
)

// place returns the path of a file as the person names it. Relative paths start at the workspace.
func (t *chat) place(file string) string {
	if !filepath.IsAbs(file) {
		file = filepath.Join(absolute(t.cfg.Workspace), file)
	}
	return file
}

// include adds the files that a text names as @FILE. A text file, if the file tools may read it, is
// appended to the text; an image is returned in images. A name of no existing file stays as text.
func (t *chat) include(text string) (all string, images []map[string]any, err error) {
	all = text
	var seen []string
	for word := range strings.FieldsSeq(text) {
		name, named := strings.CutPrefix(word, "@")
		if named && !isFile(t.place(name)) {
			name = strings.TrimRight(name, ".,;:?!)")
		}
		if !named || slices.Contains(seen, name) {
			continue
		}
		if !isFile(t.place(name)) {
			if strings.ContainsAny(name, "./") { // otherwise it may be the name of a person
				t.screen.say(styleDim, word+": there is no such file; it is sent as text")
			}
			continue
		}
		seen = append(seen, name)
		if kind := jsonrpc.ImageTypes()[strings.ToLower(filepath.Ext(name))]; kind != "" {
			image, err := t.imageOf(t.place(name), kind)
			if err != nil {
				return "", nil, err
			}
			images = append(images, image)
			continue
		}
		content, err := t.read(name)
		if err != nil {
			return "", nil, fmt.Errorf("@%s: %w", name, err)
		}
		fence := "```"
		for strings.Contains(content, fence) {
			fence += "`"
		}
		all += fileBegun + name + ":\n" + fence + "\n" + strings.TrimSuffix(content, "\n") + "\n" + fence
	}
	if len(seen) > 0 {
		t.screen.line(styleDim, "with "+strings.Join(seen, ", "))
	}
	return all, images, nil
}

// imageOf returns an image of a message: its path if it lies in the workspace, otherwise also its
// data, as the host does not read it.
func (t *chat) imageOf(file, kind string) (image map[string]any, err error) {
	image = map[string]any{"path": file}
	if in, err := filepath.Rel(absolute(t.cfg.Workspace), file); err == nil && filepath.IsLocal(in) {
		return image, nil
	}
	data, err := os.ReadFile(file)
	image["mime_type"], image["data_url"] = kind, "data:"+kind+";base64,"+base64.StdEncoding.EncodeToString(data)
	return image, err
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// read returns a text file of the workspace, without secrets.
func (t *chat) read(file string) (string, error) {
	workspace := absolute(t.cfg.Workspace)
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return "", err
	}
	defer root.Close()
	name, err := filepath.Rel(workspace, t.place(filepath.FromSlash(file)))
	if err != nil {
		return "", err
	}
	text, err := t.cfg.Wall.ReadFile(root, name, maxTextFile)
	if bytes.ContainsRune(text, 0) {
		return "", errors.New("it is neither text nor an image")
	}
	return t.cfg.Secrets.Text(string(text)), err
}

// content returns the current content of a file of the workspace, "" if there is no such file. ok
// is false if changes of the file cannot be shown.
func (t *chat) content(file string) (text string, there, ok bool) {
	if file == "" {
		return "", false, false
	}
	text, err := t.read(file)
	there = !errors.Is(err, fs.ErrNotExist)
	return text, there, err == nil || !there
}

// showDiff shows the changes of a text, with at most the given number of lines.
func (s *chatScreen) showDiff(before, after string, most int) {
	lines := strings.Split(strings.TrimSuffix(string(diff.Diff("", []byte(before), "", []byte(after))), "\n"), "\n")
	if len(lines) > 4 { // the first four lines have the file names and the first position
		s.patch(lines[4:], most)
	}
}

// patch shows the first lines of a patch, in colors.
func (s *chatScreen) patch(lines []string, most int) {
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, `\ No newline`) })
	for _, line := range lines[:min(len(lines), most)] {
		style := map[byte]string{'+': styleGood, '-': styleBad, '@': styleDim}[(line + " ")[0]]
		s.line(style, "  "+line)
	}
	if more := len(lines) - most; more > 0 {
		s.line(styleDim, "  … "+protocol.Count(more, "line")+" more")
	}
}

// chatLines are the messages that were typed in a folder, for the arrow keys. They are stored
// without secrets in a file of the state_dir.
type chatLines struct {
	secrets *redact.Set
	dir     *private.Dir // nil = they are not stored
	name    string       // name of the file
	lines   []string     // the oldest message first
}

// Each message is one line of the file.
var (
	toOneLine   = strings.NewReplacer("\n", "\r")
	fromOneLine = strings.NewReplacer("\r", "\n")
)

// openChatLines reads the messages of earlier chats. If the state_dir cannot be written, messages are not stored.
func openChatLines(cfg *config.Config) *chatLines {
	sum := sha256.Sum256([]byte(absolute(cfg.Workspace)))
	l := &chatLines{secrets: cfg.Secrets, name: hex.EncodeToString(sum[:8])}
	if dir, err := private.MakeSub(cfg.StateDir, chatFolder); err == nil {
		l.dir, l.lines = dir, each(chatLinesIn(dir, l.name), fromOneLine.Replace)
	}
	return l
}

// chatLinesIn returns the lines of a file, or none if it cannot be read.
func chatLinesIn(dir *private.Dir, name string) []string {
	text, _ := dir.Read(name, maxChatLines*(maxChatLine+1)) // an unreadable file has no lines
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

func (l *chatLines) close() {
	if l.dir != nil {
		_ = l.dir.Close()
	}
}

// add keeps a message, unless it repeats the last one. A message longer than maxChatLine is not
// stored for later chats.
func (l *chatLines) add(text string) {
	text = l.secrets.Text(text)
	if len(l.lines) > 0 && l.lines[len(l.lines)-1] == text {
		return
	}
	if l.lines = append(l.lines, text); l.dir != nil && len(text) <= maxChatLine {
		all := append(chatLinesIn(l.dir, l.name), toOneLine.Replace(text)) // other chats may have added some messages
		all = all[max(0, len(all)-maxChatLines):]
		_ = l.dir.Replace(l.name, []byte(strings.Join(all, "\n")+"\n")) // an error does not stop the chat
	}
}
