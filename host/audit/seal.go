package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/private"
)

const maxSeal = 4 << 10

// seal is what vouches for the end of a log: how many entries were signed, and which was
// the last. It is written behind each batch, under the log's lock. Entries beyond it are
// those of a host that was killed between the two; a seal beyond the entries is a cut.
type seal struct {
	Count  int64  `json:"count"`            // signed entries, those rotated away included
	Oldest int64  `json:"oldest"`           // number of the first one that must still be there
	Last   string `json:"last"`             // hash of the last one
	Time   string `json:"time"`             // when it was sealed
	Broken string `json:"broken,omitempty"` // what a host found wrong; it stays for good
	MAC    string `json:"mac"`
}

// text is what the MAC is of.
func (s seal) text() []byte {
	s.MAC = ""
	raw, _ := json.Marshal(s, json.Deterministic(true)) // strings and numbers
	return raw
}

// errNoSeal: there is none.
var errNoSeal = errors.New("the seal is missing")

// readSeal gives the seal of a log, if the key vouches for it.
func readSeal(path string, by *signer) (s seal, err error) {
	dir, err := private.OpenDir(filepath.Dir(path))
	if err == nil {
		defer dir.Close()
		var raw []byte
		if raw, err = dir.Read(filepath.Base(path), maxSeal); err == nil {
			err = json.Unmarshal(raw, &s)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return seal{}, errNoSeal
	case err != nil:
		return seal{}, fmt.Errorf("the seal cannot be read: %w", err)
	}
	var mac link
	if copy(mac[:], s.MAC) != hashLen || len(s.MAC) != hashLen || !by.signed(mac, s.text()) {
		return seal{}, errors.New("the seal does not fit the key: one of them was changed or replaced")
	}
	return s, nil
}

// write puts the seal in the place of the older one.
func (s seal) write(path string, by *signer, now time.Time) error {
	s.Time = now.UTC().Format(time.RFC3339)
	mac := by.sign(s.text())
	s.MAC = string(mac[:])
	raw, err := json.Marshal(s, json.Deterministic(true))
	if err != nil {
		return err
	}
	dir, err := private.MakeDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Replace(filepath.Base(path), append(raw, '\n'))
}

// adopt writes the first seal of a log: with a new key no entry is signed.
func (f *file) adopt(by *signer) error {
	f.seal = seal{Oldest: 1, Last: string(noLinkText())}
	if fileExists(f.sealing.SealFile) { // a host was killed before its key had a name, or the key was taken away
		if f.anySigned() {
			f.seal.Broken = "the key was missing when a host wrote again, " + f.now().UTC().Format(time.RFC3339)
		}
	}
	return f.seal.write(f.sealing.SealFile, by, f.now())
}

// anySigned tells whether the newest entry there is was signed.
func (f *file) anySigned() bool {
	last := f.newest()
	_, ok := signatureIn(last)
	return ok
}

func noLinkText() []byte { k := noLink(); return k[:] }

// resumeSeal finds where the numbers go on, behind a last line that somebody else, or an
// earlier life of this host, has written. What it finds wrong goes into the seal, which
// keeps it: else the next entry would heal the cut. The lock must be held.
func (f *file) resumeSeal(last []byte) {
	s, err := readSeal(f.sealing.SealFile, f.signer)
	if err != nil {
		s = seal{Oldest: 1, Last: string(noLinkText()), Broken: fmt.Sprintf("%v; found when a host wrote again, %s", err, f.now().UTC().Format(time.RFC3339))}
		if errors.Is(err, errNoSeal) && f.sealing.Key != "" && last == nil {
			s.Broken = "" // the first entry of a log with a key of the user's
		}
		if errors.Is(err, errNoSeal) && f.sealing.Key != "" && last != nil {
			if _, ok := signatureIn(last); !ok {
				s.Broken = "" // a log of before there was a key
			}
		}
	}
	at, ok := signatureIn(last)
	switch {
	case ok && at.number >= s.Count && f.signer.vouches(last, at): // also what is beyond the seal
		s.Count, s.Last = at.number, string(linkText(last))
	case s.Count > 0:
		// The end that the seal knows is not there. The chain goes on behind it, so that
		// the gap shows.
		copy(f.prev[:], s.Last)
		if s.Broken == "" {
			s.Broken = fmt.Sprintf("the log did not end with entry %d when a host wrote again, %s", s.Count, f.now().UTC().Format(time.RFC3339))
		}
	}
	f.seal = s
}

func linkText(line []byte) []byte { k := linkOf(line); return k[:] }

// putSeal writes the seal behind what was written. An older one stays when that fails: it
// vouches for less, and says nothing wrong. The lock must be held.
func (f *file) putSeal() {
	if f.signer == nil {
		return
	}
	if err := f.seal.write(f.sealing.SealFile, f.signer, f.now()); err != nil && !f.sealFailed {
		f.sealFailed = true
		f.note(fmt.Sprintf("audit: the seal of %s cannot be written, so that a cut of the newest entries is not found: %v", f.path, err))
	} else if err == nil {
		f.sealFailed = false
	}
}
