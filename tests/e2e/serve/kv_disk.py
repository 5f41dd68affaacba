#!/usr/bin/env python3
"""K and V larger than memory over tensor-parallel ranks: the answers of a pool in memory, a rank
whose disk fails, and files that are gone however a process ends.
usage: kv_disk.py OCTAVO [unittest arguments]"""

import json
import os
import queue
import re
import subprocess
import tempfile
import threading
import unittest

from harness import MODEL, OCTAVO, PATIENCE, PATIENT, ROOT, Server, certificates, eventually, main, run_prompts, tokens
from processes import children_of, exists, ranks_of
from workers import Worker, clean_env

RANKS = 2
# 128 blocks of 16 tokens, a quarter of them in memory.
SIZES = ["--kv-disk-size", "8M", "--kv-memory", "2M"]
COMMON = ["--model", MODEL, "--dtype", "f32", "--kv-dtype", "bf16", "--threads", "2"]
TP = ["--tp", str(RANKS)]


def run_all(requests, *flags):
    """The output lines of `octavo run --prompts`, by (id, index), and what it wrote to stderr."""
    p = run_prompts(requests, [OCTAVO, "run", *COMMON, *TP, "--prompts", "-", *flags], clean_env())
    return {(line["id"], line["index"]): line for line in map(json.loads, p.stdout.splitlines())}, p.stderr.decode()


def refusal(*flags):
    """The message of a command that does not start."""
    p = subprocess.run([OCTAVO, "run", *COMMON, "--prompt", "x", "--max-tokens", "1", *flags], capture_output=True,
                       text=True, cwd=ROOT, timeout=PATIENCE, env=clean_env())
    if p.returncode == 0:
        raise AssertionError(f"octavo run {flags} works")
    return p.stderr


def disk_files(pid):
    """Paths that open the files without a name in which a process has K and V."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            if re.search(r"/octavo-kv-\w+ \(deleted\)$", os.readlink(path)):
                found.append(path)
        except FileNotFoundError:
            pass
    return found


class Same(unittest.TestCase):
    FEW = {"method": "ktransformers", "block_tokens": 16, "local_windows_len": 16, "second_block_count": 2}
    MORE = [{}, {"n": 2, "seed": 5, "temperature": 0.9}, {"retention": {"method": "chunkkv", "tokens": 96}},
            {"retention": {"method": "snapkv", "ratio": 0.5}, "retrieval": FEW}, {"retrieval": FEW},
            {"retrieval": {**FEW, "method": "quest", "head_select_mode": "SHARED", "audit": 2}},
            {"retrieval": {**FEW, "method": "dynamic", "preselect_block": True, "preselect_block_count": 4}},
            {"retrieval": {**FEW, "method": "quest", "dense_layer_num": 0, "epsilon": 0.4}}]
    # Each of these twice, with one prompt, for the prefix cache.
    REQUESTS = [{"id": f"{i}{again}", "prompt_token_ids": tokens(200 + 9 * i, i), "max_tokens": 40, "ignore_eos": True,
                 "logprobs": 2, **more} for i, more in enumerate(MORE) for again in "ab"]

    def lines(self, *flags):
        found, _ = run_all(self.REQUESTS, *flags)
        self.assertEqual(len(found), len(self.REQUESTS) + 2)
        return {key: (line["token_ids"], line["logprobs"], line.get("retention", {}).get("kept_tokens"),
                      line.get("retrieval")) for key, line in found.items()}

    def test_everywhere(self):
        want = self.lines("--workers", "threads", "--kv-memory", "64M")
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as ours:
            for where, swap in (("threads", "0"), ("local", "8M")):
                flags = ["--workers", where, "--kv-disk", folder, *SIZES, "--swap-memory", swap]
                self.assertEqual(self.lines(*flags), want, flags)
            self.assertEqual(os.listdir(folder), [])
            workers = [Worker("--kv-disk", ours) for _ in range(RANKS)]
            try:
                addresses = ",".join(w.address for w in workers)
                self.assertEqual(self.lines("--workers", addresses, *SIZES), want)
            finally:
                for w in workers:
                    w.stop()
            self.assertEqual(os.listdir(ours), [])


class OneRank(unittest.TestCase):
    """A context of 190 blocks over 64 in memory: every step reads much of it."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.server = Server(*TP, "--workers", "local", *PATIENT, "--kv-disk", self.folder.name, "--kv-disk-size",
                             "16M", "--kv-memory", "4M", "--no-prefix-cache", model=["--model", MODEL])
        self.addCleanup(self.end)

    def end(self):
        if self.killed:
            self.server.wait()
        else:
            self.server.stop()

    killed = False
    LONG = {"prompt": tokens(3000, 1), "max_tokens": 1000, "ignore_eos": True, "temperature": 0, "stream": True}

    def until_it_fails(self, harm):
        """The error of a request that is under way when `harm` begins to be called, repeatedly."""
        begun, ended = threading.Event(), queue.Queue()

        def read():
            c = self.server.connect()
            c.request("POST", "/v1/completions", json.dumps(self.LONG))
            r = c.getresponse()
            first = r.readline()
            begun.set()
            ended.put((first + r.read()).decode())
            c.close()

        threading.Thread(target=read, daemon=True).start()
        self.assertTrue(begun.wait(PATIENCE))
        while ended.empty():
            harm()
        text = ended.get()
        found = re.search(r'"error": ?\{.*?"message": ?"([^"]*)"', text)
        self.assertTrue(found, text[-500:])
        return found.group(1)

    def answer(self):
        status, _, text = self.server.request("POST", "/v1/completions", {
            "prompt": tokens(1500, 2), "max_tokens": 8, "ignore_eos": True, "temperature": 0, "logprobs": 1})
        self.assertEqual(status, 200, text)
        choice = json.loads(text)["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def test_pages_that_are_damaged_or_gone(self):
        want = self.answer()
        pids = ranks_of(self.server, RANKS)
        files = [disk_files(pid) for pid in pids]
        self.assertEqual([len(f) for f in files], [1] * RANKS)
        self.assertEqual(os.listdir(self.folder.name), [])

        def damage():
            with open(files[1][0], "r+b") as f:
                size = f.seek(0, os.SEEK_END)
                for at in range(0, size, 4096):
                    os.pwrite(f.fileno(), os.urandom(8), at)

        self.assertRegex(self.until_it_fails(damage),
                         r"^kv-disk: rank 1 \(unix:\S+/1\): a page that was read from the disk is damaged$")
        self.assertEqual(self.answer(), want)
        # A write behind the cut makes zeros of what was cut off. Such pages can be read, and are
        # damaged.
        self.assertRegex(self.until_it_fails(lambda: os.truncate(files[0][0], 0)),
                         r"^kv-disk: rank 0 \(unix:\S+/0\): a page (could not be read|that was read) from the disk"
                         r"( is damaged)?$")
        self.assertEqual(self.answer(), want)
        self.assertEqual(ranks_of(self.server, RANKS), pids)
        for name in ("workers_lost_total", "backend_restarts_total"):
            self.assertEqual(self.server.metric(name), 0)

    def test_metrics_are_of_all_ranks(self):
        self.answer()
        page = self.server.metrics()
        reads, writes = (self.server.metric(f"kv_disk_{what}_total", page) for what in ("reads", "writes"))
        self.assertGreater(reads, 0)
        self.assertGreater(writes, 0)
        self.assertEqual(self.server.metric("kv_disk_read_bytes_total", page), reads * 4096)
        self.assertEqual(self.server.metric("kv_disk_written_bytes_total", page), writes * 4096)

    def test_a_killed_process_leaves_nothing(self):
        want = self.answer()
        pids = ranks_of(self.server, RANKS)
        os.kill(pids[1], 9)
        eventually("the rank is back", lambda: self.server.metric("workers_lost_total") >= 1 and
                   self.server.metric("workers_up") == RANKS)
        eventually("it serves", lambda: self.server.get("/health")[0] == 200)
        self.assertEqual(self.answer(), want)
        self.assertEqual(os.listdir(self.folder.name), [])
        pids = children_of(self.server.process.pid)
        self.killed = True
        self.server.process.kill()
        eventually("its ranks are gone", lambda: not any(map(exists, pids)))
        self.assertEqual(os.listdir(self.folder.name), [])


class Folders(unittest.TestCase):
    """A worker writes K and V where its own flag says; only a coordinator with a certificate may
    name another place."""

    def ask(self, worker, *flags):
        try:
            return refusal("--workers", worker.address, *SIZES, *flags)
        finally:
            worker.stop()

    def works(self, worker, *flags):
        try:
            p = run_prompts([{"prompt": "x", "max_tokens": 1}], [
                OCTAVO, "run", *COMMON, "--workers", worker.address, *SIZES, *flags, "--prompts", "-"], clean_env())
        finally:
            worker.stop()
        self.assertIn("KV pool 2.0 MiB in memory, of 8.0 MiB on disk", p.stderr.decode())

    def test_a_worker_has_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            text = self.ask(Worker(), "--kv-disk", folder)
            self.assertRegex(text, r"rank 0 \(127\.0\.0\.1:\d+\): kv-disk: this worker has no folder for K and V on disk")
            text = self.ask(Worker("--kv-disk", "/nowhere/ours"), "--kv-disk", folder)
            self.assertRegex(text, r"rank 0 \(127\.0\.0\.1:\d+\): kv-disk: /nowhere/ours: No such file")
            self.works(Worker("--kv-disk", folder), "--kv-disk", "/nowhere/theirs")
            self.works(Worker("--kv-disk", folder))
            text = self.ask(Worker("--kv-disk", folder, "--kv-disk-size", "4M"))
            self.assertIn("kv-disk-size: 8388608 bytes are wanted on this worker's disk, whose own --kv-disk-size is 4194304",
                          text)
            self.works(Worker("--kv-disk", folder, "--kv-disk-size", "8M"))

    def test_with_certificates(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = certificates(folder)
            if not paths:
                self.skipTest("no openssl")
            server = ["--tls-cert", paths["server.pem"], "--tls-key", paths["server.key"], "--tls-client-ca", paths["ca.pem"]]
            client = ["--workers-cert", paths["client.pem"], "--workers-key", paths["client.key"], "--workers-ca", paths["ca.pem"]]
            self.works(Worker(*server), "--kv-disk", folder, *client)
            self.assertIn("kv-disk: /nowhere/theirs: No such file", self.ask(Worker(*server), "--kv-disk", "/nowhere/theirs", *client))
            self.assertIn("kv-disk: this worker has no folder", self.ask(Worker(*server), *client))


class Refusals(unittest.TestCase):
    def test_flags(self):
        with tempfile.TemporaryDirectory() as folder:
            for where in ("threads", "local"):
                at = [*TP, "--workers", where]
                self.assertIn("--kv-disk-size: --kv-disk is missing", refusal(*at, *SIZES))
                self.assertIn("--kv-disk: --kv-disk-size is missing", refusal(*at, "--kv-disk", folder))
                self.assertIn("kv-disk: pages of int4 cannot lie on disk",
                              refusal(*at, "--kv-disk", folder, *SIZES, "--kv-dtype", "int4"))
                self.assertRegex(refusal(*at, "--kv-disk", "/nowhere/here", *SIZES),
                                 r"(rank [01].*)?kv-disk: /nowhere/here: No such file")
                self.assertIn("kv-memory: 1048576 bytes hold 128 pages a rank; a layer of a pool of this kv-disk-size has 256",
                              refusal(*at, "--kv-disk", folder, "--kv-disk-size", "8M", "--kv-memory", "1M"))
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    main()
