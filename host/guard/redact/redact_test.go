package redact_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"a2e/host/guard/redact"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
)

func TestValuesAreHidden(t *testing.T) {
	s := redact.New(nil)
	s.AddSecret("s3cret-value")
	s.Add("API_KEY", "hunter")
	s.Add("SIGNING_KEY", "-----BEGIN-----\nQUJDREVG\n-----END-----")
	s.Add("HEADER", "Bearer tok-123456")
	s.AddSecret("s3cret-value-and-more")
	s.AddSecret(`a"b\c<d>`)
	s.AddSecret("tail-0987")
	s.AddSecret("0987-head")
	s.Add("DATABASE_URL", "postgres://app:pg-pass-1@db/shop?sslmode=require&token=query-tok-1")
	s.Add("STORAGE", "Protocol=https;AccountName=shop;AccountKey=QWNjb3VudA==;EndpointSuffix=example.org")
	s.AddURL("https://me:pa55-w0rd@example.com/?sig=abc-1234&page=2")
	for in, want := range map[string]string{
		"x s3cret-value y":                   "x [redacted] y",
		"s3cret-value-and-more s3cret-value": "[redacted] [redacted]",
		"hunters":                            "[redacted]s",
		"line QUJDREVG of it":                "line [redacted] of it",
		"tok-123456":                         "[redacted]",
		`{"a":"a\"b\\c<d>"}`:                 `{"a":"[redacted]"}`,
		`{"a":"a\"b\\c\u003cd\u003e"}`:       `{"a":"[redacted]"}`,
		"pa55-w0rd abc-1234":                 "[redacted] [redacted]",
		"nothing of it: page=2, production":  "nothing of it: page=2, production",
		"tail-0987-head":                     "[redacted]",
		"app pg-pass-1 require query-tok-1":  "app [redacted] require [redacted]",
		"shop QWNjb3VudA== example.org":      "shop [redacted] example.org",
	} {
		assert.Equal(t, s.Text(in), want, "%q became", in)
		if in[0] == '{' {
			assert.Equal(t, string(s.Line([]byte(in))), want, "the line %q became", in)
		}
	}
}

// TestNames: names of secrets are distinguished from names of settings in all cases and spellings.
func TestNames(t *testing.T) {
	for _, name := range strings.Fields(`
		TOKEN token auth_token authToken AuthToken AUTH-TOKEN a2e/auth_token _authToken GITHUB_TOKEN githubToken
		githubtoken GH_TOKEN_2 id_token idToken IDToken access_token accessToken refresh-token bearer_token
		sessionToken X-Amz-Security-Token X-CSRF-Token csrfToken tokens API_TOKENS jwt BEARER secret SECRET secrets
		client_secret clientSecret ClientSecret CLIENTSECRET client.secret secret_id app-secret-value password
		Password PASSWORDS db_password dbPassword PGPASSWORD userpassword passwd passphrase pass PASS SSHPASS
		smtp_pass MYSQL_PWD pwd passcode password_hash PASSWORD1 credential credentials Credentials GIT_CREDENTIALS
		creds auth AUTH Auth oauth basicAuth Authorization Proxy-Authorization authorisation cookie Cookie
		Set-Cookie cookies api_key apiKey ApiKey APIKey APIKEY apikey X-API-Key x-api-key OPENAI_API_KEY stripe_key
		accessKey AWS_SECRET_ACCESS_KEY secretKey private_key privateKey PRIVATE_KEY_PEM signing-key sshKey
		ENCRYPTION_KEY KEY KEYS Ocp-Apim-Subscription-Key otp DB_PW
	`) {
		assert.That(t, redact.SpeaksOfSecret(name), "%s is the name of a secret", name)
	}
	for _, name := range strings.Fields(`
		key keys Key path name value text id type author AUTHOR_NAME authors authority authored authorized keyboard
		keyword keywords monkey turkey compass bypass passed passing passenger passive tokenizer tokenize
		TOKENIZERS_PARALLELISM max_tokens maxTokens MAX_TOKENS prompt_tokens completionTokens total_tokens
		input_tokens token_count tokenCount token_budget token_limit page_token nextPageToken next_token
		continuation-token progressToken io.modelcontextprotocol/progressToken resume cancellation_token stop_tokens
		public_key publicKey primary_key primaryKey foreign_key sort_key partition_key cache_key idempotency_key
		group_key keyCode key_name keyPath key_id AWS_ACCESS_KEY_ID token_type tokenUrl TOKEN_URL TOKEN_FILE
		AWS_WEB_IDENTITY_TOKEN_FILE auth_method authType AUTH_MODE auth_url SSH_AUTH_SOCK password_policy
		passwordField secret_name SECRET_ARN_PATH cookie_name cookiePath credential_helper secretary AWS_REGION TZ
		BASE_URL HOME_DIR USERNAME MODEL region secretsPath lang session_id mcp-session-id correlation_id cursor
		nextCursor checkpoint digest
	`) {
		assert.That(t, !redact.SpeaksOfSecret(name), "%s is not a name of a secret", name)
	}
}

// TestMessages: the secrets in a message are found wherever they are and however they are written.
func TestMessages(t *testing.T) {
	const secret = "Zk7Q2mXv9Rt4Lp8Wc3Yb"
	for _, message := range []string{
		`{"auth_token":"%s"}`, `{"API_KEY":"%s"}`, `{"otp":"%s"}`, `{"cookies":["%s"]}`, `{"creds":{"main":"%s"}}`,
		`{"api_\u006bey":"%s"}`, "{\"api_\u212aey\":\"%s\"}", "{\"COOK\u0130E\":\"%s\"}",
		"{\"ENV\u0130RON\":{\"OTHER\":\"%s\"}}", `{"env":{"OTHER":"%s"}}`, `{"ENVIRON":{"OTHER":"%s"}}`,
		`{"Headers":[{"name":"x","value":"%s"}]}`, `{"\u0065nv":{"OTHER":"%s"}}`, `{"cmd":["x","--password","%s"]}`,
		`{"text":"x --token %s"}`, `{"text":"Password=%s;Port=1"}`, `{"text":"see https://me:%s@example.com/"}`,
		`{"text":"see https:\/\/me:%s@example.com"}`, `{"text":"{\"env\":{\"OTHER\":\"%s\"}}"}`,
		`{"text":"{\"jwt\": \"%s\"}"}`, `{"text":"env={\"OTHER\":\"%s\"}"}`,
		`{"text":"{\"\\u0065nv\":{\"OTHER\":\"%s\"}}"}`,
	} {
		s := redact.New(nil)
		s.AddMessage(fmt.Appendf(nil, message, secret))
		assert.Equal(t, s.Text("of "+secret), "of "+redact.Text, "the secret of %s became", message)
	}
	s := redact.New(nil)
	s.AddMessage([]byte(`{"type":"env/step/req","text":"` + secret + `","keyboard":"` + secret + `"}`))
	assert.Equal(t, s.Longest(), 0, "something is looked for")
}

// TestSettingsStay: values that are not secrets stay readable. Hiding them would spoil many answers, and the files
// that an agent writes back.
func TestSettingsStay(t *testing.T) {
	s := redact.New(nil)
	dir := t.TempDir()
	file := filepath.Join(dir, "credentials.json")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	const random = "Zk7Q2mXv9Rt4Lp8Wc3Yb"
	for _, c := range [][2]string{
		{"LOG_LEVEL", "debug"},
		{"NODE_ENV", "production"},
		{"PORT", "8080"},
		{"LANG", "C.UTF-8"},
		{"HOME", dir},
		{"DIRS", dir + ":" + dir},
		{"TOKENIZERS_PARALLELISM", "false"},
		{"HOST", "127.0.0.1"},
		{"SIZE", "10MB"},
		{"AUTHOR_NAME", "somebody"},
		{"AUTH", "true"},
		{"AWS_REGION", "us-east-1"},
		{"TZ", "Europe/Berlin"},
		{"MODEL", "gpt-5"},
		{"MODEL", "claude-sonnet-4-20250514"},
		{"OTHER", "o3-2025-04-16"},
		{"BASE_URL", "https://api.example.com/v1"},
		{"HOME_DIR", "/srv/data/not/there"},
		{"USERNAME", "ada.lovelace"},
		{"OTHER", "/no/such/path"},
		{"OTHER", "https://api.example.com/v1?page=2"},
		{"OTHER", "registry.example.com/team/image:v1.2.3"},
		{"OTHER", "two words and more of them 12"},
		{"OTHER", "a-rather-long-name-of-a-bucket-2026"},
		{"OTHER", "main.go:12:3"},
		{"OTHER", "2026-11-26T22:21:08.123456Z"},
		{"OTHER", "s3cret-value"},
		{"OTHER", `C:\Users\ada\Q2mXv9Rt4Lp8Wc3Yb7Z`},
		{"OTHER", "./dist/index-Q2mXv9Rt4Lp8Wc3Yb7Z.js"},
		{"GOOGLE_APPLICATION_CREDENTIALS", file},
		{"REGION", random},
		{"MODEL", random},
		{"BUCKET_NAME", random},
		{"HOME_DIR", random},
		{"BASE_URL", random},
		{"TIMEZONE", random},
		{"GIT_COMMIT", "4f9a8b7c6d5e4f3a2b1c4f9a8b7c6d5e4f3a2b1c"},
		{"OTHER", "MyVeryLongClassNameForTests"},
		{"max_tokens", "4096"},
	} {
		s.Add(c[0], c[1])
		assert.Equal(t, s.Text(c[1]), c[1], "%s=… became", c[0])
	}
	assert.Equal(t, s.Longest(), 0, "something is looked for")
	var none *redact.Set
	none.Add("API_KEY", "hunter")
	assert.That(t, none.Text("hunter") == "hunter" && none.Longest() == 0, "a nil set hides something")
}

// TestLooks: a value that looks like a secret is treated as one, unless its name is that of a setting.
func TestLooks(t *testing.T) {
	for _, value := range []string{
		"Zk7Q2mXv9Rt4Lp8Wc3Yb", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "9f86d081884c7d659a2feaa0c55ad015",
		"AKIAIOSFODNN7EXAMPLE", "ghp_0123456789abcdefghij", "sk-proj-abcdefghijklmnop", "xoxb-123456789012-abc",
		"hf_abcdefghijklmnop", "AIzaSyA0123456789abcdefghijklmnopqrs", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
		"Bearer abcdef", "Basic dTpw", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n", "SG.n8Wq2Lk5Tz7Vb1Xc4Md6Fg.x",
		"550e8400-e29b-41d4-a716-446655440000",
	} {
		assert.That(t, redact.IsSecret("OTHER", value), "%s looks like a secret", value)
	}
}

// TestLinesStayValid: a secret that looks like a part of JSON does not break a line.
func TestLinesStayValid(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		secret := rapid.SampledFrom([]string{
			"12345678", `"a":1,"b"`, `":":`, "a2e-1.0", "{}[]", `\\\\`, `xx"y`,
			"null:",
		}).Draw(t, "secret")
		text := rapid.StringMatching(`[a-z"\\ ]{0,8}`).Draw(t, "text")
		s := redact.New(nil)
		s.AddSecret(secret)
		quoted := must.Get(jsontext.AppendQuote(nil, text+secret+text))(t)
		line := s.Line(fmt.Appendf(nil, `{"a":1,"b":{"c":[%s,12345678]},"n":123456789,"d":%s}`, quoted, quoted))
		must.That(t, jsontext.Value(line).IsValid(), "not valid: %s", line)
		must.That(t, strings.Contains(string(line), redact.Text) && strings.Contains(string(line), ",12345678]"),
			"with the secret %q: %s", secret, line)
	})
}

// TestBaseGrows: a secret that is added to a base set later is also hidden by the sets that were made from it.
func TestBaseGrows(t *testing.T) {
	base := redact.New(nil)
	s := redact.New(base)
	s.AddSecret("own-secret")
	base.AddSecret("late-secret-of-base")
	assert.Equal(t, s.Text("own-secret late-secret-of-base"), "[redacted] [redacted]")
	assert.That(t, base.Text("own-secret") == "own-secret" && s.Longest() == len("late-secret-of-base"),
		"the base has what is not its own, or the other way round")
}

func TestHeadShowsNoPart(t *testing.T) {
	s := redact.New(nil)
	s.AddSecret("abcdefghij")
	text := []byte("0123456789abcdefghij")
	for n := range len(text) + 5 {
		got := string(s.Head(text, n))
		assert.That(t, !strings.Contains(got, "abc") && (len(got) <= n || n >= len(text)), "the first %d bytes: %q", n,
			got)
	}
}

// TestWriterSeesPieces: a text that is written in pieces is hidden like a text in one piece. The bytes that Flush
// passes on can only be the beginning of a secret.
func TestWriterSeesPieces(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		secrets := []string{"aaab-secret", "aab-other", "aaab-secret-and-more", "rets-aab", "abababab"}
		base := redact.New(nil)
		s := redact.New(base)
		for i, secret := range secrets {
			[]*redact.Set{s, base}[i%2].AddSecret(secret)
		}
		parts := rapid.SampledFrom(append([]string{"a", "b-", "ab", "aaab-", "-and", "x", "\n"}, secrets...))
		text := strings.Join(rapid.SliceOf(parts).Draw(t, "text"), "")
		flushes := rapid.Bool().Draw(t, "flushes")
		var out bytes.Buffer
		w := s.Writer(&out)
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			must.Get(w.Write([]byte(rest[:n])))(t)
			if rest = rest[n:]; flushes && rapid.Bool().Draw(t, "flush") {
				must.OK(t, w.Flush())
				must.That(t, !w.Holds(), "something is held back")
			}
		}
		must.OK(t, w.Close())
		if !flushes {
			must.Equal(t, out.String(), s.Text(text), "%q became", text)
			return
		}
		for _, secret := range secrets {
			must.That(t, !strings.Contains(out.String(), secret), "%q became %q", text, out.String())
		}
		if s.Text(text) == text {
			must.Equal(t, out.String(), text, "bytes are lost")
		}
	})
}

// TestAddressesStay: ids of messages are not changed, even if they contain a secret, because an answer with a changed
// id would find no request. A client may well use the value of a variable in its ids.
func TestAddressesStay(t *testing.T) {
	s := redact.New(nil)
	s.AddSecret("demo-1")
	for in, want := range map[string]string{
		`{"type":"x","id":"demo-1-2","req_id":"demo-1","data":{"id":"demo-1","req_id":["demo-1"]}}`: `{"type":"x","id":"demo-1-2","req_id":"demo-1","data":{"id":"[redacted]","req_id":["[redacted]"]}}`,
		`{"jsonrpc":"2.0","id":"demo-1","method":"demo-1","params":{"method":"demo-1"}}`:            `{"jsonrpc":"2.0","id":"demo-1","method":"demo-1","params":{"method":"[redacted]"}}`,
		`{"type":"TASK_RESULT","task_id":"demo-1","summary":"id demo-1"}`:                           `{"type":"TASK_RESULT","task_id":"demo-1","summary":"id [redacted]"}`,
		`{"demo-1":{"demo-1":"req_id"},"message":"\\\"demo-1\":","code":"demo-1"}`:                  `{"demo-1":{"[redacted]":"req_id"},"message":"\\\"[redacted]\":","code":"[redacted]"}`,
	} {
		assert.Equal(t, string(s.Line([]byte(in))), want, "%s\nbecame", in)
	}
}
