"""Rows 86 to 104: calls that do not block, notifications, topology, names."""

import json
import time

from rig import dead_session, module, raised, timed
from rows import UNDEFINED, fix, keep, safe


def submit(rig, remote=None, n=100):
    rig.memory.fill(1)
    return rig.engine.batch_transfer_async_write(rig.session, [rig.a], [remote or rig.rb], [n])


def poll(rig, batch):
    """The codes of transfer_check_status up to the first that is not 0."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        rc = rig.engine.transfer_check_status(batch)
        if rc != 0:
            return rc
    return "no end"


@keep(86, "batch_transfer_async_write; get_batch_transfer_status", [True, 0, True])
def _(rig):
    batch = submit(rig)
    return batch > 0, rig.engine.get_batch_transfer_status([batch]), rig.peer.holds(1, 0, 100)


@keep(87, "two of them, both ids in one question", 0)
def _(rig):
    return rig.engine.get_batch_transfer_status([submit(rig), submit(rig)])


@keep(88, "a dead peer; unequal lists", [0, 0])
def _(rig):
    start = rig.engine.batch_transfer_async_write
    return start(dead_session(), [rig.a], [rig.rb], [1]), start(rig.session, [rig.a], [rig.rb], [])


@keep(89, "empty lists", [True, 0])
def _(rig):
    batch = rig.engine.batch_transfer_async_write(rig.session, [], [], [])
    return batch > 0, rig.engine.get_batch_transfer_status([batch])


@keep(90, "one bad entry", [True, -1])
def _(rig):
    batch = rig.engine.batch_transfer_async_write(rig.session, [rig.a, rig.a], [rig.rb, 64], [1, 1])
    return batch > 0, rig.engine.get_batch_transfer_status([batch])


@keep(91, "get_batch_transfer_status([])", 0, part="a")
def _(rig):
    return rig.engine.get_batch_transfer_status([])


@safe(91, "get_batch_transfer_status([0])", "SIGSEGV", -1, part="b")
def _(rig):
    return rig.engine.get_batch_transfer_status([0])


@safe(91, "get_batch_transfer_status of an id used before", UNDEFINED, -1, part="c")
def _(rig):
    batch = submit(rig)
    rig.engine.get_batch_transfer_status([batch])
    return rig.engine.get_batch_transfer_status([batch])


@keep(92, "transfer_submit_write; transfer_check_status to the end", [True, 1, True])
def _(rig):
    rig.memory.fill(2)
    batch = rig.engine.transfer_submit_write(rig.session, rig.a, rig.rb, 100)
    return batch > 0, poll(rig, batch), rig.peer.holds(2, 0, 100)


@keep(93, "the same to a bad address", [True, -1])
def _(rig):
    batch = rig.engine.transfer_submit_write(rig.session, rig.a, 64, 100)
    return batch > 0, poll(rig, batch)


@safe(94, "transfer_check_status(0)", "SIGSEGV", -1, part="a")
def _(rig):
    return rig.engine.transfer_check_status(0)


@safe(94, "transfer_check_status after it has said 1", UNDEFINED, -1, part="b")
def _(rig):
    batch = rig.engine.transfer_submit_write(rig.session, rig.a, rig.rb, 100)
    poll(rig, batch)
    return rig.engine.transfer_check_status(batch)


@fix(95, "an id of transfer_submit_write in get_batch_transfer_status", -1, 0)
def _(rig):
    rig.memory.fill(3)
    batch = rig.engine.transfer_submit_write(rig.session, rig.a, rig.rb, 100)
    deadline = time.monotonic() + 5
    while not rig.peer.holds(3, 0, 100) and time.monotonic() < deadline:
        time.sleep(0.01)
    return rig.engine.get_batch_transfer_status([batch])


def notified(rig, *messages):
    """Moves that carry notifications; what B got, at the first question and at the second."""
    op, note = module().TransferOpcode.Write, module().TransferNotify
    codes = [rig.engine.transfer_sync(rig.session, rig.a, rig.rb, 10, op, note(*m)) for m in messages]
    return codes, notifies(rig), rig.peer.do("notifies")


def notifies(rig):
    """B's notifications, which may take a moment."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        got = rig.peer.do("notifies")
        if got:
            return got
        time.sleep(0.01)
    return []


@keep(96, 'transfer_sync with TransferNotify("k", "v"); get_notifies() at B twice', [[0], [["k", "v"]], []])
def _(rig):
    return notified(rig, ("k", "v"))


@keep(97, "empty strings", [[0], [["", ""]], []])
def _(rig):
    return notified(rig, ("", ""))


@keep(98, "batch_transfer_sync of empty lists with a notification", -1)
def _(rig):
    op, note = module().TransferOpcode.Write, module().TransferNotify("k", "v")
    return rig.engine.batch_transfer_sync(rig.session, [], [], [], op, note)


@keep(99, "a transfer that fails, a batch of three: codes, what arrives", [-1, 0, [["batch", "3"]]])
def _(rig):
    op, note = module().TransferOpcode.Write, module().TransferNotify
    failed = rig.engine.transfer_sync(rig.session, rig.a, 64, 10, op, note("failed", "1"))
    many = rig.engine.batch_transfer_sync(
        rig.session, [rig.a] * 3, [rig.rb, rig.rb + 10, rig.rb + 20], [10] * 3, op, note("batch", "3")
    )
    time.sleep(0.2)
    return failed, many, notifies(rig)


def topology(engine):
    value = json.loads(engine.get_local_topology())
    return isinstance(value, dict) and any(key.startswith("cpu:") for key in value)


@keep(100, "get_local_topology(): JSON with keys cpu:N", True, part="a", env={"MC_FORCE_TCP": None})
def _(rig):
    return topology(rig.engine)


@fix(100, "its time (mean of 5)", "about 1 s", "at once", part="b")
def _(rig):
    took = [timed(rig.engine.get_local_topology)[1] for _ in range(5)]
    mean = sum(took) / len(took)
    return "at once" if mean < 0.15 else "about 1 s" if mean < 2 else "%.1f s" % mean


@keep(101, 'warmup_efa_segment("x")', 0)
def _(rig):
    return rig.engine.warmup_efa_segment("x")


@keep(
    102,
    "TransferOpcode, its members, in the module and the class too",
    {"int": [0, 1], "module": True, "class": True, "equals its int": False},
    part="a",
)
def _(rig):
    m = module()
    op = m.TransferOpcode
    return {
        "int": [int(op.Read), int(op.Write)],
        "module": m.Read == op.Read and m.Write == op.Write,
        "class": m.TransferEngine.TransferOpcode is op,
        "equals its int": op.Write == 1,
    }


@fix(102, "TransferOpcode.READ and .WRITE, as upstream's documents print them", False, True, part="b")
def _(rig):
    op = module().TransferOpcode
    return getattr(op, "READ", None) == op.Read and getattr(op, "WRITE", None) == op.Write


@keep(103, 'TransferNotify(); ("n", "m"); ("n")', [["", ""], ["n", "m"], "TypeError"])
def _(rig):
    note = module().TransferNotify
    none, both = note(), note("n", "m")
    return [none.name, none.msg], [both.name, both.msg], raised(note, "n")


@keep(104, "SUPPORT_*, SharedSegment, RpcInterface, InnerTransferEngine in dir()", [])
def _(rig):
    wanted = ["SUPPORT_" + s for s in ("EFA", "HIP", "MNNVL", "MUSA", "INTRA_NVLINK", "CUDA")]
    wanted += ["SharedSegment", "RpcInterface", "InnerTransferEngine"]
    return [name for name in wanted if name not in dir(module())]
