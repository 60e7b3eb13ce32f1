# Completes the command after `--`, and otherwise what clap knows.
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

# Lists the names of the server. It reads the line itself, because the options of the connection are
# before the words that this function is given.
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
