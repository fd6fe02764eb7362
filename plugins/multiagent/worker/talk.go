package worker

import (
	"fmt"
	"os"
	"strings"

	"a2e/host"
)

// maxEarlier bounds the earlier conversation in a brief, in bytes. What is oldest is left out.
const maxEarlier = 32 << 10

// brief is what a program is told: the task's brief, behind the conversation that it goes on
// with and before the names of its images.
func (t *task) brief(workspace string) string {
	talk := t.Talk
	if talk == nil {
		return t.Brief
	}
	var b strings.Builder
	from, size := len(talk.Earlier), 0
	for ; from > 0; from-- {
		if size += min(len(talk.Earlier[from-1].Text), maxEarlier/4); size > maxEarlier {
			break
		}
	}
	if from < len(talk.Earlier) {
		b.WriteString("The conversation so far, the oldest message first")
		if from > 0 {
			fmt.Fprintf(&b, " (%d earlier ones are left out)", from)
		}
		b.WriteString(":\n\n")
		for _, e := range talk.Earlier[from:] {
			if most := maxEarlier / 4; len(e.Text) > most { // one must not push out all others
				e.Text = strings.ToValidUTF8(e.Text[:most], "") + "… (cut)"
			}
			fmt.Fprintf(&b, "[%s]\n%s\n\n", e.Role, e.Text)
		}
		b.WriteString("[user, now]\n")
	}
	b.WriteString(t.Brief)
	if len(talk.Images) > 0 {
		b.WriteString("\n\n" + imageList(workspace, talk.Images))
	}
	return b.String()
}

// imageList names images for a program, which can see those that are files.
func imageList(workspace string, images []host.Image) string {
	var b strings.Builder
	root, err := os.OpenRoot(workspace)
	if err == nil {
		defer root.Close()
	}
	b.WriteString("Images, as files in the workspace:\n")
	for _, i := range images {
		lacks := ", which is no file here"
		if err == nil {
			if info, err := root.Stat(i.Name); err == nil && info.Mode().IsRegular() {
				lacks = ""
			}
		}
		fmt.Fprintf(&b, "- %s (%s, %d bytes%s)\n", i.Name, i.MIME, len(i.Data), lacks)
	}
	return b.String()
}
