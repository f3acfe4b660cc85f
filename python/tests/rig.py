"""What the tests share: memory, a peer process, and a process to look into."""

import ctypes
import os
import subprocess
import sys

from railhop import TransferEngine

HERE = os.path.dirname(os.path.abspath(__file__))


def engine():
    e = TransferEngine()
    assert e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0, e.last_error()
    return e


class Memory:
    """Bytes at an address."""

    def __init__(self, size):
        self.size = size
        self.array = (ctypes.c_char * size)()
        self.addr = ctypes.addressof(self.array)
        self.view = memoryview(self.array).cast("B")

    def fill(self, seed):
        self.view[:] = bytes((i * 7 + seed) & 0xFF for i in range(self.size))


class Peer:
    """A process with an engine and registered memory, which runs Python that it is sent."""

    def __init__(self, size, env=None):
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "peer.py"), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, **(env or {})),
        )
        self.session, addr = self.process.stdout.readline().split()
        self.addr = int(addr)

    def do(self, expression):
        """The value of an expression over engine, memory and the modules of peer.py."""
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return eval(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def run(code, *args, env=None, stdin=None):
    """Runs Python in a process of its own, and returns what has become of it."""
    prelude = "import os, signal, sys, time\nsys.path.insert(0, %r)\n" % HERE
    return subprocess.run(
        [sys.executable, "-c", prelude + code, *args],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ, **(env or {})),
        stdin=stdin,
    )
