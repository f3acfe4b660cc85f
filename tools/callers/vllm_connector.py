"""vLLM's MooncakeConnectorWorker: a consumer that registers its KV caches and asks for
blocks, a producer that registers its own and sends them.

    vllm_connector.py consumer      prints its request, answers "check"
    vllm_connector.py producer      drives the other
"""

import asyncio
import json
import os
import subprocess
import sys
import types

import numpy as np

import pinned
import standins

LAYERS, BLOCKS, HEADS, TOKENS, WIDTH = 4, 64, 2, 16, 256
PAGE = HEADS * TOKENS * WIDTH
MOVED = [(3, 40), (4, 41), (5, 42), (9, 10), (20, 11), (63, 1)]


def connector():
    standins.vllm()
    pinned.load(pinned.VLLM + "stats.py")
    return pinned.load(pinned.VLLM + "mooncake_connector.py")


def start(role):
    code = connector()
    spec = standins.FullAttentionSpec(PAGE)
    names = ["layers.%d.attn" % i for i in range(LAYERS)]
    group = types.SimpleNamespace(kv_cache_spec=spec, layer_names=names)
    caches = types.SimpleNamespace(
        num_blocks=BLOCKS,
        kv_cache_groups=[group],
        transfer_groups=[group],
        transfer_group_index_by_layer={name: 0 for name in names},
        has_mamba_layers=False,
    )
    extra = {"num_workers": 4}
    config = types.SimpleNamespace(
        kv_transfer_config=types.SimpleNamespace(
            kv_role=role, kv_connector_extra_config=extra, get_from_extra_config=lambda key, other: "127.0.0.1:1"
        ),
        parallel_config=types.SimpleNamespace(
            data_parallel_index=0,
            data_parallel_rank_local=0,
            local_engines_only=False,
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
        ),
        cache_config=types.SimpleNamespace(block_size=TOKENS),
        model_config=types.SimpleNamespace(use_mla=False, get_total_num_kv_heads=lambda: HEADS),
    )
    worker = code.MooncakeConnectorWorker(config, role, caches)
    seed = 100 if role == "kv_producer" else 0
    arrays = [np.zeros((BLOCKS, HEADS, TOKENS, WIDTH), np.uint8) for _ in names]
    for layer, array in enumerate(arrays):
        array[:] = (seed + layer + np.arange(BLOCKS)).astype(np.uint8)[:, None, None, None]
    worker.register_kv_caches({name: standins.Tensor(a) for name, a in zip(names, arrays)})
    return code, worker, arrays


def consumer():
    code, worker, arrays = start("kv_consumer")
    ask = code.PullReqMeta("d-1", "t-1", [[d for _, d in MOVED]], "producer", "")
    for whole in True, False:
        meta = worker._build_pull_metadata({"d-1": ask}, include_layout=whole)
        print(worker._encoder.encode(meta).hex(), flush=True)
    sys.stdin.readline()
    moved = {d: s for s, d in MOVED}
    bad = []
    for layer, array in enumerate(arrays):
        for block in range(BLOCKS):
            want = (100 + layer + moved[block]) if block in moved else layer + block
            if not (array[block] == want % 256).all():
                bad.append((layer, block))
    print(json.dumps(bad), flush=True)
    sys.stdin.readline()
    worker.unregister_kv_caches()
    worker.restore_kv_caches()
    print("done", flush=True)


def producer():
    code, worker, _ = start("kv_producer")
    peer = subprocess.Popen(
        [sys.executable, __file__, "consumer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(word):
        peer.stdin.write(word + "\n")
        peer.stdin.flush()
        return peer.stdout.readline()

    requests = [bytes.fromhex(peer.stdout.readline()) for _ in range(2)]
    answers = []

    class Sock:
        async def send_multipart(self, parts):
            answers.append(worker._xfer_resp_decoder.decode(parts[1]))

    def serve(request):
        """What the connector does with a consumer's request, from its decoding to its answer."""
        ready = asyncio.Event()
        worker.reqs_need_send["t-1"] = code.SendBlockMeta("p-1", "t-1", [[s for s, _ in MOVED]], ready)
        ready.set()
        meta = worker._xfer_meta_decoder.decode(request)
        send = worker.send_kv_to_decode(b"consumer", Sock(), meta)
        asyncio.run_coroutine_threadsafe(send, worker.sender_loop).result(60)
        return answers.pop()

    finish = code.MooncakeXferResponseStatus.FINISH
    for what, request in zip(("with its layout", "with a layout known before"), requests):
        answer = serve(request)
        assert answer.status == finish and answer.ok_reqs == ["d-1"], answer
        print("  a request %s: %d blocks of %d layers sent" % (what, len(MOVED), LAYERS))
    bad = json.loads(ask("check"))
    assert not bad, "wrong blocks: %s" % bad
    stats = worker.xfer_stats.data
    assert stats["bytes_transferred"] == [len(MOVED) * LAYERS * PAGE] * 2, stats
    assert worker.finished_sending_reqs == {"p-1"}
    print("  bytes equal, blocks beside them untouched; descriptors of a batch: %s" % stats["num_descriptors"])
    assert ask("unregister") == "done\n"
    peer.kill()
    peer.wait()
    answer = serve(requests[0])
    assert answer.err_reqs == ["d-1"] and "returned -1" in answer.err_msg, answer
    print("  a dead consumer: %s" % answer.err_msg)
    standins.report()


{"consumer": consumer, "producer": producer}[sys.argv[1]]()
sys.stdout.flush()
os._exit(0)
