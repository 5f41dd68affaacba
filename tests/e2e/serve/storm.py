#!/usr/bin/env python3
"""A storm of clients over HTTP and gRPC: all retention methods, sessions, priorities, three keys,
invalid requests, and about 35 % aborted at a random moment. Afterwards every request has ended,
and pages, descriptors and memory are what they were after a first storm. Under ASan the server's
exit status shows that there is no report.

With OCTAVO_SOAK=SEED there are four storms, each of 160 clients for 3 minutes: with defaults, by
priority, with little memory for pages, with two ranks. Without it, a few seconds of the third.
usage: storm.py OCTAVO [unittest arguments]"""

import os
import tempfile
import threading
import time
import unittest

from harness import POOL, Server, eventually, main, need, tokens
from storm_clients import KEYS, Client, Tally, methods

grpc = need("grpc")

SOAK = os.environ.get("OCTAVO_SOAK")
SEED = int(SOAK or 1)
CLIENTS = 160 if SOAK else 24
SECONDS = (50, 130) if SOAK else (2, 4)
TTL = 3 # seconds for which a session waits for its next turn
GROWTH = 24 << 20 # bytes of resident memory by which allocators vary
ASAN = "quarantine_size_mb=8" # otherwise freed memory makes 256 MiB resident

KNOWN = [{"prompt": tokens(300, 1), "max_tokens": 12}, {"prompt": tokens(90, 2), "max_tokens": 40},
         {"prompt": tokens(500, 3), "max_tokens": 8, "retention": {"method": "chunkkv", "ratio": 0.3}},
         {"prompt": tokens(200, 4), "max_tokens": 8, "retention": {"method": "adakv", "ratio": 0.3}},
         {"prompt": tokens(200, 5), "max_tokens": 12, "n": 3, "temperature": 1.0, "seed": 5}]


def family(pid):
    """A process and its descendants."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                parents[int(name)] = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    found = [pid]
    for p in found:
        found += [child for child, parent in parents.items() if parent == p]
    return found


def descriptors(pid):
    return {p: len(os.listdir(f"/proc/{p}/fd")) for p in family(pid)}


def resident(pid):
    total = {}
    for p in family(pid):
        with open(f"/proc/{p}/statm", encoding="utf-8") as f:
            total[p] = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


class Storm(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.flags = ["--session-ttl", str(TTL), "--max-sessions", "64"]
        for kind, names in (("api", ("alice", "bob")), ("admin", ("root",))):
            path = os.path.join(folder.name, kind)
            with open(path, "w", encoding="utf-8") as f:
                f.writelines(KEYS[name] + "\n" for name in names)
            self.flags += [f"--{kind}-key-file", path]

    def known(self, server):
        """Requests, and the tokens of their answers when nothing else runs."""
        pairs = []
        for body in KNOWN:
            body = {**body, "ignore_eos": True, "return_token_ids": True}
            answer = server.post("/v1/completions", body, headers={"authorization": f"Bearer {KEYS['alice']}"})
            pairs.append((body, [c["token_ids"] for c in sorted(answer["choices"], key=lambda c: c["index"])]))
        return pairs

    def blow(self, server, known, seconds, seed, priorities):
        """Runs one storm until all its clients have ended."""
        tally, specs = Tally(), methods()
        channels = [grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
                    for _ in range(8)]
        until = time.monotonic() + seconds
        clients = [Client(server, channels, specs, known, tally, seed + i, priorities) for i in range(CLIENTS)]
        threads = [threading.Thread(target=c.run, args=(until,), daemon=True) for c in clients]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for channel in channels:
            channel.close()
        self.assertIsNone(server.process.poll(), server.log()[-5000:])
        told = [f"{len(tally.mistakes)} mistakes, seed {seed}:", *tally.mistakes[:20]]
        self.assertFalse(tally.mistakes, "\n".join(told))
        return tally

    def settle(self, server, base):
        """Waits until all that requests held is free again; returns what the processes hold
        then."""
        for stem in ("num_requests_live", "num_requests_in_flight", "sessions", "host_pages_used"):
            eventually(f"octavo:{stem} is 0", lambda stem=stem: server.metric(stem) == 0)
        server.idle()
        pid = server.process.pid
        eventually(f"descriptors are no more than {base}, are {descriptors(pid)}",
                   lambda: all(n <= base[p] for p, n in descriptors(pid).items()))
        return resident(pid)

    def logged(self, server):
        """Checks the log: each accepted request has one line, and each choice has an end."""
        lines = [e for e in server.events() if e["event"] == "request"]
        for line in lines:
            ends = line["finish_reason"] if line["n"] > 1 else [line["finish_reason"]]
            self.assertEqual(len(ends), line["n"], line)
        self.assertEqual([e for e in server.events() if e["level"] == "error"], [])
        return sum(line["n"] for line in lines)

    def storm(self, *flags, model=POOL):
        asan = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), ASAN)))
        with Server(*self.flags, *flags, model=model, env={"ASAN_OPTIONS": asan}) as server:
            known, priorities = self.known(server), "priority" in flags
            base = descriptors(server.process.pid)
            self.blow(server, known, SECONDS[0], SEED, priorities)
            before = self.settle(server, base)
            tally = self.blow(server, known, SECONDS[1], SEED + 1000, priorities)
            after = self.settle(server, base)
            # The first request of every kind allocates what is made once: counting starts with the
            # second storm.
            self.assertEqual(self.logged(server), server.metric("request_success_total"))
            ends = tally.ends
        total, given = sum(ends.values()), sum(n for (_, end), n in ends.items() if end != "ended")
        print(f"{self.id()}: {total} requests, {given} given up; resident MiB {[n >> 20 for n in before.values()]} "
              f"then {[n >> 20 for n in after.values()]}", flush=True)
        if SOAK:
            print(dict(sorted((f"{kind} {end}", n) for (kind, end), n in ends.items())), flush=True)
        for pid, n in after.items():
            self.assertLess(n - before[pid], GROWTH, "resident memory grew")

    @unittest.skipUnless(SOAK, "a soak's")
    def test_by_default(self):
        self.storm()

    @unittest.skipUnless(SOAK, "a soak's")
    def test_by_priority(self):
        self.storm("--scheduling-policy", "priority")

    def test_little_memory(self):
        self.storm("--scheduling-policy", "priority", "--swap-memory", "4M", "--pressure-retention", "chunkkv:0.3",
                   "--max-batch", "16", model=[*POOL[:2], "--kv-memory", "6M"])

    @unittest.skipUnless(SOAK, "a soak's")
    def test_two_ranks(self):
        self.storm("--tp", "2", "--scheduling-policy", "priority", model=[*POOL[:2], "--kv-memory", "16M"])


if __name__ == "__main__":
    main()
