package openai

import (
	"encoding/base64"
	"net/url"
	"strings"
)

// shortSecret is how many bytes of a secret give it away.
const shortSecret = 8

// hider gives what keeps secrets out of a text that a server or the transport wrote. One
// with the beginning of a secret in it is dropped as a whole: servers like to show half a
// key.
func hider(target *url.URL, key string, headers map[string]string) func(string) string {
	secrets := []string{key}
	for _, value := range headers {
		secrets = append(secrets, value)
		if _, token, ok := strings.Cut(value, " "); ok { // behind a scheme
			secrets = append(secrets, token)
		}
	}
	for _, values := range target.Query() {
		for _, v := range values {
			secrets = append(secrets, v, url.QueryEscape(v))
		}
	}
	if user := target.User; user != nil {
		password, _ := user.Password()
		secrets = append(secrets, password, user.String(), base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	return func(text string) string {
		for _, s := range secrets {
			if s != "" && strings.Contains(text, s[:min(len(s), shortSecret)]) {
				return "(a text with a secret in it)"
			}
		}
		return text
	}
}
