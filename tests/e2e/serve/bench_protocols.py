"""`octavo bench serve` over HTTP and gRPC on one server: the same texts, the same numbers, and what
the server refuses."""

import json
import os
import subprocess
import tempfile
import unittest

import harness

KEY = "a-key"


class BenchProtocols(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server("--api-key", KEY)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def bench(self, protocol, *flags, key=KEY, port=None):
        """(exit status, the JSON report, a record of each request, messages)"""
        port = port or (self.server.grpc_port if protocol == "grpc" else self.server.http_port)
        with tempfile.TemporaryDirectory() as folder:
            report, requests = os.path.join(folder, "report"), os.path.join(folder, "requests")
            p = subprocess.run([harness.OCTAVO, "bench", "serve", "--protocol", protocol, "--url",
                                f"http://127.0.0.1:{port}", "--api-key", key, "--json", report,
                                "--requests", requests, *flags],
                               capture_output=True, text=True, timeout=harness.PATIENCE, check=False)
            if not os.path.exists(report):
                return p.returncode, None, None, p.stderr
            with open(report, encoding="utf-8") as a, open(requests, encoding="utf-8") as b:
                return p.returncode, json.load(a), [json.loads(line) for line in b], p.stderr

    def test_both_read_the_same(self):
        for prompts in (["--form", "ids"], ["--form", "text"], ["--endpoint", "chat"]):
            with self.subTest(prompts=prompts):
                records = {}
                for protocol in ("http", "grpc"):
                    code, report, records[protocol], log = self.bench(
                        protocol, *prompts, "--input-len", "20", "--output-len", "12", "--range-ratio", "0.5",
                        "--num-prompts", "12", "--distinct", "6", "--check", "--max-concurrency", "4")
                    self.assertEqual((code, report["completed"], report["failed"]), (0, 12, 0), log)
                    self.assertEqual(report["max_concurrent_requests"], 4)
                    for r, itls in zip(records[protocol], report["itls"]):
                        self.assertEqual((r["end"], r["events"]), ("OK", r["output_tokens"]))
                        self.assertEqual(len(itls), r["output_tokens"] - 1)
                        self.assertAlmostEqual(r["ttft_s"] + sum(itls), r["latency_s"], 3)
                same = ("index", "prompt_tokens", "output_tokens", "text_hash")
                self.assertEqual(*([[r[k] for k in same] for r in records[p]] for p in ("http", "grpc")))

    def test_refusals(self):
        for protocol, status in (("http", 401), ("grpc", 16)):
            code, report, records, _ = self.bench(protocol, "--num-prompts", "2", "--model", "demo", key="wrong")
            self.assertEqual((code, report["ends"]), (1, {"STATUS": 2}))
            self.assertEqual([r["status"] for r in records], [status] * 2)
        _, report, _, _ = self.bench("grpc", "--num-prompts", "2", "--input-len", "5000")
        self.assertIn("context", report["examples"]["STATUS"])

    def test_clients_that_leave_or_never_read(self):
        code, report, _, log = self.bench("grpc", "--num-prompts", "6", "--output-len", "40", "--vanish", "1",
                                          "--never-read", "2")
        self.assertEqual((code, report["ends"], report["never_read"]), (0, {"VANISHED": 6}, 2), log)

    def test_requests_that_are_too_slow(self):
        with harness.Server(model=harness.SLOW) as server:
            code, report, _, _ = self.bench("grpc", "--num-prompts", "2", "--input-len", "16", "--output-len", "4000",
                                            "--timeout", "0.1", port=server.grpc_port)
            self.assertEqual((code, report["ends"]), (1, {"TIMEOUT": 2}))

    def test_what_grpc_has_not(self):
        for flags, words in ((["--extra", "{}"], "--extra"), (["--url", "http://127.0.0.1:1/v1"], "--url")):
            code, _, _, log = self.bench("grpc", *flags)
            self.assertEqual(code, 2)
            self.assertIn(words, log)
        code, _, _, log = self.bench("grpc", port=1)
        self.assertEqual(code, 1)
        self.assertIn("no gRPC server answers", log)


if __name__ == "__main__":
    harness.main()
