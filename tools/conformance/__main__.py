"""Runs the conformance rows against the mooncake.engine of this interpreter.

    PYTHON tools/conformance [--rows 1,20-30,91] [--jobs N] [--library libtransfer_engine.so]
                             [--peer PYTHON [--peer-path PYTHONPATH]]

Any engine will do: upstream's wheel or ours, told apart by last_error(), which only
ours has. With --peer, engine B is that of another interpreter. Every row runs in a process of its own with a time limit, so that a crash or
a hang is a result. The exit code is 1 if a row came out otherwise than the table says,
better included.
"""

import argparse
import concurrent.futures
import glob
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile

import rig
import rows
import lifecycle, memory, transfers, failures, calls, capi, hardware  # noqa: E401,F401 (they fill the table)

RESULT = "conformance-result "


def run_row(name, library):
    """The child's side: one row, its result as a line."""
    rigged = rig.Rig()
    rigged.library = library
    try:
        result = rows.ROWS[name].run(rigged)
    except Exception as e:
        result = "%s: %s" % (type(e).__name__, e)
    rigged.close()
    print("\n" + RESULT + json.dumps(result), flush=True)
    os._exit(0)


def observe(row, library):
    """Runs a row in a process group of its own; what it saw, and its log."""
    env = {**os.environ, "MC_FORCE_TCP": "1", "PYTHONFAULTHANDLER": "0"}
    for key, value in row.env.items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = value
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        child = subprocess.Popen(
            [sys.executable, rig.HERE, "--row", row.name, "--library", library or ""],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            start_new_session=True,
            text=True,
        )
        try:
            out, _ = child.communicate(timeout=row.limit)
            said = [line for line in out.splitlines() if line.startswith(RESULT)]
            result = json.loads(said[-1][len(RESULT) :]) if said else rig.ended(child.returncode)
        except subprocess.TimeoutExpired:
            result = "no end within %d s" % row.limit
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.communicate()
        log.seek(0)
        return result, log.read()


def plain(value):
    """A value as JSON would give it back."""
    return value if isinstance(value, rows.Undefined) else json.loads(json.dumps(value))


def text(value, width=0):
    if isinstance(value, dict) and len({json.dumps(v) for v in value.values()}) == 1 and len(value) > 2:
        s = "all %s" % text(next(iter(value.values())))
    elif isinstance(value, (str, rows.Undefined)):
        s = str(value)
    elif isinstance(value, (list, tuple)):
        s = ", ".join("(%s)" % text(v) if isinstance(v, (list, tuple)) else text(v) for v in value) or "()"
    elif isinstance(value, dict):
        s = ", ".join("%s: %s" % (k, text(v)) for k, v in value.items())
    else:
        s = {True: "yes", False: "no", None: "none"}[value] if isinstance(value, (bool, type(None))) else str(value)
    return s if not width or len(s) <= width else s[: width - 3] + "..."


def judge(row, result, ours, peer_ours):
    """A word for a result; an empty one for what was to be expected."""
    ours = {"": ours, "peer": peer_ours, "both": ours and peer_ours}[row.about]
    expected, other = (row.ours, row.upstream) if ours else (row.upstream, row.ours)
    if isinstance(expected, rows.Undefined) or result == plain(expected):
        return ""
    if row.do != rows.KEEP and not isinstance(other, rows.Undefined) and result == plain(other):
        return "as upstream" if ours else "unexpected pass"
    return "UNEXPECTED"


def why_not(row, library):
    """Why a row cannot run here."""
    if row.needs == "c" and not library:
        return "this distribution has no C library"
    if row.needs == "no nic" and os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        return "this machine has a NIC"
    return row.needs if row.needs not in (None, "c", "no nic") else ""


def find_library():
    spec = importlib.util.find_spec("railhop")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in glob.glob(os.path.join(folder, "**", "libtransfer_engine.so"), recursive=True):
            return path
    return ""


def selected(spec):
    if not spec:
        return list(rows.ROWS.values())
    numbers = set()
    for part in spec.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return [row for row in rows.ROWS.values() if row.number in numbers]


def describe(ours):
    names = [d.metadata["Name"] for d in importlib.metadata.distributions()]
    wanted = "railhop" if ours else "mooncake-transfer-engine"
    for name in names:
        if name and name.startswith(wanted):
            return "%s %s" % (name, importlib.metadata.version(name))
    return "a %s that is not installed" % wanted


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", default="")
    options.add_argument("--jobs", type=int, default=3)
    options.add_argument("--library", default=None)
    options.add_argument("--peer", default="")
    options.add_argument("--peer-path", default="")
    options.add_argument("--row", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.row:
        return run_row(args.row, args.library)

    ours = peer_ours = hasattr(rig.module().TransferEngine, "last_error")
    if args.peer:
        os.environ.update({rig.PEER: args.peer, rig.PEER_PATH: args.peer_path})
        ask = "import mooncake.engine as m, sys; sys.exit(hasattr(m.TransferEngine, 'last_error'))"
        peer_ours = subprocess.run([args.peer, "-c", ask], env=rig.peer_environ()).returncode == 1
    library = args.library if args.library is not None else find_library()
    print("%s: %s" % (describe(ours), rig.module().__file__))
    wanted = selected(args.rows)
    missing = {row.name: why_not(row, library) for row in wanted}
    print("%-5s%-5s%-64s%-34s%-34s%-34s" % ("row", "do", "call", "upstream", "ours", "here"))
    odd = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {r.name: pool.submit(observe, r, library) for r in wanted if not missing[r.name]}
        for row in wanted:
            expected = ("as upstream", "") if row.do == rows.KEEP else (row.upstream, row.ours)
            head = "%-5s%-5s%-64s" % (row.name, row.do, text(row.text, 63))
            if missing[row.name]:
                print("%snot run: %s" % (head, missing[row.name]))
                continue
            result, log = running[row.name].result()
            word = judge(row, result, ours, peer_ours)
            first = text(row.upstream, 33)
            second = "same" if row.do == rows.KEEP else text(row.ours, 33)
            print("%s%-34s%-34s%s" % (head, first, second, text(result, 33)), flush=True)
            if row.note:
                print("     note: %s" % row.note)
            if word:
                odd += 1
                print("     ^ %s: %s" % (word, text(result)))
                print("".join("       | %s\n" % line for line in log.splitlines()[-12:]), end="")
    numbers = {row.number for row in wanted}
    not_run = {row.number for row in wanted if missing[row.name]}
    good = len(numbers - not_run) - odd
    print("%d rows: %d as expected, %d not, %d not run" % (len(numbers), good, odd, len(not_run)))
    return 1 if odd else 0


if len(sys.argv) > 1 and sys.argv[1] == "--serve":
    rig.serve(*sys.argv[2:])
elif len(sys.argv) > 1 and sys.argv[1] == "--metadata-server":
    rig.serve_metadata()
elif __name__ == "__main__":
    sys.exit(main())
