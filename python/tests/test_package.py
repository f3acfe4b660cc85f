"""The package: stubs, the three ways to serve mooncake.engine, C callers."""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import railhop
from railhop import _engine, mooncake

PACKAGE = os.path.dirname(os.path.abspath(railhop.__file__))
COMMAND = os.path.join(os.path.dirname(sys.executable), "railhop-mooncake")
# Where Mooncake's own wheel is installed, if it is.
UPSTREAM = os.environ.get("RAILHOP_TEST_UPSTREAM", "")

USE = """
import sys
from mooncake.engine import TransferEngine
import mooncake.engine, railhop
assert TransferEngine is railhop.TransferEngine
e = TransferEngine()
assert e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
print(mooncake.engine.__file__)
"""


def python(code, path):
    env = dict(os.environ, PYTHONPATH=path)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)


class Stubs(unittest.TestCase):
    def test_tell_what_is_there(self):
        with open(os.path.join(PACKAGE, "_engine.pyi")) as f:
            tree = ast.parse(f.read())
        names, methods = set(), {}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                names.add(node.name)
                methods[node.name] = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            elif isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign):
                names.add(node.target.id)
            elif isinstance(node, ast.Assign):
                names.add(node.targets[0].id)

        def public(of):
            return {n for n in of if not n.startswith("_")}

        self.assertEqual(public(names), public(dir(_engine)))
        for name in ("TransferEngine", "TransferNotify", "SharedSegment"):
            own = public(vars(getattr(_engine, name))) - {"TransferOpcode"}
            self.assertEqual(public(methods[name]), own, name)

    def test_parts_that_are_not_served_say_so(self):
        for call in (_engine.create_rpc_client, _engine.create_rpc_server, _engine.SharedSegment.create):
            with self.assertRaises(RuntimeError):
                call(1, a=2)
        self.assertFalse(_engine.SharedSegment.supported(True, False))
        for kind in (_engine.InnerTransferEngine, _engine.SharedSegment, _engine.RpcInterface):
            with self.assertRaises(TypeError):
                kind()


class Overlay(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.mooncake = os.path.join(self.folder, "mooncake")
        os.mkdir(self.mooncake)
        for name, text in (("__init__.py", ""), ("engine.so", "not ours"), ("store.py", "mark = 7\n")):
            with open(os.path.join(self.mooncake, name), "w") as f:
                f.write(text)

    def command(self, *args, path=None):
        env = dict(os.environ, PYTHONPATH=path or self.folder)
        done = subprocess.run([COMMAND, *args], capture_output=True, text=True, timeout=60, env=env)
        return done.returncode, done.stdout + done.stderr

    def test_link(self):
        self.assertEqual(self.command("show")[0], 1)
        rc, out = self.command("install")
        self.assertEqual(rc, 0, out)
        self.assertEqual(self.command("install")[0], 0)
        self.assertEqual(self.command("show")[0], 0)
        done = python(USE, self.folder)
        self.assertEqual(done.stdout.strip(), os.path.join(self.mooncake, "engine.abi3.so"), done.stderr)
        rc, out = self.command("remove")
        self.assertEqual(rc, 0, out)
        self.assertEqual(self.command("show")[0], 1)
        self.assertEqual(sorted(n for n in os.listdir(self.mooncake) if n != "__pycache__"), ["__init__.py", "engine.so", "store.py"])

    def test_link_that_leads_nowhere(self):
        os.symlink("/nowhere/_engine.abi3.so", os.path.join(self.mooncake, "engine.abi3.so"))
        self.assertEqual(self.command("show")[0], 1)
        self.assertEqual(self.command("install")[0], 0)
        self.assertEqual(self.command("show")[0], 0)

    def test_files_of_others_stay(self):
        for name in ("engine.abi3.so", "engine.cpython-%d%d-%s-linux-gnu.so" % (*sys.version_info[:2], os.uname().machine)):
            with self.subTest(name):
                other = os.path.join(self.mooncake, name)
                with open(other, "w") as f:
                    f.write("somebody's")
                self.assertNotEqual(self.command("install")[0], 0)
                self.assertEqual(self.command("show")[0], 1)
                self.command("remove")
                with open(other) as f:
                    self.assertEqual(f.read(), "somebody's")
                os.unlink(other)

    def test_nothing_to_link_into(self):
        with tempfile.TemporaryDirectory() as empty:
            rc, out = self.command("install", path=empty)
        self.assertNotEqual(rc, 0)
        self.assertIn("no mooncake package", out)

    def test_folder(self):
        rc, path = self.command("path")
        path = path.strip()
        self.assertEqual((rc, path), (0, mooncake.OVERLAY))
        done = python(USE + "import mooncake.store; assert mooncake.store.mark == 7", path + ":" + self.folder)
        self.assertEqual(done.stdout.strip(), os.path.join(path, "mooncake", "engine.py"), done.stderr)

    def test_usage(self):
        self.assertIn("railhop-mooncake install", self.command("--help")[1])


class Library(unittest.TestCase):
    def test_paths(self):
        self.assertTrue(os.path.isfile(railhop.get_library()))
        for header in ("transfer_engine_c.h", "railhop.h"):
            self.assertTrue(os.path.isfile(os.path.join(railhop.get_include(), header)))

    def test_one_of_the_process(self):
        """What a C caller has loaded from elsewhere is used, and not a second one."""
        with tempfile.TemporaryDirectory() as folder:
            elsewhere = shutil.copy(railhop.get_library(), folder)
            done = python(
                "import ctypes\nctypes.CDLL(%r)\nfrom rig import engine\ne = engine()\n" % elsewhere
                + "print(len({l.split()[-1] for l in open('/proc/self/maps') if 'libtransfer_engine' in l}))",
                os.path.dirname(os.path.abspath(__file__)),
            )
        self.assertEqual(done.stdout.strip(), "1", done.stderr)

    @unittest.skipUnless(UPSTREAM, "Mooncake's wheel is not installed: make interop does it")
    def test_beside_upstream(self):
        """In one process with Mooncake's store, which is linked with a library in Go."""
        ours = "from rig import engine, Memory\nm = Memory(4096)\n" + (
            "def move():\n"
            "    a, b = engine(), engine()\n"
            "    assert b.register_memory(m.addr, 4096) == 0\n"
            "    assert a.transfer_sync_read('127.0.0.1:%d' % b.get_rpc_port(), m.addr, m.addr, 4096) == 0\n"
            "    return a, b\n"
        )
        theirs = (
            "import mooncake.store, ctypes, os\n"
            "assert hasattr(mooncake.store, 'MooncakeDistributedStore')\n"
            "ctypes.CDLL(os.path.join(os.path.dirname(mooncake.store.__file__), 'libetcd_wrapper.so'))\n"
        )
        path = ":".join([mooncake.OVERLAY, os.path.dirname(os.path.abspath(__file__)), UPSTREAM])
        for first, code in (
            ("ours", ours + "k = move()\n" + theirs + "move()\n"),
            ("theirs", theirs + ours + "k = move()\nmove()\n"),
        ):
            with self.subTest(first):
                done = python(code + "print('fine')", path)
                self.assertEqual(done.stdout.strip()[-4:], "fine", done.stderr)


if __name__ == "__main__":
    unittest.main()
