"""Rows 1 to 23: life cycle."""

import importlib.util
import os
import socket
import sys
import time
import types

from rig import MetadataServer, Memory, about, accepts, in_fork, module, new_engine, raised, timed, within
from rows import fix, keep, safe

P2P = "P2PHANDSHAKE"


def initialize(*args):
    return new_engine().initialize(*args)


@keep(1, 'initialize("127.0.0.1", P2P, "tcp", "")', [0, "in time"])
def _(rig):
    engine = new_engine()
    rc, seconds = timed(engine.initialize, "127.0.0.1", P2P, "tcp", "")
    return rc, within(seconds, 1)


@keep(2, 'initialize("127.0.0.1:5555", P2P, ...); get_rpc_port()', [0, True])
def _(rig):
    engine = new_engine()
    return engine.initialize("127.0.0.1:5555", P2P, "tcp", ""), 15000 <= engine.get_rpc_port() <= 17000


@keep(
    3,
    "the same with MC_MIN_RPC_PORT=21000 MC_MAX_RPC_PORT=21100",
    [0, True],
    env={"MC_MIN_RPC_PORT": "21000", "MC_MAX_RPC_PORT": "21100"},
)
def _(rig):
    engine = new_engine()
    return engine.initialize("127.0.0.1:5555", P2P, "tcp", ""), 21000 <= engine.get_rpc_port() <= 21100


@keep(4, "two engines in one process: codes, whether ports differ", [0, 0, True])
def _(rig):
    a, b = new_engine(), new_engine()
    codes = [e.initialize("127.0.0.1", P2P, "tcp", "") for e in (a, b)]
    return [*codes, a.get_rpc_port() != b.get_rpc_port()]


@keep(5, '"rdma" without a NIC: code, and a write', [0, 0, True], env={"MC_FORCE_TCP": None}, needs="no nic")
def _(rig):
    engine = new_engine()
    rc = engine.initialize("127.0.0.1", P2P, "rdma", "")
    return [rc, *rig.write(engine=engine)]


@keep(6, '"no_such_protocol"', 0)
def _(rig):
    return initialize("127.0.0.1", P2P, "no_such_protocol", "")


@keep(7, '"xgmi"', -1)
def _(rig):
    return initialize("127.0.0.1", P2P, "xgmi", "")


@keep(8, "device None", 0)
def _(rig):
    return initialize("127.0.0.1", P2P, "tcp", None)


@keep(9, "host None; metadata server None", ["RuntimeError", "RuntimeError"])
def _(rig):
    return raised(initialize, None, P2P, "tcp", ""), raised(initialize, "127.0.0.1", None, "tcp", "")


@safe(10, "protocol None", "SIGSEGV", "TypeError")
def _(rig):
    return raised(initialize, "127.0.0.1", P2P, None, "")


@keep(11, "initialize with keywords; with 3 arguments", ["TypeError", "TypeError"])
def _(rig):
    by_name = raised(
        new_engine().initialize, local_hostname="127.0.0.1", metadata_server=P2P, protocol="tcp", device_name=""
    )
    return by_name, raised(initialize, "127.0.0.1", P2P, "tcp")


@keep(12, "a metadata server that is not there", [-1, "in time"])
def _(rig):
    rc, seconds = timed(initialize, "127.0.0.1", "http://127.0.0.1:1/metadata", "tcp", "")
    return rc, within(seconds, 5)


@keep(13, "two engines, one name, one HTTP metadata server", [0, -1])
def _(rig):
    url = MetadataServer(rig).url
    first = new_engine()
    return first.initialize("127.0.0.1:7001", url, "tcp", ""), initialize("127.0.0.1:7001", url, "tcp", "")


@safe(14, 'initialize("h", "foo://x", "tcp", "")', "SIGABRT", -1)
def _(rig):
    return initialize("h", "foo://x", "tcp", "")


@keep(15, "initialize twice: code, new port, code of registering the same region again", [0, True, 0])
def _(rig):
    engine, memory = rig.engine, Memory(4096)
    port = engine.get_rpc_port()
    engine.register_memory(memory.addr, 4096)
    rc = engine.initialize("127.0.0.1", P2P, "tcp", "")
    return rc, engine.get_rpc_port() != port, engine.register_memory(memory.addr, 4096)


@safe(16, "get_rpc_port() before initialize", "SIGSEGV", -1)
def _(rig):
    return new_engine().get_rpc_port()


BEFORE = {
    "register_memory": (4096, 10),
    "unregister_memory": (4096,),
    "batch_register_memory": ([4096], [10]),
    "batch_unregister_memory": ([4096],),
    "transfer_sync_write": ("127.0.0.1:1", 4096, 4096, 1),
    "transfer_sync_read": ("127.0.0.1:1", 4096, 4096, 1),
    "batch_transfer_sync_write": ("127.0.0.1:1", [4096], [4096], [1]),
    "batch_transfer_sync_read": ("127.0.0.1:1", [4096], [4096], [1]),
    "batch_transfer_async_write": ("127.0.0.1:1", [4096], [4096], [1]),
    "batch_transfer_async_read": ("127.0.0.1:1", [4096], [4096], [1]),
    "transfer_submit_write": ("127.0.0.1:1", 4096, 4096, 1),
}


@safe(
    17,
    "transfers and registrations before initialize",
    {name: "SIGSEGV" for name in BEFORE},
    {name: 0 if "async" in name or "submit" in name else -1 for name in BEFORE},
)
def _(rig):
    return {name: in_fork(lambda: getattr(new_engine(), name)(*args)) for name, args in BEFORE.items()}


@keep(18, "get_engine(), get_engine_ptr() before initialize", [True, 0])
def _(rig):
    return new_engine().get_engine() is None, new_engine().get_engine_ptr()


@keep(19, "send_probe before initialize", -1)
def _(rig):
    return new_engine().send_probe(rig.session)


@fix(20, "del engine: port closed, time (median of 3)", [True, "up to 1.1 s"], [True, "up to 0.1 s"])
def _(rig):
    took, closed = [], True
    for _ in range(3):
        engine = new_engine()
        engine.initialize("127.0.0.1", P2P, "tcp", "")
        port = engine.get_rpc_port()
        time.sleep(0.1)  # until its threads wait for something
        start = os.times().elapsed
        del engine
        took.append(os.times().elapsed - start)
        closed &= not accepts(port)
    median = sorted(took)[1]
    return closed, "up to 0.1 s" if median <= 0.1 else "up to 1.1 s" if median <= 1.3 else about(median, 1)


@keep(21, 'initialize_ext("127.0.0.1", P2P, "tcp", "", "")', 0)
def _(rig):
    return new_engine().initialize_ext("127.0.0.1", P2P, "tcp", "", "")


@keep(22, "import, fork, initialize in the child", 0, part="a")
def _(rig):
    module()
    return in_fork(lambda: initialize("127.0.0.1", P2P, "tcp", ""))


@fix(
    22,
    "threads that the import starts",
    "some",
    "none",
    part="b",
    note="the wheel is linked with a library in Go, etcd's client; a build without etcd starts none",
)
def _(rig):
    package = types.ModuleType("mooncake")  # the module alone, without what its package imports
    package.__path__ = importlib.util.find_spec("mooncake").submodule_search_locations
    sys.modules["mooncake"] = package
    module()
    return "none" if len(os.listdir("/proc/self/task")) == 1 else "some"


@keep(
    23,
    "initialize without a free port",
    -1,
    env={"MC_MIN_RPC_PORT": "21200", "MC_MAX_RPC_PORT": "21203"},
    limit=60,
)
def _(rig):
    held = []
    for port in range(21200, 21204):
        s = socket.socket()
        s.bind(("0.0.0.0", port))
        s.listen()
        held.append(s)
    return initialize("127.0.0.1", P2P, "tcp", "")
