"""Soaks ours and Mooncake's wheel in all pairs with ours in it: random transfers by TCP on
this machine, while one side of a pair lives and the other is killed, or leaves, and
comes back. Now and then the process that lives closes its engine and starts another.

    PYTHON tools/soak --ours PYTHON --overlay FOLDER --wheel PYTHON [--minutes N] [--seed N]

It ends with 1 if a byte is wrong, if a transfer fails though both sides live, or if the
side that lives, being ours, ends with more memory, threads or descriptors than it
had after a third of the time. What Mooncake's engine holds is printed.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# initiator, target, and which of them lives.
PAIRS = [
    ("ours", "ours", "initiator"),
    ("ours", "ours", "target"),
    ("ours", "wheel", "initiator"),
    ("ours", "wheel", "target"),
    ("wheel", "ours", "initiator"),
    ("wheel", "ours", "target"),
]
# How much more is still none: KiB of memory, threads, descriptors.
SLACK = {"KiB": 4 << 10, "threads": 4, "descriptors": 8}


class Node:
    """A process of node.py."""

    def __init__(self, command, env):
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, **env}
        )
        hello = self.answer()
        self.session, self.addr = hello["session"], hello["addr"]

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise EOFError("a node has ended: %d\n%s" % (self.process.wait(), self.last_words()))

    def last_words(self):
        self.log.seek(0)
        return "".join(self.log.readlines()[-12:])

    def do(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()["result"]

    def end(self, orderly):
        if orderly:
            self.process.stdin.close()
        else:
            self.process.kill()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError("a node does not leave")
        self.process.stdout.close()
        self.log.close()

    def holds(self):
        """What the process holds."""
        proc = "/proc/%d" % self.process.pid
        with open(proc + "/status") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return {
            "KiB": int(fields["RssAnon"].split()[0]),
            "threads": int(fields["Threads"]),
            "descriptors": len(os.listdir(proc + "/fd")),
        }


class Pair(threading.Thread):
    def __init__(self, index, options):
        super().__init__(daemon=True)
        self.index, self.options = index, options
        self.kinds = dict(zip(("initiator", "target"), PAIRS[index]))
        self.lives = PAIRS[index][2]
        self.rng = random.Random(options.seed * len(PAIRS) + index)
        self.until = time.monotonic() + options.minutes * 60
        self.samples, self.error = [], ""
        self.transfers = self.bytes = self.restarts = self.cut = 0
        self.starts = 0

    def name_of(self):
        words = ["%s %s%s" % (kind, role, "*" if role == self.lives else "") for role, kind in self.kinds.items()]
        return ", ".join(words)

    def start_node(self, role):
        kind = self.kinds[role]
        env = {"MC_FORCE_TCP": "1", "PYTHONPATH": self.options.overlay if kind == "ours" else ""}
        if self.kinds["initiator"] == "ours" and kind == "ours":
            # Few ports, so that a target often comes back by the name of an earlier one.
            first = 17100 + self.index * 20 + (10 if role == "target" else 0)
            env.update(MC_MIN_RPC_PORT=str(first), MC_MAX_RPC_PORT=str(first + 9))
        elif role != self.lives:
            # Mooncake's engine does not see that a name stands for another process by now.
            first = 17300 + self.index * 2400 + self.starts % 240 * 10
            env.update(MC_MIN_RPC_PORT=str(first), MC_MAX_RPC_PORT=str(first + 9))
        self.starts += 1
        return Node([getattr(self.options, kind), os.path.join(HERE, "node.py")], env)

    def run(self):
        nodes = {}
        try:
            for role in self.kinds:
                nodes[role] = self.start_node(role)
            while time.monotonic() < self.until:
                self.round(nodes)
                self.samples.append(nodes[self.lives].holds())
                self.restart(nodes)
                if self.rng.random() < 0.2:
                    living = nodes[self.lives]
                    living.session = living.do("renew")
        except Exception as e:
            self.error = self.error or "%s: %s" % (type(e).__name__, e)
        for node in nodes.values():
            node.process.kill()

    def round(self, nodes):
        """Fresh memory on both sides, transfers, the target's memory compared as a whole; in
        every other round the side that does not live is killed meanwhile."""
        initiator, target = nodes["initiator"], nodes["target"]
        if initiator.do("overwrite", target.session, target.addr) != 0:
            raise RuntimeError("the first write of a round fails")
        victim = nodes["target" if self.lives == "initiator" else "initiator"]
        killed = threading.Event()

        def kill():
            killed.set()
            victim.process.kill()

        after = self.rng.uniform(0, 1) if self.rng.random() < 0.5 else threading.TIMEOUT_MAX
        timer = threading.Timer(after, kill)
        timer.start()
        try:
            got = initiator.do("run", target.session, target.addr, self.rng.getrandbits(32), self.options.operations)
        except (EOFError, BrokenPipeError):
            if victim is initiator and killed.is_set():
                self.cut += 1
                return
            raise
        finally:
            timer.cancel()
            timer.join()
        self.transfers += got["transfers"]
        self.bytes += got["bytes"]
        if got["wrong"]:
            raise RuntimeError("wrong bytes: " + got["wrong"])
        if killed.is_set():
            self.cut += 1
            return
        if got["failed"]:
            raise RuntimeError("both sides live: " + got["failed"])
        if initiator.do("expected") != target.do("checksum"):
            raise RuntimeError("the target's memory is not what was written")

    def restart(self, nodes):
        role = "target" if self.lives == "initiator" else "initiator"
        nodes[role].end(orderly=self.rng.random() < 0.5)
        nodes[role] = self.start_node(role)
        self.restarts += 1
        if role == "target":
            nodes["initiator"].do("blank")

    def verdict(self):
        """A line for the table, and whether all is well."""
        if self.error or len(self.samples) < 6:
            return self.error or "too few rounds", False
        third = len(self.samples) // 3
        words, well = [], True
        for what, slack in SLACK.items():
            before = statistics.median(s[what] for s in self.samples[third : 2 * third])
            after = statistics.median(s[what] for s in self.samples[-third:])
            words.append("%d to %d %s" % (before, after, what))
            if after > before + slack and self.kinds[self.lives] == "ours":
                words[-1] += " (GROWS)"
                well = False
        return ", ".join(words), well


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ours", required=True)
    options.add_argument("--overlay", required=True)
    options.add_argument("--wheel", required=True)
    options.add_argument("--minutes", type=float, default=10)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--operations", type=int, default=100, help="of each thread in a round")
    options = options.parse_args()
    pairs = [Pair(i, options) for i in range(len(PAIRS))]
    for pair in pairs:
        pair.start()
    for pair in pairs:
        pair.join(options.minutes * 60 + 120)
        if pair.is_alive():
            pair.error = "does not come to an end"
    well = True
    for pair in pairs:
        words, good = pair.verdict()
        well = well and good
        print(
            "%-34s %7d transfers, %6d MiB, %3d restarts, %3d cut off: %s"
            % (pair.name_of(), pair.transfers, pair.bytes >> 20, pair.restarts, pair.cut, words)
        )
    print("* lives; seed %d: %s" % (options.seed, "well" if well else "NOT WELL"))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
