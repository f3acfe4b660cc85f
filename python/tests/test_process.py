"""The process that an engine runs in: import, fork, signals, exit."""

import unittest

from rig import run

# What a signal does, as the kernel has it: 1 to 64, with their handlers and flags.
ACTIONS = """
import ctypes, platform, struct
def actions():
    number = {"x86_64": 13, "aarch64": 134}[platform.machine()]
    found = {}
    for s in range(1, 65):
        buf = ctypes.create_string_buffer(32)
        assert ctypes.CDLL(None).syscall(number, s, None, buf, 8) == 0
        found[s] = buf.raw
    return found
"""

DESCRIPTORS = """
def descriptors():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[int(fd)] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            pass  # the folder's own
    return found
"""


class ProcessTest(unittest.TestCase):
    def check(self, code, *args, rc=0, says="", **kwargs):
        done = run(code, *args, **kwargs)
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        self.assertIn(says, done.stdout + done.stderr)
        return done


class Import(ProcessTest):
    def test_is_cheap(self):
        self.check(
            """
import railhop
assert len(os.listdir("/proc/self/task")) == 1
assert "libtransfer_engine" not in open("/proc/self/maps").read()
railhop.TransferEngine().send_probe("x")
assert "libtransfer_engine" not in open("/proc/self/maps").read()
"""
        )

    def test_then_fork_then_initialize(self):
        self.check(
            """
import railhop
pid = os.fork()
from rig import engine
port = engine().get_rpc_port()
assert port > 0
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""
        )


class Fork(ProcessTest):
    START = """
from rig import engine, Memory
from railhop import TransferEngine
a, b, m = engine(), engine(), Memory(4096)
assert b.register_memory(m.addr, 4096) == 0
session = "127.0.0.1:%d" % b.get_rpc_port()
assert a.transfer_sync_read(session, m.addr, m.addr, 4096) == 0
"""

    def test_child_gets_errors(self):
        self.check(
            self.START
            + """
pid = os.fork()
if pid == 0:
    assert a.transfer_sync_write(session, m.addr, m.addr, 1) == -1
    assert a.batch_transfer_sync_write(session, [], [], []) == -1
    assert a.batch_transfer_async_write(session, [], [], []) == 0
    assert a.get_batch_transfer_status([1]) == -1
    assert a.register_memory(m.addr, 1) == -1
    assert a.unregister_memory(m.addr) == -1
    assert a.allocate_managed_buffer(1) == 0
    assert a.get_rpc_port() == -1
    assert a.send_probe(session) == -1
    assert a.get_notifies() == [] and a.stats() == {}
    assert "forked" in a.last_error()
    assert a.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    del a, b
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert a.transfer_sync_write(session, m.addr, m.addr, 4096) == 0
"""
        )

    def test_child_has_no_descriptors_of_ours(self):
        self.check(
            DESCRIPTORS
            + """
import select, socket
mine = socket.create_server(("127.0.0.1", 0))
watch = select.epoll()
watch.register(mine.fileno())
before = descriptors()
"""
            + self.START
            + """
parent = descriptors()
assert len(parent) > len(before) + 5, parent
pid = os.fork()
if pid == 0:
    left = {k: v for k, v in descriptors().items() if before.get(k) != v}
    # Go's runtime keeps one to see how many processors it may use.
    left = [v for v in left.values() if not v.startswith("/sys/fs/cgroup/")]
    assert left == [], left
    assert all(descriptors()[k] == v for k, v in before.items())
    watch.poll(0)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert {k: v for k, v in descriptors().items() if k in parent and v == parent[k]} == parent
"""
        )

    def test_child_has_no_memory_of_a_group(self):
        """With the relay on, on hardware that is played."""
        self.check(
            DESCRIPTORS
            + """
import railhop
def shared():
    files = list(descriptors().values()) + [line.split(None, 5)[-1] for line in open("/proc/self/maps")]
    return [f for f in files if "railhop-test-%d" % os.getppid() in f or "memfd:softgpu" in f]
os.environ["MC_PXN_GROUP_ID"] = "railhop-test-%d" % os.getppid()
e = railhop.TransferEngine()
assert e.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0, e.last_error()
assert e.stats()["transport"] == "rdma"
assert len(shared()) >= 4, shared()
folder = os.environ["MC_PXN_GROUP_ID"]
pid = os.fork()
if pid == 0:
    left = [f for f in list(descriptors().values()) + list(open("/proc/self/maps")) if folder in f or "memfd:softgpu" in f]
    assert left == [], left
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
del e
import shutil
shutil.rmtree("/dev/shm/" + folder, ignore_errors=True)
""",
            env={
                "RAILHOP_PROVIDERS": "soft",
                "RAILHOP_SOFT_GPUS": "1",
                "RAILHOP_SOFT_NICS": "m0=127.0.0.1",
                "MC_PXN_ENABLE": "1",
            },
        )

    def test_ports_close_with_the_engine(self):
        """A child that lives on does not keep its parent's ports open."""
        self.check(
            self.START
            + """
import socket
port = b.get_rpc_port()
(r, w), (ready, tell) = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    os.close(w)
    os.write(tell, b"x")
    os.read(r, 1)
    os._exit(0)
os.read(ready, 1)
del a, b
try:
    socket.create_connection(("127.0.0.1", port), 5)
    raise SystemExit("the port is open")
except ConnectionRefusedError:
    pass
os.close(w)
os.waitpid(pid, 0)
"""
        )

    def test_multiprocessing(self):
        self.check(
            self.START
            + """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
assert a.transfer_sync_write(session, m.addr, m.addr, 4096) == 0
import subprocess
assert subprocess.run(["true"]).returncode == 0
"""
        )


class Signals(ProcessTest):
    # Handlers that Go's runtime puts before those that are there, to which it hands on
    # what is not its own; and 33, glibc's, which it makes glibc install.
    CHANGED = "{signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGPIPE, signal.SIGURG, 33}"

    def test_what_loading_changes(self):
        for first in ("", "import faulthandler; faulthandler.enable()\n"):
            with self.subTest(first):
                self.check(
                    ACTIONS
                    + first
                    + """
import railhop
assert actions() == actions()
before = actions()
e = railhop.TransferEngine()
assert e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
after = actions()
changed = {s for s in before if before[s] != after[s]}
assert changed == %s, changed
del e
assert actions() == after
pid = os.fork()
if pid == 0:
    child = actions()
    os._exit(len({s for s in before if before[s][:8] != child[s][:8]} - {33}))
assert os.waitpid(pid, 0)[1] == 0
"""
                    % self.CHANGED
                )

    def test_faulthandler(self):
        for when in ("before", "after"):
            with self.subTest(when):
                enable = "import faulthandler; faulthandler.enable()\n"
                code = "from rig import engine\ne = engine()\n"
                code = enable + code if when == "before" else code + enable
                done = self.check(code + "import ctypes; ctypes.string_at(0)", rc=-11, says="Segmentation fault")
                self.assertIn("string_at", done.stderr)

    def test_broken_pipe(self):
        self.check(
            """
from rig import engine
e = engine()
r, w = os.pipe()
os.close(r)
try:
    os.write(w, b"x")
    raise SystemExit("written")
except BrokenPipeError:
    pass
"""
        )

    def test_interrupt_and_term(self):
        self.check(
            """
from rig import engine
e = engine()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
except KeyboardInterrupt:
    pass
signal.signal(signal.SIGTERM, lambda s, f: sys.exit(5))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
""",
            rc=5,
        )
        self.check("from rig import engine\ne = engine()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)", rc=-15)


class Exit(ProcessTest):
    def test_with_engines_open(self):
        self.check(
            """
from rig import engine, Memory
import threading
a, b, m = engine(), engine(), Memory(1 << 20)
assert b.register_memory(m.addr, 1 << 20) == 0
session = "127.0.0.1:%d" % b.get_rpc_port()
def write():
    while a.transfer_sync_read(session, m.addr, m.addr, 1 << 20) == 0:
        pass
for _ in range(3):
    threading.Thread(target=write, daemon=True).start()
time.sleep(0.05)
"""
        )


if __name__ == "__main__":
    unittest.main()
