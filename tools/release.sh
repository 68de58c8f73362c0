#!/usr/bin/env bash
# Makes the files of a release in dist/: tools/release.sh [PART...], all parts without one. The parts, in order:
#
#   clients    packages of the clients, by `make clients`
#   programs   the sidecar for each platform with licences, a sample of its settings and the systemd unit
#   image      the container image, as an OCI layout in a tar file
#   charts     the Helm charts, in charts/
#   sbom       what each program is made of, by CycloneDX
#   notes      the version's part of CHANGELOG.md
#   sums       SHA256SUMS of all files
#
# VERSION, DIST (the directory) and PLATFORMS change what they say. The same commit, version and Go give the same programs,
# image and charts: times in them are those of the commit, or SOURCE_DATE_EPOCH. deploy/README.md has what this needs.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${VERSION:-$(tools/version.sh)}
dist=${DIST:-dist}
platforms=${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}
commit=$(git rev-parse HEAD 2>/dev/null || true)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# archive DIRECTORY NAME... writes a tar file with names of a directory, the same bytes each time.
archive() {
  local from=$1
  shift
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=pax \
    --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime --mode=go=rX,u+rw -C "$from" -cf - "$@"
}

clients() {
  make clients VERSION="$version" DIST="$dist"
}

programs() {
  local platform name
  for platform in $platforms; do
    name=ydb-sidecar_${version}_${platform/\//_}
    mkdir -p "$work/$name"
    CGO_ENABLED=0 GOOS=${platform%/*} GOARCH=${platform#*/} go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X main.version=$version -X github.com/ydb-sidecar/sidecar/internal/app.Commit=$commit" \
      -o "$work/$name/sidecar" ./cmd/sidecar
    cp LICENSE THIRD_PARTY_NOTICES deploy/sidecar.yaml "$work/$name"
    if [ "${platform%/*}" = linux ]; then cp deploy/systemd/ydb-sidecar* "$work/$name"; fi
    archive "$work" "$name" | gzip -n -9 >"$dist/$name.tar.gz"
  done
}

image() {
  go -C deploy/image run . -o "$work/image" -version "$version" -revision "$commit" \
    -platforms "$(tr ' ' '\n' <<<"$platforms" | grep ^linux/ | paste -sd,)"
  archive "$work/image" . >"$dist/ydb-sidecar_${version}_image.tar"
}

charts() {
  local name
  mkdir -p "$dist/charts"
  for name in ydb-sidecar ydb-sidecar-monitoring; do
    cp -r "deploy/helm/$name" "$work"
    sed -i -E "s/^version: .*/version: $version/; s/^appVersion: .*/appVersion: \"$version\"/" "$work/$name/Chart.yaml"
    archive "$work" "$name" | gzip -n -9 >"$dist/charts/$name-$version.tgz"
  done
}

sbom() {
  local platform name
  go build -modfile=tools/go.mod -o "$work/cyclonedx-gomod" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
  for platform in $platforms; do
    name=ydb-sidecar_${version}_${platform/\//_}
    tar -xzf "$dist/$name.tar.gz" -C "$work" "$name/sidecar"
    # Every module is in Go's cache, since the program was built, and was checked by go.sum; the program's own is in no registry. Away from
    # go.sum, Go would ask the checksum database, which GOPROXY=off forbids too: then no module would have a licence.
    GOPROXY=off GOSUMDB=off "$work/cyclonedx-gomod" bin -json -licenses -noserial -notimestamp -std -version "$version" \
      -output "$dist/$name.cdx.json" "$work/$name/sidecar" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
  done
}

notes() {
  local heading="[$version]"
  grep -q "^## \[$version\]" CHANGELOG.md || heading="[Unreleased]"
  awk -v heading="$heading" '/^## / { on = $2 == heading; next } /^\[/ { on = 0 } on' CHANGELOG.md >"$dist/CHANGES.md"
}

sums() {
  (cd "$dist" && find . -type f ! -name SHA256SUMS | LC_ALL=C sort | sed 's|^\./||' | xargs -d '\n' sha256sum >SHA256SUMS)
}

if [ $# = 0 ]; then
  rm -rf "$dist"
  set -- clients programs image charts sbom notes sums
fi
mkdir -p "$dist"
for part; do
  case $part in
    clients | programs | image | charts | sbom | notes | sums) "$part" ;;
    *) echo "release: no part \"$part\"; the parts are clients programs image charts sbom notes sums" >&2; exit 2 ;;
  esac
done
echo "$dist: ydb-sidecar $version"
