#!/usr/bin/env python3
"""Measures what the page map of one request costs a server: processor time of the whole process,
HTTP and gzip included, while the map is asked for --rate times a second, less that while it is
not. The attention is invented and uneven; what a backend takes to measure it is not in this.
The request runs over `octavo bench engine --backend null`, whose steps take --step-us on a timer
and compute nothing, so that little else takes time. usage: page_map_cost.py OCTAVO [flags]"""

import argparse
import gzip
import http.client
import json
import os
import random
import re
import subprocess
import sys
import time

SHAPES = {
    "one table for all layers": None,
    "a table for each layer": {"method": "streaming", "ratio": 0.9, "unit": "page", "schedule": "prompt"},
    "a table for each KV head, single tokens": {"method": "streaming", "ratio": 0.9, "scope": "head",
                                                "schedule": "prompt"},
}


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        fields = f.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(pid, seconds, rate, ask):
    """Processor seconds a second, and how many maps and how many tokens' attention the asks got."""
    start, began, n, maps, rows = cpu_s(pid), time.monotonic(), 0, set(), set()
    while (now := time.monotonic() - began) < seconds:
        if ask and now >= n / rate:
            n += 1
            age, token = ask()
            maps.add(round(time.monotonic() - age / 1000, 1))
            rows.add(token)
        time.sleep(0.002)
    return (cpu_s(pid) - start) / (time.monotonic() - began), len(maps), len(rows)


def ask_for(port):
    c = http.client.HTTPConnection("127.0.0.1", port)
    last = {}

    def ask():
        c.request("GET", "/octavo/pages/looked-at", headers={"Accept-Encoding": "gzip"})
        r = c.getresponse()
        data = r.read()
        last["sent"] = len(data)
        last["answer"] = json.loads(gzip.decompress(data) if r.headers["content-encoding"] == "gzip" else data)
        attention = (last["answer"]["map"] or {}).get("attention")
        return last["answer"]["map_age_ms"] or 0, attention and attention["token"]

    return ask, last


def run(o, name, retention):
    with subprocess.Popen([o.octavo, "bench", "engine", "--backend", "null", "--running", "1", "--layers", str(o.layers),
                           "--kv-heads", str(o.kv_heads), "--step-us", str(o.step_us), "--seconds",
                           str(3 * o.seconds + 60), "--prefill-chunk", "4096", "--prompt-tokens",
                           str(16 * o.pages), "--output-tokens", "100000", "--http", "127.0.0.1:0"],
                          stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            port, text = None, ""
            while not port:
                line = server.stderr.readline()
                text += line
                if not line:
                    sys.exit(text)
                port = re.search(r"HTTP at port (\d+)", line)
            port = int(port.group(1))
            r = random.Random(1)
            body = {"prompt": [r.randrange(1000) for _ in range(16 * o.pages)], "max_tokens": 100000,
                    "ignore_eos": True, "stream": True}
            answer = http.client.HTTPConnection("127.0.0.1", port)
            answer.request("POST", "/v1/completions", json.dumps(body | ({"retention": retention} if retention else {})),
                           {"X-Request-Id": "looked-at", "Content-Type": "application/json"})
            first = answer.getresponse()
            if first.status != 200:
                sys.exit(first.read().decode())
            first.readline()
            ask, last = ask_for(port)
            time.sleep(2) # a selection may still be under way
            plain, _, _ = measured(server.pid, o.seconds, o.rate, None)
            while ask()[1] is None:
                time.sleep(0.1)
            looked, maps, rows = measured(server.pid, o.seconds, o.rate, ask)
            m = last["answer"]["map"]
            print(f"| {name} | {m['tables_seen']} of {m['tables']} | {sum(n for n, _ in m['rows'])} x {m['columns']} | "
                  f"{maps / o.seconds:.1f} | {rows / o.seconds:.1f} | {m['attention']['layers']} | {last['sent']:,} | "
                  f"{100 * plain:.2f} | {100 * (looked - plain):.2f} |",
                  flush=True)
        finally:
            server.kill()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("octavo")
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--pages", type=int, default=1000)
    p.add_argument("--rate", type=float, default=4)
    p.add_argument("--seconds", type=int, default=15)
    p.add_argument("--step-us", type=int, default=100000)
    o = p.parse_args()
    print("| tables | looked at | cells | maps/s | tokens' attention/s | layers of it | bytes sent | % of a core without | "
          "% of a core for the map |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, retention in SHAPES.items():
        run(o, name, retention)


if __name__ == "__main__":
    main()
