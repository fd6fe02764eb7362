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
	"path/filepath"
	"runtime"
	"strings"

	"a2e/host/guard/private"
)

const (
	// minKey is the minimum length of a key, in characters: shorter ones can be guessed.
	minKey     = 16
	maxKeyFile = 4 << 10
	keyBytes   = 32
)

// Key signs the entries of a log. Somebody who can write to the log but does not have the key cannot
// forge or change an entry unnoticed. With the zero Key only the links protect the log.
type Key struct {
	Text string // the key; "" = it is in File
	File string // is made if it is missing; "" without a Text = no key
	// Optional: the user has not asked for a key. If no key can be kept (no home, a read-only file
	// system), the log is written without one.
	Optional bool
}

// KeyOf returns the key of a log. key and keyFile are the user's settings, or "". userDir is the user's config folder,
// which agents cannot reach; "" = there is none. Without settings, each log has its own key file there.
func KeyOf(log, userDir, key, keyFile string) Key {
	if key != "" || keyFile != "" || userDir == "" {
		return Key{Text: key, File: keyFile}
	}
	sum := sha256.Sum256([]byte(realPath(log)))
	return Key{File: filepath.Join(userDir, "audit", hex.EncodeToString(sum[:16])+".key"), Optional: true}
}

// realPath returns the absolute path of a log, with the links in its folder resolved.
func realPath(log string) string {
	if abs, err := filepath.Abs(log); err == nil {
		log = abs
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(log)); err == nil {
		return filepath.Join(dir, filepath.Base(log))
	}
	return log
}

// signer signs entries. Only one goroutine may use it; nil = no key.
type signer struct{ mac hash.Hash }

func newSigner(key string) (*signer, error) {
	if len(key) < minKey {
		return nil, fmt.Errorf("the key of the audit log has %d characters; it needs %d or more, as from `openssl "+
			"rand -hex 32`", len(key), minKey)
	}
	return &signer{hmac.New(sha256.New, []byte(key))}, nil
}

// sign returns the MAC of the joined texts, in hex.
func (s *signer) sign(texts ...[]byte) (k link) {
	s.mac.Reset()
	for _, t := range texts {
		_, _ = s.mac.Write(t) // a hash never fails
	}
	var sum [sha256.Size]byte
	hex.Encode(k[:], s.mac.Sum(sum[:0]))
	return k
}

// signed reports whether mac is the MAC of the texts.
func (s *signer) signed(mac link, texts ...[]byte) bool {
	want := s.sign(texts...)
	return hmac.Equal(mac[:], want[:])
}

// load returns the signer of an existing key, or nil if there is none.
func (k Key) load() (*signer, error) {
	if k.Text != "" {
		return newSigner(k.Text)
	}
	if k.File == "" {
		return nil, nil
	}
	key, err := readKey(k.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return newSigner(key)
}

// readKey reads a key file, which nobody else may be able to read.
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
		return "", fmt.Errorf("%s: %w: the key may be read by others (mode %04o); whoever has it can forge the log: "+
			"make a new one, with chmod 600", path, private.ErrUnsafe, mode)
	}
	raw, err := dir.Read(filepath.Base(path), maxKeyFile)
	return strings.TrimSpace(string(raw)), err
}

// make makes the key file. If another host has made it meanwhile, the error is fs.ErrExist.
func (k Key) make() (*signer, error) {
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // never fails
	text := hex.EncodeToString(raw)
	dir, err := private.MakeDir(filepath.Dir(k.File))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	file, err := dir.Temp(filepath.Base(k.File))
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString(text + "\n")
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = dir.PlaceNew(filepath.Base(file.Name()), filepath.Base(k.File))
	}
	if err != nil {
		_ = dir.Remove(filepath.Base(file.Name()))
		return nil, err
	}
	return newSigner(text)
}

// impossible reports whether an error means that no key can be kept here, rather than that somebody interfered.
func impossible(err error) bool {
	return !errors.Is(err, private.ErrUnsafe) && (errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) ||
		isReadOnly(err))
}

// loadKey loads the key of the log, and makes it if it is missing. The lock must be held.
func (f *file) loadKey() (err error) {
	if f.signer != nil || f.unsigned {
		return nil
	}
	if f.signer, err = f.key.load(); err != nil || f.signer != nil || f.key.File == "" {
		return err
	}
	if f.signer, err = f.key.make(); err != nil && f.key.Optional && impossible(err) {
		f.note(fmt.Sprintf("audit: %s is written without a key, so anybody who can write it can forge it: %v",
			f.path, err))
		f.unsigned, err = true, nil
	}
	return err
}
