"""Builds the Python package: a PEP 517 backend without dependencies, and a command.

    pip install .                           # needs Go, a C compiler, Python's headers
    python python/build_railhop.py DIR      # wheels for this machine into DIR
    python python/build_railhop.py --manylinux DIR   # for glibc 2.28, with zig cc (PyPI: ziglang)

The wheel railhop holds the module and libtransfer_engine.so. The wheel
railhop-as-mooncake holds no code: a package mooncake whose engine is railhop's, for
environments without Mooncake's own wheel. It must not be installed beside that.
"""

import base64
import hashlib
import io
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile

VERSION = "0.1.0"
SUMMARY = "Transfer engine for LLM serving that takes the place of Mooncake's, with a relay over NVLink"
ROOT = pathlib.Path(__file__).resolve().parent.parent
GLIBC = (2, 28)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if (config_settings or {}).get("distribution") == "mooncake":
        return mooncake_wheel(wheel_directory)
    return railhop_wheel(wheel_directory)


def build_sdist(sdist_directory, config_settings=None):
    base = "railhop-" + VERSION
    name = base + ".tar.gz"
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    with tarfile.open(os.path.join(sdist_directory, name), "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for file in sorted(filter(None, files)):
            if (ROOT / file).is_file():
                tar.add(ROOT / file, base + "/" + file)
        text = metadata("railhop").encode()
        info = tarfile.TarInfo(base + "/PKG-INFO")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    return name


def metadata(name, extra=""):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\nSummary: {SUMMARY}\n"
        f"License: Apache-2.0\nRequires-Python: >=3.10\nClassifier: Operating System :: POSIX :: Linux\n"
        f"{extra}Description-Content-Type: text/markdown\n\n{readme}"
    )


def railhop_wheel(directory, zig=False):
    machine = platform.machine()
    tag = "manylinux_%d_%d_" % GLIBC if zig else "linux_"
    wheel = Wheel(directory, "railhop", "cp310-abi3-" + tag + machine)
    for path in sorted((ROOT / "python" / "railhop").rglob("*")):
        if path.suffix in (".py", ".pyi", ".typed"):
            wheel.add("railhop/" + path.relative_to(ROOT / "python" / "railhop").as_posix(), path.read_bytes())
    for header in ("transfer_engine_c.h", "railhop.h"):
        wheel.add("railhop/include/" + header, (ROOT / "cmd" / "libtransfer_engine" / header).read_bytes())
    with tempfile.TemporaryDirectory() as out:
        for built in compile_all(out, zig):
            wheel.add("railhop/" + os.path.basename(built), pathlib.Path(built).read_bytes(), 0o755)
    wheel.add_info("entry_points.txt", "[console_scripts]\nrailhop-mooncake = railhop.mooncake:main\n")
    return wheel.close(metadata("railhop"))


def mooncake_wheel(directory):
    wheel = Wheel(directory, "railhop-as-mooncake", "py3-none-any")
    overlay = ROOT / "python" / "railhop" / "overlay" / "mooncake"
    for path in sorted(overlay.glob("*.py*")):
        if path.is_file():
            wheel.add("mooncake/" + path.name, path.read_bytes())
    return wheel.close(metadata("railhop-as-mooncake", f"Requires-Dist: railhop (=={VERSION})\n"))


def compile_all(out, zig=False):
    """Compiles the library and the module into a folder, and returns their paths."""
    library, module = os.path.join(out, "libtransfer_engine.so"), os.path.join(out, "_engine.abi3.so")
    # The compiler of Python's own build may be of another machine.
    candidates = [(sysconfig.get_config_var("CC") or "cc").split()[0], "gcc", "cc", "clang"]
    compiler = os.environ.get("CC") or next(filter(shutil.which, candidates), "gcc")
    if zig:
        target = "%s-linux-gnu.%d.%d" % (platform.machine(), *GLIBC)
        compiler = shlex.join([sys.executable, "-m", "ziglang", "cc", "-target", target])
    run(
        ["go", "build", "-trimpath", "-buildvcs=false", "-tags=netgo,osusergo", "-buildmode=c-shared", "-o", library]
        + ["-ldflags", "-s -w -extldflags=-Wl,-soname,libtransfer_engine.so", "./cmd/libtransfer_engine"],
        {"CGO_ENABLED": "1", "CC": compiler},
    )
    sources = sorted(str(p) for p in (ROOT / "python" / "src").glob("*.c"))
    include = [sysconfig.get_paths()["include"], str(ROOT / "cmd" / "libtransfer_engine")]
    run(
        shlex.split(compiler)
        + ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden"]
        + ["-Wl,-z,relro,-z,now", "-s"]
        + ["-I" + i for i in include]
        + ["-o", module, *sources, "-ldl", "-lpthread"]
    )
    return [library, module]


def run(command, env=None):
    try:
        subprocess.run(command, cwd=ROOT, env=dict(os.environ, **(env or {})), check=True)
    except FileNotFoundError:
        sys.exit("railhop: there is no command %s: building needs Go and a C compiler" % command[0])
    except subprocess.CalledProcessError as error:
        sys.exit("railhop: %s failed with status %d" % (shlex.join(command), error.returncode))


class Wheel:
    """A wheel that is being written."""

    def __init__(self, directory, name, tag):
        self.base = re.sub(r"[-_.]+", "_", name) + "-" + VERSION
        self.file = self.base + "-" + tag + ".whl"
        self.tag = tag
        self.zip = zipfile.ZipFile(os.path.join(directory, self.file), "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, data, mode=0o644):
        info = zipfile.ZipInfo(name)  # of 1980: the same sources make the same wheel
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append("%s,sha256=%s,%d\n" % (name, digest, len(data)))

    def add_info(self, name, text):
        self.add(self.base + ".dist-info/" + name, text.encode())

    def close(self, text):
        pure = "true" if self.tag.endswith("any") else "false"
        self.add_info("METADATA", text)
        self.add_info("WHEEL", f"Wheel-Version: 1.0\nGenerator: railhop\nRoot-Is-Purelib: {pure}\nTag: {self.tag}\n")
        self.add_info("licenses/LICENSE", (ROOT / "LICENSE").read_text(encoding="utf-8"))
        name = self.base + ".dist-info/RECORD"
        self.zip.writestr(zipfile.ZipInfo(name), "".join(self.record) + name + ",,\n")
        self.zip.close()
        return self.file


def main(args):
    zig = "--manylinux" in args
    directory = [a for a in args if not a.startswith("--")]
    if len(directory) != 1 or set(args) - {"--manylinux", directory[0]}:
        sys.exit(__doc__)
    os.makedirs(directory[0], exist_ok=True)
    for file in (railhop_wheel(directory[0], zig), mooncake_wheel(directory[0])):
        print(os.path.join(directory[0], file))


if __name__ == "__main__":
    main(sys.argv[1:])
