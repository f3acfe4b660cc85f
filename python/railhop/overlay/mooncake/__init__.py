"""Mooncake's public package, whose engine is railhop's.

This folder comes first on the path; what it does not have, such as mooncake.store, is
Mooncake's own, where that is installed.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)

try:
    from mooncake.buffer_pool import BufferPool, RegisteredBufferPool
except ImportError:
    __all__ = []
else:
    __all__ = ["BufferPool", "RegisteredBufferPool"]
