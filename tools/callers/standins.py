"""Stand-ins for what SGLang's and vLLM's files import. They move no bytes and call no engine."""

import dataclasses
import logging
import sys
import threading
import types

MADE = {}


def module(name, **names):
    """Puts a module with these names where import finds it, and its parents too."""
    parent, _, last = name.rpartition(".")
    if parent and parent not in sys.modules:
        module(parent)
    made = sys.modules.get(name) or types.ModuleType(name)
    made.__path__ = getattr(made, "__path__", [])
    vars(made).update(names)
    sys.modules[name] = made
    if parent:
        setattr(sys.modules[parent], last, made)
    MADE.setdefault(name, []).extend(names)
    return made


def words(*names):
    """Classes without content, for annotations and base classes."""
    return {name: type(name, (), {}) for name in names}


def report():
    for name, names in sorted(MADE.items()):
        if names:
            print("  stand-in %s: %s" % (name, ", ".join(sorted(names))))


class Setting:
    def __init__(self, value):
        self.get = lambda: value


def with_deadline(call, timeout_s, what):
    """Runs a call in a thread and waits for it, as SGLang's run_with_deadline does."""
    result = []
    thread = threading.Thread(target=lambda: result.append(call()), daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not result:
        raise TimeoutError(what)
    return result[0]


@dataclasses.dataclass
class NetworkAddress:
    host: str
    port: int

    def to_host_port_str(self):
        return ("[%s]:%d" if ":" in self.host else "%s:%d") % (self.host, self.port)


def sglang(protocol):
    settings = types.SimpleNamespace(
        ENABLE_ASCEND_TRANSFER_WITH_MOONCAKE=Setting(False),
        ASCEND_NPU_PHY_ID=Setting(-1),
        MOONCAKE_PROTOCOL=Setting(protocol),
        SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT=Setting(30),
        SGLANG_HICACHE_MOONCAKE_REUSE_TE=Setting(False),
    )
    module("sglang.srt.environ", envs=settings)
    module("sglang.srt.runtime_context", get_disagg=None, get_exec=None, get_memory=None)
    module("sglang.srt.utils.common", run_with_deadline=with_deadline)
    module(
        "sglang.srt.utils.network",
        NetworkAddress=NetworkAddress,
        get_free_port=None,
        get_local_ip_auto=lambda: "127.0.0.1",
    )


class Tensor:
    """A view of bytes with the geometry of a torch tensor."""

    def __init__(self, array, whole=None):
        self.array = array
        self.whole = array if whole is None else whole
        self.shape, self.ndim, self.nbytes = array.shape, array.ndim, array.nbytes

    def __getitem__(self, index):
        return Tensor(self.array[index], self.whole)

    def data_ptr(self):
        return self.array.ctypes.data

    def element_size(self):
        return self.array.itemsize

    def stride(self, axis=None):
        strides = [s // self.array.itemsize for s in self.array.strides]
        return strides if axis is None else strides[axis]

    def is_contiguous(self):
        return self.array.flags["C_CONTIGUOUS"]

    def untyped_storage(self):
        storage = types.SimpleNamespace()
        storage.data_ptr, storage.nbytes = lambda: self.whole.ctypes.data, lambda: self.whole.nbytes
        return storage


class AttentionSpec:
    def __init__(self, page_size_bytes):
        self.page_size_bytes = self.unpadded_page_size_bytes = page_size_bytes


class FullAttentionSpec(AttentionSpec):
    pass


class TransferTopology:
    """One tensor-parallel rank on each side."""

    local_replicates_kv_cache = False

    def __init__(self, total_num_kv_heads, **_):
        self.total_num_kv_heads = total_num_kv_heads

    def handshake_target_ranks(self, remote_tp_size):
        return [0]


@dataclasses.dataclass
class KVConnectorStats:
    data: dict = dataclasses.field(default_factory=dict)


class Backend:
    @staticmethod
    def get_name():
        return "stand-in"


class Socket:
    """A ZeroMQ socket to which nobody writes."""

    def bind_to_random_port(self, _):
        return 1

    async def recv_multipart(self):
        import asyncio

        await asyncio.Event().wait()

    def close(self):
        pass


class Context:
    def socket(self, _):
        return Socket()

    def term(self):
        pass


class Client:
    """An HTTP client whose bootstrap server agrees with everything."""

    def __init__(self, timeout):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def post(self, url, json):
        return types.SimpleNamespace(raise_for_status=lambda: None)


class Payload:
    def __init__(self, **fields):
        self.model_dump = lambda: fields


def vllm():
    """All that mooncake_connector.py and stats.py import of vLLM, torch, ZeroMQ and HTTP."""
    here = "vllm.distributed.kv_transfer.kv_connector"
    log = logging.getLogger("vllm")
    log.info_once = log.info
    nothing = lambda *_: None
    module("torch", Tensor=Tensor, accelerator=types.SimpleNamespace(current_device_index=lambda: 0))
    zmq = {"ROUTER": 6, "DEALER": 5, "ContextTerminated": type("ContextTerminated", (Exception,), {})}
    module("zmq", **zmq)
    module("zmq.asyncio", Context=Context, Socket=Socket)
    errors = {n: type(n, (Exception,), {}) for n in ("ConnectError", "TimeoutException", "HTTPStatusError")}
    module("huggingface_hub.utils", httpx=types.SimpleNamespace(AsyncClient=Client, **errors))
    module("vllm.envs", VLLM_MOONCAKE_CONNECTOR_TIMEOUT=5, VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=60)
    sys.modules["vllm.envs"].VLLM_MOONCAKE_BOOTSTRAP_PORT = 1
    module("vllm.config", **words("KVTransferConfig", "VllmConfig"))
    module(
        here + ".utils",
        EngineId=str,
        TransferTopology=TransferTopology,
        get_current_attn_backends=lambda _: [Backend],
        get_current_attn_backends_and_specs=lambda _, __, backends: (backends, [None]),
    )
    module(
        here + ".v1.base",
        **words(
            "KVConnectorBase_V1", "KVConnectorMetadata", "KVConnectorRole", "KVConnectorTransferResults", "SupportsHMA"
        ),
    )
    module(
        here + ".v1.metrics",
        KVConnectorStats=KVConnectorStats,
        **words("KVConnectorPromMetrics", "PromMetric", "PromMetricT"),
    )
    module(here + ".v1.mooncake.mooncake_utils", RegisterWorkerPayload=Payload, **words("MooncakeBootstrapServer"))
    module(
        "vllm.distributed.parallel_state",
        get_pp_group=lambda: types.SimpleNamespace(rank_in_group=0),
        get_tensor_model_parallel_rank=lambda: 0,
        get_tensor_model_parallel_world_size=lambda: 1,
    )
    module("vllm.forward_context", **words("ForwardContext"))
    module("vllm.logger", init_logger=lambda _: log)
    module("vllm.model_executor.models.utils", extract_layer_index=lambda name: int(name.split(".")[1]))
    module("vllm.platforms", current_platform=types.SimpleNamespace(set_device=nothing))
    module("vllm.utils.math_utils", cdiv=lambda a, b: -(-a // b))
    module(
        "vllm.utils.network_utils",
        get_ip=lambda: "127.0.0.1",
        make_zmq_path=lambda scheme, host, port: "%s://%s:%s" % (scheme, host, port),
        make_zmq_socket=nothing,
        split_host_port=lambda address: ("127.0.0.1", 1),
    )
    module("vllm.utils.torch_utils", is_non_overlapping_and_dense=lambda tensor: tensor.is_contiguous())
    module("vllm.v1.attention.backend", **words("AttentionMetadata"))
    module("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=0)
    module("vllm.v1.core.sched.output", **words("SchedulerOutput"))
    kinds = "CircularBufferSpec", "KVCacheSpec", "MambaSpec", "MLAAttentionSpec", "SlidingWindowMLASpec"
    module(
        "vllm.v1.kv_cache_interface",
        AttentionSpec=AttentionSpec,
        FullAttentionSpec=FullAttentionSpec,
        **words(*kinds, "SlidingWindowSpec"),
    )
    module("vllm.v1.metrics.cache_hit_source", CacheHitSource=types.SimpleNamespace(P2P="p2p"))
    module("vllm.v1.metrics.utils", create_metric_per_engine=nothing)
    module("vllm.v1.request", **words("RequestStatus"))
    module("vllm.v1.worker.utils", select_common_block_size=lambda size, *_: size)
