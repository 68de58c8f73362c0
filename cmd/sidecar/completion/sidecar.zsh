#compdef sidecar
# Completion of ydb-sidecar's commands and flags for zsh.
_sidecar() {
  local line word what
  local -a words_found settings_found
  while IFS= read -r line; do
    word=${line%%$'\t'*} what=${line#*$'\t'}
    if [[ $word == *= ]]; then
      settings_found+=("$word")
    else
      words_found+=("${word//:/\\:}:$what")
    fi
  done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( $#words_found )); then
    _describe sidecar words_found
  elif (( $#settings_found )); then
    compadd -S '' -a settings_found
  else
    _files
  fi
}
if [[ $funcstack[1] == _sidecar ]]; then
  _sidecar "$@"
else
  compdef _sidecar sidecar
fi
