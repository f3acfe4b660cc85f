"""GPU memory and streams, through CUDA's driver, as far as the tests need them."""

import ctypes

_driver = None


def available():
    """Whether there is a driver with a GPU. The first call makes GPU 0's context current."""
    global _driver
    if _driver is None:
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return False
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
            return False
        _driver = driver
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _call("cuCtxSetCurrent", context)
    return True


def _call(name, *args):
    rc = getattr(_driver, name)(*args)
    assert rc == 0, "%s: %d" % (name, rc)


_u64, _size = ctypes.c_uint64, ctypes.c_size_t


def alloc(size):
    assert available()
    addr = _u64()
    _call("cuMemAlloc_v2", ctypes.byref(addr), _size(size))
    return addr.value


def free(addr):
    _call("cuMemFree_v2", _u64(addr))


def put(addr, data):
    _call("cuMemcpyHtoD_v2", _u64(addr), ctypes.c_char_p(data), _size(len(data)))
    _call("cuCtxSynchronize")


def get(addr, size):
    data = ctypes.create_string_buffer(size)
    _call("cuMemcpyDtoH_v2", data, _u64(addr), _size(size))
    return data.raw


def stream():
    """A stream that does not wait for the default one."""
    s = ctypes.c_void_p()
    _call("cuStreamCreate", ctypes.byref(s), 1)
    return s.value


def fill(addr, value, size, stream=0):
    """Has the stream fill memory; does not wait for it."""
    _call("cuMemsetD8Async", _u64(addr), ctypes.c_ubyte(value), _size(size), ctypes.c_void_p(stream))


def done(stream):
    return _driver.cuStreamQuery(ctypes.c_void_p(stream)) == 0


def synchronize(stream):
    _call("cuStreamSynchronize", ctypes.c_void_p(stream))
