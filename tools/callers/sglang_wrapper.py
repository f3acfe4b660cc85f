"""SGLang's MooncakeTransferEngine: a decode side that registers, a prefill side that sends.

    sglang_wrapper.py decode        prints its session and addresses, answers "check N"
    sglang_wrapper.py prefill       drives the other
"""

import ctypes
import json
import os
import subprocess
import sys

import pinned
import standins

LAYERS, BLOCKS, BLOCK = 4, 64, 16384


def wrapper():
    standins.sglang("rdma")
    return pinned.load(pinned.SGLANG + "mooncake_transfer_engine.py")


def buffers(seed):
    return [ctypes.create_string_buffer(bytes([seed + i]) * (BLOCKS * BLOCK)) for i in range(LAYERS)]


def start():
    code = wrapper()
    engine = code.init_mooncake_transfer_engine("127.0.0.1", gpu_id=0, ib_device=None)
    assert code.get_mooncake_transfer_engine() is engine
    assert engine.get_session_id().rpartition(":")[2].isdigit()
    return engine


def decode():
    engine, kv = start(), buffers(0)
    addrs = [ctypes.addressof(b) for b in kv]
    assert engine.batch_register(addrs, [BLOCKS * BLOCK] * LAYERS) == 0
    print(json.dumps({"session": engine.get_session_id(), "addrs": addrs}), flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        whole = b"".join(bytes(memoryview(b))[: BLOCKS * BLOCK] for b in kv)
        bad = [i for i, v in enumerate(wanted) if whole[i * BLOCK : (i + 1) * BLOCK] != bytes([v]) * BLOCK]
        print(json.dumps({"bad": bad}), flush=True)
    assert engine.batch_deregister(addrs) == 0


def prefill():
    engine, kv = start(), buffers(100)
    peer = subprocess.Popen(
        [sys.executable, __file__, "decode"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    hello = json.loads(peer.stdout.readline())
    session, remote = hello["session"], hello["addrs"]
    local = [ctypes.addressof(b) for b in kv]
    assert engine.batch_register(local, [BLOCKS * BLOCK] * LAYERS) == 0
    assert engine.batch_register(local, [BLOCKS * BLOCK] * LAYERS) != 0, "registered twice"
    wanted = [i // BLOCKS for i in range(LAYERS * BLOCKS)]

    def check(what):
        peer.stdin.write(json.dumps(wanted) + "\n")
        peer.stdin.flush()
        bad = json.loads(peer.stdout.readline())["bad"]
        assert not bad, "%s: wrong blocks %s" % (what, bad)
        print("  %s: 0, bytes equal" % what)

    # All layers in one batch, blocks that are scattered at both ends.
    pairs = [(layer, i, BLOCKS - 1 - i) for layer in range(LAYERS) for i in range(0, BLOCKS, 3)]
    src = [local[layer] + i * BLOCK for layer, i, _ in pairs]
    dst = [remote[layer] + j * BLOCK for layer, _, j in pairs]
    assert engine.batch_transfer_sync(session, src, dst, [BLOCK] * len(pairs)) == 0
    for layer, _, j in pairs:
        wanted[layer * BLOCKS + j] = 100 + layer
    check("batch_transfer_sync of %d blocks" % len(pairs))
    assert engine.transfer_sync(session, local[0], remote[1], BLOCKS * BLOCK) == 0
    wanted[BLOCKS : 2 * BLOCKS] = [100] * BLOCKS
    check("transfer_sync of %d bytes" % (BLOCKS * BLOCK))
    assert engine.batch_transfer_sync(session, src[:2], [dst[0], 64], [BLOCK] * 2) == -1
    assert engine.send_probe(session) == 0
    assert engine.get_engine() is None or "InnerTransferEngine" in type(engine.get_engine()).__name__
    engine.deregister(local[0])
    engine.register(local[0], BLOCKS * BLOCK)
    assert engine.batch_deregister(local) == 0
    peer.kill()
    peer.wait()
    assert engine.transfer_sync(session, local[0], remote[0], BLOCK) == -1
    assert engine.send_probe(session) != 0
    print("  a bad address: -1; a dead decode side: -1, its probe not 0")
    standins.report()


{"decode": decode, "prefill": prefill}[sys.argv[1]]()
sys.stdout.flush()
os._exit(0)
