# completion of a2e for fish: source this, or put it into ~/.config/fish/completions/a2e.fish
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
