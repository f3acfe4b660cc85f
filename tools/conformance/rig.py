"""What a row works with: memory, engines, other processes, and words for what it sees."""

import ctypes
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20


class Memory:
    """Bytes of this process that have an address."""

    def __init__(self, size):
        self._map = mmap.mmap(-1, size)
        self.size = size
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.view = memoryview(self._map)

    def fill(self, seed, at=0, n=None):
        n = self.size - at if n is None else n
        self.view[at : at + n] = pattern(seed, n)

    def holds(self, seed, at=0, n=None):
        n = self.size - at if n is None else n
        return self.view[at : at + n] == pattern(seed, n)

    def clear(self):
        self.view[:] = bytes(self.size)


def pattern(seed, n):
    """Bytes that differ by seed and by place, none of them zero."""
    unit = bytes((seed * 37 + i * 11) % 255 + 1 for i in range(255))
    return (unit * (n // len(unit) + 1))[:n]


def listening_ports(pid):
    """Ports on which a process listens."""
    inodes = set()
    for fd in os.listdir("/proc/%d/fd" % pid):
        try:
            link = os.readlink("/proc/%d/fd/%s" % (pid, fd))
        except OSError:
            continue
        if link.startswith("socket:["):
            inodes.add(link[8:-1])
    ports = set()
    for table in "tcp", "tcp6":
        with open("/proc/net/" + table) as lines:
            next(lines)
            for line in lines:
                column = line.split()
                if column[3] == "0A" and column[9] in inodes:
                    ports.add(int(column[1].rsplit(":", 1)[1], 16))
    return ports


def state(task):
    with open(os.path.join(task, "stat")) as f:
        return f.read().rsplit(") ", 1)[1][0]


# The interpreter of the other process, and its PYTHONPATH, if it is another one.
PEER, PEER_PATH = "CONFORMANCE_PEER", "CONFORMANCE_PEER_PATH"


def peer_environ():
    return {**os.environ, "PYTHONPATH": os.environ[PEER_PATH]} if PEER in os.environ else os.environ


class Peer:
    """Another process with an engine, told by lines of JSON what to do."""

    def __init__(self, host="127.0.0.1", metadata="P2PHANDSHAKE", env=None):
        self.process = subprocess.Popen(
            [os.environ.get(PEER, sys.executable), HERE, "--serve", host, metadata],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**peer_environ(), **(env or {})},
        )
        hello = self._answer()
        self.session, self.addr = hello["session"], hello["addr"]
        self.host, self.port = host, hello["port"]

    def _answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("the peer has ended: %s" % ended(self.process.wait()))

    def do(self, verb, *args):
        self.process.stdin.write(json.dumps([verb, *args]) + "\n")
        self.process.stdin.flush()
        return self._answer()["result"]

    def call(self, method, *args):
        """Calls a method of its engine."""
        return self.do("call", method, *args)

    def holds(self, seed, at, n):
        return self.do("holds", seed, at, n)

    def freeze(self):
        """Stops it, and waits until each of its threads has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = "/proc/%d/task" % self.process.pid
        while any(state(os.path.join(tasks, tid)) != "T" for tid in os.listdir(tasks)):
            time.sleep(0.001)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ports(self):
        return listening_ports(self.process.pid)


def serve(host, metadata):
    """The peer's side."""
    engine = new_engine()
    rc = engine.initialize(host, metadata, "tcp", "")
    port = engine.get_rpc_port() if rc == 0 else 0
    memories = [Memory(2 * MIB)]
    memory = memories[0]
    if rc == 0:
        rc = engine.register_memory(memory.addr, MIB)
    if rc != 0:
        sys.exit("peer: cannot start: %d" % rc)
    name = "%s:%d" % (host, port) if metadata == "P2PHANDSHAKE" else host
    print(json.dumps({"session": name, "addr": memory.addr, "port": port}), flush=True)

    def register():
        memories.append(Memory(MIB))
        return engine.register_memory(memories[-1].addr, MIB), memories[-1].addr

    verbs = {
        "call": lambda method, *args: getattr(engine, method)(*args),
        "fill": lambda seed, at, n: memory.fill(seed, at, n),
        "holds": lambda seed, at, n: memory.holds(seed, at, n),
        "zeros": lambda at, n: not any(memory.view[at : at + n]),
        "register": register,
        "new_holds": lambda seed, n: memories[-1].holds(seed, 0, n),
        "notifies": lambda: [[n.name, n.msg] for n in engine.get_notifies()],
    }
    for line in sys.stdin:
        verb, *args = json.loads(line)
        print(json.dumps({"result": verbs[verb](*args)}), flush=True)
    os._exit(0)


def module():
    import mooncake.engine

    return mooncake.engine


def new_engine():
    return module().TransferEngine()


class Rig:
    """Engine A with its memory, and engine B in another process, as soon as they are asked for."""

    def __init__(self):
        self._engine = self._memory = self._peer = None
        self.peers = []

    @property
    def engine(self):
        if self._engine is None:
            self._engine = self.start()
        return self._engine

    def start(self, host="127.0.0.1", metadata="P2PHANDSHAKE", protocol="tcp", device=""):
        engine = new_engine()
        rc = engine.initialize(host, metadata, protocol, device)
        if rc != 0:
            raise RuntimeError("initialize: %d" % rc)
        return engine

    @property
    def memory(self):
        """A's memory, registered."""
        if self._memory is None:
            self._memory = Memory(MIB)
            rc = self.engine.register_memory(self._memory.addr, MIB)
            if rc != 0:
                raise RuntimeError("register_memory: %d" % rc)
        return self._memory

    @property
    def a(self):
        return self.memory.addr

    @property
    def peer(self):
        if self._peer is None:
            self._peer = self.another()
        return self._peer

    def another(self, **settings):
        peer = Peer(**settings)
        self.peers.append(peer)
        return peer

    @property
    def session(self):
        return self.peer.session

    @property
    def rb(self):
        return self.peer.addr

    def write(self, n=100, at=0, seed=1, peer=None, engine=None):
        """Writes n bytes to the peer and says the code, and whether they are there."""
        peer = peer or self.peer
        self.memory.fill(seed, at, n)
        rc = (engine or self.engine).transfer_sync_write(peer.session, self.a + at, peer.addr + at, n)
        return [rc, peer.holds(seed, at, n)]

    def close(self):
        for peer in self.peers:
            if peer.process.poll() is None:
                peer.process.kill()


def raised(call, *args, **kwargs):
    """The name of the exception that a call ends with, or what it returns."""
    try:
        return call(*args, **kwargs)
    except Exception as e:
        return type(e).__name__


def ended(code):
    """Words for how a process has ended."""
    return signal.Signals(-code).name if code < 0 else "exit %d" % code


def in_fork(call):
    """What a call returns in a forked child, or how the child dies of it."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(w, json.dumps(raised(call)).encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as out:
        said = out.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(said) if code == 0 else ended(code)


def timed(call, *args):
    start = time.monotonic()
    result = call(*args)
    return result, time.monotonic() - start


def within(seconds, limit):
    """A word for a duration that had a limit."""
    return "in time" if seconds <= limit else "after %.1f s" % seconds


def about(seconds, expected):
    """A word for a duration that should be about as long as expected, on a busy machine."""
    if expected * 0.9 - 0.1 <= seconds <= expected * 1.2 + 1:
        return "after %g s" % expected
    return "after %.2f s" % seconds


def dead_session():
    """A session at which nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % s.getsockname()[1]


def accepts(port):
    """Whether somebody listens at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
        return True
    except OSError:
        return False


class MetadataServer:
    """Mooncake's HTTP metadata service, in another process."""

    def __init__(self, rig):
        self.process = subprocess.Popen(
            [sys.executable, HERE, "--metadata-server"], stdout=subprocess.PIPE, text=True
        )
        rig.peers.append(self)
        self.url = self.process.stdout.readline().strip()


def serve_metadata():
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from urllib.parse import parse_qs, urlparse

    values = {}

    class Handler(BaseHTTPRequestHandler):
        def reply(self, code, body=b""):
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def key(self):
            return parse_qs(urlparse(self.path).query)["key"][0]

        def do_GET(self):
            value = values.get(self.key())
            self.reply(404, b"metadata not found") if value is None else self.reply(200, value)

        def do_PUT(self):
            key, value = self.key(), self.rfile.read(int(self.headers["Content-Length"]))
            if "rpc_meta" in key and key in values:
                return self.reply(400, b"Duplicate rpc_meta key not allowed")
            values[key] = value
            self.reply(200, b"metadata updated")

        def do_DELETE(self):
            self.reply(200 if values.pop(self.key(), None) is not None else 404)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print("http://127.0.0.1:%d/metadata" % server.server_address[1], flush=True)
    server.serve_forever()


class Counter:
    """A thread that counts as long as it gets the interpreter."""

    def __init__(self):
        self.count, self._stop = 0, False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._stop:
            self.count += 1
            time.sleep(0)

    def stop(self):
        self._stop = True
        self._thread.join()


def lets_others_run(call, tries):
    """Whether a call lets another Python thread run, seen in some of several tries.

    The interpreter is told not to switch threads by itself, so that only a call that
    gives it away lets the other thread count.
    """
    interval = sys.getswitchinterval()
    counter = Counter()
    while counter.count == 0:
        time.sleep(0.001)
    sys.setswitchinterval(1000)
    try:
        time.sleep(0.02)  # the other thread's next wait is by the new interval
        before = counter.count
        for _ in range(tries):
            call()
            if counter.count > before:
                return True
        return False
    finally:
        sys.setswitchinterval(interval)
        counter.stop()


def resident():
    """KiB of memory of this process that are resident and its own."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
