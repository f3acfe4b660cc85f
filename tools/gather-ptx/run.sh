#!/usr/bin/env bash
# Makes internal/gpu/cuda/gather.ptx anew from gather.cu. Needs Python with pip and
# a package registry; no GPU, and no toolkit.
set -euo pipefail
cd "$(dirname "$0")/../.."

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m pip download -q --no-deps --only-binary=:all: --platform manylinux2014_x86_64 \
	-d "$tmp" nvidia-cuda-nvrtc-cu11==11.8.89
python3 -m zipfile -e "$tmp"/*.whl "$tmp"
python3 tools/gather-ptx/gather-ptx.py "$tmp" >"$tmp/gather.ptx"
mv "$tmp/gather.ptx" internal/gpu/cuda/gather.ptx
