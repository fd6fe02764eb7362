package tools

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"a2e/host/guard/redact"
	"a2e/protocol"
)

// A file is shown with a mask in place of each secret. If an agent writes such text back, the mask would replace
// the secret: such a write is refused.

// checkMask refuses content with the mask for a file that has a secret in it.
func (f *files) checkMask(dir *os.Root, base, name, content string) error {
	if !strings.Contains(content, redact.Text) {
		return nil
	}
	file, _, err := f.openIn(dir, base, os.O_RDONLY, true)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // the agent cannot have seen its content
	} else if err != nil {
		return err
	}
	defer file.Close()
	if has, err := f.secrets.In(file); !has {
		return err
	}
	return protocol.Errorf(protocol.CodeToolDenied, "the content has %s where %s has a secret that is not shown, and "+
		"writing it would destroy that; nothing was written: change the other parts with edit_file",
		redact.Text, quotePath(name))
}

// checkMask refuses an edit of a file with a secret if old has the mask and does not match, or new adds a mask.
func (a *editArgs) checkMask(text string, secrets *redact.Set) error {
	inOld, inNew := strings.Count(a.Old, redact.Text), strings.Count(a.New, redact.Text)
	if inOld == 0 && inNew == 0 || secrets.Text(text) == text {
		return nil
	}
	switch {
	case inOld > 0 && !strings.Contains(text, a.Old):
		return protocol.Errorf(protocol.CodeToolDenied, "old has %s, which stands for a secret in %s that "+
			"is not shown, so it cannot match; nothing was written: leave that part out of old and new",
			redact.Text, quotePath(a.Path))
	case inNew > inOld:
		return protocol.Errorf(protocol.CodeToolDenied, "new has %s, which stands for a secret in %s that "+
			"is not shown; nothing was written: leave that part out of old and new", redact.Text, quotePath(a.Path))
	}
	return nil
}
