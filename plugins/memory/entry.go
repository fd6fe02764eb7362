package memory

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema"
	"a2e/protocol"
)

const (
	maxKey    = 4_096 // bytes of canonical JSON
	maxTags   = 64
	maxTag    = 256 // bytes
	maxSource = 1_024
	maxTTL    = 100 * 365 * 24 * 3600 // seconds; a longer time to live is unlimited
)

// entry is an entry of a memory/store/req, checked.
type entry struct {
	Key     jsontext.Value      `json:"key"` // as the agent sent it
	Content jsontext.Value      `json:"content"`
	Tier    protocol.MemoryTier `json:"tier"`
	Tags    []string            `json:"tags"`
	Source  string              `json:"source"`
	Weight  float64             `json:"score"`
	TTL     float64             `json:"ttl"` // seconds; 0 = no limit

	canonical string // the key in canonical form
}

// incoming is an entry of a request.
type incoming struct {
	entry
	IfVersion *int `json:"if_version"` // store only if this is the stored version; 0 = only if there is no entry
	Merge     bool `json:"merge"`      // merge into the stored entry; fields that the entry does not have stay
	Dedupe    bool `json:"dedupe"`     // refuse the entry if another one says the same

	sent   entry           // for a merge: the entry as the agent sent it
	given  map[string]bool // the fields that it has
	merged int             // the version that it was merged with; 0 = none, -1 = the merge failed
}

// parseEntry checks an entry of a request. Its error says which field is wrong.
func parseEntry(obj protocol.Object, maxBytes int) (*incoming, error) {
	in := &incoming{given: make(map[string]bool, obj.Len())}
	if err := json.Unmarshal(obj.Raw(), in); err != nil {
		return nil, wrongType(err)
	}
	for name, value := range obj.All() {
		in.given[string(name)] = value.Kind() != 'n' || string(name) == "content"
		// ignoring a misspelt condition would store the entry where it should not be stored
		// (version is allowed: agents change an entry of an answer and send it back)
		hint := schema.DidYouMean(string(name), conditional())
		if hint != "" && string(name) != "version" && !slices.Contains(conditional(), string(name)) {
			return nil, fmt.Errorf("there is no field %.64q; %s", name, hint)
		}
	}
	switch {
	case in.IfVersion != nil && *in.IfVersion < 0:
		return nil, fmt.Errorf("if_version is %d; it should be the entry's version, or 0 for one that is not there yet",
			*in.IfVersion)
	case !in.given["content"] && !in.Merge:
		return nil, errors.New("content is missing: any JSON value")
	case !in.given["content"]:
		in.Content = nil
	}
	if !in.given["tier"] {
		in.Tier = protocol.TierEpisodic
	}
	if !in.given["score"] {
		in.Weight = 1
	}
	in.sent = in.entry
	return in, in.check(maxBytes)
}

// conditional lists the fields of an entry that say whether, or how, it is stored.
func conditional() []string { return []string{"if_version", "merge", "dedupe"} }

// inNamespace returns an error if the object has a namespace other than the memory's.
func inNamespace(n name, of protocol.Object) error {
	v, _ := of.Get("namespace")
	if text, is := v.Str(); is && text != n.namespace {
		return protocol.Wrong("/namespace", "is %.64q, and the memory_id stands for %.64q; memory/init/req gives that "+
			"of another namespace", text, n.namespace)
	}
	return nil
}

// wrongType returns an error that names the field that did not decode.
func wrongType(err error) error {
	var at *json.SemanticError
	if !errors.As(err, &at) {
		return err
	}
	should := map[string]string{
		"tags": "a list of strings", "tier": "a string", "source": "a string", "score": "a number",
		"ttl":        "a number of seconds",
		"if_version": "a whole number", "merge": "true or false", "dedupe": "true or false",
	}
	field := "it"
	for token := range at.JSONPointer.Tokens() {
		field = token
		break
	}
	return fmt.Errorf("%s should be %s", field, should[field])
}

// check returns an error if a field of the entry is wrong. It sets the canonical key and sorts the tags.
func (e *entry) check(maxBytes int) error {
	if e.Key.Kind() != '{' {
		return errors.New(`key should be an object, such as {"id":"fact1"}`)
	}
	var err error
	if e.canonical, err = canonical(e.Key); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	size := len(e.Key) + len(e.Content) + len(e.Source)
	for _, tag := range e.Tags {
		size += len(tag)
		if tag == "" || len(tag) > maxTag {
			return fmt.Errorf("tags: each should have 1 to %d bytes", maxTag)
		}
	}
	slices.Sort(e.Tags)
	e.Tags = slices.Compact(e.Tags)
	switch {
	case len(e.canonical) > maxKey:
		return fmt.Errorf("key has %d bytes; %d are allowed", len(e.canonical), maxKey)
	case !slices.Contains(tiers(), e.Tier):
		return fmt.Errorf("there is no tier %.64q; there are working, episodic, semantic", e.Tier)
	case len(e.Tags) > maxTags:
		return fmt.Errorf("tags: %d of them; %d are allowed", len(e.Tags), maxTags)
	case len(e.Source) > maxSource:
		return fmt.Errorf("source has %d bytes; %d are allowed", len(e.Source), maxSource)
	case !(e.Weight >= 0 && e.Weight <= 1):
		return fmt.Errorf("score is %v; it should be from 0 to 1", e.Weight)
	case !(e.TTL >= 0) || math.IsInf(e.TTL, 0):
		return fmt.Errorf("ttl is %v; it should be seconds from now on, or 0 for forever", e.TTL)
	case size > maxBytes:
		return fmt.Errorf("it has %d bytes; max_entry_bytes allows %d", size, maxBytes)
	}
	if e.TTL > maxTTL {
		e.TTL = 0
	}
	return nil
}

// size returns the bytes that an entry counts in the limits of a tier.
func (e *entry) size() int { return len(e.Key) + len(e.Content) + len(e.Source) }

// expiry returns when an entry that is stored or read at a time expires; 0 = never.
func (e *entry) expiry(at float64) float64 {
	if e.TTL > 0 {
		return at + e.TTL
	}
	return 0
}

// canonical returns the JSON of a key in canonical form: members sorted, no spaces,
// floats in their shortest form, integers with all their digits.
func canonical(key jsontext.Value) (string, error) {
	c := key.Clone()
	if err := c.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
		return "", err
	}
	return string(c), nil
}

const maxText = 64 << 10 // bytes of an entry that are searched

// text returns the text that search looks at: names and values of the key and the content,
// and the tags.
func (e *entry) text() string {
	var b strings.Builder
	appendText(&b, e.Key)
	appendText(&b, e.Content)
	for _, tag := range e.Tags {
		b.WriteString(tag)
		b.WriteByte('\n')
	}
	return b.String()
}

// appendText adds the names, strings and numbers of a JSON value, a line each, up to maxText bytes in b.
func appendText(b *strings.Builder, value jsontext.Value) {
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	for b.Len() < maxText {
		token, err := dec.ReadToken()
		if err != nil {
			return
		}
		switch token.Kind() {
		case '"', '0':
			s := token.String()
			b.WriteString(s[:min(len(s), maxText-b.Len())])
			b.WriteByte('\n')
		}
	}
}
