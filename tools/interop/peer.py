"""A process that runs Mooncake's own engine, driven by lines of JSON.

    peer.py HOST METADATA SIZE [PROTOCOL [DEVICES]]

It registers SIZE bytes, prints {"name": ..., "addr": ...}, and answers each line on
standard input, a list of a verb and its arguments, with a line {"rc": ...} or
{"times": ...}.
"""

import ctypes
import json
import os
import resource
import sys
import time

from mooncake.engine import TransferEngine


def main(host, metadata, size, protocol="tcp", devices=""):
    size = int(size)
    engine = TransferEngine()
    rc = engine.initialize(host, metadata, protocol, devices)
    if rc != 0:
        print(json.dumps({"rc": rc}), flush=True)
        return
    buf = (ctypes.c_char * size)()
    addr = ctypes.addressof(buf)
    rc = engine.register_memory(addr, size)
    name = host
    if metadata == "P2PHANDSHAKE":
        name = "%s:%d" % (host, engine.get_rpc_port())
    print(json.dumps({"rc": rc, "name": name, "addr": addr}), flush=True)
    view = memoryview(buf).cast("B")

    def load(path, off, n):
        with open(path, "rb") as f:
            return 0 if f.readinto(view[off : off + n]) == n else -1

    def save(path, off, n):
        with open(path, "wb") as f:
            f.write(view[off : off + n])
        return 0

    def move(verb):
        one = getattr(engine, "transfer_sync_" + verb)
        many = getattr(engine, "batch_transfer_sync_" + verb)

        def do(target, offs, remotes, lengths):
            local = [addr + off for off in offs]
            if len(local) == 1:
                return one(target, local[0], remotes[0], lengths[0])
            return many(target, local, remotes, lengths)

        return do

    def measure(target, remote, count, length, rounds):
        """Seconds of each of some writes, of one piece or of a batch."""
        times = []
        if count == 1:
            write = engine.transfer_sync_write
            for _ in range(rounds):
                start = time.perf_counter()
                rc = write(target, addr, remote, length)
                times.append(time.perf_counter() - start)
                if rc != 0:
                    return rc
        else:
            write = engine.batch_transfer_sync_write
            local = [addr + i * length for i in range(count)]
            remotes = [remote + i * length for i in range(count)]
            lengths = [length] * count
            for _ in range(rounds):
                start = time.perf_counter()
                rc = write(target, local, remotes, lengths)
                times.append(time.perf_counter() - start)
                if rc != 0:
                    return rc
        return times

    def split(piece):
        """Registers the memory in pieces instead of as one."""
        rc = engine.unregister_memory(addr)
        for at in range(addr, addr + size, piece):
            rc = rc or engine.register_memory(at, piece)
        return rc

    def usage():
        """Seconds of processor time that this process has used."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return [used.ru_utime, used.ru_stime]

    verbs = {
        "measure": measure,
        "usage": usage,
        "load": load,
        "save": save,
        "read": move("read"),
        "write": move("write"),
        "unregister": lambda: engine.unregister_memory(addr),
        "probe": engine.send_probe,
        "first": engine.get_first_buffer_address,
        "split": split,
    }
    for line in sys.stdin:
        verb, *args = json.loads(line)
        result = verbs[verb](*args)
        key = "times" if isinstance(result, list) else "rc"
        print(json.dumps({key: result}), flush=True)


main(*sys.argv[1:])
sys.stdout.flush()
os._exit(0)
