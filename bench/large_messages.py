#!/usr/bin/env python3
"""How long grpc.health.v1.Health/Check takes while 30 clients send Generate messages of 8 MB that
must fail: prompts that no context holds, as text and as token ids, and millions of stop strings.

usage: large_messages.py OCTAVO [SECONDS]   (from the source root; needs the Python package
grpcio)"""

import json
import multiprocessing
import re
import signal
import subprocess
import sys
import threading
import time

import grpc

CLIENTS, BYTES = 30, 8000000
GENERATE, CHECK = "/octavo.v1.Inference/Generate", "/grpc.health.v1.Health/Check"


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, data):
    """Encodes a field of bytes: a text, a message or a packed list."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def messages():
    """Returns three Generate messages, with the field numbers of proto/octavo.proto."""
    text = field(3, b"O Romeo, Romeo! " * (BYTES // 16))
    ids = field(4, field(1, b"\x09\x83\x01" * (BYTES // 3)))
    stops = field(3, b"O") + field(6, field(12, b"ab") * (BYTES // 4))
    return text, ids, stops


def start(octavo):
    """Starts the server and returns it with its port; its log is read and dropped."""
    p = subprocess.Popen([octavo, "serve", "--model", "models/demo", "--kv-memory", "64M", "--http", "none",
                          "--grpc", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    port = 0
    for line in p.stderr:
        found = re.search(r"gRPC at \S+:(\d+),", line)
        port = int(found.group(1)) if found else port
        if '"event":"start"' in line:
            break
    threading.Thread(target=p.stderr.read, daemon=True).start()
    return p, port


def open_channel(port):
    return grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])


def client(port, i, end, results):
    counts, data = {}, messages()[i % 3]
    call = open_channel(port).unary_stream(GENERATE)
    while time.time() < end:
        try:
            for _ in call(data, timeout=60):
                pass
            code = "OK"
        except grpc.RpcError as e:
            code = e.code().name
        counts[code] = counts.get(code, 0) + 1
    results.put(counts)


def main():
    p, port = start(sys.argv[1])
    end, results = time.time() + (float(sys.argv[2]) if len(sys.argv) > 2 else 10), multiprocessing.Queue()
    clients = [multiprocessing.Process(target=client, args=(port, i, end, results)) for i in range(CLIENTS)]
    for c in clients:
        c.start()
    check, ms = open_channel(port).unary_unary(CHECK), []
    time.sleep(1)
    while time.time() < end:
        begin = time.perf_counter()
        check(b"", timeout=60)
        ms.append(1000 * (time.perf_counter() - begin))
        time.sleep(0.01)
    total = {}
    for _ in clients:
        for code, n in results.get().items():
            total[code] = total.get(code, 0) + n
    ms.sort()
    at = {f"p{q}": round(ms[min(len(ms) - 1, len(ms) * q // 100)], 1) for q in (50, 90, 99, 100)}
    print(json.dumps({"probes": len(ms), "health_ms": at, "answers": total}))
    p.send_signal(signal.SIGTERM)
    p.wait(30)


if __name__ == "__main__":
    main()
