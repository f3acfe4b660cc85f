"""Rows 44 to 71: blocking transfers."""

import array
import threading

from rig import MIB, Memory, dead_session, lets_others_run, module, raised, timed, within
from rows import fix, keep


def opcode():
    return module().TransferOpcode


@keep(44, "transfer_sync_write(S, a, rb, 100): code, bytes equal", [0, True])
def _(rig):
    return rig.write()


@keep(45, "transfer_sync_read(S, a, rb, 100): code, bytes equal", [0, True])
def _(rig):
    rig.peer.do("fill", 3, 0, 100)
    return rig.engine.transfer_sync_read(rig.session, rig.a, rig.rb, 100), rig.memory.holds(3, 0, 100)


@keep(46, "transfer_sync with Write; with Read", [0, True, 0, True])
def _(rig):
    memory, move = rig.memory, rig.engine.transfer_sync
    memory.fill(4, 0, 1000)
    wrote = move(rig.session, rig.a, rig.rb, 1000, opcode().Write), rig.peer.holds(4, 0, 1000)
    return [*wrote, move(rig.session, rig.a + 2000, rig.rb, 1000, opcode().Read), memory.holds(4, 2000, 1000)]


@keep(47, "transfer_sync with opcode 1, an int", "TypeError")
def _(rig):
    return raised(rig.engine.transfer_sync, rig.session, rig.a, rig.rb, 1, 1)


@keep(48, "transfer_sync_write of 0 bytes; to an unregistered address", [0, 0])
def _(rig):
    write = rig.engine.transfer_sync_write
    return write(rig.session, rig.a, rig.rb, 0), write(rig.session, rig.a, 64, 0)


@keep(49, "write to an unregistered address", [-1, "in time"])
def _(rig):
    rc, seconds = timed(rig.engine.transfer_sync_write, rig.session, rig.a, rig.rb + MIB + 4096, 100)
    return rc, within(seconds, 2)


@keep(50, "write whose last byte is past the buffer: code, nothing outside", [-1, True])
def _(rig):
    rig.memory.fill(5)
    rc = rig.engine.transfer_sync_write(rig.session, rig.a, rig.rb + MIB - 99, 100)
    return rc, rig.peer.do("zeros", MIB, MIB)


@keep(51, "write that ends at the end", [0, True])
def _(rig):
    rig.memory.fill(6)
    at = MIB - 100
    return rig.engine.transfer_sync_write(rig.session, rig.a, rig.rb + at, 100), rig.peer.holds(6, at, 100)


@keep(52, "write across two adjacent registered buffers", -1)
def _(rig):
    rig.peer.call("register_memory", rig.rb + MIB, 4096)
    return rig.engine.transfer_sync_write(rig.session, rig.a, rig.rb + MIB - 50, 100)


@keep(53, "write from memory that is not registered, by TCP", [0, True])
def _(rig):
    memory = Memory(4096)
    memory.fill(7)
    return rig.engine.transfer_sync_write(rig.session, memory.addr, rig.rb, 100), rig.peer.holds(7, 0, 100)


@keep(54, "write, B unregisters, write", [[0, True], -1])
def _(rig):
    first = rig.write()
    rig.peer.call("unregister_memory", rig.rb)
    return first, rig.engine.transfer_sync_write(rig.session, rig.a, rig.rb, 100)


@keep(55, "B registers a new region after a first write; write there", [0, 0, True])
def _(rig):
    rig.write()
    rc, addr = rig.peer.do("register")
    rig.memory.fill(8, 0, 100)
    return rc, rig.engine.transfer_sync_write(rig.session, rig.a, addr, 100), rig.peer.do("new_holds", 8, 100)


@keep(56, "batch of two: code, both placed", [0, True, True])
def _(rig):
    rig.memory.fill(9)
    rig.memory.fill(10, 100, 20)
    rc = rig.engine.batch_transfer_sync_write(
        rig.session, [rig.a, rig.a + 100], [rig.rb, rig.rb + 500], [10, 20]
    )
    return rc, rig.peer.holds(9, 0, 10), rig.peer.holds(10, 500, 20)


@keep(57, "lists of different length", [-1, -1])
def _(rig):
    batch = rig.engine.batch_transfer_sync_write
    return batch(rig.session, [rig.a], [rig.rb, rig.rb], [1, 1]), batch(rig.session, [rig.a], [rig.rb], [])


@keep(58, "empty lists", 0)
def _(rig):
    return rig.engine.batch_transfer_sync_write(rig.session, [], [], [])


@keep(59, "empty lists to a dead peer", -1)
def _(rig):
    return rig.engine.batch_transfer_sync_write(dead_session(), [], [], [])


@keep(60, "one bad entry among good ones", -1)
def _(rig):
    n = 10
    local, remote = [rig.a + i * 100 for i in range(n)], [rig.rb + i * 100 for i in range(n)]
    remote[5] = 64
    return rig.engine.batch_transfer_sync_write(rig.session, local, remote, [100] * n)


def many(rig, n):
    rig.memory.fill(11)
    local, remote = [rig.a + i * 64 for i in range(n)], [rig.rb + i * 64 for i in range(n)]
    rc = rig.engine.batch_transfer_sync_write(rig.session, local, remote, [64] * n)
    return rc, rig.peer.holds(11, 0, n * 64)


@keep(61, "1000 entries of 64 B", [0, True])
def _(rig):
    return many(rig, 1000)


@fix(
    62,
    "3000 entries, MC_TCP_ENABLE_CONNECTION_POOL=1",
    [-1, False],
    [0, True],
    env={"MC_TCP_ENABLE_CONNECTION_POOL": "1"},
)
def _(rig):
    return many(rig, 3000)


@keep(63, "12 threads, 200 writes each: how many were 0", 2400, limit=60)
def _(rig):
    codes, session, a, rb = [], rig.session, rig.a, rig.rb

    def writes(thread):
        at = thread * 1000
        for _ in range(200):
            codes.append(rig.engine.transfer_sync_write(session, a + at, rb + at, 1000))

    threads = [threading.Thread(target=writes, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return codes.count(0)


@keep(64, "the target is the own session", [0, True])
def _(rig):
    memory = rig.memory
    memory.fill(12, 0, 100)
    own = "127.0.0.1:%d" % rig.engine.get_rpc_port()
    return rig.engine.transfer_sync_write(own, rig.a, rig.a + 4096, 100), memory.holds(12, 4096, 100)


@keep(65, 'target "/" + S; ""; "localhost:PORT"', [0, -1, 0])
def _(rig):
    targets = "/" + rig.session, "", "localhost:%d" % rig.peer.port
    return [rig.engine.transfer_sync_write(target, rig.a, rig.rb, 100) for target in targets]


@keep(66, "target None", "RuntimeError")
def _(rig):
    return raised(rig.engine.transfer_sync_write, None, rig.a, rig.rb, 100)


@keep(67, 'transport_hint="rubbish"', 0)
def _(rig):
    return rig.engine.transfer_sync_write(rig.session, rig.a, rig.rb, 100, transport_hint="rubbish")


@keep(
    68,
    "every transfer by keywords",
    {
        "transfer_sync_write": 0,
        "transfer_sync_read": 0,
        "transfer_sync": 0,
        "batch_transfer_sync_write": 0,
        "batch_transfer_sync_read": 0,
        "batch_transfer_sync": 0,
        "batch_transfer_async_write": True,
        "batch_transfer_async_read": True,
        "batch_transfer_async": True,
        "transfer_submit_write": True,
    },
)
def _(rig):
    engine, to = rig.engine, {"target_hostname": rig.session, "transport_hint": ""}
    one = {"buffer": rig.a, "peer_buffer_address": rig.rb, "length": 100}
    lists = {"buffers": [rig.a], "peer_buffer_addresses": [rig.rb], "lengths": [100]}
    way, notify = {"opcode": opcode().Write}, {"notify": None}
    return {
        "transfer_sync_write": engine.transfer_sync_write(**to, **one),
        "transfer_sync_read": engine.transfer_sync_read(**to, **one),
        "transfer_sync": engine.transfer_sync(**to, **one, **way, **notify),
        "batch_transfer_sync_write": engine.batch_transfer_sync_write(**to, **lists),
        "batch_transfer_sync_read": engine.batch_transfer_sync_read(**to, **lists),
        "batch_transfer_sync": engine.batch_transfer_sync(**to, **lists, **way, **notify),
        "batch_transfer_async_write": engine.batch_transfer_async_write(**to, **lists) > 0,
        "batch_transfer_async_read": engine.batch_transfer_async_read(**to, **lists) > 0,
        "batch_transfer_async": engine.batch_transfer_async(**to, **lists, **way) > 0,
        "transfer_submit_write": engine.transfer_submit_write(**to, **one) > 0,
    }


@keep(69, "tuple, range, array.array, memoryview as lists", [0, 0, 0, 0])
def _(rig):
    batch, session, a, rb = rig.engine.batch_transfer_sync_write, rig.session, rig.a, rig.rb
    unsigned = lambda *values: array.array("Q", values)
    return [
        batch(session, (a, a + 8), (rb, rb + 8), (8, 8)),
        batch(session, range(a, a + 16, 8), range(rb, rb + 16, 8), [8, 8]),
        batch(session, unsigned(a, a + 8), unsigned(rb, rb + 8), unsigned(8, 8)),
        batch(session, memoryview(unsigned(a)), memoryview(unsigned(rb)), memoryview(unsigned(8))),
    ]


@keep(
    70,
    "set, generator, bytes, str as list; ints out of range, floats, None",
    {
        "set": "TypeError",
        "generator": "TypeError",
        "bytes": "TypeError",
        "str": "TypeError",
        "negative": "TypeError",
        "2^64": "TypeError",
        "float": "TypeError",
        "None": "TypeError",
        "negative address": "TypeError",
        "float length": "TypeError",
    },
)
def _(rig):
    session, a, rb = rig.session, rig.a, rig.rb
    one = rig.engine.transfer_sync_write

    def batch(lengths):
        return raised(rig.engine.batch_transfer_sync_write, session, [a], [rb], lengths)

    return {
        "set": batch({8}),
        "generator": batch(i for i in (8,)),
        "bytes": batch(b"\x08"),
        "str": batch("8"),
        "negative": batch([-8]),
        "2^64": batch([1 << 64]),
        "float": batch([8.0]),
        "None": batch([None]),
        "negative address": raised(one, session, -1, rb, 8),
        "float length": raised(one, session, a, rb, 8.0),
    }


@keep(71, "transfer_sync_write lets other Python threads run", True)
def _(rig):
    session, a, rb = rig.session, rig.a, rig.rb
    return lets_others_run(lambda: rig.engine.transfer_sync_write(session, a, rb, MIB), 200)
