# completion of a2e for bash: source this, or put it into ~/.local/share/bash-completion/completions/a2e
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
