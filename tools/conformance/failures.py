"""Rows 72 to 85: failures and time."""

import concurrent.futures
import socket
import sys
import threading
import time

from rig import MIB, MetadataServer, about, dead_session, resident, timed, within
from rows import fix, keep


def write(rig, session, addr, n=100):
    return rig.engine.transfer_sync_write(session, rig.a, addr, n)


def quickest(call, tries=3):
    """The shortest of some tries, on a machine that others use too."""
    results = [timed(call) for _ in range(tries)]
    return {rc for rc, _ in results}, min(seconds for _, seconds in results)


@keep(72, "write to a port where nobody listens", [[-1], "in time"])
def _(rig):
    rig.a
    codes, seconds = quickest(lambda: write(rig, dead_session(), 4096))
    return list(codes), within(seconds, 0.1)


@keep(73, "write, kill B, write", [[0, True], [-1], "in time"])
def _(rig):
    first = rig.write()
    rig.peer.kill()
    codes, seconds = quickest(lambda: write(rig, rig.session, rig.rb))
    return first, list(codes), within(seconds, 0.1)


@keep(74, "then send_probe(S)", -102)
def _(rig):
    rig.write()
    rig.peer.kill()
    write(rig, rig.session, rig.rb)
    return rig.engine.send_probe(rig.session)


@keep(75, "send_probe: live, no such host, no such name on a metadata server", [0, -101, -200], limit=60)
def _(rig):
    named = rig.start(host="127.0.0.1:7001", metadata=MetadataServer(rig).url)
    return (
        rig.engine.send_probe(rig.session),
        rig.engine.send_probe("no-such-host.invalid:15000"),
        named.send_probe("nobody"),
    )


@keep(
    76,
    "SIGSTOP B (known), MC_TRANSFER_TIMEOUT=1: write",
    [-1, "after 5 s"],
    env={"MC_TRANSFER_TIMEOUT": "1"},
)
def _(rig):
    rig.write()
    rig.peer.freeze()
    rc, seconds = timed(write, rig, rig.session, rig.rb)
    return rc, about(seconds, 5)


@keep(
    77,
    "the same, MC_TCP_STATUS_TIMEOUT_SEC=2",
    [-1, "after 2 s"],
    env={"MC_TRANSFER_TIMEOUT": "1", "MC_TCP_STATUS_TIMEOUT_SEC": "2"},
)
def _(rig):
    rig.write()
    rig.peer.freeze()
    rc, seconds = timed(write, rig, rig.session, rig.rb)
    return rc, about(seconds, 2)


@fix(
    78,
    "SIGSTOP B before first contact, MC_TRANSFER_TIMEOUT=1: write",
    [-1, "after 61 s"],
    [-1, "after 5 s"],
    env={"MC_TRANSFER_TIMEOUT": "1"},
    limit=90,
)
def _(rig):
    session, addr = rig.session, rig.rb
    rig.a
    rig.peer.freeze()
    rc, seconds = timed(write, rig, session, addr)
    return rc, about(seconds, 61 if seconds > 30 else 5)


@fix(
    79,
    "while 78 hangs, write to a healthy known peer C",
    [[0, True], 0, "waits"],
    [[0, True], 0, "at once"],
    env={"MC_TRANSFER_TIMEOUT": "30"},
    limit=90,
)
def _(rig):
    known = rig.another()
    first = rig.write(peer=known)
    session, addr = rig.session, rig.rb
    rig.peer.freeze()
    threading.Thread(target=write, args=(rig, session, addr), daemon=True).start()
    time.sleep(0.5)
    rc, seconds = timed(write, rig, known.session, known.addr)
    return first, rc, "at once" if seconds < 2 else "waits" if seconds > 20 else within(seconds, 2)


def restart(rig, ports, same_data_port):
    """Kills B and starts it until it has the same handshake port, and the same data port or
    another. It takes any two of the range, except that for a minute it may not take one
    on which it has closed a connection."""
    env = {"MC_MIN_RPC_PORT": str(ports[0]), "MC_MAX_RPC_PORT": str(ports[-1])}
    old = rig.another(env=env)
    old_ports = old.ports()
    first = rig.write(peer=old)
    old.kill()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            new = rig.another(env=env)
        except RuntimeError:
            continue
        if new.port == old.port and (new.ports() == old_ports) == same_data_port:
            return first, new
        new.kill()
        time.sleep(0.5)
    raise RuntimeError("B never came back at port %d" % old.port)


@fix(
    80,
    "B comes back at the same handshake port, another data port: write, probe",
    [[0, True], [-1, False], 0],
    [[0, True], [0, True], 0],
    limit=150,
)
def _(rig):
    first, new = restart(rig, range(21300, 21303), same_data_port=False)
    return first, rig.write(peer=new, seed=2), rig.engine.send_probe(new.session)


@keep(
    81,
    "B comes back at the same ports: write",
    [[0, True], [0, True]],
    env={"MC_TCP_ENABLE_CONNECTION_POOL": "0"},
    limit=150,
)
def _(rig):
    first, new = restart(rig, range(21400, 21402), same_data_port=True)
    return first, rig.write(peer=new, seed=2)


@fix(
    82,
    "-1 by timeout, overwrite the source, thaw B: what lands at B",
    [[0, True], -1, "something"],
    [[0, True], -1, "nothing"],
    env={"MC_TRANSFER_TIMEOUT": "1", "MC_TCP_STATUS_TIMEOUT_SEC": "2"},
    about="both",
)
def _(rig):
    first = rig.write()
    rig.memory.fill(2)
    rig.peer.freeze()
    rc = write(rig, rig.session, rig.rb + 4096, MIB - 4096)
    rig.memory.fill(3)
    rig.peer.thaw()
    time.sleep(1)
    landed = "nothing" if rig.peer.do("zeros", 4096, MIB - 4096) else "something"
    if landed == "something" and "may still land" not in getattr(rig.engine, "last_error", lambda: "may still land")():
        landed = "something, and last_error() does not say that it may"
    return first, rc, landed


@fix(
    83,
    "60,000 writes that time out, 5,000 a batch: memory",
    "grows",
    "stays",
    env={"MC_TRANSFER_TIMEOUT": "1", "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535"},
    limit=60,
    note="only what times out is leaked: what the peer refuses is freed",
)
def _(rig):
    rig.write()
    rig.peer.freeze()
    n = 5000
    local, remote = [rig.a + i for i in range(n)], [rig.rb + i for i in range(n)]

    def four_batches():
        batch = rig.engine.batch_transfer_sync_write
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return [pool.submit(batch, rig.session, local, remote, [1] * n) for _ in range(4)]

    four_batches()
    before = resident()
    codes = {future.result() for _ in range(3) for future in four_batches()}
    grown = resident() - before
    print("codes %s, %d KiB more" % (codes, grown), file=sys.stderr)
    return "stays" if grown < 8 << 10 else "grows"


@keep(84, "unknown bytes at the handshake port: dropped; then a write", [True, [0, True]])
def _(rig):
    with socket.create_connection(("127.0.0.1", rig.peer.port), timeout=20) as s:
        s.sendall(b"\xff" * 64)
        try:
            dropped = s.recv(1) == b""
        except ConnectionResetError:
            dropped = True
        except socket.timeout:
            dropped = False
    return dropped, rig.write()


@fix(
    85,
    "send_probe(S) while an idle connection to B's handshake port is open",
    [0, "after 5.2 s"],
    [0, "at once"],
    about="peer",
)
def _(rig):
    engine, session = rig.engine, rig.session
    with socket.create_connection(("127.0.0.1", rig.peer.port)):
        time.sleep(0.2)
        rc, seconds = timed(engine.send_probe, session)
    return rc, "at once" if seconds < 1 else about(seconds, 5.2)
