"""railhop's transfer engine, with the methods of mooncake.engine.

Importing it is cheap: the engine proper, libtransfer_engine.so beside this file, is
loaded when the first engine is initialized.
"""

from railhop._engine import Read, TransferEngine, TransferNotify, TransferOpcode, Write

__all__ = ["Read", "TransferEngine", "TransferNotify", "TransferOpcode", "Write", "get_include", "get_library"]


def get_include():
    """The folder of transfer_engine_c.h."""
    import os

    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")


def get_library():
    """The path of libtransfer_engine.so, for C callers."""
    import os

    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "libtransfer_engine.so")
