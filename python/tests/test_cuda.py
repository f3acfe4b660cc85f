"""GPU memory by TCP, and transfers in the order of a stream. They need a GPU."""

import hashlib
import json
import os
import sys
import time
import unittest

import cuda
from railhop import TransferEngine
from rig import Memory, Peer, engine

MIB = 1 << 20
SIZE = 64 * MIB


class GPUMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not cuda.available():
            raise unittest.SkipTest("no GPU: on a machine with one, run python -m unittest test_cuda in python/tests")
        cls.peer = Peer(SIZE)
        cls.engine = engine()
        cls.here = cuda.alloc(SIZE)
        cls.there = cls.peer.do("cuda.alloc(%d)" % SIZE)
        assert cls.engine.register_memory(cls.here, SIZE) == 0, cls.engine.last_error()
        assert cls.peer.do("engine.register_memory(%d, %d)" % (cls.there, SIZE)) == 0

    @classmethod
    def tearDownClass(cls):
        cls.peer.close()
        del cls.engine

    def far(self, at, n):
        return self.peer.do("hashlib.sha256(cuda.get(%d, %d)).hexdigest()" % (at, n))

    def near(self, data):
        return hashlib.sha256(data).hexdigest()

    def check(self, rc):
        self.assertEqual(rc, 0, self.engine.last_error())

    def test_gpu_to_gpu(self):
        s, e = self.peer.session, self.engine
        for at, n in ((0, SIZE), (1, 1), (4096 + 3, 3 * MIB + 5), (SIZE - 17, 17)):
            data = os.urandom(n)
            cuda.put(self.here + at, data)
            self.check(e.transfer_sync_write(s, self.here + at, self.there + at, n))
            self.assertEqual(self.far(self.there + at, n), self.near(data))
            cuda.put(self.here + at, bytes(n))
            self.check(e.transfer_sync_read(s, self.here + at, self.there + at, n))
            self.assertEqual(cuda.get(self.here + at, n), data)
        start = time.perf_counter()
        for _ in range(8):
            self.check(e.transfer_sync_write(s, self.here, self.there, SIZE))
        rate = 8 * SIZE / (time.perf_counter() - start) / 1e9
        print("64 MiB from GPU to GPU by TCP: %.2f GB/s" % rate, file=sys.stderr)

    def test_one_batch_of_host_and_gpu(self):
        s, e, n = self.peer.session, self.engine, 16 * 1024
        host = Memory(64 * n)
        host.fill(5)
        self.check(e.register_memory(host.addr, host.size))
        data = os.urandom(64 * n)
        cuda.put(self.here, data)
        local = [(host.addr if i % 2 else self.here) + i * n for i in range(64)]
        # Every other one of a kind goes to the other kind.
        remote = [(self.peer.addr if i // 2 % 2 else self.there) + i * n for i in range(64)]
        self.check(e.batch_transfer_sync_write(s, local, remote, [n] * 64))
        for i in range(64):
            want = bytes(host.view[i * n : (i + 1) * n]) if i % 2 else data[i * n : (i + 1) * n]
            if i // 2 % 2:
                got = self.peer.do("hashlib.sha256(memory.view[%d:%d]).hexdigest()" % (i * n, (i + 1) * n))
            else:
                got = self.far(remote[i], n)
            self.assertEqual(got, self.near(want), i)
        self.check(e.unregister_memory(host.addr))

    def test_the_address_anew(self):
        e, s = self.engine, self.peer.session
        for _ in range(3):
            addr = cuda.alloc(4 * MIB)
            self.check(e.register_memory(addr, 4 * MIB))
            data = os.urandom(4 * MIB)
            cuda.put(addr, data)
            self.check(e.transfer_sync_write(s, addr, self.there, 4 * MIB))
            self.assertEqual(self.far(self.there, 4 * MIB), self.near(data))
            self.check(e.unregister_memory(addr))
            cuda.free(addr)

    def test_topology_names_the_gpu(self):
        self.assertIn("cuda:0", json.loads(self.engine.get_local_topology()))

    def busy(self, stream):
        """Has a stream do what takes a while."""
        scratch = cuda.alloc(1024 * MIB)
        for i in range(100):
            cuda.fill(scratch, i, 1024 * MIB, stream)
        return scratch

    def test_write_behind_a_stream(self):
        e, s, n = self.engine, self.peer.session, 8 * MIB
        for batch in (False, True):
            for at in (0, cuda.stream()):
                cuda.put(self.here, bytes(n))
                scratch = self.busy(at)
                cuda.fill(self.here, 7, n, at)
                late = not cuda.done(at)
                if batch:
                    half = n // 2
                    told = e.batch_transfer_write_on_cuda(
                        s, [self.here, self.here + half], [self.there, self.there + half], [half, half], at
                    )
                else:
                    told = e.transfer_write_on_cuda(s, self.here, self.there, n, at)
                cuda.fill(self.here, 8, n, at)  # must not overtake the transfer
                self.assertIsNone(told)
                self.assertTrue(late, "the stream was idle: this shows nothing")
                cuda.synchronize(at)
                self.assertEqual(self.far(self.there, n), self.near(b"\7" * n))
                cuda.free(scratch)

    def test_read_behind_a_stream(self):
        e, s, n = self.engine, self.peer.session, 8 * MIB
        data = os.urandom(n)
        cuda.put(self.here, data)
        self.check(e.transfer_sync_write(s, self.here, self.there, n))
        for batch in (False, True):
            at = cuda.stream()
            scratch = self.busy(at)
            cuda.fill(self.here, 9, n, at)  # is before what is read
            late = not cuda.done(at)
            if batch:
                e.batch_transfer_read_on_cuda(s, [self.here], [self.there], [n], at)
            else:
                e.transfer_read_on_cuda(s, self.here, self.there, n, stream_ptr=at)
            self.assertTrue(late, "the stream was idle: this shows nothing")
            cuda.synchronize(at)
            self.assertEqual(cuda.get(self.here, n), data)
            cuda.free(scratch)

    def test_failures_behind_a_stream(self):
        at = cuda.stream()
        with self.assertRaises(RuntimeError):
            self.engine.transfer_write_on_cuda("127.0.0.1:1", self.here, self.there, 8, at)
        with self.assertRaises(RuntimeError):
            self.engine.batch_transfer_write_on_cuda(self.peer.session, [self.here], [self.there, 1], [8], at)
        with self.assertRaises(RuntimeError):
            TransferEngine().transfer_write_on_cuda(self.peer.session, self.here, self.there, 8, at)
