"""Rows 105 to 128: the C API."""

import ctypes
import json
import os
import subprocess
import tempfile
from ctypes import byref

import clib
from rig import Memory, dead_session
from rows import UNDEFINED, fix, keep, safe

LAYOUT = {
    "transfer_request": [40, 0, 8, 16, 24, 32],
    "transfer_status": [16, 0, 8],
    "notify_msg": [16, 0, 8],
    "buffer_entry": [16, 0, 8],
    "nic_load_stat": [80, 0, 64, 72],
    "segment_desc": [48, 0, 8, 16, 24, 40],
}

PROBE = """
#include <stdio.h>
#include "transfer_engine_c.h"
#define OFF(s, f) (int)offsetof(struct s, f)
int main(void) {
    printf("{\\"transfer_request\\": [%d, %d, %d, %d, %d, %d],", (int)sizeof(struct transfer_request),
           OFF(transfer_request, opcode), OFF(transfer_request, source), OFF(transfer_request, target_id),
           OFF(transfer_request, target_offset), OFF(transfer_request, length));
    printf("\\"transfer_status\\": [%d, %d, %d],", (int)sizeof(struct transfer_status),
           OFF(transfer_status, status), OFF(transfer_status, transferred_bytes));
    printf("\\"notify_msg\\": [%d, %d, %d],", (int)sizeof(struct notify_msg), OFF(notify_msg, name),
           OFF(notify_msg, msg));
    printf("\\"buffer_entry\\": [%d, %d, %d],", (int)sizeof(struct buffer_entry), OFF(buffer_entry, addr),
           OFF(buffer_entry, length));
    printf("\\"nic_load_stat\\": [%d, %d, %d, %d],", (int)sizeof(struct nic_load_stat),
           OFF(nic_load_stat, device_name), OFF(nic_load_stat, inflight_bytes),
           OFF(nic_load_stat, ewma_bandwidth_bps));
    printf("\\"segment_desc\\": [%d, %d, %d, %d, %d, %d]}", (int)sizeof(struct segment_desc),
           OFF(segment_desc, type), OFF(segment_desc, desc_.rdma.addr), OFF(segment_desc, desc_.rdma.size),
           OFF(segment_desc, desc_.rdma.location), OFF(segment_desc, desc_.nvmeof.port));
}
"""


class Bench:
    """An engine of the C library with A's memory, and B opened in it."""

    def __init__(self, rig):
        self.engine = clib.Engine(rig.library)
        self.rig = rig
        self.mem = Memory(1 << 20)
        self.a = self.mem.addr
        self.engine.registerLocalMemory(self.a, self.mem.size, b"*", 1)
        self.session = rig.session.encode()
        self.b = self.engine.openSegment(self.session)

    def request(self, n=100, remote=None, target=None, opcode=1):
        target = self.b if target is None else target
        return self.engine.request(self.a, target, remote or self.rig.rb, n, opcode)

    def batch(self, *requests, capacity=8):
        """A batch with requests submitted: its number, and the code of submitting."""
        number = self.engine.allocateBatchID(capacity)
        return number, self.engine.submit(number, *requests)


def c(row):
    """Gives a row a bench."""
    return lambda rig: row(Bench(rig), rig)


NEEDS = {"needs": "c"}


@keep(105, "sizes and offsets of the structs, by a C probe", LAYOUT, **NEEDS)
def _(rig):
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "probe.c"), os.path.join(folder, "probe")
        with open(source, "w") as f:
            f.write(PROBE)
        subprocess.run(["cc", "-Wall", "-Werror", "-I", clib.header(rig.library), "-o", program, source], check=True)
        return json.loads(subprocess.check_output(program))


@keep(106, 'createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1)', True, **NEEDS)
def _(rig):
    return bool(clib.Engine(rig.library).handle)


@keep(107, "getLocalIpAndPort into 64 bytes; into 6", [0, True, 0, "127.0"], **NEEDS)
def _(rig):
    engine = clib.Engine(rig.library)
    long, short = ctypes.create_string_buffer(64), ctypes.create_string_buffer(b"x" * 15)
    first, second = engine.getLocalIpAndPort(long, 64), engine.getLocalIpAndPort(short, 6)
    host, port = long.value.decode().split(":")
    return first, host == "127.0.0.1" and int(port) > 0, second, short.value.decode()


@keep(108, 'openSegment(S), again; own name; dead; ""', [1, 1, 0, -1, -1], **NEEDS)
def _(rig):
    engine = clib.Engine(rig.library)
    own = ctypes.create_string_buffer(64)
    engine.getLocalIpAndPort(own, 64)
    names = rig.session.encode(), rig.session.encode(), own.value, dead_session().encode(), b""
    return [engine.openSegment(name) for name in names]


@keep(109, "register: twice, zero; unregister unknown", [0, -7, -1, -3], **NEEDS)
def _(rig):
    engine, p = clib.Engine(rig.library), Memory(8192).addr
    register = engine.registerLocalMemory
    return [
        *(register(p, 4096, b"*", 1) for _ in range(2)),
        register(p + 4096, 0, b"*", 1),
        engine.unregisterLocalMemory(p + 1),
    ]


@keep(110, "submit, ask to the end: code, then code, status, bytes; all there", [0, [0, 4, 100], True], **NEEDS)
@c
def _(bench, rig):
    bench.mem.fill(1)
    number, rc = bench.batch(bench.request())
    return rc, bench.engine.finish(number), rig.peer.holds(1, 0, 100)


@keep(111, "submit to segment 99: code, then the code of task 0", [1, 1], **NEEDS)
@c
def _(bench, rig):
    number, rc = bench.batch(bench.request(target=99))
    return rc, bench.engine.finish(number)[0]


@keep(112, "capacity 1, submit 2: code, then the code of task 0", [2, 1], **NEEDS)
@c
def _(bench, rig):
    number, rc = bench.batch(bench.request(), bench.request(), capacity=1)
    return rc, bench.engine.finish(number)[0]


@keep(113, "status of task 5 of 1: code, and what was there stays", [1, 77, 88], **NEEDS)
@c
def _(bench, rig):
    number, _ = bench.batch(bench.request())
    status = clib.Status(77, 88)
    return bench.engine.getTransferStatus(number, 5, byref(status)), status.status, status.transferred_bytes


@keep(114, "a bad destination: code of submit, status", [0, 6], **NEEDS)
@c
def _(bench, rig):
    number, rc = bench.batch(bench.request(remote=64))
    return rc, bench.engine.finish(number)[1]


@keep(115, "zero length: status, bytes", [0, [0, 4, 0]], **NEEDS)
@c
def _(bench, rig):
    number, rc = bench.batch(bench.request(n=0))
    return rc, bench.engine.finish(number)


@fix(116, "opcode 7: code of submit", 0, 1, **NEEDS)
@c
def _(bench, rig):
    return bench.batch(bench.request(opcode=7))[1]


@keep(117, "freeBatchID while it runs; afterwards; never submitted", [4, 0, 0], **NEEDS)
@c
def _(bench, rig):
    number, _ = bench.batch(bench.request())
    running = bench.engine.freeBatchID(number)
    bench.engine.finish(number)
    return running, bench.engine.freeBatchID(number), bench.engine.freeBatchID(bench.engine.allocateBatchID(1))


@keep(118, "submit of nothing; with a notification", [0, 1], **NEEDS)
@c
def _(bench, rig):
    number = bench.engine.allocateBatchID(1)
    nothing = (clib.Request * 1)()
    notified = bench.engine.submitTransferWithNotify(number, nothing, 0, clib.Notify(b"k", b"v"))
    return bench.engine.submitTransfer(number, nothing, 0), notified


@keep(119, "getNotifsFromEngine of none; freeNotifsMsgBuf(NULL, 0)", [True, 0, 0], part="a", **NEEDS)
def _(rig):
    engine, n = clib.Engine(rig.library), ctypes.c_int(9)
    messages = engine.getNotifsFromEngine(byref(n))
    return not messages, n.value, engine.function("freeNotifsMsgBuf")(None, 0)


@keep(
    119,
    "submitTransferWithNotify, genNotifyInEngine to the own engine: what arrives",
    [0, 4, 0, [["k", "v"], ["", ""]], 0],
    part="b",
    **NEEDS,
)
@c
def _(bench, rig):
    engine, n = bench.engine, ctypes.c_int()
    number = engine.allocateBatchID(1)
    requests = (clib.Request * 1)(engine.request(bench.a, 0, bench.a + 4096, 100))
    rc = engine.submitTransferWithNotify(number, requests, 1, clib.Notify(b"k", b"v"))
    status = engine.finish(number)[1]
    sent = engine.genNotifyInEngine(0, clib.Notify(b"", b""))
    messages = engine.getNotifsFromEngine(byref(n))
    got = [[messages[i].name.decode(), messages[i].msg.decode()] for i in range(n.value)]
    return rc, status, sent, got, engine.function("freeNotifsMsgBuf")(messages, n)


@keep(120, "genNotifyInEngine(bad id)", -200, **NEEDS)
def _(rig):
    return clib.Engine(rig.library).genNotifyInEngine(99, clib.Notify(b"k", b"v"))


@keep(121, "closeSegment, uninstallTransport, syncSegmentCache, warmupEfaSegment, discoverTopology", [0] * 5, **NEEDS)
@c
def _(bench, rig):
    engine = bench.engine
    return [
        engine.closeSegment(bench.b),
        engine.uninstallTransport(b"tcp"),
        engine.syncSegmentCache(),
        engine.warmupEfaSegment(b"x"),
        engine.discoverTopology(),
    ]


@keep(122, "removeLocalSegment(S) of a dead peer, openSegment(S)", [0, -1], **NEEDS)
@c
def _(bench, rig):
    rig.peer.kill()
    return bench.engine.removeLocalSegment(bench.session), bench.engine.openSegment(bench.session)


@fix(123, "openSegmentNoCache(S) of a dead peer", 1, -1, **NEEDS)
@c
def _(bench, rig):
    rig.peer.kill()
    return bench.engine.openSegmentNoCache(bench.session)


@keep(124, "getNicLoadStats; NULL", [0, 0, -1], **NEEDS)
def _(rig):
    engine, stats, n = clib.Engine(rig.library), (clib.NicLoad * 4)(), ctypes.c_int(4)
    return engine.getNicLoadStats(stats, byref(n)), n.value, engine.getNicLoadStats(None, None)


@keep(125, "showLinks in JSON: code, keys; with length 0", [0, ["local_nics", "topology"], -1], **NEEDS)
def _(rig):
    engine, out = clib.Engine(rig.library), ctypes.create_string_buffer(1 << 16)
    rc = engine.showLinks(out, len(out), 1)
    return rc, sorted(json.loads(out.value)), engine.showLinks(out, 0, 1)


@keep(126, "auto_discover 0, register, installTransport(tcp), write", [0, True, [0, 4, 100], True], **NEEDS)
def _(rig):
    engine, mem = clib.Engine(rig.library, auto_discover=0), Memory(4096)
    mem.fill(2)
    rc = engine.registerLocalMemory(mem.addr, 4096, b"*", 1)
    installed = bool(engine.installTransport(b"tcp", None))
    number = engine.allocateBatchID(1)
    engine.submit(number, engine.request(mem.addr, engine.openSegment(rig.session.encode()), rig.rb, 100))
    return rc, installed, engine.finish(number), rig.peer.holds(2, 0, 100)


@keep(127, 'installTransport: "nope"; "rdma" without a NIC; "tcp" twice', [True, True, True], **NEEDS)
def _(rig):
    engine = clib.Engine(rig.library, auto_discover=0)
    nope, rdma = engine.installTransport(b"nope", None), engine.installTransport(b"rdma", None)
    first = engine.installTransport(b"tcp", None)
    return not nope, not rdma, bool(first) and engine.installTransport(b"tcp", None) == first


@safe(128, "submitTransfer into INVALID_BATCH; 0; a freed one", UNDEFINED, [1, 1, 1], **NEEDS)
@c
def _(bench, rig):
    freed = bench.engine.allocateBatchID(1)
    bench.engine.freeBatchID(freed)
    return [bench.engine.submit(number, bench.request()) for number in (clib.INVALID_BATCH, 0, freed)]
