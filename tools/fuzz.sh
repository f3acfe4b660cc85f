#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other, each for the time
# given (such as 1m), and lists those that failed.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:-1m}

failed=() ran=0
for pkg in $(go list ./...); do
	listed=$(go test -vet=off -list '^Fuzz' "$pkg")
	for target in $(grep '^Fuzz' <<<"$listed" || true); do
		echo "== $target in ${pkg#github.com/railhop/railhop/}, $fuzztime"
		ran=$((ran + 1))
		go test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" -fuzzminimizetime 2s "$pkg" || failed+=("$pkg $target")
	done
done

echo
echo "$ran fuzz targets, ${#failed[@]} failed"
if [ "$ran" = 0 ] || [ "${#failed[@]}" != 0 ]; then
	printf '  %s\n' "${failed[@]}"
	exit 1
fi
