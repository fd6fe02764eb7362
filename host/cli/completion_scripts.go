package cli

// completionScripts are the scripts by shell, in which PROGRAM stands for the program. What it
// proposes comes from agents too, so each puts it on the command line quoted.
var completionScripts = map[string]string{
	"bash": `# completion of a2e for bash: source this, or put it into ~/.local/share/bash-completion/completions/a2e
_a2e() {
    local words=() joined="" part typed prefix line value
    # bash takes = and : for the ends of words; here they are none
    for part in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ $part == [=:]* || ( -n $joined && $joined == *[=:] ) ]] && (( ${#words[@]} )); then
            words[${#words[@]}-1]+=$part
        else
            words+=("$part")
        fi
        joined=${words[${#words[@]}-1]}
    done
    typed=${words[${#words[@]}-1]}
    prefix=${typed%"${typed##*[=:]}"}
    COMPREPLY=()
    while IFS= read -r line; do
        value=${line%%$'\t'*}
        case $line in
            :file) compopt -o filenames 2>/dev/null
                while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "${typed#"$prefix"}") ;;
            :dir) compopt -o filenames 2>/dev/null
                while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -d -- "${typed#"$prefix"}") ;;
            *) [[ $value == *= ]] && compopt -o nospace 2>/dev/null
                printf -v value %q "${value#"$prefix"}"
                COMPREPLY+=("$value") ;;
        esac
    done < <(PROGRAM __complete "${words[@]}" 2>/dev/null)
}
complete -F _a2e a2e
`,
	"zsh": `#compdef a2e
# completion of a2e for zsh: source this after compinit, or put it as _a2e into a folder of fpath
_a2e() {
    local line kind
    local -a values shown open openshown
    for line in "${(@f)$(PROGRAM __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            '') ;;
            :file|:dir) kind=$line ;;
            *=$'\t'*) open+=("${line%%$'\t'*}"); openshown+=("${line/$'\t'/  -- }") ;;
            *) values+=("${line%%$'\t'*}"); shown+=("${${line/$'\t'/  -- }%  -- }") ;;
        esac
    done
    (( $#values )) && compadd -l -d shown -a values
    (( $#open )) && compadd -l -S '' -d openshown -a open
    if [[ -n $kind ]]; then
        compset -P '*='
        if [[ $kind == :dir ]]; then _files -/; else _files; fi
    fi
}
if [[ $funcstack[1] == _a2e ]]; then _a2e "$@"; else compdef _a2e a2e; fi
`,
	"fish": `# completion of a2e for fish: source this, or put it into ~/.config/fish/completions/a2e.fish
function __a2e_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l token (commandline -ct)
    for line in (PROGRAM __complete $words[2..-1] 2>/dev/null)
        switch $line
            case :file :dir
                set -l before (string match -r '^[^=]*=' -- $token)
                set -l partial (string replace -r '^[^=]*=' '' -- $token)
                for path in (string split \n -- (__fish_complete_path $partial))
                    string match -q :dir -- $line; and not string match -q -r '/(\t|$)' -- $path; and continue
                    printf '%s%s\n' "$before" $path
                end
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c a2e -f -a '(__a2e_complete)'
`,
}
