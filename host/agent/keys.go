package agent

import (
	"errors"
	"io/fs"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host/private"
)

// keysFile is the file in the state folder that has the keys which clients gave for endpoints.
const keysFile = "llm-keys.json"

const maxKeysFile = 1 << 20 // bytes

// Origin returns what a stored key of an endpoint is bound to: scheme and host of its URL; "" =
// it has none.
func Origin(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return ""
	}
	return strings.ToLower(u.Scheme + "://" + u.Host)
}

// StoredKey returns the key that was stored for an origin in a state folder; "" = none.
func StoredKey(dir, origin string) string {
	if dir == "" {
		return ""
	}
	folder, err := private.OpenDir(dir)
	if err != nil {
		return ""
	}
	defer folder.Close()
	keys, _ := storedKeys(folder) // what is no file of this program has no key
	return keys[origin]
}

func storedKeys(folder *private.Dir) (map[string]string, error) {
	raw, err := folder.Read(keysFile, maxKeysFile)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	keys := map[string]string{}
	if err == nil && json.Unmarshal(raw, &keys) != nil { // an error of it may show a key
		keys, err = nil, errors.New(keysFile+" in the state_dir is damaged; mend it, or take it away")
	}
	return keys, err
}

// StoreKey keeps a key for an origin, in a file that is this user's alone; "" = none.
func StoreKey(dir, origin, key string) error {
	if dir == "" {
		return errors.New("there is no state_dir to keep a key in")
	}
	folder, err := private.MakeDir(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	keys, err := storedKeys(folder)
	if err != nil || keys[origin] == key {
		return err
	}
	if keys[origin] = key; key == "" {
		delete(keys, origin)
	}
	raw, err := json.Marshal(keys, json.Deterministic(true))
	if err != nil {
		return err
	}
	return folder.Replace(keysFile, raw)
}
