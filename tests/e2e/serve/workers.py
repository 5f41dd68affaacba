#!/usr/bin/env python3
"""Ranks in other processes: the same tokens, every way to lose a rank, command-line refusals.
usage: workers.py OCTAVO [--rounds N] [unittest arguments] (rounds of faults: 5, in a soak 50)"""

import array
import json
import os
import queue
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from harness import (MODEL, OCTAVO, PATIENCE, PATIENT, POOL, ROOT, HeldPort, Server, certificates, eventually, main, need,
                     run_offline, stubs, tokens)
from processes import children_of, exists, listens_at, n_files, n_threads, ranks_of

grpc = need("grpc")
pb, rpc = stubs("octavo")

SOAK = "OCTAVO_SOAK" in os.environ
ROUNDS = 50 if SOAK else 5
if "--rounds" in sys.argv: # after need, which may start Python again
    at = sys.argv.index("--rounds")
    ROUNDS = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]

# The README states the limits for quiet machines; a busy machine under a sanitizer gets this long.
CAP = 120
RANKS = 2
# Requests of so many tokens do not end before a rank is lost.
LONG_MODEL = [*POOL, "--override", "max_position_embeddings=32768", "--threads", "1"]
LONG = 30000


def clean_env(extra=None):
    return {**{k: v for k, v in os.environ.items() if not k.startswith("OCTAVO_")}, **(extra or {})}


# ---- workers, and the network before them --------------------------------------------------------


class Worker:
    """octavo worker at a port that it keeps over restarts, with the demo model; if it trusts its
    coordinator, with the model that the coordinator names."""

    def __init__(self, *flags, binary=OCTAVO, port=0, host="127.0.0.1", within=(), env=None):
        self.flags, self.binary, self.port, self.lines = flags, binary, port, []
        self.host, self.within, self.env = host, within, env
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [*self.within, self.binary, "worker", "--listen", self.address, *self.flags, *self.model()],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
            env=clean_env(self.env))
        line = self.process.stdout.readline().decode()
        found = re.match(rf"listening at {re.escape(self.host)}:(\d+)\n", line)
        if not found:
            raise AssertionError(f"octavo worker: {line!r} {self.process.stderr.read().decode()}")
        self.port = int(found.group(1))
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def model(self):
        return [] if "--model" in self.flags or "--tls-cert" in self.flags else ["--model", MODEL]

    def _read(self, process):
        for line in process.stderr:
            self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
        process.stderr.close()
        process.stdout.close()

    @property
    def address(self):
        return f"{self.host}:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self):
        """By SIGTERM: status 0, which under ASan also means that nothing leaked."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        if code != 0:
            raise AssertionError(f"octavo worker: exit {code}\n" + "\n".join(self.lines)[-10000:])


class Network:
    """A port in front of another. While it is cut, no byte passes and neither side is notified, as
    with a pulled cable; bytes sent meanwhile arrive when it is whole again."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.wake_r, self.wake_w = os.pipe()
        self.is_cut = self.ends = False
        self.pairs = {}
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def cut(self, is_cut):
        self.is_cut = is_cut
        os.write(self.wake_w, b"x")

    def close(self):
        self.ends = True
        os.write(self.wake_w, b"x")
        self.thread.join(PATIENCE)
        for s in [self.listener, *self.pairs]:
            s.close()
        os.close(self.wake_r)
        os.close(self.wake_w)

    def _accept(self):
        client, _ = self.listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self.to), timeout=PATIENCE)
        except OSError:
            client.close()
            return
        for s in (client, server):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pairs[client], self.pairs[server] = server, client

    def _drop(self, s):
        other = self.pairs.pop(s)
        self.pairs.pop(other, None)
        s.close()
        other.close()

    def _run(self):
        while not self.ends:
            watched = [self.wake_r] if self.is_cut else [self.wake_r, self.listener, *self.pairs]
            for s in select.select(watched, [], [])[0]:
                if s == self.wake_r:
                    os.read(self.wake_r, 64)
                elif s is self.listener:
                    self._accept()
                elif s in self.pairs:
                    try:
                        data = s.recv(65536)
                        self.pairs[s].sendall(data) if data else self._drop(s)
                    except OSError:
                        if s in self.pairs:
                            self._drop(s)


# ---- requests ------------------------------------------------------------------------------------


def body(i, n, **fields):
    return {"prompt": tokens(30, i), "max_tokens": n, "ignore_eos": True, "temperature": 0, **fields}


class Asked:
    """Streams over both protocols and whole answers, in threads, with the outcome of each."""

    def __init__(self, server, n, max_tokens):
        self.server, self.max_tokens = server, max_tokens
        self.begun, self.ended = queue.Queue(), queue.Queue()
        self.channel = grpc.insecure_channel(server.target)
        ways = [self.http, self.octavo, self.whole]
        self.n = n * len(ways)
        for i in range(n):
            for way in ways:
                threading.Thread(target=self.run, args=(way, i), daemon=True).start()
        for _ in range(2 * n): # the streaming ones
            self.begun.get(timeout=PATIENCE)
        eventually("all of them are taken in", # a later one would get another reason
                   lambda: self.ended.qsize() + server.metric("num_requests_in_flight") >= self.n)

    def run(self, way, i):
        try:
            self.ended.put(way(i))
        except Exception as e: # pylint: disable=broad-except
            self.ended.put(("broken", repr(e)))

    def http(self, i):
        c = self.server.connect()
        c.request("POST", "/v1/completions", json.dumps(body(i, self.max_tokens, stream=True)))
        r = c.getresponse()
        try:
            first = r.readline()
            self.begun.put(i)
            text = (first + r.read()).decode()
        finally:
            c.close()
        failed = re.search(r'"error": ?\{.*', text)
        if failed:
            return "failed", failed.group(0)
        return ("done", text) if text.endswith("data: [DONE]\n\n") else ("broken", text[-300:])

    def whole(self, i):
        status, _, text = self.server.request("POST", "/v1/completions", body(i, self.max_tokens))
        return {200: "done", 503: "failed"}.get(status, "broken"), text

    def octavo(self, i):
        call = rpc.InferenceStub(self.channel).Generate(pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=tokens(30, i)),
            sampling=pb.SamplingParams(max_tokens=self.max_tokens, ignore_eos=True, temperature=0)))
        try:
            next(call)
            self.begun.put(i)
            for _ in call:
                pass
        except grpc.RpcError as e:
            self.begun.put(i)
            return "failed" if e.code() == grpc.StatusCode.UNAVAILABLE else "broken", f"{e.code()}: {e.details()}"
        return "done", ""

    def results(self):
        with self.channel:
            return [self.ended.get(timeout=PATIENCE) for _ in range(self.n)]


def answer_of(server, i=7, n=8):
    """The tokens of a greedy answer, or None while the backend is down."""
    status, _, text = server.request("POST", "/v1/completions", body(i, n, return_token_ids=True, logprobs=1))
    if status == 503:
        return None
    if status != 200:
        raise AssertionError(text)
    choice = json.loads(text)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def first_answer_of(server):
    """The same, before anything is damaged: on a busy machine a rank may be missed already."""
    return eventually("an answer", lambda: answer_of(server))


# ---- the same answers ----------------------------------------------------------------------------


class Same(unittest.TestCase):
    FEW = {"method": "ktransformers", "block_tokens": 16, "local_windows_len": 16, "second_block_count": 2}
    MEASURED = {**FEW, "method": "dynamic", "preselect_block": True, "preselect_block_count": 4, "audit": 2}
    BOUNDED = {**FEW, "method": "quest", "head_select_mode": "SHARED", "dense_layer_num": 0, "epsilon": 0.4, "audit": 1}
    MORE = 3 * [{}] + 3 * [{"retention": {"method": "chunkkv", "tokens": 64}}] + [{"retrieval": m} for m in (FEW, MEASURED, BOUNDED)]
    REQUESTS = [{"id": str(i), "prompt_token_ids": tokens(20 + 30 * i, i), "max_tokens": 12, "ignore_eos": True, "logprobs": 2,
                 **more} for i, more in enumerate(MORE)]

    def lines(self, *flags):
        found = run_offline(self.REQUESTS, "--dtype", "f32", "--tp", str(RANKS), "--threads", "2", *flags)
        return {key: (line["token_ids"], line["logprobs"], line.get("retention", {}).get("kept_tokens"), line.get("retrieval"))
                for key, line in found.items()}

    def test_everywhere(self):
        threads = self.lines("--workers", "threads")
        self.assertEqual(len(threads), len(self.REQUESTS))
        reports = [threads[str(6 + i), 0][3] for i in range(3)]
        self.assertEqual([r["rows"] for r in reports], 3 * [11], reports)
        self.assertTrue(all(r["read_tokens"] < r["context_tokens"] for r in reports), reports)
        self.assertTrue(all(0 <= r["least_recall"] < r["recall"] < 1 for r in reports[1:]), reports)
        self.assertGreater(reports[2]["above_epsilon"], 0) # two blocks are too few
        self.assertEqual(self.lines("--workers", "local"), threads)
        workers = [Worker() for _ in range(RANKS)]
        try:
            addresses = ",".join(w.address for w in workers)
            for _ in range(2): # two coordinators, one after the other
                self.assertEqual(self.lines("--workers", addresses), threads)
        finally:
            for w in workers:
                w.stop()
        # Several workers of one command, with consecutive names.
        with tempfile.TemporaryDirectory() as folder:
            p = subprocess.Popen([OCTAVO, "worker", "--listen", f"unix:{folder}/w", "--count", str(RANKS), "--model", MODEL],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, env=clean_env())
            try:
                lines = sorted(p.stdout.readline().decode() for _ in range(RANKS))
                self.assertEqual(lines, [f"listening at unix:{folder}/w.{i}\n" for i in range(RANKS)])
                addresses = ",".join(f"unix:{folder}/w.{i}" for i in range(RANKS))
                self.assertEqual(self.lines("--workers", addresses), threads)
            finally:
                p.send_signal(signal.SIGTERM)
                code = p.wait(PATIENCE)
                p.stdout.close()
            self.assertEqual(code, 0)


# ---- life and death of local workers -------------------------------------------------------------


class Local(unittest.TestCase):
    FLAGS = ["--tp", str(RANKS), "--workers", "local"]

    def test_come_and_go(self):
        """SIGTERM to all processes, as a service manager sends it: running requests end well."""
        with tempfile.TemporaryDirectory() as folder:
            server = Server(*self.FLAGS, *PATIENT, "--drain-timeout", "600", model=LONG_MODEL,
                            env={"TMPDIR": folder, "OCTAVO_WORKER_LISTEN": "for those that others start"})
            for i in range(RANKS):
                self.assertRegex(server.log(), rf"octavo: rank {i} at unix:{folder}/octavo-\w+/{i}: \w+, ")
            self.assertTrue(os.listdir(folder))
            pids = children_of(server.process.pid)
            self.assertEqual(len(pids), RANKS + 1)
            for pid in pids: # reachable from this host only
                self.assertLessEqual(listens_at(pid), {"0100007F"})
            asked = Asked(server, 1, 100)
            for pid in [*pids, server.process.pid]:
                os.kill(pid, signal.SIGTERM)
            ends = asked.results()
            self.assertEqual(server.wait(), 0)
            self.assertFalse([pid for pid in pids if exists(pid)])
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual([way for way, _ in ends], ["done"] * asked.n, ends)

    def test_killed_coordinator_leaves_no_process(self):
        with tempfile.TemporaryDirectory() as folder:
            for stopped in (False, True) if SOAK else (True,):
                server = Server(*self.FLAGS, env={"TMPDIR": folder})
                pids = children_of(server.process.pid)
                if stopped: # a worker that cannot run
                    os.kill(ranks_of(server, RANKS)[0], signal.SIGSTOP)
                server.process.kill()
                server.wait()
                for pid in pids:
                    eventually("the worker is gone", lambda pid=pid: not exists(pid))
                eventually("its folder is gone", lambda: not os.listdir(folder))

    def test_stopped_rank_is_replaced(self):
        with Server(*self.FLAGS, "--workers-timeout", "2000") as server:
            expected, before = first_answer_of(server), ranks_of(server, RANKS)
            os.kill(before[1], signal.SIGSTOP)
            self.assertEqual(eventually("serving again", lambda: answer_of(server)), expected)
            self.assertEqual((ranks_of(server, RANKS)[0], exists(before[1])), (before[0], False))
            self.assertIn("no heartbeat for 2.0 s", server.log())

    def test_supervisor_lost(self):
        """The supervisor of the local workers ends, or stops with them, and is started again."""
        for sign, n in ((signal.SIGKILL, 1), (signal.SIGSTOP, RANKS + 1)):
            with self.subTest(sign=sign), tempfile.TemporaryDirectory() as folder:
                server = Server(*self.FLAGS, env={"TMPDIR": folder})
                expected, pids = first_answer_of(server), children_of(server.process.pid)
                for pid in pids[:n]:
                    os.kill(pid, sign)
                eventually("the workers are gone", lambda pids=pids: not any(exists(pid) for pid in pids))
                self.assertEqual(eventually("serving again", lambda s=server: answer_of(s)), expected)
                self.assertEqual(len(children_of(server.process.pid)), RANKS + 1)
                self.assertEqual(len(os.listdir(folder)), 1)
                server.stop()
                self.assertEqual(os.listdir(folder), [])


# ---- faults --------------------------------------------------------------------------------------


class Cluster:
    """A server over two ranks, and ways to damage one of them."""

    def __init__(self, kind):
        self.kind, self.workers, self.networks = kind, [], []
        if kind == "local":
            flags = ["--workers", "local"]
        else:
            self.workers = [Worker("--threads", "1") for _ in range(RANKS)]
            self.networks = [Network(w.port) for w in self.workers]
            flags = ["--workers", ",".join(n.address for n in self.networks)]
        self.server = Server("--tp", str(RANKS), *flags, model=LONG_MODEL)

    def pid(self, rank):
        return ranks_of(self.server, RANKS)[rank] if self.kind == "local" else self.workers[rank].process.pid

    def hurt(self, fault, rank):
        """Returns a function that repairs the damage."""
        if fault == "cut":
            self.networks[rank].cut(True)
            return lambda: self.networks[rank].cut(False)
        pid = self.pid(rank)
        if fault == "stop":
            os.kill(pid, signal.SIGSTOP)
            return lambda: exists(pid) and os.kill(pid, signal.SIGCONT) # unless it was replaced
        if self.kind == "local":
            os.kill(pid, signal.SIGKILL) # the supervisor starts another
            return lambda: None
        self.workers[rank].kill()
        return self.workers[rank].start

    def files(self):
        """Descriptors and threads of all surviving processes; a killed worker is replaced."""
        pid = self.server.process.pid
        return n_files(pid), n_threads(pid), len(children_of(pid))

    def stop(self):
        self.server.stop()
        for n in self.networks:
            n.close()
        for w in self.workers:
            w.stop()


class Faults(unittest.TestCase):
    FAULTS = {"local": ["kill", "stop"], "addresses": ["kill", "stop", "cut"]}

    def one_round(self, cluster, fault, r, expected, figures):
        server, rank = cluster.server, r.randrange(RANKS)
        asked = Asked(server, 2, LONG)
        time.sleep(r.random() * 0.3) # at some point of some step
        begin = time.monotonic()
        heal = cluster.hurt(fault, rank)
        ends = asked.results()
        lost_s = time.monotonic() - begin
        what = f"{cluster.kind} {fault} rank {rank}"
        for way, text in ends:
            self.assertEqual(way, "failed", f"{what}: {way} {text[-500:]}")
            self.assertRegex(text, r"rank \d+ \(", what)
        # On a busy machine another rank may be missed first.
        named = any(f"rank {rank} (" in text for _, text in ends)
        if fault != "kill" or cluster.kind != "local":
            self.assertIsNone(answer_of(server), what) # at once, without waiting for the backend
            self.assertRegex(server.get("/health")[2], r'"restarting","reason":".*rank \d+ \(', what)
            time.sleep(r.random() * (2 if SOAK else 0.3)) # at some point of a restart
        begin = time.monotonic()
        heal()
        found = eventually(f"{what}: serving again", lambda: answer_of(server), CAP)
        figures.append((what + ("" if named else " (another was named)"), lost_s, time.monotonic() - begin))
        self.assertEqual(found, expected, what)

    def rounds(self, kind, n):
        seed = int(os.environ.get("OCTAVO_SEED", "1"))
        r, figures = random.Random(seed * 1000 + len(kind)), []
        cluster = Cluster(kind)
        try:
            expected = first_answer_of(cluster.server)
            # Each fault once, then random ones.
            faults = [*self.FAULTS[kind], *(r.choice(self.FAULTS[kind]) for _ in range(n))][:n]
            self.one_round(cluster, faults[0], r, expected, figures) # allocates what is made once
            cluster.server.idle()
            before = cluster.files()
            for fault in faults[1:]:
                self.one_round(cluster, fault, r, expected, figures)
            cluster.server.idle()
            eventually(f"as many as before: {before}, now {cluster.files()}", lambda: self.few(cluster, before))
            print(f"  {kind}: descriptors, threads, children {before}, after {n - 1} rounds {cluster.files()}",
                  file=sys.stderr)
        except BaseException:
            print(cluster.server.log()[-6000:], file=sys.stderr)
            cluster.server.process.kill()
            raise
        finally:
            for what, lost_s, back_s in figures:
                print(f"  {what}: requests failed after {lost_s:.2f} s, served again {back_s:.2f} s after it was well",
                      file=sys.stderr)
        cluster.stop()

    def few(self, cluster, before):
        """gRPC's own connections and threads vary; growth with each round would exceed this."""
        return all(now <= then + slack for now, then, slack in zip(cluster.files(), before, (6, 6, 0)))

    def test_local(self):
        self.rounds("local", ROUNDS * 2 // 5)

    def test_addresses(self):
        self.rounds("addresses", ROUNDS - ROUNDS * 2 // 5)

    def test_another_came_back(self):
        """A group is not made with a worker that refuses: requests get its reason."""
        workers = [Worker() for _ in range(RANKS)]
        with Server("--tp", str(RANKS), "--workers", ",".join(w.address for w in workers)) as server:
            expected = first_answer_of(server)
            self.assertEqual([server.metric(name) for name in ("workers", "workers_up", "workers_lost_total")],
                             [RANKS, RANKS, 0])
            workers[1].kill()
            workers[1].flags = ("--model", "tests/golden/models/gqa1_f32")
            workers[1].start()
            due = rf"rank 1 \({re.escape(workers[1].address)}\): model: .*gqa1_f32"
            eventually("it is refused", lambda: re.search(f'"restarting","reason":"{due}', server.get("/health")[2]))
            status, _, text = server.request("POST", "/v1/completions", body(7, 8))
            self.assertEqual(status, 503)
            self.assertRegex(text, f"the backend is being restarted: {due}")
            workers[1].stop()
            workers[1].flags = ()
            workers[1].start()
            self.assertEqual(eventually("serving again", lambda: answer_of(server)), expected)
            self.assertEqual([server.metric(name) for name in ("workers", "workers_up")], [RANKS, RANKS])
            self.assertGreaterEqual(server.metric("workers_lost_total"), 1)
        for w in workers:
            w.stop()

    def test_coordinator_lost(self):
        """The workers are free for the next coordinator."""
        workers = [Worker() for _ in range(RANKS)]
        flags = ["--tp", str(RANKS), "--workers", ",".join(w.address for w in workers)]
        server = Server(*flags, model=LONG_MODEL)
        asked = Asked(server, 1, LONG)
        server.process.kill()
        server.wait()
        asked.results()
        with Server(*flags) as server:
            self.assertIsNotNone(answer_of(server))
            # A second coordinator is refused by name, while the first one continues.
            p = subprocess.run([OCTAVO, "run", *POOL, *flags, "--workers-wait", "0", "--prompt", "x"],
                               capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, env=clean_env())
            self.assertEqual(p.returncode, 1)
            self.assertIn("another coordinator", p.stderr)
            self.assertIsNotNone(answer_of(server))
        for w in workers:
            w.stop()


# ---- refusals ------------------------------------------------------------------------------------


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker() # refused coordinators leave it unchanged

    @classmethod
    def tearDownClass(cls):
        cls.worker.stop()

    def refused(self, code, *flags, says=(), model=POOL):
        p = subprocess.run([OCTAVO, "run", *model, "--prompt", "x", "--max-tokens", "1", "--workers-wait", "0", *flags],
                           capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, env=clean_env())
        self.assertEqual(p.returncode, code, p.stderr)
        last = p.stderr.splitlines()[-1]
        for word in says:
            self.assertIn(word, last)
        return last

    def test_flags(self):
        here = ["--workers", "127.0.0.1:1,127.0.0.1:2"]
        self.refused(1, *here, "--tp", "4", says=["--workers", "2 addresses for --tp 4"])
        self.refused(1, "--workers", "banana", "--tp", "2", says=["--workers", "banana"])
        self.refused(1, "--workers", "127.0.0.1:1,127.0.0.1:1", says=["--workers", "twice"])
        self.refused(1, "--workers", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", says=["3 ranks"])
        self.refused(1, *here, "--workers-cert", "x", says=["--workers-ca", "together"])
        self.refused(1, "--workers", "local", "--tp", "2", "--workers-cert", "x", "--workers-key", "x",
                     "--workers-ca", "x", says=["--workers-cert"])
        for flags, word in ([], "--listen"), (["--listen", "127.0.0.1:0", "--count", "2"], "--listen"), \
                (["--listen", "127.0.0.1:0", "--tls-cert", "x"], "--tls-client-ca"):
            p = subprocess.run([OCTAVO, "worker", *flags], capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(p.returncode, 2, p.stderr)
            self.assertIn(word, p.stderr)

    def free_port(self):
        port = HeldPort()
        self.addCleanup(port.close)
        return port.number

    def test_no_worker_there(self):
        port = self.free_port()
        self.refused(1, "--workers", f"127.0.0.1:{port}", says=["rank 0", f"127.0.0.1:{port}"])

    def test_waits_for_them(self):
        """The coordinator may start first."""
        port = self.free_port()
        p = subprocess.Popen([OCTAVO, "run", *POOL, "--prompt", "x", "--max-tokens", "1", "--workers",
                              f"127.0.0.1:{port}", "--workers-wait", "600"], stderr=subprocess.PIPE,
                             stdout=subprocess.DEVNULL, cwd=ROOT, env=clean_env())
        line = p.stderr.readline().decode()
        self.assertIn("waiting for workers: rank 0", line)
        w = Worker(port=port)
        _, rest = p.communicate(timeout=PATIENCE)
        self.assertEqual(p.returncode, 0, line + rest.decode())
        w.stop()

    def test_address_taken(self):
        address = self.worker.address
        p = subprocess.run([OCTAVO, "worker", "--listen", address, "--model", MODEL],
                           capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
        self.assertEqual(p.returncode, 1)
        self.assertIn(address, p.stderr)

    def refuses(self, other, says):
        """A refusal of rank 1."""
        try:
            self.refused(1, "--workers", f"{self.worker.address},{other.address}", says=["rank 1", *says])
        finally:
            other.stop()

    def test_another_model(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(os.path.join(ROOT, "models/demo")):
                os.symlink(os.path.join(ROOT, "models/demo", name), os.path.join(folder, name))
            path = os.path.join(folder, "config.json")
            with open(path, encoding="utf-8") as f:
                config = json.load(f)
            os.remove(path)
            with open(path, "w", encoding="utf-8") as f:
                json.dump({**config, "rope_theta": 12345.0}, f)
            self.refuses(Worker("--model", folder), ["model", folder])
        with tempfile.TemporaryDirectory() as folder: # the same shapes, other numbers
            shutil.copytree(os.path.join(ROOT, "models/demo"), folder, dirs_exist_ok=True)
            with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
                f.seek(int.from_bytes(f.read(8), "little"), os.SEEK_CUR)
                numbers = array.array("H", f.read())
                f.seek(-2 * len(numbers), os.SEEK_END)
                array.array("H", reversed(numbers)).tofile(f)
            self.refuses(Worker("--model", folder), ["weights"])
        self.refuses(Worker("--model", "/nowhere"), ["model", "/nowhere"])
        self.refuses(Worker("--model", "tests/golden/models/gqa1_f32"), ["model"])

    def test_another_version(self):
        """An executable that reports another version of itself."""
        with open(OCTAVO, "rb") as f:
            data = f.read()
        with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as f:
            old = re.search(r"VERSION (\d+\.\d+\.\d+)", f.read()).group(1).encode()
        new = old[:-1] + (b"8" if old.endswith(b"9") else b"9")
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "octavo")
            with open(other, "wb") as f:
                f.write(data.replace(old + b"\0", new + b"\0"))
            os.chmod(other, 0o755)
            self.refuses(Worker(binary=other), [old.decode(), new.decode()])

    def test_certificates(self):
        with tempfile.TemporaryDirectory() as folder:
            if not certificates(folder):
                self.skipTest("no openssl")
            def path(name):
                return os.path.join(folder, name)
            tls = ["--tls-cert", path("server.pem"), "--tls-key", path("server.key"), "--tls-client-ca", path("ca.pem")]
            ours = ["--workers-cert", path("client.pem"), "--workers-key", path("client.key"), "--workers-ca",
                    path("ca.pem")]
            workers = [Worker(*tls) for _ in range(RANKS)]
            addresses = ["--workers", ",".join(w.address for w in workers)]
            try:
                p = subprocess.run([OCTAVO, "run", *POOL, *addresses, *ours, "--prompt", "x", "--max-tokens", "2"],
                                   capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, env=clean_env())
                self.assertEqual(p.returncode, 0, p.stderr)
                # These workers speak plain text.
                os.makedirs(path("others"))
                certificates(path("others")) # of an unknown CA
                strangers = [f.replace(folder, path("others")) for f in ours]
                self.refused(1, *addresses, *ours[:4], *strangers[4:], says=["rank "])
                self.refused(1, *addresses, *strangers[:4], *ours[4:], says=["rank ", "certificate"])
                self.refused(1, *addresses, *ours[:-1], path("nowhere"), says=["nowhere"])
            finally:
                for w in workers:
                    w.stop()


if __name__ == "__main__":
    main()
