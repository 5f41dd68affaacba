"""A second peer, OpenVINO GenAI's ContinuousBatchingPipeline: installed with pip in a venv outside
the tree, its models exported from the folder that Octavo reads. In that venv this file is also the
process that runs one model and answers commands, a line each:

    start N LENGTH    prefills N sequences of LENGTH random tokens; answers tokens/s
    steps N           all sequences decode N tokens; answers the median step's tokens/s
    stop              all sequences end"""

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

PACKAGES = ("openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0")
# 16-bit weights are stored as f16; the plugin computes in bf16 where the CPU has it.
FORMATS = {
    "bf16": ("--weight-format", "fp16"),
    "int8": ("--weight-format", "int8"),
    "int4": ("--weight-format", "int4", "--sym", "--group-size", "64", "--ratio", "1.0"),
}
BATCHED_TOKENS = 512  # tokens in a step, as Octavo's --prefill-chunk


class OpenVino:
    """The installed peer. run(kind, threads) returns a Pipeline."""

    def __init__(self, work):
        self.work = os.path.abspath(work)
        self.folder = os.path.join(self.work, "openvino")
        self.log = os.path.join(self.work, "openvino.log")

    def _tool(self, name):
        return os.path.join(self.folder, "venv/bin", name)

    def make(self):
        """Installs the packages that are missing in these versions."""
        stamp = os.path.join(self.folder, "octavo-peer.json")
        if os.path.exists(stamp):
            with open(stamp, encoding="utf-8") as f:
                if json.load(f) == list(PACKAGES):
                    return
            shutil.rmtree(self.folder)
        print(f"peer: installing {', '.join(PACKAGES)} (minutes; {self.log})", flush=True)
        os.makedirs(self.folder, exist_ok=True)
        call(self.log, sys.executable, "-m", "venv", os.path.join(self.folder, "venv"))
        call(self.log, self._tool("pip"), "install", "--quiet", *PACKAGES)
        with open(stamp, "w", encoding="utf-8") as f:
            json.dump(PACKAGES, f)

    def weights(self, kind):
        """Returns an exported model's folder; exports the model if it is missing."""
        path = os.path.join(self.folder, f"1.1b-{kind}")
        if not os.path.exists(path):
            print(f"peer: exporting {path} (minutes; {self.log})", flush=True)
            shutil.rmtree(path + ".part", ignore_errors=True)
            call(self.log, self._tool("optimum-cli"), "export", "openvino", "--model", peer_models.folder(self.work),
                 "--task", "text-generation-with-past", *FORMATS[kind], path + ".part")
            os.rename(path + ".part", path)
        return path

    def describe(self):
        """Names the peer for the results."""
        return f"OpenVINO GenAI ({', '.join(PACKAGES)}), its own 8-bit cache"

    def run(self, kind, threads):
        return Pipeline([self._tool("python"), os.path.abspath(__file__), self.weights(kind), str(threads)], self.log)


class Pipeline:
    """A process with one model, warm; `with` ends it."""

    def __init__(self, command, log):
        self.log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                            text=True)
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
            raise Failed(f"OpenVINO ended; see {self.log}")
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
    """The sequences that the pipeline runs. It drops a request whose handle is not kept."""

    def __init__(self, folder, threads):
        import openvino_genai as genai
        config = genai.SchedulerConfig()
        config.max_num_batched_tokens, config.max_num_seqs = BATCHED_TOKENS, 64
        config.enable_prefix_caching = False
        config.cache_size = 1  # GB
        self.pipeline = genai.ContinuousBatchingPipeline(folder, config, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.generation = genai.GenerationConfig()
        self.generation.max_new_tokens = 1 << 20
        self.generation.ignore_eos = True
        self.random, self.started, self.handles = random.Random(1), 0, []

    def start(self, n, length):
        import numpy
        import openvino
        for _ in range(n):
            tokens = [self.random.randrange(peer_models.FIRST_WORD, peer_models.VOCAB) for _ in range(length)]
            prompt = openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))
            self.handles.append(self.pipeline.add_request(self.started, prompt, self.generation))
            self.started += 1
        begin = time.perf_counter()
        while not all(handle.can_read() for handle in self.handles):
            self.pipeline.step()
        return n * length / (time.perf_counter() - begin)

    def steps(self, n):
        times = []
        for _ in range(n):
            begin = time.perf_counter()
            self.pipeline.step()
            times.append(time.perf_counter() - begin)
        return len(self.handles) / statistics.median(times)

    def stop(self):
        for handle in self.handles:
            handle.cancel()
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        self.handles = []
        return 0


def main():
    sequences = Sequences(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        name, *numbers = line.split()
        print(getattr(sequences, name)(*map(int, numbers)), flush=True)


if __name__ == "__main__":
    main()
