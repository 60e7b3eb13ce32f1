# Lists the names of the server. It reads the line itself, because the options of the connection are
# before the words that this function is given.
(( $+functions[_leasehold_names] )) ||
_leasehold_names() {
    local -a line names
    line=("${(@Q)${(z)LBUFFER}}")
    [[ $LBUFFER != *[[:space:]] ]] || line+=('')
    line=("${(@)line[(I)(*/|)leasehold,-1]}")
    names=("${(@f)$($line[1] complete -- "${(@)line[2,-1]}" 2>/dev/null)}")
    names=(${names:#})
    compadd -a names
}
