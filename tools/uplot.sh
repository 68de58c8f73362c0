#!/usr/bin/env bash
# Puts uPlot, the chart library of the admin page, into internal/admin/page/uplot: the files of its npm package as they
# are, with its licence (MIT). To take another version: change both lines below, run this, and look at the page.
set -euo pipefail
version=1.6.32
integrity=sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==

cd "$(dirname "$0")/../internal/admin/page/uplot"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "uplot@$version" >/dev/null
got=sha512-$(openssl dgst -sha512 -binary "$work/uplot-$version.tgz" | base64 -w0)
[ "$got" = "$integrity" ] || { echo "uplot $version is not what it was: $got"; exit 1; }
tar -xzf "$work/uplot-$version.tgz" -C "$work"
cp "$work/package/dist/uPlot.iife.min.js" uplot.js
cp "$work/package/dist/uPlot.min.css" uplot.css
cp "$work/package/LICENSE" LICENSE
