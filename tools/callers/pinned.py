"""Files of published packages, as they are there."""

import hashlib
import importlib.util
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".cache", "callers")

# Package, version, and the SHA-256 of each file that is taken from it.
SGLANG = "sglang/srt/distributed/device_communicators/"
VLLM = "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/"
PACKAGES = {
    "sglang": (
        "0.5.23",
        {
            SGLANG + "mooncake_transfer_engine.py": "3324cb41e0ef7e8b25aec46711b66f9ba3e3a68d4f010d1e11beaf610a9753ff",
        },
    ),
    "vllm": (
        "0.33.0",
        {
            VLLM + "stats.py": "29469c688af6c4bc3a1129bb4d0da28519f4e812f5e64467abb07d3dae822f7d",
            VLLM + "mooncake_connector.py": "ff017f4f5f2916259399595a62c76e57c3743b3edf6b0213d4ea32e1116a2079",
        },
    ),
}


def load(path):
    """Runs a file as the module that it is in its package."""
    name = path[: -len(".py")].replace("/", ".")
    spec = importlib.util.spec_from_file_location(name, os.path.join(ROOT, path))
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def check(path, digest):
    """The SHA-256 of a file, which has to be the one that is known."""
    with open(os.path.join(ROOT, path), "rb") as f:
        got = hashlib.sha256(f.read()).hexdigest()
    if got != digest:
        sys.exit("%s: SHA-256 is %s, want %s" % (path, got, digest))
    return got
