package sandbox

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"a2e/protocol/fleet"
)

// maxEnvName is the maximum length of a variable's name, in bytes.
const maxEnvName = 256

// EnvError is the error for a variable that a request may not set.
type EnvError struct {
	Name   string
	Reason string
}

// Error implements error.
func (e *EnvError) Error() string {
	return fmt.Sprintf("environment variable %q is refused: %s", e.Name, e.Reason)
}

// baseEnv is the environment that every child gets: a PATH of fixed folders, HOME, the variables of
// withoutTerminal if the child has no terminal, and those variables of the host that safeNames lists.
// No other variable is passed on, so that a token in the host's environment does not reach children.
type baseEnv struct {
	vars map[string]string // without HOME
	home *homeDir
	net  map[string]string // further variables, for children with network

	confined bool // the sandbox is not off
}

// EnvConfined is the variable that tells a program that it runs in the sandbox of a host. A host that
// finds it set is itself confined by the host that started it.
const EnvConfined = "A2E_SANDBOX"

func newBaseEnv(environ, path []string, home string) (baseEnv, error) {
	if home != "" && !filepath.IsAbs(home) {
		return baseEnv{}, fmt.Errorf("sandbox: home %q is not absolute", home)
	}
	for _, dir := range path {
		if !filepath.IsAbs(dir) || strings.ContainsRune(dir, filepath.ListSeparator) {
			return baseEnv{}, fmt.Errorf("sandbox: PATH folder %q is not an absolute path without %q", dir,
				filepath.ListSeparator)
		}
	}
	vars := map[string]string{"LANG": "C.UTF-8"}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		if ok && isSafeName(name) && value != "" {
			vars[name] = value
		}
	}
	vars["PATH"] = strings.Join(path, string(filepath.ListSeparator))
	return baseEnv{vars: vars, home: &homeDir{fixed: home}, net: NetworkEnv(environ)}, nil
}

// build returns the whole environment of one child, sorted.
func (b baseEnv) build(policy *Policy) ([]string, error) {
	for _, name := range slices.Sorted(maps.Keys(policy.Env)) {
		if err := CheckEnv(name, policy.Env[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(policy.HostEnv)) {
		if err := checkEnvSyntax(name, policy.HostEnv[name]); err != nil {
			return nil, err
		}
	}
	home, tmp, err := b.home.of(policy.Network)
	if err != nil {
		return nil, err
	}
	if policy.Scratch != "" {
		home, tmp = cmp.Or(policy.HomeDir, policy.Scratch), policy.Scratch
	}
	all := maps.Clone(b.vars)
	if !policy.Terminal {
		maps.Copy(all, withoutTerminal())
	}
	if policy.Network != NetworkNone {
		b.addNetwork(all, policy.Home == HomeOwn || policy.HomeDir != "")
	}
	all["HOME"], all["TMPDIR"] = home, tmp
	if policy.Dir != "" {
		all["PWD"] = policy.Dir
	}
	maps.Copy(all, policy.Env)
	maps.Copy(all, policy.HostEnv)
	if b.confined {
		all[EnvConfined] = "1"
	}
	env := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env, nil
}

// noEditor is a value for the editor variables. It fails at once where a program would open an editor,
// since without a terminal the program would wait until its timeout. The shell prints the name of the
// script that it cannot find, so the name is the message. The name has no quotes, blanks or special
// characters, because some programs pass the value to a shell and others split it at blanks.
const noEditor = "sh there-is-no-terminal-to-edit-in:give-the-text-as-an-argument,such-as-git-commit--m-TEXT," +
	"or-name-an-editor-in-the-command,such-as-GIT_EDITOR=true"

// withoutTerminal returns variables for children that have no terminal, so that no program waits for a
// person to edit, to turn a page or to type a password.
func withoutTerminal() map[string]string {
	return map[string]string{
		"TERM": "dumb", "EDITOR": noEditor, "VISUAL": noEditor, "GIT_EDITOR": noEditor, "GIT_SEQUENCE_EDITOR": noEditor,
		"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0",
	}
}

// isSafeName reports whether a child sees this variable of the host's environment. fleet.EnvAgent is
// among them: a host that serves a child agent passes on the agent's identity, so that a host started
// from it grants no more rights. A program that drops the variable is still confined by the sandbox.
func isSafeName(name string) bool {
	return strings.HasPrefix(name, "LC_") || name == fleet.EnvAgent || slices.Contains(safeNames(), name)
}

func lookup(environ []string, name string) string {
	for _, entry := range environ {
		if k, v, ok := strings.Cut(entry, "="); ok && k == name {
			return v
		}
	}
	return ""
}

// CheckEnv returns an error if a request may not set this variable. It refuses names that are not plain identifiers,
// and names that can change which code a program loads or runs, whatever the value is. The error is an *EnvError.
func CheckEnv(name, value string) error {
	if err := checkEnvSyntax(name, value); err != nil {
		return err
	}
	upper := strings.ToUpper(name)
	if slices.Contains(harmless(), upper) {
		return nil
	}
	if slices.Contains(steering(), upper) || slices.ContainsFunc(steeringPrefixes(), func(p string) bool {
		return strings.HasPrefix(upper, p)
	}) {
		return &EnvError{name, "it can change which code a program runs; pass what you need as an argument"}
	}
	return nil
}

func checkEnvSyntax(name, value string) error {
	switch {
	case name == "":
		return &EnvError{name, "the name is empty"}
	case len(name) > maxEnvName:
		return &EnvError{name[:maxEnvName], fmt.Sprintf("the name is longer than %d bytes", maxEnvName)}
	case strings.IndexByte(value, 0) >= 0:
		return &EnvError{name, "the value holds a NUL byte"}
	}
	for i := range len(name) {
		c := name[i]
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return &EnvError{name, "a name is made of ASCII letters, digits and _ and starts with no digit"}
		}
	}
	return nil
}

// certificateNames returns the variables in which programs look for trusted certificates.
func certificateNames() []string {
	return []string{
		"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT",
		"GIT_SSL_CAINFO",
		"NIX_SSL_CERT_FILE", "AWS_CA_BUNDLE", "DENO_CERT", "CARGO_HTTP_CAINFO", "NPM_CONFIG_CAFILE",
	}
}

// routeNames returns the variables that set proxies for programs and package registries for installers.
func routeNames() []string {
	return []string{
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NPM_CONFIG_PROXY", "NPM_CONFIG_HTTPS_PROXY",
		"NPM_CONFIG_NOPROXY",
		"NPM_CONFIG_REGISTRY", "PIP_PROXY", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX",
		"UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "UV_PYTHON_INSTALL_MIRROR",
		"BUN_CONFIG_REGISTRY", "YARN_NPM_REGISTRY_SERVER",
	}
}

// NetworkEnv returns the variables of the host's environment that only children with network get:
// certificates, proxies and package registries. For variables that are not set, it reads the settings
// of npm, pip and uv of the user and the machine. Some values may contain a password.
func NetworkEnv(environ []string) map[string]string {
	vars := make(map[string]string)
	upper := make(map[string]bool) // names in the environment, in upper case
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

// installerSetting is a key in an installer's configuration file, and the variable with the same
// meaning. Children do not see the files themselves, because these contain tokens.
type installerSetting struct{ file, key, name string }

func installerSettings() (all []installerSetting) {
	add := func(files []string, pairs ...string) {
		for i := 0; i < len(pairs); i += 2 {
			for _, file := range files {
				all = append(all, installerSetting{file, pairs[i], pairs[i+1]})
			}
		}
	}
	add([]string{"~/.npmrc"}, "registry", "npm_config_registry", "cafile", "npm_config_cafile", "proxy",
		"npm_config_proxy",
		"https-proxy", "npm_config_https_proxy", "noproxy", "npm_config_noproxy")
	add([]string{"~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf"}, "index-url", "PIP_INDEX_URL",
		"extra-index-url", "PIP_EXTRA_INDEX_URL",
		"cert", "PIP_CERT", "proxy", "PIP_PROXY")
	add([]string{"~/.config/uv/uv.toml", "/etc/uv/uv.toml"}, "index-url", "UV_DEFAULT_INDEX", "system-certs",
		"UV_SYSTEM_CERTS", "native-tls", "UV_NATIVE_TLS")
	return all
}

// maxSettings is the maximum size of a settings file, in bytes; a larger file is ignored.
const maxSettings = 1 << 20

// setting reads a key from a file with lines such as key = "value". It returns "" if the key is
// missing or its value refers to a variable.
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
		if value = strings.Trim(strings.TrimSpace(value), `"'`); ok && strings.TrimSpace(name) == key &&
			!strings.Contains(value, "${") {
			return value
		}
	}
	return ""
}

// addNetwork adds the variables for a child with network. A child with a shared home, which an agent
// may start freely, gets no value that contains a password.
func (b baseEnv) addNetwork(all map[string]string, own bool) {
	for name, value := range b.net {
		if own || len(Credentials(value)) == 0 {
			all[name] = value
		}
	}
}

// Credentials returns the passwords and tokens in a list of URLs, which may have names in front (name=https://…). If a
// text may contain a secret that cannot be isolated, the whole text is returned.
func Credentials(urls string) (secrets []string) {
	for _, text := range strings.FieldsFunc(urls, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		if name, address, ok := strings.Cut(text, "="); ok && !strings.ContainsAny(name, ":/@?") {
			text = address
		}
		u, err := url.Parse(text)
		if err != nil || u.Host == "" && strings.Contains(text, "@") {
			u, err = url.Parse("http://" + text) // the URL of a proxy may have no scheme
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

// certificates returns the files and folders that the certificate variables in vars name, so that
// children may read them.
func certificates(vars map[string]string) (paths []string) {
	closed := privateFolders()
	for name, value := range vars {
		if !slices.Contains(certificateNames(), strings.ToUpper(name)) {
			continue
		}
		for _, path := range filepath.SplitList(value) {
			info, err := os.Stat(path)
			if err == nil && filepath.IsAbs(path) && (info.Mode().IsRegular() || info.IsDir() &&
				private(realPath(path), closed) == "") {
				paths = append(paths, path)
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// The lists are functions so that no code can change them.

// steeringPrefixes returns prefixes of variables, in upper case, that control loaders, interpreters
// and build tools, or belong to the host.
func steeringPrefixes() []string {
	return []string{
		"A2E_", "LD_", "DYLD_", "GLIBC_", "MALLOC_", "RES_", "BASH", "ZSH", "KSH",
		"PYTHON", "PERL", "RUBY", "GEM_", "BUNDLE_", "NODE_", "NPM_", "YARN_", "PNPM_",
		"DENO_", "BUN_", "JAVA", "_JAVA", "JDK_", "JVM_", "MAVEN_", "GRADLE_", "LUA_", "PHP",
		"R_", "TCL", "AWK", "GAWK", "GO", "CGO_", "CARGO", "RUST", "DOTNET_", "COMPLUS_", "CORECLR_",
		"GIT_", "SSH_", "SVN_", "HG", "CVS_", "RSYNC_", "GNUPG", "GPG_", "SUDO_",
		"LESS", "OPENSSL_", "CURL_", "WGET", "XDG_", "DOCKER_", "KUBE", "PIP_", "UV_", "CONDA_", "VIRTUAL_ENV",
		"MAKE", "CMAKE_", "CCACHE_", "GCC_", "CLANG_", "COMPILER_", "TERMINFO",
	}
}

// steering returns single variables, in upper case, of the same kind as steeringPrefixes.
func steering() []string {
	return []string{
		"PATH", "PATHEXT", "COMSPEC", "SYSTEMROOT", "WINDIR", "PSMODULEPATH", "HOME", "USERPROFILE", "PWD", "OLDPWD",
		"SHELL", "ENV", "IFS", "PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "SHELLOPTS", "CDPATH", "FPATH",
		"GLOBIGNORE", "EXECIGNORE", "FIGNORE", "FCEDIT", "HISTFILE", "INPUTRC", "POSIXLY_CORRECT", "ZDOTDIR",
		"TIMEFORMAT", "_",
		"EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "MORE", "LV",
		"GCONV_PATH", "LOCPATH", "NLSPATH", "LOCALDOMAIN", "HOSTALIASES", "GETCONF_DIR", "TZDIR", "TERMCAP", "TMPDIR",
		"TMP", "TEMP",
		"CLASSPATH", "MFLAGS", "GNUMAKEFLAGS", "CC", "CXX", "CPP", "AR", "AS", "LD", "NM", "FC", "PKG_CONFIG",
		"PKG_CONFIG_PATH",
		"CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
		"OBJC_INCLUDE_PATH", "LIBRARY_PATH",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "KRB5_CONFIG", "MAILCAPS", "MAILCAP", "GREP_OPTIONS", "TAR_OPTIONS",
		"RIPGREP_CONFIG_PATH",
		"FAKECHROOT", "LIBPATH", "SHLIB_PATH", "LDR_PRELOAD", "VIMINIT", "EXINIT", "EMACSLOADPATH", "SCREENRC", "TMUX",
	}
}

// harmless returns variables, in upper case, that match the lists above but only choose data or a format.
func harmless() []string {
	return []string{
		"PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONUTF8",
		"NODE_ENV", "NODE_DISABLE_COLORS", "GOOS", "GOARCH", "GOMAXPROCS", "GOGC", "GOMEMLIMIT", "CGO_ENABLED",
		"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE",
		"GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_DATE", "GIT_TERMINAL_PROMPT",
		"RUST_BACKTRACE", "RUST_LOG", "CARGO_TERM_COLOR",
	}
}
