#!/usr/bin/env python3
"""Two machines: network namespaces with a worker each, joined by a router in which the coordinator
runs. UCX over TCP by address, mTLS, and a broken link between the two workers, which both still
reach the coordinator.
usage: machines.py OCTAVO [unittest arguments]   (skips where no namespaces can be made)"""

import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

from harness import POOL, SKIP, Server, certificates, eventually, main, run_offline, tokens
from workers import LONG, LONG_MODEL, RANKS, SOAK, Asked, Worker, answer_of

NAMESPACES = ["unshare", "--user", "--map-root-user", "--net"]
MACHINE = ["unshare", "--net", "--uts", "--mount"] # UCX looks for networks in /sys
FORWARD = "/proc/sys/net/ipv4/ip_forward"
INSIDE = "OCTAVO_TEST_ROUTER" # set in the namespaces


def skip(why):
    print(f"SKIPPED {os.path.basename(sys.argv[0])}: {why}")
    sys.exit(SKIP)


def run(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def forward(is_on):
    """While the router does not forward, packets between the machines are lost without notice."""
    with open(FORWARD, "w", encoding="ascii") as f:
        f.write("1" if is_on else "0")


class Machine:
    """A network namespace with a name of its own, and a link to ours."""

    def __init__(self, number):
        self.host = f"10.77.{number}.2"
        self.holder = subprocess.Popen(
            [*MACHINE, "sh", "-c", f"mount -t sysfs none /sys && hostname m{number}; echo ready; exec sleep 100000"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.holder.stdout.readline()
        pid = str(self.holder.pid)
        self.within = ["nsenter", "--target", pid, "--net", "--uts", "--mount", "--"]
        router = f"10.77.{number}.1"
        run("ip", "link", "add", f"m{number}", "type", "veth", "peer", "name", "e0", "netns", pid)
        run("ip", "address", "add", f"{router}/24", "dev", f"m{number}")
        run("ip", "link", "set", f"m{number}", "up")
        for words in (["link", "set", "lo", "up"], ["address", "add", f"{self.host}/24", "dev", "e0"],
                      ["link", "set", "e0", "up"], ["route", "add", "default", "via", router]):
            run(*self.within, "ip", *words)

    def stop(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class Machines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.machines = [Machine(i + 1) for i in range(RANKS)]
        forward(True)
        tls, cls.ours = [], []
        paths = certificates(cls.folder.name, [f"IP:{m.host}" for m in cls.machines])
        if paths:
            tls = ["--tls-cert", paths["server.pem"], "--tls-key", paths["server.key"], "--tls-client-ca",
                   paths["ca.pem"]]
            cls.ours = ["--workers-cert", paths["client.pem"], "--workers-key", paths["client.key"],
                        "--workers-ca", paths["ca.pem"]]
        # The machines share a kernel, and so could share memory: UCX must find nothing but TCP.
        cls.workers = [Worker("--threads", "1", *tls, host=m.host, within=m.within, env={"UCX_TLS": "tcp,self"})
                       for m in cls.machines]
        cls.flags = ["--tp", str(RANKS), "--workers", ",".join(w.address for w in cls.workers), *cls.ours]

    @classmethod
    def tearDownClass(cls):
        for w in cls.workers:
            w.stop()
        for m in cls.machines:
            m.stop()
        cls.folder.cleanup()

    def test_same_tokens(self):
        requests = [{"id": str(i), "prompt_token_ids": tokens(20 + 30 * i, i), "max_tokens": 12, "ignore_eos": True}
                    for i in range(4)]
        alone = run_offline(requests, "--dtype", "f32", "--tp", "1")
        there = run_offline(requests, "--dtype", "f32", *self.flags)
        self.assertEqual({key: line["token_ids"] for key, line in there.items()},
                         {key: line["token_ids"] for key, line in alone.items()})

    def test_cut_between_them(self):
        with Server(*self.flags, model=LONG_MODEL) as server:
            expected = answer_of(server)
            for _ in range(5 if SOAK else 1):
                asked = Asked(server, 1, LONG)
                begin = time.monotonic()
                forward(False)
                try:
                    ends = asked.results()
                    lost_s = time.monotonic() - begin
                    for way, text in ends:
                        self.assertEqual(way, "failed", text[-500:])
                        self.assertRegex(text, r"rank \d \(10\.77\.\d\.2:\d+\): nothing from rank \d \(10\.77\.")
                    self.assertIsNone(answer_of(server))
                    eventually("the ranks are tried again, and cannot meet", lambda: re.search(
                        r'"restarting","reason":"rank \d \(10\.77\.\d\.2:\d+\): nothing from rank',
                        server.get("/health")[2]))
                finally:
                    forward(True)
                begin = time.monotonic()
                found = eventually("serving again", lambda: answer_of(server))
                print(f"  cut between workers: requests failed after {lost_s:.2f} s, served again "
                      f"{time.monotonic() - begin:.2f} s after it was well", file=sys.stderr)
                self.assertEqual(found, expected)
            server.idle()


def enter():
    """Restarts itself in namespaces of its own, where all this is allowed."""
    if INSIDE in os.environ:
        return
    try:
        run(*NAMESPACES, "sh", "-c", f"ip link set lo up && echo 1 >{FORWARD} && "
            f"{' '.join(MACHINE)} mount -t sysfs none /sys && ip link add m0 type veth peer name e0")
    except (OSError, subprocess.SubprocessError) as e:
        skip(f"no network namespaces with a router here ({(getattr(e, 'stderr', None) or str(e).encode()).decode()!r})")
    os.environ[INSIDE] = "1"
    os.execvp(NAMESPACES[0], [*NAMESPACES, sys.executable, *sys.argv])


if __name__ == "__main__":
    enter()
    run("ip", "link", "set", "lo", "up")
    main()
