package sandbox

// The lists are functions so that nobody can change them.

// steeringPrefixes are families of variables, in upper case, that steer loaders,
// interpreters and build tools, or belong to the host.
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

// steering are single variables, in upper case, of the same kind.
func steering() []string {
	return []string{
		"PATH", "PATHEXT", "COMSPEC", "SYSTEMROOT", "WINDIR", "PSMODULEPATH", "HOME", "USERPROFILE", "PWD", "OLDPWD",
		"SHELL", "ENV", "IFS", "PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "SHELLOPTS", "CDPATH", "FPATH",
		"GLOBIGNORE", "EXECIGNORE", "FIGNORE", "FCEDIT", "HISTFILE", "INPUTRC", "POSIXLY_CORRECT", "ZDOTDIR", "TIMEFORMAT", "_",
		"EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "MORE", "LV",
		"GCONV_PATH", "LOCPATH", "NLSPATH", "LOCALDOMAIN", "HOSTALIASES", "GETCONF_DIR", "TZDIR", "TERMCAP", "TMPDIR", "TMP", "TEMP",
		"CLASSPATH", "MFLAGS", "GNUMAKEFLAGS", "CC", "CXX", "CPP", "AR", "AS", "LD", "NM", "FC", "PKG_CONFIG", "PKG_CONFIG_PATH",
		"CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "LIBRARY_PATH",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "KRB5_CONFIG", "MAILCAPS", "MAILCAP", "GREP_OPTIONS", "TAR_OPTIONS", "RIPGREP_CONFIG_PATH",
		"FAKECHROOT", "LIBPATH", "SHLIB_PATH", "LDR_PRELOAD", "VIMINIT", "EXINIT", "EMACSLOADPATH", "SCREENRC", "TMUX",
	}
}

// harmless are members of the families above, in upper case, that only choose
// data or a format.
func harmless() []string {
	return []string{
		"PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONUTF8",
		"NODE_ENV", "NODE_DISABLE_COLORS", "GOOS", "GOARCH", "GOMAXPROCS", "GOGC", "GOMEMLIMIT", "CGO_ENABLED",
		"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE",
		"GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_DATE", "GIT_TERMINAL_PROMPT",
		"RUST_BACKTRACE", "RUST_LOG", "CARGO_TERM_COLOR",
	}
}
