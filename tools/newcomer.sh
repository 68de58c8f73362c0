#!/usr/bin/env bash
# Plays a newcomer: clones this checkout into an empty directory, builds the programs and the packages of the clients there, and runs what
# README and the tutorials print, against `make run` as it is, with the packages of dist/ in empty environments. Then it checks the Compose
# file against the product.
#
# The clone has the tracked files as they are now, without what was never added to git and without anything that was installed before.
# CACHES names what is linked into the clone all the same, so that nothing is downloaded: paths of this checkout, by default all that is
# needed. CACHES= downloads everything, as for a newcomer: 23 minutes on two busy processors, and root for packages of Debian. Go's own
# caches are those of the environment.
#
# `make run` listens at fixed ports, so the pages are run in a network of their own, made by unshare. Where that is not allowed, the same
# programs run at free ports, and the addresses in the pages are replaced by these.
set -euo pipefail
cd "$(dirname "$0")/.."
from=$PWD
caches=${CACHES-.venv .cache/clients/python .cache/prometheus clients/node/node_modules}
pages='TestReadme TestTutorialForPython TestTutorialForNode'
compose='TestCompose TestComposeSaysWhereThingsAre TestComposeRunsWhatIsThere TestComposeMonitoring'

if [ "${1:-}" = tests ]; then # the names of the tests, for a run that leaves them to this script
  tr ' ' '|' <<<"$pages $compose"
  exit
fi

for cache in $caches; do
  if [ ! -e "$cache" ]; then
    echo "newcomer: there is no $cache; run make deps, or set CACHES= to download everything" >&2
    exit 2
  fi
done
dir=$(mktemp -d "${TMPDIR:-/tmp}/newcomer.XXXXXX")
trap 'rm -rf "$dir"' EXIT
clone=$dir/sidecar
git clone --quiet "$from" "$clone"
# Times go along: by them make sees what a linked cache was made of.
git ls-files -z --deleted | (cd "$clone" && xargs -0r rm -f)
comm -z -23 <(git ls-files -z | sort -z) <(git ls-files -z --deleted | sort -z) | tar --null -T - -cf - | tar -C "$clone" -xpf -
for cache in $caches; do
  mkdir -p "$clone/$(dirname "$cache")"
  ln -s "$from/$cache" "$clone/$cache"
done
cd "$clone"
if [ -z "$caches" ]; then make deps; fi
make --no-print-directory build clients

alone=(unshare --map-root-user --net --mount-proc --pid --fork --kill-child)
if "${alone[@]}" ip link set lo up 2>"$dir/log"; then
  alone+=(env NEWCOMER_AS_PRINTED=1 sh -c 'ip link set lo up && exec "$@"' sh)
else
  echo "newcomer: no network of its own ($(tail -1 "$dir/log")): the pages run at free ports"
  alone=()
fi

# run DIRECTORY PACKAGE 'TEST...' COMMAND... runs tests by a command, each of which must be there and pass.
run() {
  local in=$1 package=$2 tests=$3 name ok=0
  shift 3
  (cd "$in" && "$@" test -count=1 -v -timeout 10m -run "^(${tests// /|})\$" "$package") >"$dir/log" 2>&1 || ok=1
  for name in $tests; do
    grep -a "^--- PASS: $name " "$dir/log" || { echo "newcomer: $name did not pass"; ok=1; }
  done
  if [ $ok != 0 ]; then
    cat "$dir/log"
    exit 1
  fi
}
# These are built as the programs were, and so from the same cache.
run . ./proof/systemtest "$pages" "${alone[@]}" env CGO_ENABLED=0 GOFLAGS=-trimpath go
run deploy/helmtest . "$compose" go
echo "newcomer: README, the tutorials and the Compose file hold"
