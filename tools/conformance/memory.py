"""Rows 24 to 43: memory."""

from rig import MIB, Memory, dead_session, lets_others_run
from rows import UNDEFINED, fix, keep, safe


@keep(24, "register_memory(p, 4096)", 0)
def _(rig):
    return rig.engine.register_memory(Memory(4096).addr, 4096)


@keep(25, "the same again", -7)
def _(rig):
    memory = Memory(4096)
    rig.engine.register_memory(memory.addr, 4096)
    return rig.engine.register_memory(memory.addr, 4096)


@keep(26, "a region inside, around, half over a registered one", [-7, -7, -7])
def _(rig):
    memory = Memory(16384)
    register = rig.engine.register_memory
    register(memory.addr + 4096, 4096)
    return [register(memory.addr + at, n) for at, n in ((5000, 100), (0, 16384), (6000, 4096))]


@keep(27, "a region that starts where another ends", [0, 0])
def _(rig):
    memory = Memory(8192)
    return [rig.engine.register_memory(memory.addr + at, 4096) for at in (0, 4096)]


@keep(28, "register_memory(p, 0)", -1)
def _(rig):
    return rig.engine.register_memory(Memory(4096).addr, 0)


@keep(29, 'register_memory(p, 10, "any text")', 0)
def _(rig):
    return rig.engine.register_memory(Memory(4096).addr, 10, "any text")


@keep(30, "unregister_memory(unknown); (p+1)", [-3, -3])
def _(rig):
    memory = Memory(4096)
    unknown = rig.engine.unregister_memory(memory.addr)
    rig.engine.register_memory(memory.addr, 4096)
    return unknown, rig.engine.unregister_memory(memory.addr + 1)


@keep(31, "register, unregister, register", [0, 0, 0])
def _(rig):
    p, engine = Memory(4096).addr, rig.engine
    return engine.register_memory(p, 4096), engine.unregister_memory(p), engine.register_memory(p, 4096)


def three():
    memory = Memory(3 * 8192)
    return [memory.addr + i * 8192 for i in range(3)]


@keep(32, "batch_register_memory([p, q], [n, m]); ([], [])", [0, 0])
def _(rig):
    p, q, _ = three()
    return rig.engine.batch_register_memory([p, q], [4096, 100]), rig.engine.batch_register_memory([], [])


def each(rig, addrs):
    """Codes of registering regions one by one: 0 where they are not registered yet."""
    return [rig.engine.register_memory(addr, 4096) for addr in addrs]


@keep(33, "a batch with a duplicate; with an overlap; then each alone", [-7, -7, [0, 0]])
def _(rig):
    p, q, _ = three()
    batch = rig.engine.batch_register_memory
    return batch([p, q, p], [4096] * 3), batch([p, q, p + 100], [4096] * 3), each(rig, [p, q])


@keep(34, "a batch with a zero length; then each alone", [-1, [0, 0]])
def _(rig):
    p, q, r = three()
    return rig.engine.batch_register_memory([p, q, r], [4096, 4096, 0]), each(rig, [p, q])


@keep(35, "a batch with one registered already; then the others alone", [-7, [0, 0]])
def _(rig):
    p, q, r = three()
    rig.engine.register_memory(q, 4096)
    return rig.engine.batch_register_memory([p, q, r], [4096] * 3), each(rig, [p, r])


@keep(36, "batch_unregister_memory([p, q])", 0)
def _(rig):
    p, q, _ = three()
    rig.engine.batch_register_memory([p, q], [4096, 4096])
    return rig.engine.batch_unregister_memory([p, q])


@fix(
    37,
    "batch_unregister_memory([p, unknown]); register, unregister, register p",
    [-3, -7, -3, -7],
    [-3, 0, 0, 0],
)
def _(rig):
    p, q, _ = three()
    engine = rig.engine
    engine.register_memory(p, 4096)
    return [
        engine.batch_unregister_memory([p, q]),
        engine.register_memory(p, 4096),
        engine.unregister_memory(p),
        engine.register_memory(p, 4096),
    ]


@safe(38, "batch_register_memory([p, q], [n])", UNDEFINED, -1)
def _(rig):
    p, q, _ = three()
    return rig.engine.batch_register_memory([p, q], [4096])


@fix(39, "register_memory lets other Python threads run", False, True, limit=60)
def _(rig):
    region = Memory(4096 * MIB)
    addr, engine = region.addr, rig.engine

    def register():
        if engine.register_memory(addr, region.size) != 0 or engine.unregister_memory(addr) != 0:
            raise RuntimeError("cannot register 4 GiB")

    return lets_others_run(register, 2000)


@keep(40, "allocate_managed_buffer(1000), bytes in and out, free", [True, True, 0])
def _(rig):
    engine = rig.engine
    m = engine.allocate_managed_buffer(1000)
    engine.write_bytes_to_buffer(m, b"hello, managed", 14)
    return m != 0, engine.read_bytes_from_buffer(m, 14) == b"hello, managed", engine.free_managed_buffer(m, 1000)


@keep(41, "register_memory inside a managed slab", -7)
def _(rig):
    return rig.engine.register_memory(rig.engine.allocate_managed_buffer(1000), 100)


@keep(42, "one pointer in two engines of one process", [0, 0])
def _(rig):
    p = Memory(4096).addr
    return rig.engine.register_memory(p, 4096), rig.start().register_memory(p, 4096)


@keep(43, "get_first_buffer_address(S); of a dead name", [True, 0])
def _(rig):
    first = rig.engine.get_first_buffer_address
    return first(rig.session) == rig.rb, first(dead_session())
