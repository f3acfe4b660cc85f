"""A process with an engine: the one side of a pair that is soaked.

It prints {"session": ..., "addr": ...} and answers lines of JSON, a verb and its
arguments, with {"result": ...}.
"""

import ctypes
import json
import mmap
import os
import random
import sys
import threading
import zlib

from mooncake.engine import TransferEngine

SIZE = 6 << 20
THREADS = 3
LANE = SIZE // THREADS


class Node:
    def __init__(self):
        self.map = mmap.mmap(-1, SIZE)
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.view = memoryview(self.map)
        self.engine = None
        self.renew()
        # What the target's memory holds, as far as this side knows.
        self.shadow = bytearray(SIZE)

    def renew(self):
        """Another engine for the same memory, after the end of the one before."""
        self.engine = None
        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            sys.exit("node: initialize")
        if self.engine.register_memory(self.addr, SIZE) != 0:
            sys.exit("node: register_memory")
        self.session = "127.0.0.1:%d" % self.engine.get_rpc_port()
        return self.session

    def checksum(self):
        return zlib.crc32(self.view)

    def expected(self):
        return zlib.crc32(self.shadow)

    def overwrite(self, session, remote):
        """Writes all of the target's memory, whatever was there."""
        self.view[:] = self.shadow
        return self.engine.transfer_sync_write(session, self.addr, remote, SIZE)

    def blank(self):
        self.shadow[:] = bytes(SIZE)

    def run(self, session, remote, seed, operations):
        """Random transfers by several threads, each in memory of its own. A transfer that
        fails ends the run."""
        counts = {"transfers": 0, "bytes": 0, "failed": "", "wrong": ""}
        lock = threading.Lock()

        def lane(index):
            rng = random.Random(seed * THREADS + index)
            for _ in range(operations):
                if counts["failed"] or counts["wrong"]:
                    return
                moved, failed, wrong = self.transfer(rng, index * LANE, session, remote)
                with lock:
                    counts["transfers"] += 1
                    counts["bytes"] += moved
                    counts["failed"] = counts["failed"] or failed
                    counts["wrong"] = counts["wrong"] or wrong

        threads = [threading.Thread(target=lane, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return counts

    def transfer(self, rng, base, session, remote):
        """One transfer of one piece or of a batch, inside a lane: bytes, a failure, a wrong byte."""
        length = rng.choice((1, 7, 64, 1000, 4096, 4097, 65536, rng.randrange(1, 1 << 18)))
        count = rng.choice((1, 1, 2, 16, rng.randrange(1, 256)))
        count = min(count, LANE // length)
        slots = rng.sample(range(LANE // length), count)
        offs = [base + slot * length for slot in slots]
        local, there, lengths = [self.addr + o for o in offs], [remote + o for o in offs], [length] * count
        verb = rng.choice(("write", "write", "read"))
        for o in offs:
            self.view[o : o + length] = rng.randbytes(length) if verb == "write" else bytes(length)
        how = rng.choice(("sync", "sync", "async"))
        if how == "sync" and count == 1:
            rc = getattr(self.engine, "transfer_sync_" + verb)(session, local[0], there[0], length)
        elif how == "sync":
            rc = getattr(self.engine, "batch_transfer_sync_" + verb)(session, local, there, lengths)
        else:
            batch = getattr(self.engine, "batch_transfer_async_" + verb)(session, local, there, lengths)
            rc = self.engine.get_batch_transfer_status([batch]) if batch else -1
        what = "%s %s of %d times %d bytes at %d" % (how, verb, count, length, offs[0])
        if rc != 0:
            return 0, "%s: %d" % (what, rc), ""
        for o in offs:
            if verb == "write":
                self.shadow[o : o + length] = self.view[o : o + length]
            elif self.view[o : o + length] != self.shadow[o : o + length]:
                return 0, "", what
        return count * length, "", ""


def main():
    node = Node()
    print(json.dumps({"session": node.session, "addr": node.addr}), flush=True)
    for line in sys.stdin:
        verb, *args = json.loads(line)
        if verb == "leave":
            break
        print(json.dumps({"result": getattr(node, verb)(*args)}), flush=True)
    node.engine = None
    os._exit(0)


main()
