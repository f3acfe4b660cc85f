from typing import Any, ClassVar, Optional, Protocol, SupportsIndex, Union, overload

class _Indices(Protocol):
    """A sequence of integers: a list, tuple, range, array.array, memoryview, numpy array."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...

_Text = Union[str, bytes]

class TransferOpcode:
    Read: ClassVar[TransferOpcode]
    Write: ClassVar[TransferOpcode]
    READ: ClassVar[TransferOpcode]
    WRITE: ClassVar[TransferOpcode]
    __members__: ClassVar[dict[str, TransferOpcode]]
    def __init__(self, value: SupportsIndex) -> None: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...
    def __lt__(self, other: TransferOpcode) -> bool: ...
    def __le__(self, other: TransferOpcode) -> bool: ...
    def __gt__(self, other: TransferOpcode) -> bool: ...
    def __ge__(self, other: TransferOpcode) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

Read: TransferOpcode
Write: TransferOpcode
READ: TransferOpcode
WRITE: TransferOpcode

class TransferNotify:
    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, name: _Text, msg: _Text) -> None: ...
    @property
    def name(self) -> str: ...
    @name.setter
    def name(self, value: _Text) -> None: ...
    @property
    def msg(self) -> str: ...
    @msg.setter
    def msg(self, value: _Text) -> None: ...

class TransferEngine:
    TransferOpcode: ClassVar[type[TransferOpcode]]
    def __init__(self) -> None: ...
    def initialize(
        self, local_hostname: _Text, metadata_server: _Text, protocol: _Text, device_name: Optional[_Text], /
    ) -> int: ...
    def initialize_ext(
        self,
        local_hostname: _Text,
        metadata_server: _Text,
        protocol: _Text,
        device_name: Optional[_Text],
        metadata_type: _Text,
        /,
    ) -> int: ...
    def get_rpc_port(self) -> int: ...
    def get_engine(self) -> None: ...
    def get_engine_ptr(self) -> int: ...
    def register_memory(self, buffer_addr: SupportsIndex, capacity: SupportsIndex, location: _Text = "*") -> int: ...
    def unregister_memory(self, buffer_addr: SupportsIndex, /) -> int: ...
    def batch_register_memory(
        self, buffer_addresses: _Indices, capacities: _Indices, location: _Text = "*"
    ) -> int: ...
    def batch_unregister_memory(self, buffer_addresses: _Indices, /) -> int: ...
    def allocate_managed_buffer(self, length: SupportsIndex, /) -> int: ...
    def free_managed_buffer(self, addr: SupportsIndex, length: SupportsIndex, /) -> int: ...
    def write_bytes_to_buffer(
        self, addr: SupportsIndex, data: Union[str, bytes, bytearray], length: SupportsIndex, /
    ) -> int: ...
    def read_bytes_from_buffer(self, addr: SupportsIndex, length: SupportsIndex, /) -> bytes: ...
    def get_first_buffer_address(self, segment_name: _Text, /) -> int: ...
    def transfer_sync_write(
        self,
        target_hostname: _Text,
        buffer: SupportsIndex,
        peer_buffer_address: SupportsIndex,
        length: SupportsIndex,
        transport_hint: _Text = "",
    ) -> int: ...
    def transfer_sync_read(
        self,
        target_hostname: _Text,
        buffer: SupportsIndex,
        peer_buffer_address: SupportsIndex,
        length: SupportsIndex,
        transport_hint: _Text = "",
    ) -> int: ...
    def transfer_sync(
        self,
        target_hostname: _Text,
        buffer: SupportsIndex,
        peer_buffer_address: SupportsIndex,
        length: SupportsIndex,
        opcode: TransferOpcode,
        notify: Optional[TransferNotify] = None,
        transport_hint: _Text = "",
    ) -> int: ...
    def batch_transfer_sync_write(
        self,
        target_hostname: _Text,
        buffers: _Indices,
        peer_buffer_addresses: _Indices,
        lengths: _Indices,
        transport_hint: _Text = "",
    ) -> int: ...
    def batch_transfer_sync_read(
        self,
        target_hostname: _Text,
        buffers: _Indices,
        peer_buffer_addresses: _Indices,
        lengths: _Indices,
        transport_hint: _Text = "",
    ) -> int: ...
    def batch_transfer_sync(
        self,
        target_hostname: _Text,
        buffers: _Indices,
        peer_buffer_addresses: _Indices,
        lengths: _Indices,
        opcode: TransferOpcode,
        notify: Optional[TransferNotify] = None,
        transport_hint: _Text = "",
    ) -> int: ...
    def batch_transfer_async_write(
        self,
        target_hostname: _Text,
        buffers: _Indices,
        peer_buffer_addresses: _Indices,
        lengths: _Indices,
        transport_hint: _Text = "",
    ) -> int: ...
    def batch_transfer_async_read(
        self,
        target_hostname: _Text,
        buffers: _Indices,
        peer_buffer_addresses: _Indices,
        lengths: _Indices,
        transport_hint: _Text = "",
    ) -> int: ...
    def batch_transfer_async(
        self,
        target_hostname: _Text,
        buffers: _Indices,
        peer_buffer_addresses: _Indices,
        lengths: _Indices,
        opcode: TransferOpcode,
        transport_hint: _Text = "",
    ) -> int: ...
    def get_batch_transfer_status(self, batch_ids: _Indices, /) -> int: ...
    def transfer_submit_write(
        self,
        target_hostname: _Text,
        buffer: SupportsIndex,
        peer_buffer_address: SupportsIndex,
        length: SupportsIndex,
        transport_hint: _Text = "",
    ) -> int: ...
    def transfer_check_status(self, batch_id: SupportsIndex, /) -> int: ...
    def transfer_write_on_cuda(
        self,
        target_hostname: _Text,
        buffer: SupportsIndex,
        peer_buffer_address: SupportsIndex,
        length: SupportsIndex,
        stream_ptr: SupportsIndex = 0,
        transport_hint: _Text = "",
    ) -> None: ...
    def transfer_read_on_cuda(
        self,
        target_hostname: _Text,
        buffer: SupportsIndex,
        peer_buffer_address: SupportsIndex,
        length: SupportsIndex,
        stream_ptr: SupportsIndex = 0,
        transport_hint: _Text = "",
    ) -> None: ...
    def batch_transfer_write_on_cuda(
        self,
        target_hostname: _Text,
        buffers: _Indices,
        peer_buffer_addresses: _Indices,
        lengths: _Indices,
        stream_ptr: SupportsIndex = 0,
        transport_hint: _Text = "",
    ) -> None: ...
    def batch_transfer_read_on_cuda(
        self,
        target_hostname: _Text,
        buffers: _Indices,
        peer_buffer_addresses: _Indices,
        lengths: _Indices,
        stream_ptr: SupportsIndex = 0,
        transport_hint: _Text = "",
    ) -> None: ...
    def get_notifies(self) -> list[TransferNotify]: ...
    def send_probe(self, peer_server_name: _Text) -> int: ...
    def get_local_topology(self, device_name: Optional[_Text] = None) -> str: ...
    def warmup_efa_segment(self, segment_name: _Text) -> int: ...
    def last_error(self) -> str: ...
    def stats(self) -> dict[str, Any]: ...

class InnerTransferEngine: ...

class SharedSegment:
    @staticmethod
    def create(*args: Any, **kwargs: Any) -> Any: ...
    @staticmethod
    def supported(*args: Any, **kwargs: Any) -> bool: ...

class RpcInterface: ...

CoroRPCInterface = RpcInterface

class ReceivedData: ...
class ReceivedTensor: ...

def create_rpc_client(*args: Any, **kwargs: Any) -> Any: ...
def create_rpc_server(*args: Any, **kwargs: Any) -> Any: ...

SUPPORT_CUDA: bool
SUPPORT_EFA: bool
SUPPORT_HIP: bool
SUPPORT_INTRA_NVLINK: bool
SUPPORT_MNNVL: bool
SUPPORT_MUSA: bool
