# Lists the names on the server.
function __fish_leasehold_names
    set -l words (commandline -opc)
    $words[1] complete -- $words[2..] (commandline -ct) 2>/dev/null
end

# Returns whether the cursor is in the command after `--`.
function __fish_leasehold_in_command
    contains -- -- (commandline -opc)
end

# Completes the command after `--`.
function __fish_leasehold_command
    set -l words (commandline -opc)
    set -l place (contains -i -- -- $words)
    set -e words[1..$place]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c leasehold -n "not __fish_leasehold_in_command; and __fish_leasehold_using_subcommand run hold show watch release set-limit latch" -f -a "(__fish_leasehold_names)"
complete -c leasehold -n __fish_leasehold_in_command -f -a "(__fish_leasehold_command)"
