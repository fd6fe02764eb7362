package config

import (
	"strings"
	"testing"
)

func TestDecodeText(t *testing.T) {
	type file struct {
		ID    string   `yaml:"id" required:"true"`
		Text  string   `yaml:"text"`
		Limit int      `yaml:"limit" min:"0"`
		Names []string `yaml:"names"`
	}
	for _, tc := range []struct{ text, want string }{
		{"id: a\ntext: run ${HOME:-x} and ${x%%y}\nlimit: 3\nnames: [b]\n", ""},
		{"id: a\nlimits: 3\n", `f.yaml:2:1: unknown key "limits" in the file: did you mean "limit"?`},
		{"text: a\n", `f.yaml:1:1: the file needs the key "id"`},
		{"id: a\nlimit: many\n", "f.yaml:2:8: limit must be a whole number; here is a text"},
		{"id: [a\n", "f.yaml:"},
		{"- a\n", "f.yaml:1:1: the file must be a mapping"},
	} {
		var got file
		err := DecodeText("f.yaml", []byte(tc.text), &got)
		switch {
		case tc.want == "" && (err != nil || got.Text != "run ${HOME:-x} and ${x%%y}" || got.Limit != 3 || len(got.Names) != 1):
			t.Errorf("%q: %+v, %v", tc.text, got, err)
		case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want)):
			t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
		}
	}
	if err := DecodeText("f.yaml", nil, file{}); err == nil {
		t.Error("a struct that cannot be filled was taken")
	}
}
