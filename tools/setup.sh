#!/usr/bin/env bash
# Makes sure that what the build needs is there (setup.sh build), or what the tests
# need besides (setup.sh): a C compiler for the race detector, metadata servers, and
# all modules. Installs only what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v go >/dev/null; then
	echo "setup: no go command: install Go $(awk '$1 == "go" { print $2 }' go.mod) or later" >&2
	exit 1
fi

# The build itself fetches the modules that it needs.
[ "${1:-}" != build ] || exit 0

if ! command -v gcc >/dev/null; then
	if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
		echo "setup: no gcc, which the race detector needs: install it" >&2
		exit 1
	fi
	echo "setup: installing gcc"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -qq -y --no-install-recommends gcc libc6-dev >/dev/null
fi

# Real metadata servers for tests, which skip without them.
if ! { command -v etcd && command -v redis-server; } >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
	echo "setup: installing etcd and Redis"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -qq -y --no-install-recommends etcd-server etcd-client redis-server redis-tools >/dev/null ||
		echo "setup: cannot install them: their tests are skipped" >&2
fi

# The Python module is built and tested in a clean virtual environment; its tests skip
# without one.
if ! python3 -c 'import ensurepip, sysconfig; open(sysconfig.get_paths()["include"] + "/Python.h").close()' 2>/dev/null &&
	command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
	echo "setup: installing Python's headers and venv"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -qq -y --no-install-recommends python3 python3-dev python3-venv >/dev/null ||
		echo "setup: cannot install them: the Python module's tests are skipped" >&2
fi

# The header of libibverbs, with which ours is compared; that test skips without it.
if ! [ -e /usr/include/infiniband/verbs.h ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
	echo "setup: installing libibverbs-dev"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -qq -y --no-install-recommends libibverbs-dev >/dev/null ||
		echo "setup: cannot install it: a test of internal/nic/verbs is skipped" >&2
fi

# What is in the module cache already needs no network.
go mod download
