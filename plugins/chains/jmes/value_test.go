package jmes

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

func TestDecodeIsBounded(t *testing.T) {
	text := "[" + strings.Repeat("[],", 1<<20) + "[]]"
	_, _, err := Decode([]byte(text), 1<<20)
	assert.That(t, errors.Is(err, ErrTooLarge), "a million lists: %v", err)
	_, cost, err := Decode([]byte(text), 1<<30)
	assert.That(t, err == nil && cost >= 24<<20 && cost <= 200<<20, "a million lists cost %d, %v", cost, err)
}

func TestNumbersKeepTheirDigits(t *testing.T) {
	for _, text := range []string{
		"0", "-0", "1", "-1", "1.0", "1e3", "1E3", "0.1", "123456789012345", "9007199254740993", "1e400", "-1e400",
		"1e-400",
		"3.141592653589793238462643383279", "1e21", "1e-7", "18446744073709551616", "100000000000000000000",
	} {
		v := value(t, text)
		got, err := Append(nil, []any{v, map[string]any{"a": v}}, 1000)
		assert.That(t, err == nil && string(got) == `[`+text+`,{"a":`+text+`}]`, "%s became %s, %v", text, got, err)
	}
}

// FuzzDecode: decode returns the same value as another decoder for valid text. For invalid text it returns an error or
// any value.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{state, ` [ 1 , -2.5e3 , "a\"\u00e9\ud83d\ude00\\" , { } , [ ] , true , false , null ] `, `{"a":{"b":[{}]},"c":""}`, `[1`, `{"a"`, `"`, `nul`, `tru`, ``, `]`, `{"a":1,}`, `0123`, `1 2`, strings.Repeat("[", 5000)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, _, err := Decode([]byte(text), 1<<30)
		var want any
		if json.Unmarshal([]byte(text), &want, jsontext.AllowDuplicateNames(true)) != nil {
			return
		}
		must.That(t, err == nil, "%q: %v", text, err)
		diff := cmp.Diff(want, floats(v))
		must.Equal(t, diff, "", "%q", text)
	})
}

// floats replaces each Number in a value by a float64.
func floats(v any) any {
	switch v := v.(type) {
	case Number:
		return v.near
	case []any:
		for i := range v {
			v[i] = floats(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = floats(v[key])
		}
	}
	return v
}

func BenchmarkDecode(b *testing.B) {
	raw := []byte("[" + strings.Repeat(`{"name":"a text of some words","n":123,"list":[1,2,3],"ok":true},`, 1000) +
		"1]")
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		_, _, err := Decode(raw, 1<<30)
		must.That(b, err == nil, "%v", err)
	}
}
