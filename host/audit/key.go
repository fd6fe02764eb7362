package audit

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/private"
)

const (
	// minKey is the shortest key, in characters: shorter ones can be tried out.
	minKey     = 16
	maxKeyFile = 4 << 10
	keyBytes   = 32
)

// Sealing says what vouches for a log: a key that signs each entry, and a seal that notes
// how far the log goes. Whoever can write the log and has neither can change nothing in it
// unseen. The zero Sealing is a log without a key, of which only the links hold.
type Sealing struct {
	Key      string // the key; "" = that in KeyFile
	KeyFile  string // is made when there is none; "" without a Key = no key
	SealFile string // where the seal lies; best not beside the log
	// Optional: nobody asked for a key. Where none can be kept (no home, a read-only
	// file system) the log goes on without.
	Optional bool
}

// SealingOf returns the sealing of a log. key and keyFile are what the user set, if anything;
// userDir is the user's config folder, where agents have no business ("" = there is none).
// A log has a key of its own there, and its seal: beside the log they would go the way of it.
func SealingOf(log, userDir, key, keyFile string) Sealing {
	sum := sha256.Sum256([]byte(realPath(log)))
	name := hex.EncodeToString(sum[:16])
	s := Sealing{Key: key, KeyFile: keyFile}
	switch {
	case keyFile != "":
		s.SealFile = filepath.Join(filepath.Dir(keyFile), name+".seal")
	case userDir != "":
		s.SealFile = filepath.Join(userDir, "audit", name+".seal")
	case key != "":
		s.SealFile = log + ".seal"
	}
	if key == "" && keyFile == "" && userDir != "" {
		s.KeyFile, s.Optional = filepath.Join(userDir, "audit", name+".key"), true
	}
	return s
}

// realPath is the path of a log without the links on the way to its folder.
func realPath(log string) string {
	if abs, err := filepath.Abs(log); err == nil {
		log = abs
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(log)); err == nil {
		return filepath.Join(dir, filepath.Base(log))
	}
	return log
}

// signer signs entries. It belongs to one goroutine; nil = there is no key.
type signer struct{ mac hash.Hash }

func newSigner(key string) (*signer, error) {
	if len(key) < minKey {
		return nil, fmt.Errorf("the key of the audit log has %d characters; it needs %d or more, as from `openssl rand -hex 32`", len(key), minKey)
	}
	return &signer{hmac.New(sha256.New, []byte(key))}, nil
}

// sign returns the MAC of some texts, in hex.
func (s *signer) sign(texts ...[]byte) (k link) {
	s.mac.Reset()
	for _, t := range texts {
		_, _ = s.mac.Write(t) // a hash takes all
	}
	var sum [sha256.Size]byte
	hex.Encode(k[:], s.mac.Sum(sum[:0]))
	return k
}

// signed reports whether a MAC is that of the texts.
func (s *signer) signed(mac link, texts ...[]byte) bool {
	want := s.sign(texts...)
	return hmac.Equal(mac[:], want[:])
}

// load returns the signer of a key that is there; nil = there is none.
func (s Sealing) load() (*signer, error) {
	if s.Key != "" {
		return newSigner(s.Key)
	}
	if s.KeyFile == "" {
		return nil, nil
	}
	key, err := readKey(s.KeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return newSigner(key)
}

// readKey reads a key that nobody else may read.
func readKey(path string) (string, error) {
	dir, err := private.OpenDir(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	defer dir.Close()
	info, err := dir.Check(filepath.Base(path))
	if err != nil {
		return "", err
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o077 != 0 {
		return "", fmt.Errorf("%s: %w: the key may be read by others (mode %04o); whoever has it can forge the log: make a new one, with chmod 600", path, private.ErrUnsafe, mode)
	}
	raw, err := dir.Read(filepath.Base(path), maxKeyFile)
	return strings.TrimSpace(string(raw)), err
}

// newKey makes the key's file; when another host was faster it is that one's key. Before
// it has its name the first seal is written with it: a key without a seal means that the
// seal was taken away.
func (s Sealing) newKey(first func(*signer) error) (*signer, error) {
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // never fails
	text := hex.EncodeToString(raw)
	dir, err := private.MakeDir(filepath.Dir(s.KeyFile))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	made, err := newSigner(text)
	if err != nil {
		return nil, err
	}
	if err := first(made); err != nil {
		return nil, err
	}
	file, err := dir.Temp(filepath.Base(s.KeyFile))
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString(text + "\n")
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = dir.PlaceNew(filepath.Base(file.Name()), filepath.Base(s.KeyFile))
	}
	if err != nil {
		_ = dir.Remove(filepath.Base(file.Name()))
		return nil, err
	}
	return made, nil
}

// impossible reports whether a key cannot be kept here, which is nobody's attack.
func impossible(err error) bool {
	return !errors.Is(err, private.ErrUnsafe) && (errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || isReadOnly(err))
}

// signerOf returns the signer of the log, whose key is made if there is none. The lock must be
// held.
func (f *file) signerOf() (*signer, error) {
	if f.signer != nil || f.unsigned {
		return f.signer, nil
	}
	made, err := f.sealing.load()
	if err == nil && made == nil && f.sealing.KeyFile != "" {
		made, err = f.sealing.newKey(f.adopt)
		if err != nil && f.sealing.Optional && impossible(err) {
			f.note(fmt.Sprintf("audit: %s is written without a key, so a truncated end would go unnoticed: %v", f.path,
				err))
			f.unsigned, err = true, nil
		}
	}
	if err != nil {
		return nil, err
	}
	f.signer = made
	return made, nil
}

// fileExists reports whether the name is taken.
func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

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

// readSeal returns the seal of a log, if the key vouches for it.
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
	f.seal = seal{Oldest: 1, Last: noLink().String()}
	// With a seal a host was killed before its key had a name, or the key was taken away.
	last, err := f.newest()
	if err != nil {
		return err
	}
	if _, signed := signatureIn(last); signed && fileExists(f.sealing.SealFile) {
		f.seal.Broken = "the key was missing when a host wrote again, " + f.now().UTC().Format(time.RFC3339)
	}
	return f.seal.write(f.sealing.SealFile, by, f.now())
}

// resumeSeal finds where the numbers go on, behind a last line that somebody else, or an
// earlier life of this host, has written. What it finds wrong goes into the seal, which
// keeps it: else the next entry would heal the cut. The error is that it cannot be looked at now.
// The lock must be held.
func (f *file) resumeSeal(last []byte) error {
	s, err := readSeal(f.sealing.SealFile, f.signer)
	if exhausted(err) {
		return err
	}
	if err != nil {
		s = seal{Oldest: 1, Last: noLink().String(), Broken: fmt.Sprintf("%v; found when a host wrote again, %s", err, f.now().UTC().Format(time.RFC3339))}
	}
	at, ok := signatureIn(last)
	if errors.Is(err, errNoSeal) && f.sealing.Key != "" && !ok {
		s.Broken = "" // the first entry with a key of the user's
	}
	switch {
	case ok && at.number >= s.Count && f.signer.vouches(last, at): // also what is beyond the seal
		s.Count, s.Last = at.number, linkOf(last).String()
	case s.Count > 0:
		// The end that the seal knows is not there. The chain goes on behind it, so that
		// the gap shows.
		copy(f.prev[:], s.Last)
		if s.Broken == "" {
			s.Broken = fmt.Sprintf("the log did not end with entry %d when a host wrote again, %s", s.Count, f.now().UTC().Format(time.RFC3339))
		}
	}
	f.seal = s
	return nil
}

// exhausted reports whether the machine or the host lacks something for now, which says nothing of a file.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// putSeal writes the seal behind what was written. An older one stays when that fails: it
// vouches for less, and says nothing wrong. The lock must be held.
func (f *file) putSeal() {
	if f.signer == nil {
		return
	}
	if err := f.seal.write(f.sealing.SealFile, f.signer, f.now()); err != nil && !f.sealFailed {
		f.sealFailed = true
		f.note(fmt.Sprintf("audit: the seal of %s cannot be written, so a cut of the newest entries would go "+
			"unnoticed: %v", f.path, err))
	} else if err == nil {
		f.sealFailed = false
	}
}
