#!/usr/bin/env python3
"""octavo plan as a user meets it: docs/cluster.md shows its real output, its figures are those of a
server that is started, and its refusals. usage: plan.py OCTAVO [--write]   (from the source root;
--write puts the output into docs/cluster.md)"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
import xml.dom.minidom

OCTAVO = os.path.abspath(sys.argv[1])
DOC = "docs/cluster.md"
BLOCK = re.compile(r"```console\n\$ octavo (plan [^\n]*)\n(.*?)```", re.S)
TIMEOUT = 600


def octavo(*args):
    p = subprocess.run([OCTAVO, *args], capture_output=True, timeout=TIMEOUT, text=True)
    return p.returncode, p.stdout, p.stderr


def planned(*args):
    code, out, err = octavo("plan", *args, "--json")
    if not out:
        raise AssertionError(err)
    return code, json.loads(out)


def shown(command):
    return octavo(*shlex.split(command))[1]


class Doc(unittest.TestCase):
    def test_shows_what_is_printed(self):
        with open(DOC, encoding="utf-8") as f:
            blocks = BLOCK.findall(f.read())
        self.assertGreaterEqual(len(blocks), 4)
        for command, output in blocks:
            self.assertEqual(output, shown(command), command)


class Figures(unittest.TestCase):
    def compare(self, *flags):
        with tempfile.TemporaryFile("w+") as log:
            server = subprocess.Popen(
                [OCTAVO, "serve", "--model", "models/demo", "--http", "127.0.0.1:0", "--grpc", "none", *flags],
                stderr=log)
            try:
                text = self.text_of(server, log)
                port = re.search(r"HTTP at http://127\.0\.0\.1:(\d+)", text).group(1)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT) as r:
                    metrics = r.read().decode()
            finally:
                server.send_signal(signal.SIGTERM)
                self.assertEqual(server.wait(TIMEOUT), 0)
        _, plan = planned("--model", "models/demo", "--memory", "8G", *flags)
        said = re.search(r"KV pool [^:]*: (\d+) (\w+) pages, room for (\d+) tokens", text)
        self.assertEqual(plan["kv"]["pages"], int(said.group(1)))
        self.assertEqual(plan["kv"]["type"], said.group(2))
        self.assertEqual(plan["kv"]["tokens"], int(said.group(3)))
        info = re.search(r"octavo:cache_config_info\{(.*?)\}", metrics).group(1)
        labels = dict(re.findall(r'(\w+)="([^"]*)"', info))
        self.assertEqual(str(plan["kv"]["pages"]), labels["num_pages"])
        self.assertEqual(str(plan["kv"]["page_tokens"]), labels["block_size"])
        self.assertEqual(plan["kv"]["tokens"], int(labels["block_size"]) * int(labels["num_gpu_blocks"]))

    def text_of(self, server, log):
        while server.poll() is None:
            log.seek(0)
            text = log.read()
            if "HTTP at" in text:
                return text
            try:
                server.wait(0.05)
            except subprocess.TimeoutExpired:
                pass
        self.fail("the server did not start")

    def test_count_what_retrieval_keeps(self):
        demo = ["--model", "models/demo", "--memory", "2G", "--kv-dtype", "bf16"]
        one, two = planned(*demo)[1]["kv"], planned(*demo, "--tp", "2")[1]["kv"]
        # 16 tokens of 32 dims, K and V; beside them two bf16 vectors and a mark.
        self.assertAlmostEqual(one["representatives_bytes"] / one["pool_bytes"], 136 / 2048, 3)
        self.assertAlmostEqual(two["representatives_bytes"] / two["pool_bytes"], 136 / 2048, 3)

    def test_count_ranks_over_a_disk(self):
        demo = ["--model", "models/demo", "--memory", "2G", "--kv-memory", "8M", "--kv-disk", "/var/kv", "--kv-disk-size",
                "20M"]
        one, two = planned(*demo)[1]["kv"], planned(*demo, "--tp", "2")[1]["kv"]
        for key in ("pages", "tokens", "page_bytes"):
            self.assertEqual(one[key], two[key], key)
        for kv in (one, two):
            self.assertEqual((kv["pool_bytes"], kv["disk_bytes"]), (8 << 20, 20 << 20))
        self.assertIn("4.0 MiB a rank in memory, of 10.0 MiB", octavo("plan", *demo, "--tp", "2")[1])

    def test_count_embeddings(self):
        """4 heads of 32 dims and an id; half of what is left, unless --embed-memory is less."""
        demo = ["--model", "models/demo", "--kv-memory", "64M", "--swap-memory", "16M"]
        _, small = planned(*demo, "--memory", "1G", "--embed-memory", "100M", "--context", "4096", "--output", "96")
        self.assertEqual(small["embeddings"], {"heads": 4, "token_bytes": 260, "bytes": 100 << 20,
                                               "sessions": (100 << 20) // (260 * 4000)})
        _, much = planned(*demo, "--memory", "1G", "--embed-memory", "100G")
        self.assertEqual(much["embeddings"]["bytes"],
                         (much["rank_left_bytes"] - much["kv"]["swap_bytes"]) // 2)
        self.assertNotIn("embeddings", planned("--model", "tests/data/plan/llama-3-8b.json", "--memory", "90G")[1])
        self.assertNotIn("embeddings", planned(*demo[:2], "--memory", "2G", "--gpu")[1])

    def test_are_drawn(self):
        """A line for each policy, and for what bounds them."""
        def drawn(*flags):
            with tempfile.TemporaryDirectory() as folder:
                code, plan = planned("--model", "models/demo", "--memory", "1G", "--context", "4096", *flags,
                                     "--plot", f"{folder}/p.svg")
                page = xml.dom.minidom.parse(f"{folder}/p.svg")
            texts = [t.firstChild.data for t in page.getElementsByTagName("text")]
            return plan, texts, len(page.getElementsByTagName("polyline"))
        plan, texts, lines = drawn()
        self.assertEqual(lines, 3)  # a sequence, the pool, how many fit
        self.assertEqual((texts.count("everything kept"), texts.count("the KV pool")), (2, 1), texts)
        plan, texts, lines = drawn("--retention", "chunkkv:0.25")
        self.assertGreater(plan["retained"]["fit"], plan["full"]["fit"])
        self.assertEqual(lines, 6)
        self.assertIn("chunkkv:0.25: at its prompt's end", texts)

    def test_are_those_of_a_server(self):
        if "serve" not in octavo("--help")[1].split():
            self.skipTest("built without servers")
        self.compare("--kv-memory", "8M", "--swap-memory", "1M")
        with tempfile.TemporaryDirectory() as folder:
            self.compare("--kv-memory", "8M", "--kv-disk", folder, "--kv-disk-size", "20M")
            self.compare("--kv-memory", "8M", "--kv-disk", folder, "--kv-disk-size", "20M", "--tp", "2",
                         "--workers", "threads")
        self.compare("--kv-memory", "8M", "--kv-dtype", "int4", "--tp", "2", "--quantize", "int8",
                     "--workers", "threads")


class Refusals(unittest.TestCase):
    def refused(self, code, *args):
        got, out, err = octavo("plan", *args)
        self.assertEqual(got, code, err)
        self.assertEqual(out, "")
        self.assertEqual(len(err.splitlines()), 1, err)
        return err

    def test_name_the_flag(self):
        demo = ["--model", "models/demo", "--memory", "1G"]
        self.assertIn("--model is missing", self.refused(2, "--memory", "1G"))
        for memory in ("8xx80G", "0x80G", "8x", "x80G", "-1G", "0", "80Q"):
            self.assertIn("--memory", self.refused(2, "--model", "models/demo", f"--memory={memory}"))
        for gpu in (["--gpu"], ["--device", "cuda"]):  # this machine's memory is not a GPU's
            self.assertIn("--memory is missing", self.refused(2, *demo[:2], *gpu))
        self.assertIn("8 devices for --tp 4", self.refused(2, *demo[:2], "--memory", "8x1G", "--tp", "4"))
        self.assertIn("--context", self.refused(2, *demo, "--context", "5000"))
        recurrent = ["--retention", '{"method": "h2o-recurrent", "tokens": 1024, "recurrent_chunk": 1024}']
        self.assertIn("--max-logical-len", self.refused(2, *demo, *recurrent, "--context", "5000000"))
        self.assertIn("take 5120 positions", self.refused(
            2, *demo, "--retention", '{"method": "h2o-recurrent", "tokens": 1024, "recurrent_chunk": 4096}',
            "--context", "65536"))
        self.assertIn("--output", self.refused(2, *demo, "--context", "100", "--output", "100"))
        self.assertIn("--retention", self.refused(2, *demo, "--retention", "chunkkv"))
        self.assertIn("banana", self.refused(2, *demo, "--retention", "banana:0.5"))
        self.assertIn("--tp", self.refused(1, *demo, "--tp", "3"))
        self.assertIn("--kv-dtype", self.refused(1, *demo, "--kv-dtype", "fp8"))
        self.assertIn("--kv-dtype", self.refused(1, *demo, "--kv-dtype", "int4", "--gpu"))
        self.assertIn("--kv-dtype", self.refused(1, *demo, "--kv-dtype", "int2", "--device", "cuda"))
        self.assertIn("--device", self.refused(2, *demo, "--device", "gpu"))
        self.assertIn("nowhere", self.refused(1, "--model", "nowhere", "--memory", "1G"))

    def test_what_does_not_fit_is_status_1(self):
        code, plan = planned("--model", "models/demo", "--memory", "4M")
        self.assertEqual((code, plan["fits"]), (1, False))
        self.assertIn("does not fit", plan["verdict"])


class Gpu(unittest.TestCase):
    def test_has_pages_of_its_own(self):
        demo = ["--model", "models/demo", "--memory", "2G"]
        _, wide = planned(*demo, "--gpu")
        for name, part in (("fp8", 64), ("int8", 68)):  # bytes of a head's K and V, out of 128
            _, plan = planned(*demo, "--gpu", "--kv-dtype", name)
            self.assertEqual(plan["kv"]["type"], name)
            self.assertEqual(plan["kv"]["token_bytes"] * 128, wide["kv"]["token_bytes"] * part)
        self.assertEqual(wide, planned(*demo, "--device", "cuda:2")[1])
        self.assertGreater(wide["rank_step_bytes"], 0)
        taken = wide["weights"]["rank_bytes"] + wide["rank_step_bytes"] + wide["rank_left_bytes"]
        for part in ("pool", "sums", "representatives", "retrieval_note", "retrieval_list"):
            self.assertGreater(wide["kv"][f"{part}_bytes"], 0)
            taken += wide["kv"][f"{part}_bytes"]
        self.assertEqual(taken, (2 << 30) - (640 << 20))


class ConfigAlone(unittest.TestCase):
    def test_is_enough(self):
        _, whole = planned("--model", "models/demo", "--memory", "1G")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy("models/demo/config.json", folder)
            for path in (folder, f"{folder}/config.json"):
                _, alone = planned("--model", path, "--memory", "1G")
                for key in ("parameters", "weights", "kv", "full", "verdict"):
                    self.assertEqual(alone[key], whole[key])


def write():
    with open(DOC, encoding="utf-8") as f:
        text = f.read()
    text = re.sub(r"```console\n\$ octavo (plan [^\n]*)\n(.*?)```",
                  lambda m: f"```console\n$ octavo {m[1]}\n{shown(m[1])}```", text, flags=re.S)
    with open(DOC, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    if sys.argv[2:] == ["--write"]:
        write()
    else:
        unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
