#!/usr/bin/env bash
# Builds the Python client into a directory, dist by default, as a wheel and a source package.
# Needs the environment .cache/clients/python, which make clients-python makes.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-dist}")
# The same version as the programs, in the form of PEP 440: 1.2.3-dev.gabc is 1.2.3.dev0+gabc.
version=$(sed -E 's/-dev\.(.*)/.dev0+\1/; s/-dev$/.dev0/; s/-dirty$/+dirty/' <<<"${VERSION:-$(tools/version.sh)}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r clients/python/. "$work"
rm -rf "$work"/src/ydb_sidecar/__pycache__
echo "__version__ = \"$version\"" >"$work/src/ydb_sidecar/_version.py"
mkdir -p "$out"
rm -f "$out"/ydb_sidecar-*
.cache/clients/python/bin/python -m build --no-isolation --outdir "$out" "$work" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
ls "$out"/ydb_sidecar-*
