#!/usr/bin/env python3
"""Regenerates internal/gpu/cuda/gather.ptx from gather.cu.

NVRTC 11.8, from the package registry, needs no GPU and no toolkit. It writes PTX
7.8; the kernel uses nothing newer than 7.0, so that is what the header says, and
every driver from 450 on takes it:

    python3 -m pip download --no-deps -d DIR nvidia-cuda-nvrtc-cu11==11.8.89
    unzip -d DIR DIR/*.whl
    tools/gather-ptx/gather-ptx.py DIR > internal/gpu/cuda/gather.ptx

run.sh beside this file does all of it.
"""
import ctypes
import glob
import os
import sys

SOURCE = "internal/gpu/cuda/gather.cu"
OPTIONS = [b"--gpu-architecture=compute_70", b"--std=c++14"]


def main() -> int:
    folder = sys.argv[1]
    paths = glob.glob(os.path.join(folder, "**", "libnvrtc.so.11.2"), recursive=True)
    if not paths:
        print(f"no libnvrtc.so.11.2 under {folder}", file=sys.stderr)
        return 1
    for builtins in glob.glob(os.path.join(os.path.dirname(paths[0]), "libnvrtc-builtins*")):
        ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
    rtc = ctypes.CDLL(paths[0])
    source = open(SOURCE, "rb").read()
    program = ctypes.c_void_p()

    def must(code: int) -> None:
        if code == 0:
            return
        size = ctypes.c_size_t()
        rtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        rtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(f"nvrtc: error {code}\n{log.value.decode()}")

    must(rtc.nvrtcCreateProgram(ctypes.byref(program), source, b"gather.cu", 0, None, None))
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    must(rtc.nvrtcCompileProgram(program, len(OPTIONS), options))
    size = ctypes.c_size_t()
    must(rtc.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    must(rtc.nvrtcGetPTX(program, ptx))
    text = ptx.value.decode().strip().replace(".version 7.8\n", ".version 7.0\n", 1)
    sys.stdout.write("// Made from gather.cu by tools/gather-ptx.\n" + text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
