package sandbox

import (
	"bufio"
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// certificateNames are the variables by which programs find the certificates that a machine
// trusts.
func certificateNames() []string {
	return []string{
		"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO",
		"NIX_SSL_CERT_FILE", "AWS_CA_BUNDLE", "DENO_CERT", "CARGO_HTTP_CAINFO", "NPM_CONFIG_CAFILE",
	}
}

// routeNames say by which way programs get on line, and from where installers take packages.
func routeNames() []string {
	return []string{
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NPM_CONFIG_PROXY", "NPM_CONFIG_HTTPS_PROXY", "NPM_CONFIG_NOPROXY",
		"NPM_CONFIG_REGISTRY", "PIP_PROXY", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX",
		"UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "UV_PYTHON_INSTALL_MIRROR", "BUN_CONFIG_REGISTRY", "YARN_NPM_REGISTRY_SERVER",
	}
}

// NetworkEnv gives what children with network get of the host's environment, beyond what
// all get: certificates, proxies and package registries. Where the environment does not say,
// the user's and the machine's settings of npm, pip and uv do. Some values may hold a
// password.
func NetworkEnv(environ []string) map[string]string {
	vars := make(map[string]string)
	upper := make(map[string]bool) // names that the environment has in any case
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		large := strings.ToUpper(name)
		if value != "" && (slices.Contains(certificateNames(), large) || slices.Contains(routeNames(), large)) {
			vars[name], upper[large] = value, true
		}
	}
	home := lookup(environ, "HOME")
	for _, s := range installerSettings() {
		path := s.file
		if rest, ok := strings.CutPrefix(path, "~/"); ok && filepath.IsAbs(home) {
			path = filepath.Join(home, rest)
		}
		if upper[strings.ToUpper(s.name)] || !filepath.IsAbs(path) {
			continue
		}
		if value := setting(path, s.key); value != "" {
			vars[s.name], upper[strings.ToUpper(s.name)] = value, true
		}
	}
	return vars
}

// installerSetting is a key of an installer's own file, and the variable of the same
// meaning. The files themselves stay out of sight: tokens lie in them.
type installerSetting struct{ file, key, name string }

func installerSettings() (all []installerSetting) {
	add := func(files []string, pairs ...string) {
		for i := 0; i < len(pairs); i += 2 {
			for _, file := range files {
				all = append(all, installerSetting{file, pairs[i], pairs[i+1]})
			}
		}
	}
	add([]string{"~/.npmrc"}, "registry", "npm_config_registry", "cafile", "npm_config_cafile", "proxy", "npm_config_proxy",
		"https-proxy", "npm_config_https_proxy", "noproxy", "npm_config_noproxy")
	add([]string{"~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf"}, "index-url", "PIP_INDEX_URL", "extra-index-url", "PIP_EXTRA_INDEX_URL",
		"cert", "PIP_CERT", "proxy", "PIP_PROXY")
	add([]string{"~/.config/uv/uv.toml", "/etc/uv/uv.toml"}, "index-url", "UV_DEFAULT_INDEX", "system-certs", "UV_SYSTEM_CERTS", "native-tls", "UV_NATIVE_TLS")
	return all
}

// maxSettings bounds how much of a file with settings is read.
const maxSettings = 1 << 20

// setting reads a key of a file of lines such as key = "value"; "" = it is not there, or
// refers to something else.
func setting(path, key string) string {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxSettings {
		return ""
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), "=")
		if value = strings.Trim(strings.TrimSpace(value), `"'`); ok && strings.TrimSpace(name) == key && !strings.Contains(value, "${") {
			return value
		}
	}
	return ""
}

// addNetwork adds what a child with network gets. One that shares its home, which an agent
// starts as it likes, gets nothing that holds a password.
func (b baseEnv) addNetwork(all map[string]string, own bool) {
	for name, value := range b.net {
		if own || len(Credentials(value)) == 0 {
			all[name] = value
		}
	}
}

// Credentials gives the passwords and tokens in a list of URLs, which may have names in
// front (name=https://…). What may hold one that cannot be told apart is given whole.
func Credentials(urls string) (secrets []string) {
	for _, text := range strings.FieldsFunc(urls, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		if name, address, ok := strings.Cut(text, "="); ok && !strings.ContainsAny(name, ":/@?") {
			text = address
		}
		u, err := url.Parse(text)
		if err != nil || u.Host == "" && strings.Contains(text, "@") {
			u, err = url.Parse("http://" + text) // a proxy may go without
		}
		switch {
		case err == nil && u.User != nil:
			password, ok := u.User.Password()
			if !ok {
				password = u.User.Username() // a token
			}
			secrets = append(secrets, password)
		case strings.ContainsAny(text, "@?"):
			secrets = append(secrets, text)
		}
	}
	return secrets
}

// certificates lists the files and folders that the variables name, for children to read.
func certificates(vars map[string]string) (paths []string) {
	closed := privateFolders()
	for name, value := range vars {
		if !slices.Contains(certificateNames(), strings.ToUpper(name)) {
			continue
		}
		for _, path := range filepath.SplitList(value) {
			info, err := os.Stat(path)
			if err == nil && filepath.IsAbs(path) && (info.Mode().IsRegular() || info.IsDir() && private(realPath(path), closed) == "") {
				paths = append(paths, path)
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}
