#!/usr/bin/env bash
# Runs Mooncake's own tests of its engine, unchanged, on ours: upstream.sh FOLDER, where
# FOLDER holds transfer_engine_target.py and transfer_engine_initiator_test.py. They run
# by the metadata server of bin/railhop, and by P2PHANDSHAKE. TARGET=wheel or
# INITIATOR=wheel gives one of the two sides to Mooncake's wheel (make interop).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "${1:?usage: upstream.sh FOLDER}"
overlay=$("$root/tools/conformance/setup.sh")

# python ours|wheel FILE runs a file with one of the engines.
python() {
	case $1 in
	ours) PYTHONPATH=$overlay exec "$root/.cache/ours/bin/python" -u "$2" ;;
	wheel) exec "$root/.cache/interop/bin/python" -u "$2" ;;
	esac
}

log=$(mktemp)
server='' target=''
trap 'kill -9 $server $target 2>/dev/null; rm -f "$log"' EXIT
export MC_FORCE_TCP=true MC_TCP_BIND_ADDRESS=127.0.0.1

# both METADATA starts the target and runs the initiator.
both() {
	export MC_METADATA_SERVER=$1
	: >"$log"
	(python "${TARGET:-ours}" transfer_engine_target.py) >"$log" 2>&1 &
	target=$!
	for _ in $(seq 300); do
		! grep -q 'Target server ready' "$log" || break
		sleep 0.1
	done
	if [ "$1" = P2PHANDSHAKE ]; then
		TARGET_SERVER_NAME=$(sed -n 's/.*listening on \([0-9.:]*\).*/\1/p' "$log" | head -1)
		export TARGET_SERVER_NAME
	fi
	(python "${INITIATOR:-ours}" transfer_engine_initiator_test.py)
	kill -9 $target
	wait $target 2>/dev/null || true
}

(cd "$root" && go build -trimpath -o bin/railhop ./cmd/railhop)
"$root/bin/railhop" metadata-server --listen 127.0.0.1:18080 &
server=$!
sleep 1
both http://127.0.0.1:18080/metadata
both P2PHANDSHAKE
