#compdef a2e
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
