#!/usr/bin/env python3
"""How long /health takes while 32 clients send large bodies that must fail: prompts of 8 MB, which
no context holds, and objects of 400,000 keys.

usage: large_bodies.py OCTAVO [SECONDS]   (from the source root)"""

import json
import multiprocessing
import re
import signal
import socket
import subprocess
import sys
import threading
import time

CLIENTS = 32
HOPELESS = json.dumps({"prompt": "O Romeo, Romeo! " * 490000, "max_tokens": 1}).encode()
KEYS = b"{" + b",".join(b'"k%d":1' % i for i in range(400000)) + b"}"


def start(octavo):
    """Starts the server and returns it with its port; its log is read and dropped."""
    p = subprocess.Popen([octavo, "serve", "--model", "models/demo", "--kv-memory", "64M", "--http", "127.0.0.1:0",
                          "--grpc", "none"], stderr=subprocess.PIPE, text=True)
    port = 0
    for line in p.stderr:
        found = re.search(r"HTTP at http://127.0.0.1:(\d+)", line)
        port = int(found.group(1)) if found else port
        if '"event":"start"' in line:
            break
    threading.Thread(target=p.stderr.read, daemon=True).start()
    return p, port


def ask(port, data):
    """Sends one request on a connection of its own and returns the HTTP status."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        s.sendall(data)
        answer = b""
        while part := s.recv(65536):
            answer += part
    return answer[9:12].decode()


def post(body):
    return (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)) + body


def client(port, i, end, results):
    counts, data = {}, post(KEYS if i % 4 == 3 else HOPELESS)
    while time.time() < end:
        status = ask(port, data)
        counts[status] = counts.get(status, 0) + 1
    results.put(counts)


def main():
    p, port = start(sys.argv[1])
    end, results = time.time() + (float(sys.argv[2]) if len(sys.argv) > 2 else 10), multiprocessing.Queue()
    clients = [multiprocessing.Process(target=client, args=(port, i, end, results)) for i in range(CLIENTS)]
    for c in clients:
        c.start()
    time.sleep(0.5)
    ms = []
    while time.time() < end:
        begin = time.perf_counter()
        assert ask(port, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") == "200"
        ms.append(1000 * (time.perf_counter() - begin))
        time.sleep(0.01)
    total = {}
    for _ in clients:
        for status, n in results.get().items():
            total[status] = total.get(status, 0) + n
    ms.sort()
    at = {f"p{q}": round(ms[min(len(ms) - 1, len(ms) * q // 100)], 1) for q in (50, 90, 99, 100)}
    print(json.dumps({"probes": len(ms), "health_ms": at, "answers": total}))
    p.send_signal(signal.SIGTERM)
    p.wait(30)


if __name__ == "__main__":
    main()
