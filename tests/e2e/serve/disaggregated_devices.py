#!/usr/bin/env python3
"""Disaggregated prefill between servers of which one or both have a GPU, over kernels that run on
the CPU (tests/simt): the answers are those of one server, the bytes those of the kept pages.
usage: disaggregated_devices.py OCTAVO FOLDER [unittest arguments]; FOLDER has the emulated plugin
and driver"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness
from disaggregated import FLAGS, Pair, agreed, body, drawn, headers
from harness import MODEL, PAGE, PATIENT, tokens

PROMPT, ANSWER = 150, 5
# The pool is small because emulated memory is zeroed byte by byte.
POOL = ["--model", MODEL, "--kv-memory", "4M", "--swap-memory", "0"]
KEPT = {"method": "chunkkv", "ratio": 0.2, "window": 16}
GPU, CPU = ["--device", "cuda"], ["--device", "cpu"]
RANKS = ["--tp", "2", "--workers", "threads", *PATIENT]
TAKEN = "fetched from another server"


class Devices(unittest.TestCase):
    def pair(self, prefill, decode):
        pair = Pair(prefill=prefill, decode=decode, model=POOL, flags=FLAGS)
        self.addCleanup(pair.stop)
        return pair

    def check(self, prefill, decode, alike):
        pair, sent, n_agreed = self.pair(prefill, decode), {}, 0
        for seed, retention in enumerate((None, KEPT)):
            request = body(tokens(PROMPT, 5 + seed), retention, max_tokens=ANSWER)
            answer, expected = pair.ask(request), pair.alone(request)
            self.assertEqual(answer["kv_transfer_params"]["note"], TAKEN)
            n_agreed += agreed(answer, expected)
            if alike:
                self.assertEqual(drawn(answer), drawn(expected))
            sent[retention is None] = answer["kv_transfer_params"]["bytes"]
            again = pair.decode.post("/v1/completions", request, headers=headers())
            if alike:
                self.assertEqual(drawn(again), drawn(expected))
            whole = PROMPT // PAGE * PAGE if alike and retention is None else 0
            self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], whole)
        self.assertGreater(n_agreed, ANSWER)
        page = (sent[True] - 4 * PROMPT) / -(-PROMPT // PAGE)
        kept = -(-PROMPT * KEPT["ratio"] // PAGE) + 1
        self.assertLessEqual(sent[False], 1.1 * kept * page + 4 * PROMPT)
        self.assertLess(sent[False], 0.5 * sent[True])
        for server in (pair.prefill, pair.decode):
            server.idle()
        self.assertEqual(pair.decode.metric("kv_transfer_bytes"), 0)

    def test_two_gpus(self):
        """Whatever else a step has, a row's bits are its own."""
        for dtype in ("bf16", "fp8"):
            with self.subTest(dtype):
                flags = [*GPU, "--kv-dtype", dtype, "--batch-invariant"]
                self.check(flags, flags, True)

    def test_a_gpu_behind_a_cpu(self):
        for dtype in ("bf16", "int8"):
            with self.subTest(dtype):
                self.check([*CPU, "--kv-dtype", dtype], [*GPU, "--kv-dtype", dtype], False)

    def test_a_cpu_behind_a_gpu(self):
        self.check([*GPU, "--kv-dtype", "f16"], [*CPU, "--kv-dtype", "f16"], False)

    def test_ranks_on_a_gpu(self):
        self.check([*GPU, "--kv-dtype", "bf16", *RANKS], [*GPU, "--kv-dtype", "bf16"], False)

    def test_a_worker_with_a_gpu(self):
        worker = subprocess.Popen([harness.OCTAVO, "worker", "--listen", "127.0.0.1:0", "--model", MODEL],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(worker.stdout.close)
        self.addCleanup(worker.wait, 60)
        self.addCleanup(worker.terminate)
        address = worker.stdout.readline().removeprefix("listening at ").strip()
        flags = [*GPU, "--kv-dtype", "bf16"]
        self.check([*flags, "--workers", address, *PATIENT], flags, False)

    def test_pages_that_the_other_does_not_have(self):
        """A CPU has no fp8: the prompt is computed."""
        pair = self.pair([*GPU, "--kv-dtype", "fp8"], [*CPU, "--kv-dtype", "bf16"])
        request = body(tokens(PROMPT, 9), max_tokens=ANSWER)
        answer = pair.ask(request)
        self.assertIn("stores K and V in another way", answer["kv_transfer_params"]["note"])
        alone = pair.decode.post("/v1/completions", request, headers=headers())
        self.assertEqual(drawn(answer), drawn(alone))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # the plugin is looked for beside the executable
        for name in ("liboctavo_cuda.so", "libcuda.so.1"):
            os.symlink(os.path.join(os.path.abspath(sys.argv[2]), name), os.path.join(folder, name))
        harness.OCTAVO = shutil.copy2(sys.argv[1], folder)
        os.environ["LD_LIBRARY_PATH"] = folder
        del sys.argv[2]
        harness.main()
