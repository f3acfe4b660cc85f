#!/usr/bin/env bash
# Puts Mooncake's own wheel into a virtual environment below .cache, for the tests of
# interoperation. It is the build without CUDA; it needs libibverbs, libnuma and
# libcurl of the system. WHEEL is its version, or newest.
set -euo pipefail
cd "$(dirname "$0")/../.."
wheel=${WHEEL:-0.3.13.post1}
venv=.cache/interop

package=mooncake-transfer-engine-non-cuda
if [ "$wheel" != newest ]; then
	package+="==$wheel"
fi
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --upgrade "$package"

if ! ldconfig -p | grep -q libibverbs.so.1 && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -qq -y --no-install-recommends libibverbs1 libnuma1 libcurl4 >/dev/null
fi
"$venv/bin/python" -c 'import mooncake.engine' # says what is missing
"$venv/bin/pip" list --disable-pip-version-check | grep -i mooncake
