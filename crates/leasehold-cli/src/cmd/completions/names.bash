# Completes the command after `--` and the names on the server. Clap's function completes the rest.
_leasehold_words() {
    local place
    for ((place = 1; place < COMP_CWORD; place++)); do
        if [[ ${COMP_WORDS[place]} == -- ]]; then
            if declare -F _command_offset >/dev/null; then
                _command_offset $((place + 1))
            elif ((COMP_CWORD == place + 1)); then
                COMPREPLY=($(compgen -c -- "$2"))
            fi
            return
        fi
    done
    local names=()
    _leasehold_names "$@"
    if ((${#names[@]})); then
        COMPREPLY=("${names[@]}")
    else
        _leasehold "$@"
    fi
}

# Lists the names that begin like the word at the cursor. Bash has cut that word at colons and equals
# signs, so this reads the line itself, and returns what follows the cut.
_leasehold_names() {
    local line=${COMP_LINE:0:COMP_POINT} words name begun
    read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    begun=${words[${#words[@]} - 1]}
    begun=${begun%"$2"}
    while IFS= read -r name; do
        names+=("$(printf %q "${name#"$begun"}")")
    done < <("$1" complete -- "${words[@]:1}" 2>/dev/null)
}
