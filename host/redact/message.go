package redact

import (
	"bytes"
	"cmp"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// AddMessage takes what a message has in confidence: the texts under names that speak of a secret, also in lists and
// objects there, the variables and headers that are secret by their name or look, arguments behind such flags as
// --token, and what is secret in URLs and assignments.
func (s *Set) AddMessage(line []byte) {
	dec := jsontext.NewDecoder(bytes.NewReader(line), jsontext.AllowDuplicateNames(true))
	_ = s.addValue(dec, "", false) // what comes before a fault is taken
}

// addValue takes the next value, which came under a name. variables says that its members are variables or headers.
func (s *Set) addValue(dec *jsontext.Decoder, name string, variables bool) error {
	switch dec.PeekKind() {
	case '{':
		return s.addObject(dec, name, variables)
	case '[':
		return s.addList(dec, name, variables)
	}
	token, err := dec.ReadToken()
	if err == nil && token.Kind() == '"' {
		s.addText(name, token.String(), variables)
	}
	return err
}

func (s *Set) addText(name, text string, variable bool) {
	if variable || SpeaksOfSecret(name) {
		s.Add(name, text)
	} else {
		s.addParts([]byte(text))
	}
}

func (s *Set) addObject(dec *jsontext.Decoder, name string, variables bool) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		token, err := dec.ReadToken()
		if err != nil {
			return err
		}
		key := token.String()
		s.addParts([]byte(key))
		inner := strings.ToLower(key)
		holds := inner == "env" || inner == "environ" || inner == "environment" || inner == "headers"
		if kindOf(key) == kindOther && SpeaksOfSecret(name) {
			key = name // as in credentials: {main: …}
		}
		if err := s.addValue(dec, key, variables || holds); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

func (s *Set) addList(dec *jsontext.Decoder, name string, variables bool) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	before := ""
	for dec.PeekKind() != ']' {
		switch kind := dec.PeekKind(); {
		case kind == '{' && variables: // {"name": …, "value": …}
			raw, err := dec.ReadValue()
			if err != nil {
				return err
			}
			var pair struct{ Name, Key, Value string }
			_ = json.Unmarshal(raw, &pair, json.MatchCaseInsensitiveNames(true)) // else it is no pair
			s.Add(cmp.Or(pair.Name, pair.Key), pair.Value)
		case kind == '"':
			token, err := dec.ReadToken()
			if err != nil {
				return err
			}
			text := token.String()
			s.addItem(name, before, text)
			before = text
		default:
			if err := s.addValue(dec, name, variables); err != nil {
				return err
			}
		}
	}
	_, err := dec.ReadToken()
	return err
}

// addItem takes a text of a list behind another one: NAME=value, Name: value, or an argument behind its flag.
func (s *Set) addItem(name, before, text string) {
	s.addText(name, text, false)
	if at := strings.IndexAny(text, "=:"); at > 0 && SpeaksOfSecret(text[:at]) && !strings.ContainsAny(text[:at], " /") {
		s.Add(text[:at], strings.TrimSpace(text[at+1:]))
	}
	if strings.HasPrefix(before, "-") && !strings.ContainsAny(before, "= ") && SpeaksOfSecret(before) {
		s.Add(before, text)
	}
}

// BeforeToken returns a text that is no whole message up to the value of the first secret in it, since what cannot be
// parsed cannot be masked by its value.
func BeforeToken(text []byte) []byte {
	for rest := text; ; {
		key, after, ok := nextText(rest)
		if !ok {
			return text
		}
		if SpeaksOfSecret(string(key)) && bytes.HasPrefix(bytes.TrimLeft(after, " \t"), []byte(":")) {
			return append(bytes.Clone(text[:len(text)-len(after)]), " "+Text...)
		}
		rest = after
	}
}
