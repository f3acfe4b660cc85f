"""Moves bytes by the package that comes first in the path, and prints where it lies."""

import railhop
from rig import Memory, engine

a, b, m = engine(), engine(), Memory(1 << 20)
m.fill(5)
back = Memory(1 << 20)
assert b.register_memory(m.addr, m.size) == 0
assert a.transfer_sync_read("127.0.0.1:%d" % b.get_rpc_port(), back.addr, m.addr, m.size) == 0
assert bytes(back.view) == bytes(m.view)
print(railhop.__file__)
