#!/usr/bin/env bash
# Puts railhop's Python module, built from this tree, into a virtual environment below
# .cache. Prints the folder that makes it serve mooncake.engine when it comes first in
# PYTHONPATH.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.cache/ours

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall . >&2
"$venv/bin/railhop-mooncake" path
