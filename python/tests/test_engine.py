"""The engine: transfers between two processes, arguments, failures and their causes."""

import array
import os
import pickle
import signal
import threading
import time
import unittest

import railhop
from railhop import TransferEngine, TransferNotify, TransferOpcode
from rig import Memory, Peer, engine

SIZE = 1 << 20


class Transfers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.peer = Peer(SIZE)
        cls.engine = engine()
        cls.memory = Memory(SIZE)
        assert cls.engine.register_memory(cls.memory.addr, SIZE) == 0

    @classmethod
    def tearDownClass(cls):
        cls.peer.close()
        del cls.engine

    def far(self, start=0, length=SIZE):
        return self.peer.do("bytes(memory.view[%d:%d])" % (start, start + length))

    def test_one_piece(self):
        self.memory.fill(1)
        s, a, rb = self.peer.session, self.memory.addr, self.peer.addr
        self.assertEqual(self.engine.transfer_sync_write(s, a, rb, SIZE), 0)
        self.assertEqual(self.far(), bytes(self.memory.view))
        self.memory.fill(2)
        self.assertEqual(self.engine.transfer_sync_read(s, a, rb, SIZE), 0)
        self.assertEqual(self.far(), bytes(self.memory.view))
        self.assertEqual(self.engine.transfer_sync(s, a, rb, 10, TransferOpcode.Read), 0)
        self.assertEqual(self.engine.transfer_sync_write(s, a, rb, 0), 0)

    def test_keywords(self):
        one = dict(
            target_hostname=self.peer.session,
            buffer=self.memory.addr,
            peer_buffer_address=self.peer.addr,
            length=8,
            transport_hint="rubbish",
        )
        many = dict(
            target_hostname=self.peer.session,
            buffers=[self.memory.addr],
            peer_buffer_addresses=[self.peer.addr],
            lengths=[8],
            transport_hint="",
        )
        e = self.engine
        for name in ("transfer_sync_write", "transfer_sync_read"):
            self.assertEqual(getattr(e, name)(**one), 0, name)
            self.assertEqual(getattr(e, "batch_" + name)(**many), 0, name)
        note = TransferNotify("k", "v")
        self.assertEqual(e.transfer_sync(opcode=railhop.Write, notify=note, **one), 0)
        self.assertEqual(e.batch_transfer_sync(opcode=railhop.Write, notify=None, **many), 0)
        self.assertEqual(e.get_batch_transfer_status([e.batch_transfer_async(opcode=railhop.Read, **many)]), 0)
        self.assertEqual(e.get_batch_transfer_status([e.transfer_submit_write(**one)]), 0)
        with self.assertRaises(TypeError):
            e.transfer_sync_write(colour="red", **one)
        self.assertEqual(self.peer.do("[(n.name, n.msg) for n in engine.get_notifies()]"), [("k", "v")])

    def test_lists(self):
        self.memory.fill(3)
        a, rb = self.memory.addr, self.peer.addr
        lists = {
            "list": list,
            "tuple": tuple,
            "array": lambda v: array.array("Q", v),
            "signed array": lambda v: array.array("q", v),
            "memoryview": lambda v: memoryview(array.array("Q", v)),
        }
        for name, make in lists.items():
            with self.subTest(name):
                args = make([a, a + 100]), make([rb + 500, rb]), make([10, 20])
                self.assertEqual(self.engine.batch_transfer_sync_write(self.peer.session, *args), 0)
                self.assertEqual(self.far(500, 10), bytes(self.memory.view[0:10]))
                self.assertEqual(self.far(0, 20), bytes(self.memory.view[100:120]))
        many = 4000
        self.assertEqual(
            self.engine.batch_transfer_sync_write(
                self.peer.session,
                range(a, a + 64 * many, 64),
                array.array("Q", range(rb, rb + 64 * many, 64)),
                array.array("i", [64]) * many,
            ),
            0,
        )
        self.assertEqual(self.far(0, 64 * many), bytes(self.memory.view[: 64 * many]))

    def test_no_lists(self):
        a, rb, s = self.memory.addr, self.peer.addr, self.peer.session
        for wrong in ({a}, (x for x in [a]), b"abcd", "abcd", [1.5], [-1], [2**64], [None], None, 7,
                      array.array("d", [1.0]), array.array("q", [-1]), {a: 1}):  # fmt: skip
            with self.subTest(repr(wrong)), self.assertRaises(TypeError):
                self.engine.batch_transfer_sync_write(s, wrong, [rb], [1])
        for wrong in (1.5, -1, 2**64, None, "1"):
            with self.subTest(repr(wrong)), self.assertRaises(TypeError):
                self.engine.transfer_sync_write(s, wrong, rb, 1)
        with self.assertRaises(TypeError):
            self.engine.transfer_sync(s, a, rb, 1, 1)
        with self.assertRaises(RuntimeError):
            self.engine.transfer_sync_write(None, a, rb, 1)
        self.assertEqual(self.engine.transfer_sync_write(s.encode(), a, rb, True), 0)

    def test_list_that_shrinks(self):
        shrinking = []

        class Index:
            def __index__(self):
                shrinking.clear()
                return 1

        shrinking += [Index(), 2, 3]
        with self.assertRaises(IndexError):
            self.engine.batch_unregister_memory(shrinking)

    def test_failures(self):
        e, s, a, rb = self.engine, self.peer.session, self.memory.addr, self.peer.addr
        for name, call, says in (
            ("outside", lambda: e.transfer_sync_write(s, a, rb + SIZE, 1), "in no buffer"),
            ("one of two", lambda: e.batch_transfer_sync_write(s, [a, a], [rb, 5], [1, 1]), "task 1 of 2"),
            ("lengths", lambda: e.batch_transfer_sync_write(s, [a], [rb], [1, 2]), "as many of each"),
            ("nobody there", lambda: e.transfer_sync_write("127.0.0.1:1", a, rb, 1), "refused"),
            ("no name", lambda: e.batch_transfer_sync_write("", [], [], []), "no name"),
            ("notify nothing", lambda: e.batch_transfer_sync(s, [], [], [], railhop.Write, TransferNotify()), "follows"),
        ):
            with self.subTest(name):
                self.assertEqual(call(), -1)
                self.assertIn(says, e.last_error())
        self.assertEqual(e.batch_transfer_sync_write(s, [], [], []), 0)
        self.assertEqual(e.batch_transfer_async_write("127.0.0.1:1", [a], [rb], [1]), 0)
        self.assertEqual(e.batch_transfer_async_write(s, [a], [rb], []), 0)

    def test_batches(self):
        e, s, a, rb = self.engine, self.peer.session, self.memory.addr, self.peer.addr
        one, two = (e.batch_transfer_async_write(s, [a], [rb], [64]) for _ in range(2))
        self.assertGreater(one, 0)
        self.assertNotEqual(one, two)
        self.assertEqual(e.get_batch_transfer_status([one, two]), 0)
        self.assertEqual(e.get_batch_transfer_status([one]), -1)
        self.assertEqual(e.get_batch_transfer_status([]), 0)
        self.assertEqual(e.get_batch_transfer_status([0]), -1)
        self.assertEqual(e.get_batch_transfer_status([e.batch_transfer_async_write(s, [], [], [])]), 0)
        bad = e.batch_transfer_async_read(s, [a, a], [rb, 5], [1, 1])
        self.assertGreater(bad, 0)
        self.assertEqual(e.get_batch_transfer_status([bad]), -1)
        for at, want in ((rb, 1), (5, -1)):
            batch = e.transfer_submit_write(s, a, at, 64)
            while (rc := e.transfer_check_status(batch)) == 0:
                time.sleep(0.001)
            self.assertEqual(rc, want)
            self.assertEqual(e.transfer_check_status(batch), -1)
        self.assertEqual(e.transfer_check_status(0), -1)

    def test_a_slow_batch(self):
        """One that runs for longer than MC_SLICE_TIMEOUT is told from one that runs, and is not used up."""
        os.environ["MC_SLICE_TIMEOUT"] = "1"
        try:
            e = engine()
        finally:
            del os.environ["MC_SLICE_TIMEOUT"]
        peer = Peer(SIZE)
        self.assertEqual(e.transfer_sync_write(peer.session, self.memory.addr, peer.addr, 64), 0)
        peer.process.send_signal(signal.SIGSTOP)
        try:
            batch = e.transfer_submit_write(peer.session, self.memory.addr, peer.addr, 64)
            start, seen = time.monotonic(), []
            while len(seen) < 3 and time.monotonic() - start < 20:
                rc = e.transfer_check_status(batch)
                if rc == -2 or not seen:
                    seen.append(rc)
                time.sleep(0.01)
            self.assertEqual(seen, [0, -2, -2])
            self.assertGreaterEqual(time.monotonic() - start, 1)
            self.assertIn("MC_SLICE_TIMEOUT", e.last_error())
        finally:
            peer.process.send_signal(signal.SIGCONT)
        while (rc := e.transfer_check_status(batch)) in (0, -2):
            time.sleep(0.01)
        self.assertEqual(rc, 1)
        self.assertEqual(e.transfer_check_status(batch), -1)
        peer.close()

    def test_threads_run_beside(self):
        """Transfers of many threads, and the GIL is not held while they wait."""
        failed = []

        def write(i):
            at = i * 4096
            for _ in range(50):
                if self.engine.transfer_sync_write(self.peer.session, self.memory.addr + at, self.peer.addr + at, 4096):
                    failed.append(self.engine.last_error())

        threads = [threading.Thread(target=write, args=(i,)) for i in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])

    def test_last_error_is_of_the_thread(self):
        e = self.engine
        e.transfer_sync_write("127.0.0.1:1", self.memory.addr, self.peer.addr, 1)
        mine = e.last_error()
        other = []

        def fail():
            other.append(e.last_error())
            e.register_memory(self.memory.addr, 0)
            other.append(e.last_error())

        t = threading.Thread(target=fail)
        t.start()
        t.join()
        self.assertEqual(e.last_error(), mine)
        self.assertEqual(other[0], mine)
        self.assertNotEqual(other[1], mine)

    def test_rest(self):
        e = self.engine
        self.assertEqual(e.get_first_buffer_address(self.peer.session), self.peer.addr)
        self.assertEqual(e.get_first_buffer_address("127.0.0.1:1"), 0)
        self.assertEqual(e.send_probe(self.peer.session), 0)
        self.assertEqual(e.send_probe("127.0.0.1:1"), -102)
        self.assertEqual(e.warmup_efa_segment("x"), 0)
        self.assertIsNone(e.get_engine())
        self.assertEqual(e.get_engine_ptr(), 0)
        self.assertIn('"cpu:0"', e.get_local_topology())
        stats = e.stats()
        self.assertEqual(stats["transport"], "tcp")
        self.assertGreater(stats["submitted"]["ops"], 0)
        self.assertGreater(stats["tcp"]["bytes"], 0)
        self.assertEqual(stats["may_land"], [])
        with self.assertRaises(RuntimeError):
            e.transfer_write_on_cuda(self.peer.session, self.memory.addr, self.peer.addr, 1)


class MemoryTest(unittest.TestCase):
    def setUp(self):
        self.engine = engine()
        self.memory = Memory(4096)

    def test_register(self):
        e, p = self.engine, self.memory.addr
        for args, want in (
            ((p, 1024), 0),
            ((p, 1024), -7),
            ((p + 100, 10), -7),
            ((p + 1024, 1024, "any text"), 0),
            ((p + 2048, 0), -1),
        ):
            self.assertEqual(e.register_memory(*args), want, args)
        self.assertEqual(e.unregister_memory(p + 1), -3)
        self.assertEqual(e.unregister_memory(p), 0)
        self.assertEqual(e.register_memory(buffer_addr=p, capacity=1024, location="cpu:0"), 0)

    def test_batch(self):
        e, p = self.engine, self.memory.addr
        self.assertEqual(e.batch_register_memory([], []), 0)
        self.assertEqual(e.batch_register_memory([p, p + 100], [10]), -1)
        self.assertEqual(e.batch_register_memory([p, p + 5], [10, 10]), -7)
        self.assertEqual(e.batch_register_memory([p, p + 100], [10, 0]), -1)
        self.assertEqual(e.batch_register_memory(array.array("Q", [p, p + 100]), (10, 10)), 0)
        self.assertEqual(e.batch_unregister_memory([p, 5]), -3)
        self.assertEqual(e.register_memory(p, 10), 0)
        self.assertEqual(e.batch_unregister_memory([p, p + 100]), 0)

    def test_managed(self):
        e = self.engine
        seen = set()
        for size in (1, 1000, 8192, 8193, 1 << 20, (64 << 20) + 1):
            m = e.allocate_managed_buffer(size)
            self.assertNotEqual(m, 0)
            self.assertNotIn(m, seen)
            seen.add(m)
            self.assertEqual(e.write_bytes_to_buffer(m, b"abc", min(size, 3)), 0)
            self.assertEqual(e.read_bytes_from_buffer(m, min(size, 3)), b"abc"[:size])
            self.assertEqual(e.register_memory(m, 1), -7)
        for m in seen:
            self.assertEqual(e.free_managed_buffer(m, 1), 0)
        with self.assertRaises(ValueError):
            e.write_bytes_to_buffer(m, "ä", 3)
        self.assertEqual(e.allocate_managed_buffer(0), 0)


class Lifecycle(unittest.TestCase):
    def test_before_initialize(self):
        e, s = TransferEngine(), "127.0.0.1:1"
        for name, args, want in (
            ("get_rpc_port", (), -1),
            ("register_memory", (4096, 1), -1),
            ("unregister_memory", (4096,), -1),
            ("batch_register_memory", ([4096], [1]), -1),
            ("batch_unregister_memory", ([4096],), -1),
            ("allocate_managed_buffer", (1,), 0),
            ("free_managed_buffer", (1, 1), -1),
            ("get_first_buffer_address", (s,), 0),
            ("transfer_sync_write", (s, 1, 1, 1), -1),
            ("transfer_sync", (s, 1, 1, 1, railhop.Read), -1),
            ("batch_transfer_sync_read", (s, [1], [1], [1]), -1),
            ("batch_transfer_async_write", (s, [1], [1], [1]), 0),
            ("transfer_submit_write", (s, 1, 1, 1), 0),
            ("transfer_check_status", (1,), -1),
            ("get_batch_transfer_status", ([1],), -1),
            ("get_notifies", (), []),
            ("send_probe", (s,), -1),
            ("get_engine", (), None),
            ("get_engine_ptr", (), 0),
            ("warmup_efa_segment", (s,), 0),
            ("stats", (), {}),
        ):
            with self.subTest(name):
                self.assertEqual(getattr(e, name)(*args), want)

    def test_arguments(self):
        for args, want in (
            (("127.0.0.1", "P2PHANDSHAKE", "xgmi", ""), -1),
            (("127.0.0.1", "foo://x", "tcp", ""), -1),
            (("127.0.0.1", "", "tcp", ""), -1),
            (("127.0.0.1", "http://127.0.0.1:1/metadata", "tcp", ""), -1),
            (("127.0.0.1:99", "P2PHANDSHAKE", "no_such_protocol", None), 0),
            ((b"127.0.0.1", "P2PHANDSHAKE", "tcp", "mlx5_0, mlx5_1"), 0),
        ):
            with self.subTest(args):
                e = TransferEngine()
                self.assertEqual(e.initialize(*args), want)
                self.assertEqual(e.last_error() == "", want == 0)
        e = TransferEngine()
        for args, error in (
            ((None, "P2PHANDSHAKE", "tcp", ""), RuntimeError),
            (("127.0.0.1", None, "tcp", ""), RuntimeError),
            (("127.0.0.1", "P2PHANDSHAKE", None, ""), TypeError),
            (("127.0.0.1", "P2PHANDSHAKE", "tcp"), TypeError),
        ):
            with self.subTest(args), self.assertRaises(error):
                e.initialize(*args)
        with self.assertRaises(TypeError):
            e.initialize(local_hostname="127.0.0.1", metadata_server="P2PHANDSHAKE", protocol="tcp", device_name="")
        self.assertEqual(e.initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "", "p2p"), 0)

    def test_again(self):
        e, m = engine(), Memory(64)
        port = e.get_rpc_port()
        self.assertEqual(e.register_memory(m.addr, 64), 0)
        self.assertEqual(e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        self.assertNotEqual(e.get_rpc_port(), port)
        self.assertEqual(e.register_memory(m.addr, 64), 0)

    def test_environment_is_read_each_time(self):
        import os

        for low in (21000, 23000):
            os.environ["MC_MIN_RPC_PORT"], os.environ["MC_MAX_RPC_PORT"] = str(low), str(low + 500)
            try:
                self.assertIn(engine().get_rpc_port(), range(low, low + 501))
            finally:
                del os.environ["MC_MIN_RPC_PORT"], os.environ["MC_MAX_RPC_PORT"]
        self.assertIn(engine().get_rpc_port(), range(15000, 17001))

    def test_object(self):
        e = TransferEngine()
        self.assertEqual(repr(type(e)), "<class 'mooncake.engine.TransferEngine'>")
        with self.assertRaises(AttributeError):
            e.colour = "red"
        with self.assertRaises(TypeError):
            pickle.dumps(e)
        with self.assertRaises(TypeError):
            TransferEngine(1)


class Words(unittest.TestCase):
    def test_opcode(self):
        o = TransferOpcode
        self.assertIs(railhop.Read, o.Read)
        self.assertIs(TransferEngine.TransferOpcode, o)
        self.assertEqual((int(o.Read), int(o.Write)), (0, 1))
        self.assertFalse(o.Write == 1)
        self.assertTrue(o.Write == o.WRITE and o.Read != o.Write and o.Read < o.Write)
        self.assertEqual((str(o.Write), repr(o.Read)), ("TransferOpcode.Write", "<TransferOpcode.Read: 0>"))
        self.assertEqual((o(5).name, o(5).value, o(value=1)), ("???", 5, o.Write))
        self.assertEqual(list(o.__members__), ["Read", "Write"])
        self.assertEqual({o.Read: 1}[o(0)], 1)
        with self.assertRaises(TypeError):
            o("Read")

    def test_notify(self):
        n = TransferNotify()
        self.assertEqual((n.name, n.msg), ("", ""))
        n.name, n.msg = "k", b"v"
        self.assertEqual((n.name, n.msg), ("k", "v"))
        self.assertEqual(TransferNotify(name="a", msg="b").msg, "b")
        for wrong in (lambda: TransferNotify("a"), lambda: TransferNotify("a", 1), lambda: setattr(n, "name", None)):
            with self.assertRaises(TypeError):
                wrong()


if __name__ == "__main__":
    unittest.main()
