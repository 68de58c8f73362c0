#!/usr/bin/env bash
# Looks for known holes in what the programs call. It needs Go's vulnerability database, over the network or as a copy
# (GOVULNDB=file:///...). Where there is none it says that nothing was looked at, and does not fail: that is no finding.
set -uo pipefail
cd "$(dirname "$0")/.."
db=${GOVULNDB:-https://vuln.go.dev}
if ! out=$(go tool -modfile=tools/go.mod govulncheck -version 2>&1); then # builds it
	echo "$out"
	exit 1
fi
out=$(go tool -modfile=tools/go.mod govulncheck -db "$db" ./... 2>&1)
code=$?
echo "$out"
if [ "$code" -eq 0 ] && grep -q '^No vulnerabilities found' <<<"$out"; then
	echo "vuln: checked by $db"
	exit 0
fi
if [ "$code" -ne 0 ] && [ "$code" -ne 3 ] && grep -q '^govulncheck: fetching vulnerabilities: ' <<<"$out"; then
	echo "vuln: NOT CHECKED: the vulnerability database $db cannot be reached. Nothing was looked at. GOVULNDB=file:///a/copy names another one."
	exit 0
fi
if [ "$code" -eq 0 ]; then # findings in what is not called are only told
	echo "vuln: checked by $db; nothing that is called"
	exit 0
fi
exit "$code"
