#!/usr/bin/env python3
"""A client without a certificate that reaches a worker's port can make it compute on the folder of
the worker's own flags, and no other. usage: worker_access.py OCTAVO [unittest arguments]"""

import os
import re
import subprocess
import tempfile
import unittest

from harness import OCTAVO, PATIENCE, POOL, ROOT, certificates, main, need, stubs
from workers import Worker, clean_env

grpc = need("grpc")
pb, rpc = stubs("worker")

ANOTHER = os.path.join(ROOT, "tests/golden/models/gqa1_f32") # a model folder, but not the worker's


def said(path, words):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return re.search(words, f.read()).group(1)


PROTOCOL = int(said("rpc/worker.h", r"WORKER_PROTOCOL = (\d+)"))
VERSION = said("CMakeLists.txt", r"VERSION (\d+\.\d+\.\d+)")


class WithoutCertificates(unittest.TestCase):
    def setUp(self):
        self.worker = Worker("--model", "models/demo")
        self.addCleanup(self.worker.stop)
        channel = grpc.insecure_channel(self.worker.address)
        self.addCleanup(channel.close)
        self.stub = rpc.WorkerStub(channel)

    def configure(self, **fields):
        """The worker's answer to a Configure that it refuses."""
        geometry = pb.Geometry(page_tokens=16, layers_per_group=1, heads_per_group=1)
        request = {"protocol": PROTOCOL, "version": VERSION, "session": 1, "size": 1, "model": ANOTHER, "comm": "self",
                   "device": "cpu", "kv_type": "f32", "weight_type": "f32", "max_rows": 64, "max_seqs": 4,
                   "max_model_len": 128, "kv_bytes": 1 << 20, "config_fingerprint": 1, "silence_ms": 3000,
                   "geometry": geometry}
        with self.assertRaises(grpc.RpcError) as caught:
            # A failed session may still be ending when the next one comes: the worker says so, and
            # the client tries again.
            for _ in range(1000):
                try:
                    self.stub.Configure(pb.ConfigureRequest(**{**request, **fields}), timeout=PATIENCE)
                except grpc.RpcError as e:
                    if "session is ending" not in e.details():
                        raise
        return caught.exception.details()

    def test_no_folder_but_its_own(self):
        """The answer is the same for an existing and a missing folder, and names neither."""
        answers = {self.configure(model=path) for path in (ANOTHER, "/nowhere/at/all", "/etc", "/etc/passwd", "")}
        self.assertEqual(answers, {"model: the configuration in models/demo is not the coordinator's"})

    def test_absurd_numbers(self):
        for field, value in (("quant_bits", 5), ("quant_bits", 260), ("quant_bits", 2 ** 32 - 1),
                             ("quant_attention", 16), ("n_threads", 1025), ("n_threads", 2 ** 32 - 1)):
            self.assertIn(f"{field}: {value}", self.configure(**{field: value}))
        self.assertIn("quant_group: 7", self.configure(quant_bits=8, quant_group=7))


class WeightsCache(unittest.TestCase):
    """Packed weights are kept where the worker's flags say; only a coordinator with a certificate
    may name another place."""

    def kept(self, worker, folder, *flags):
        addresses = ["--workers", worker.address]
        try:
            p = subprocess.run([OCTAVO, "run", *POOL, *addresses, *flags, "--quantize", "int8", "--weights-cache", folder,
                                "--prompt", "x", "--max-tokens", "1"],
                               capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, env=clean_env())
        finally:
            worker.stop()
        self.assertEqual(p.returncode, 0, p.stderr)
        return len(os.listdir(folder))

    def test_folders(self):
        with tempfile.TemporaryDirectory() as theirs, tempfile.TemporaryDirectory() as ours:
            model = ["--model", "models/demo"]
            self.assertEqual(self.kept(Worker(*model), theirs), 0)
            self.assertEqual(self.kept(Worker(*model, "--weights-cache", ours), theirs), 0)
            self.assertEqual(len(os.listdir(ours)), 1)

    def test_with_certificates(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as theirs:
            paths = certificates(folder)
            if not paths:
                self.skipTest("no openssl")
            worker = Worker("--tls-cert", paths["server.pem"], "--tls-key", paths["server.key"], "--tls-client-ca",
                            paths["ca.pem"])
            self.assertEqual(self.kept(worker, theirs, "--workers-cert", paths["client.pem"], "--workers-key",
                                       paths["client.key"], "--workers-ca", paths["ca.pem"]), 1)


class Flags(unittest.TestCase):
    def test_model_is_needed(self):
        with tempfile.TemporaryDirectory() as folder:
            for address in ("127.0.0.1:0", f"unix:{folder}/w"):
                p = subprocess.run([OCTAVO, "worker", "--listen", address], capture_output=True, text=True,
                                   timeout=PATIENCE, env=clean_env())
                self.assertEqual(p.returncode, 2, p.stderr)
                self.assertIn("--model is missing: without --tls-*", p.stderr)


if __name__ == "__main__":
    main()
