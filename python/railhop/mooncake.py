"""railhop-mooncake: serves "from mooncake.engine import TransferEngine" beside an
installed Mooncake wheel.

    railhop-mooncake install   link railhop's module into the mooncake package
    railhop-mooncake show      say who serves mooncake.engine; exit status 1 if not railhop
    railhop-mooncake remove    take the link out again
    railhop-mooncake path      print a folder that does the same when it comes first in
                               PYTHONPATH, and changes no package

The link is mooncake/engine.abi3.so, which Python prefers to Mooncake's own engine.so. No
file of Mooncake's is touched. If railhop is uninstalled, the link leads nowhere and
Mooncake's engine serves again. Where Mooncake's wheel is not installed, install the wheel
railhop-as-mooncake, or use the folder.
"""

import importlib.machinery
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MODULE = os.path.join(HERE, "_engine.abi3.so")
OVERLAY = os.path.join(HERE, "overlay")
LINK = "engine.abi3.so"


def packages():
    """The folders of installed mooncake packages, in the order of sys.path, without ours."""
    found = []
    for entry in sys.path:
        folder = os.path.join(os.path.abspath(entry or "."), "mooncake")
        ours = os.path.realpath(folder).startswith(os.path.realpath(OVERLAY))
        if os.path.isfile(os.path.join(folder, "__init__.py")) and not ours and folder not in found:
            found.append(folder)
    return found


def engine_of(folder):
    """The file that mooncake.engine is loaded from in a folder."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES + importlib.machinery.SOURCE_SUFFIXES:
        file = os.path.join(folder, "engine" + suffix)
        if os.path.isfile(file):
            return file
    return None


def is_ours(file):
    """Whether a link is railhop's, even one that leads nowhere."""
    return os.path.islink(file) and os.path.basename(os.readlink(file)) == os.path.basename(MODULE)


def package():
    """The mooncake package to link into."""
    for folder in packages():
        if not os.path.isfile(os.path.join(folder, "engine.py")):
            return folder
    sys.exit(
        "railhop-mooncake: no mooncake package is installed for %s: install Mooncake's wheel first, or the wheel "
        "railhop-as-mooncake, or put %s first in PYTHONPATH" % (sys.executable, OVERLAY)
    )


def install():
    folder = package()
    link = os.path.join(folder, LINK)
    if os.path.lexists(link) and not is_ours(link):
        sys.exit("railhop-mooncake: %s is there already and is not railhop's" % link)
    temporary = link + ".%d" % os.getpid()
    os.symlink(MODULE, temporary)
    os.replace(temporary, link)
    serves = engine_of(folder)
    if serves != link:
        os.unlink(link)
        sys.exit("railhop-mooncake: Python prefers %s, so the link would do nothing" % serves)
    print("mooncake.engine is railhop's: %s -> %s" % (link, MODULE))


def show():
    served = False
    for i, folder in enumerate(packages()):
        file = engine_of(folder)
        ours = file is not None and (is_ours(file) or os.path.basename(file) == "engine.py")
        served = served or (i == 0 and ours)
        print("%s: %s" % (file or folder + " has no engine", "railhop" if ours else "Mooncake" if file else "nobody"))
    if not packages():
        print("no mooncake package is installed for %s" % sys.executable)
    return 0 if served else 1


def remove():
    removed = False
    for folder in packages():
        link = os.path.join(folder, LINK)
        if is_ours(link):
            os.unlink(link)
            removed = True
            print("removed %s" % link)
    if not removed:
        print("there is no link of railhop's")


def main():
    commands = {"install": install, "show": show, "remove": remove, "path": lambda: print(OVERLAY)}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    return commands[sys.argv[1]]()


if __name__ == "__main__":
    sys.exit(main())
