# Completion of ydb-sidecar's commands and flags for bash 3.2 and later.
_sidecar() {
  local line word
  COMPREPLY=()
  while IFS= read -r line; do
    word=${line%%$'\t'*}
    COMPREPLY+=("$word")
  done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  if [[ ${#COMPREPLY[@]} -eq 1 && $word == *= ]]; then
    compopt -o nospace 2>/dev/null # bash 3 has no compopt: there a space follows
  fi
}
complete -o default -F _sidecar sidecar
