"""The C library, by ctypes."""

import ctypes
import os
import time
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int32, c_size_t, c_uint64, c_void_p

INVALID_BATCH = 2**64 - 1
COMPLETED, TIMEOUT, FAILED = 4, 5, 6


class Request(Structure):
    _fields_ = [
        ("opcode", c_int),
        ("source", c_void_p),
        ("target_id", c_int32),
        ("target_offset", c_uint64),
        ("length", c_uint64),
    ]


class Status(Structure):
    _fields_ = [("status", c_int), ("transferred_bytes", c_uint64)]


class Notify(Structure):
    _fields_ = [("name", c_char_p), ("msg", c_char_p)]


class NicLoad(Structure):
    _fields_ = [
        ("device_name", ctypes.c_char * 64),
        ("inflight_bytes", c_uint64),
        ("ewma_bandwidth_bps", c_double),
    ]


PROTOTYPES = {
    "createTransferEngine": (c_void_p, c_char_p, c_char_p, c_char_p, c_uint64, c_int),
    "destroyTransferEngine": (None, c_void_p),
    "discoverTopology": (c_int, c_void_p),
    "getLocalIpAndPort": (c_int, c_void_p, c_char_p, c_size_t),
    "installTransport": (c_void_p, c_void_p, c_char_p, c_void_p),
    "uninstallTransport": (c_int, c_void_p, c_char_p),
    "openSegment": (c_int32, c_void_p, c_char_p),
    "openSegmentNoCache": (c_int32, c_void_p, c_char_p),
    "closeSegment": (c_int, c_void_p, c_int32),
    "removeLocalSegment": (c_int, c_void_p, c_char_p),
    "warmupEfaSegment": (c_int, c_void_p, c_char_p),
    "syncSegmentCache": (c_int, c_void_p),
    "registerLocalMemory": (c_int, c_void_p, c_void_p, c_size_t, c_char_p, c_int),
    "unregisterLocalMemory": (c_int, c_void_p, c_void_p),
    "allocateBatchID": (c_uint64, c_void_p, c_size_t),
    "submitTransfer": (c_int, c_void_p, c_uint64, POINTER(Request), c_size_t),
    "submitTransferWithNotify": (c_int, c_void_p, c_uint64, POINTER(Request), c_size_t, Notify),
    "getTransferStatus": (c_int, c_void_p, c_uint64, c_size_t, POINTER(Status)),
    "freeBatchID": (c_int, c_void_p, c_uint64),
    "getNotifsFromEngine": (POINTER(Notify), c_void_p, POINTER(c_int)),
    "freeNotifsMsgBuf": (c_int, POINTER(Notify), c_int),
    "genNotifyInEngine": (c_int, c_void_p, c_uint64, Notify),
    "getNicLoadStats": (c_int, c_void_p, POINTER(NicLoad), POINTER(c_int)),
    "showLinks": (c_int, c_void_p, c_char_p, c_size_t, c_int),
}


class Engine:
    """An engine of the C library; its functions are methods, the handle left out."""

    def __init__(self, path, auto_discover=1):
        self.lib = ctypes.CDLL(path)
        create = self.function("createTransferEngine")
        self.handle = create(b"P2PHANDSHAKE", b"127.0.0.1", b"", 0, auto_discover)
        if not self.handle:
            raise RuntimeError("createTransferEngine: NULL")

    def function(self, name):
        function = getattr(self.lib, name)
        result, *arguments = PROTOTYPES[name]
        function.restype, function.argtypes = result, arguments
        return function

    def __getattr__(self, name):
        function = self.function(name)
        return lambda *args: function(self.handle, *args)

    def request(self, source, target, remote, length, opcode=1):
        return Request(opcode, source, target, remote, length)

    def submit(self, batch, *requests):
        return self.submitTransfer(batch, (Request * max(1, len(requests)))(*requests), len(requests))

    def finish(self, batch, task=0):
        """Asks for a task's status until it has ended: code, status, bytes."""
        status = Status(-1, 0)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            rc = self.getTransferStatus(batch, task, byref(status))
            if rc != 0 or status.status >= COMPLETED:
                break
        return rc, status.status, status.transferred_bytes


def header(library):
    """The folder with transfer_engine_c.h that belongs to a library."""
    here = os.path.dirname(library)
    repository = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "cmd", "libtransfer_engine")
    for folder in here, os.path.join(here, "include"), os.path.join(here, "..", "include"), repository:
        if os.path.exists(os.path.join(folder, "transfer_engine_c.h")):
            return folder
    raise RuntimeError("no transfer_engine_c.h beside %s" % library)
