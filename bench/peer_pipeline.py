"""A peer that pip installs in a venv outside the tree, and the process in that venv that runs one
model and answers commands, a line each:

    start N LENGTH    prefills N sequences of LENGTH random tokens; answers tokens/s
    steps N           all sequences decode N tokens; answers the median step's tokens/s
    stop              all sequences end
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

import peer_models
from peer_build import call
from serve_server import Failed

BATCHED_TOKENS = 512  # tokens in a step, as Octavo's --prefill-chunk


class Installed:
    """An installed peer. run(kind, threads) returns a Pipeline. A peer has its name, its packages,
    the formats that it runs, its script, whether it fills a long cache without a prefill, and
    weights(kind)."""

    name, packages, formats, script, fills = "", (), (), "", False

    def __init__(self, work):
        self.work = os.path.abspath(work)
        self.folder = os.path.join(self.work, self.name)
        self.log = os.path.join(self.work, f"{self.name}.log")

    def tool(self, name):
        return os.path.join(self.folder, "venv/bin", name)

    def make(self):
        """Installs the packages that are missing in these versions."""
        stamp = os.path.join(self.folder, "octavo-peer.json")
        if os.path.exists(stamp):
            with open(stamp, encoding="utf-8") as f:
                if json.load(f) == list(self.packages):
                    return
            shutil.rmtree(self.folder)
        print(f"peer: installing {', '.join(self.packages)} (minutes; {self.log})", flush=True)
        os.makedirs(self.folder, exist_ok=True)
        call(self.log, sys.executable, "-m", "venv", os.path.join(self.folder, "venv"))
        self.install()
        with open(stamp, "w", encoding="utf-8") as f:
            json.dump(self.packages, f)

    def install(self):
        self.pip(*self.packages)

    def pip(self, *words):
        call(self.log, self.tool("pip"), "install", "--quiet", *words)

    def environment(self, _kind, _threads):
        """Variables that the process needs."""
        return {}

    def weights(self, kind):
        """Returns a folder with the model in that format; makes it if it is missing."""
        raise NotImplementedError

    def command(self, kind, threads):
        return [self.tool("python"), self.script, self.weights(kind), str(threads)]

    def run(self, kind, threads):
        return Pipeline(self, self.command(kind, threads), {**os.environ, **self.environment(kind, threads)})

    def run_deep(self, kind, threads):
        """Returns a Pipeline for one long sequence. Where the peer can, its start fills the
        cache."""
        return self.run(kind, threads)


class Pipeline:
    """A process with one model, warm; `with` ends it."""

    def __init__(self, peer, command, environment):
        self.peer = peer
        with open(peer.log, "ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                            env=environment, text=True)
        try:
            self.start(1, BATCHED_TOKENS)
            self.steps(2)
            self.stop()
        except BaseException:
            self.__exit__()
            raise

    def _ask(self, *words):
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self.process.stdout.readline()
        if not answer:
            raise Failed(f"{self.peer.name} ended; see {self.peer.log}")
        return float(answer)

    def start(self, n, length):
        return self._ask("start", n, length)

    def steps(self, n):
        return self._ask("steps", n)

    def stop(self):
        self._ask("stop")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


# ---- the process ---------------------------------------------------------------------------------


class Sequences:
    """The sequences that a process runs. A peer has add(number, tokens), which returns a sequence's
    handle; step(); begun(), whether each sequence has a token; and end(), which ends all."""

    def __init__(self):
        self.random, self.started, self.handles = random.Random(1), 0, []

    def start(self, n, length):
        for _ in range(n):
            tokens = [self.random.randrange(peer_models.FIRST_WORD, peer_models.VOCAB) for _ in range(length)]
            self.handles.append(self.add(self.started, tokens))
            self.started += 1
        begin = time.perf_counter()
        while not self.begun():
            self.step()
        return n * length / (time.perf_counter() - begin)

    def steps(self, n):
        times = []
        for _ in range(n):
            begin = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - begin)
        return len(self.handles) / statistics.median(times)

    def stop(self):
        self.end()
        self.handles = []
        return 0


def serve(make):
    """Answers commands with the Sequences that make(folder, threads) returns. What the peer itself
    writes to stdout goes to the log."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        sequences = make(sys.argv[1], int(sys.argv[2]))
        for line in sys.stdin:
            name, *numbers = line.split()
            print(getattr(sequences, name)(*map(int, numbers)), file=answers, flush=True)
