# Completes the command after `--`. Clap's function completes the words before it.
_leasehold() {
    local -i dashes=${words[(i)--]}
    if (( dashes < CURRENT )); then
        shift $dashes words
        (( CURRENT -= dashes ))
        _normal
    else
        _leasehold_options "$@"
    fi
}

# Lists the names on the server. This function reads the line itself, because the words that it is
# given lack the options of the connection, which are before them.
(( $+functions[_leasehold_names] )) ||
_leasehold_names() {
    local -a line names
    line=("${(@Q)${(z)LBUFFER}}")
    [[ $LBUFFER != *[[:space:]] ]] || line+=('')
    local -i at=${line[(I)*leasehold]}
    names=("${(@f)$($line[at] complete -- "${(@)line[at+1,-1]}" 2>/dev/null)}")
    names=(${names:#})
    compadd -a names
}
