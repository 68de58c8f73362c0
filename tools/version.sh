#!/bin/sh
# Prints the version of these sources: that of the tag of this commit; where there is none the newest in CHANGELOG.md, or, if
# there are lines under Unreleased, the next one as -dev with the commit. Every form is a semantic version and a tag of an image.
set -eu
cd "$(dirname "$0")/.."
if tag=$(git describe --tags --exact-match --match 'v[0-9]*' --dirty 2>/dev/null); then
  echo "${tag#v}"
  exit
fi
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || true)
awk -v commit="${commit:+.g$commit}" '
  /^- / { unreleased = 1 }
  /^## \[[0-9]/ { gsub(/[][]/, "", $2); split($2, v, "."); print unreleased ? v[1] "." v[2] + 1 ".0-dev" commit : $2; exit }' CHANGELOG.md
