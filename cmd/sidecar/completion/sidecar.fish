# Completion of ydb-sidecar's commands and flags for fish.
function __sidecar_complete
    set -l words (commandline -opc)
    set -l program $words[1]
    set -e words[1]
    $program __complete $words (commandline -ct) 2>/dev/null
end
complete -c sidecar -a '(__sidecar_complete)'
complete -c sidecar -n 'test (count (__sidecar_complete)) -gt 0' -f
