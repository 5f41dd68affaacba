#!/usr/bin/env python3
"""The serving benches: starts `octavo serve`, puts load on it with `octavo bench serve`, reads
/metrics and /proc, prints a table with the bars and writes JSON. Needs the standard library only
(grpc_streams needs grpcio).

    bench/serve_load.py load vanish overload --octavo build/octavo --out results.json
    bench/serve_load.py trace --trace conversation_trace.jsonl
    bench/serve_load.py all --quick --trace FILE      # only tries that everything runs

  load          256 streams at once: whole, correct, front-end CPU for each token, memory over time
  vanish        clients that leave in mid-stream and clients that never read, beside normal ones
  overload      ten times the capacity: how fast requests are refused, and how the others fare
  throughput    tokens/s of the server and of the offline engine, 1.1B shape
  trace         hit rates of the prefix cache against an LRU simulation
  tiers         the same with a disk below memory
  disk          TTFT of a prompt whose blocks are on disk, beside computing it, 1.1B shape
  grpc_streams  memory of idle gRPC streams
"""

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import serve_server
from serve_disk import disk_bench
from serve_server import Client, ENGINE_THREADS, Failed, ROOT, RssSampler, Server, cpu_by_name, load
from serve_trace import tiers_bench, trace_bench

SHAPE_1_1B = ["--load-format", "dummy"] + [
    word for item in ("hidden_size=2048", "intermediate_size=5632", "num_hidden_layers=22",
                      "num_attention_heads=32", "num_key_value_heads=4", "head_dim=64", "vocab_size=32000",
                      "tie_word_embeddings=false")
    for word in ("--override", item)]


def latencies(result):
    return {key: result[key] for key in result if key.endswith("_ms")}


def summary(result):
    keys = ("duration", "completed", "failed", "ends", "examples", "rejected", "request_throughput",
            "output_throughput", "total_output_tokens", "max_concurrent_requests", "client_cpu_s",
            "vanished", "retried", "connections")
    return {**{key: result[key] for key in keys}, **latencies(result)}


def answers_alone(octavo, server, work, distinct):
    """The texts of the workload's requests when they are asked one at a time, which load must not
    change."""
    alone = load(octavo, server.url, *work, "--num-prompts", distinct, "--max-concurrency", 1, requests=True)
    if alone["completed"] != distinct:
        raise Failed(f"one at a time: {alone['ends']} {alone['examples']}")
    return {r["index"]: r["text_hash"] for r in alone["requests"]}


def wrong_answers(result, alone):
    return sum(1 for r in result["requests"]
               if r["end"] == "OK" and r["text_hash"] != alone[r["index"] % len(alone)])


# ---- load ----------------------------------------------------------------------------------------


def load_bench(octavo, args):
    streams, distinct = 256, 64
    seconds, settle = (8, 3) if args.quick else (60, 20)
    work = ["--input-len", 64, "--output-len", 192, "--range-ratio", "0.5", "--distinct", distinct]
    with Server(octavo, "--kv-memory", "1G", "--max-batch", str(streams), "--max-requests", "1024") as server:
        alone = answers_alone(octavo, server, work, distinct)
        before, started = server.cpu_by_thread(), server.metrics()
        with RssSampler(server) as rss:
            result = load(octavo, server.url, *work, "--max-concurrency", streams, "--duration", seconds,
                          "--check", requests=True)
        cpu = cpu_by_name(before, server.cpu_by_thread())
        ended = server.metrics()
        back = server.wait_pages_free(5)
    tokens = sum(r["events"] for r in result["requests"])
    wrong = wrong_answers(result, alone)
    front = sum(s for name, s in cpu.items() if name not in ENGINE_THREADS)
    named = any(name in ENGINE_THREADS for name in cpu)
    each_us = front / max(tokens, 1) * 1e6
    drift = rss.drift(seconds - settle)
    aborted = ended["request_success_total"] - started["request_success_total"] - len(result["requests"])
    out = {**summary(result), "wrong_texts": wrong, "cpu_s_by_thread": cpu, "front_end_us_per_token": each_us,
           "rss_drift": drift, "rss_mb": [round(b / 2**20, 1) for _, b in rss.samples][::4],
           "pages_back_s": back, "choices_beyond_requests": aborted}
    rows = [
        ("requests", f"{result['completed']} whole, {result['failed']} failed, {wrong} with a wrong text",
         "all whole and correct", result["failed"] == 0 and wrong == 0),
        ("streams at once", f"{result['max_concurrent_requests']}", f"{streams}",
         result["max_concurrent_requests"] == streams),
        ("output", f"{result['output_throughput']:.0f} tokens/s", "", None),
        ("TTFT p50 / p90 / p99", "{median_ttft_ms:.1f} / {p90_ttft_ms:.1f} / {p99_ttft_ms:.1f} ms".format(**result),
         "reported", None),
        ("ITL p50 / p90 / p99", "{median_itl_ms:.2f} / {p90_itl_ms:.2f} / {p99_itl_ms:.2f} ms".format(**result),
         "reported", None),
        ("front end, CPU for a token", f"{each_us:.1f} us ({front:.2f} s for {tokens})" if named
         else "threads of the engine have no names", "< 60 us", named and each_us < 60),
        ("client, CPU for a token", f"{result['client_cpu_s'] / max(tokens, 1) * 1e6:.1f} us", "", None),
        (f"RSS, drift over the last {seconds - settle} s", f"{drift:+.2%} of {rss.samples[-1][1] / 2**20:.0f} MiB",
         "< 5 %", abs(drift) < 0.05),
        ("pages referenced afterwards", "none" if back is not None else "some after 5 s", "none", back is not None),
    ]
    for name, seconds_used in sorted(cpu.items(), key=lambda item: -item[1]):
        if seconds_used > 0.005:
            rows.append((f"  CPU of {name}", f"{seconds_used:.2f} s", "", None))
    return out, rows


# ---- clients that vanish or never read -----------------------------------------------------------


def vanish_bench(octavo, args):
    vanish, unread, normal, distinct = (100, 10, 16, 16) if args.quick else (500, 50, 64, 64)
    seconds = 6 if args.quick else 25
    work = ["--input-len", 64, "--output-len", 128, "--range-ratio", "0.5", "--distinct", distinct]
    pool = ["--kv-memory", "1G", "--max-batch", "256", "--max-requests", "1024"]
    unread_work = ["--input-len", 64, "--output-len", 3000, "--seed", 7, "--never-read", unread,
                   "--num-prompts", 1, "--hold", 3600]
    with Server(octavo, *pool) as server:
        alone = answers_alone(octavo, server, work, distinct)
        calm = load(octavo, server.url, *work, "--max-concurrency", normal, "--duration", seconds / 3)
        stuck = Client(octavo, server.url, *unread_work)
        leaving = Client(octavo, server.url, "--input-len", 64, "--output-len", 256, "--seed", 8, "--vanish", 1,
                         "--num-prompts", vanish, "--request-rate", vanish / (seconds * 0.7))
        beside = load(octavo, server.url, *work, "--max-concurrency", normal, "--duration", seconds, "--check",
                      requests=True)
        left_early = leaving.result()["vanished"]
        held = server.metrics()
        start = time.monotonic()
        stuck.kill()
        back = server.wait_pages_free(30, start)
        left = server.metrics()
    wrong = wrong_answers(beside, alone)
    # Connections that are never read are held open until the server closes them.
    with Server(octavo, *pool, "--stall-timeout", "3") as server:
        stuck = Client(octavo, server.url, *unread_work)
        time.sleep(2)
        paused = server.metrics()
        given_up = server.wait_pages_free(60)
        aborted = server.metrics()["request_success_total:abort"]
        stuck.kill()
    out = {"vanish": vanish, "vanished": left_early, "never_read": unread,
           "calm": summary(calm), "beside": summary(beside),
           "wrong_texts": wrong, "pages_used_when_only_unread_are_left": held["kv_pages_used"],
           "pages_back_s": back, "live_afterwards": left["num_requests_live"],
           "unread_pages_at_2_s": paused["kv_pages_used"],
           "unread_given_up_after_s": None if given_up is None else given_up + 2, "unread_aborted": aborted}
    rows = [
        ("left in mid-stream; never read", f"{left_early}; {unread}", f"{vanish}; {unread}", left_early == vanish),
        (f"{normal} normal ones beside them",
         f"{beside['completed']} whole, {beside['failed']} failed, {wrong} wrong", "all whole and correct",
         beside["failed"] == 0 and wrong == 0),
        ("their ITL p50 / p99, alone", "{median_itl_ms:.2f} / {p99_itl_ms:.2f} ms".format(**calm), "", None),
        ("their ITL p50 / p99, beside", "{median_itl_ms:.2f} / {p99_itl_ms:.2f} ms".format(**beside), "", None),
        ("pages held by what is never read", f"{held['kv_pages_used']:.0f}", "", None),
        ("all pages back after these clients are gone", "never" if back is None else f"{back:.2f} s", "2 s",
         back is not None and back <= 2),
        ("requests live afterwards", f"{left['num_requests_live']:.0f}", "0", left["num_requests_live"] == 0),
        ("never read, connections held, stall timeout 3 s",
         "not given up" if given_up is None else f"{aborted:.0f} aborted, all after {given_up + 2:.1f} s",
         f"{unread} aborted", given_up is not None and aborted == unread),
    ]
    return out, rows


# ---- overload ------------------------------------------------------------------------------------


def steady(result, start_s, end_s, limit_ms=None):
    """Whole answers a second, counted over a time in which the server was full from beginning to
    end."""
    ended = sum(1 for r in result["requests"]
                if r["end"] == "OK" and start_s <= r["start_s"] + r["latency_s"] < end_s
                and (limit_ms is None or r["latency_s"] * 1000 <= limit_ms))
    return ended / (end_s - start_s)


def overload_bench(octavo, args):
    batch, queue = 64, 128
    probe_s, seconds, settle_s = (5, 6, 2) if args.quick else (20, 30, 5)
    # Lengths differ, so that requests do not end in waves.
    work = ["--input-len", 128, "--output-len", 128, "--range-ratio", "0.5"]

    def measured(*flags):
        """Runs one load and adds the CPU time of the server's threads; "engine_ms" is the engine's
        CPU time for an answer."""
        before = server.cpu_by_thread()
        result = load(octavo, server.url, *work, *flags, requests=True)
        cpu = result["cpu_s_by_thread"] = cpu_by_name(before, server.cpu_by_thread())
        engine = sum(cpu.get(name, 0) for name in ENGINE_THREADS)
        result["engine_ms"] = engine * 1000 / max(result["completed"], 1)
        return result

    def probe(streams, seed):
        return measured("--max-concurrency", streams, "--duration", probe_s, "--seed", seed)

    with Server(octavo, "--kv-memory", "1G", "--max-batch", str(batch), "--max-requests", str(queue)) as server:
        # Each load has prompts of its own, because those of an earlier load would be in the prefix
        # cache.
        probes = [probe(batch, 1), probe(queue, 2)]
        capacity = max(steady(p, settle_s, probe_s) for p in probes)
        flood = measured("--request-rate", f"{capacity * 10:.3f}", "--duration", seconds, "--seed", 3)
        back = server.wait_pages_free(10)
        probes += [probe(batch, 4), probe(queue, 5)]
    peaks = [steady(p, settle_s, probe_s) for p in probes]
    # The better of the two loads; each is the mean of before and after, because machines drift.
    peak = max(statistics.mean(peaks[i::2]) for i in (0, 1))
    # With a full queue a request takes as long as in the larger of these loads; twice that is too
    # late.
    limit_ms = 2 * max(p["p99_e2el_ms"] for p in probes)
    good = steady(flood, settle_s, seconds, limit_ms)
    offered = flood["completed"] + flood["failed"]
    odd = flood["failed"] - flood["rejected"]
    unlike = sum(p["failed"] for p in probes)
    engine = sum(flood["cpu_s_by_thread"].get(name, 0) for name in ENGINE_THREADS)
    cores = [s / flood["duration"] for s in
             (engine, sum(flood["cpu_s_by_thread"].values()) - engine, flood["client_cpu_s"])]
    out = {"peaks": peaks, "peak": peak, "probes": [summary(p) for p in probes], "goodput_limit_ms": limit_ms,
           "flood": summary(flood), "goodput": good, "offered_per_s": offered / seconds,
           "cpu_s_by_thread": flood["cpu_s_by_thread"], "pages_back_s": back,
           "engine_ms_per_answer": {"probes": [p["engine_ms"] for p in probes], "flood": flood["engine_ms"]}}
    rows = [
        (f"closed loops of {batch}, of {queue}, both again afterwards",
         " / ".join(f"{p:.1f}" for p in peaks) + " requests/s", "", None),
        ("offered", f"{offered / seconds:.0f} requests/s for {seconds} s", "10x", offered / seconds > 9 * capacity),
        ("turned away", f"{flood['rejected']} of {offered}; {odd} failed otherwise", "none otherwise", odd == 0),
        ("time to say so, p50 / p99", "{median_reject_ms:.2f} / {p99_reject_ms:.2f} ms".format(**flood),
         "p99 < 20 ms", flood["p99_reject_ms"] < 20 and flood["rejected"] > 0),
        (f"goodput (whole, within {limit_ms:.0f} ms)",
         f"{good:.1f} requests/s, {good / peak:.0%} of the peak", ">= 90 %", good >= 0.9 * peak),
        ("engine's CPU for an answer, before / then", f"{probes[0]['engine_ms']:.1f} / {flood['engine_ms']:.1f} ms",
         "", None),
        ("closed loops", f"{unlike} failed", "0", unlike == 0),
        ("cores in the flood: engine, front ends, generator", " / ".join(f"{c:.2f}" for c in cores), "", None),
    ]
    return out, rows


# ---- throughput ----------------------------------------------------------------------------------


def offline(octavo, flags, count, input_len, output_len, round_number):
    """Output tokens/s of `octavo run --prompts`, from the first request to the last answer."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for i in range(count):
            ids = [16 + (i * 7919 + k * 104729 + round_number * 31) % 900 for k in range(input_len)]
            f.write(json.dumps({"prompt_token_ids": ids, "max_tokens": output_len, "ignore_eos": True}) + "\n")
        f.flush()
        run = subprocess.run([octavo, "run", *flags, "--prompts", f.name], capture_output=True, text=True,
                             cwd=ROOT, check=False)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    tokens = sum(a["usage"]["completion_tokens"] for a in answers if "usage" in a)
    told = re.findall(r"tokens/s, ([\d.]+) s", run.stderr)
    if run.returncode != 0 or tokens != count * output_len or not told:
        raise Failed(f"octavo run: {run.stderr[-2000:]}")
    return tokens / float(told[-1])


def online(octavo, flags, count, input_len, output_len, round_number):
    """Output tokens/s of a server that gets the same requests at once."""
    with Server(octavo, "--max-requests", str(2 * count), model=flags) as server:
        result = load(octavo, server.url, "--input-len", input_len, "--output-len", output_len,
                      "--num-prompts", count, "--seed", round_number)
    if result["failed"]:
        raise Failed(f"throughput: {result['ends']} {result['examples']}")
    return result["output_throughput"]


def throughput_bench(octavo, args):
    """Runs pairs, one order after the other, so that a machine that gets slower is slower for
    both."""
    batch = 16
    count, input_len, output_len, rounds = (16, 16, 8, 1) if args.quick else (64, 32, 64, 3)
    flags = ["--model", serve_server.DEMO, *SHAPE_1_1B, "--max-batch", str(batch), "--kv-memory", "1G"]
    rates = {offline: [], online: []}
    for i in range(rounds):
        for measure in (offline, online)[::1 if i % 2 == 0 else -1]:
            rates[measure].append(measure(octavo, flags, count, input_len, output_len, i))
        print(f"  round {i + 1}: offline {rates[offline][-1]:.2f}, served {rates[online][-1]:.2f} tokens/s", flush=True)
    ratio = statistics.median(served / alone for alone, served in zip(rates[offline], rates[online]))
    out = {"max_batch": batch, "requests": count, "input_len": input_len, "output_len": output_len,
           "offline_tokens_s": rates[offline], "served_tokens_s": rates[online], "median_of_ratios": ratio}
    rows = [
        (f"offline engine, batch {batch}", f"{statistics.median(rates[offline]):.2f} output tokens/s", "", None),
        ("server, median of the rounds' ratios", f"{statistics.median(rates[online]):.2f} output tokens/s, {ratio:.1%}",
         ">= 95 %", ratio >= 0.95),
    ]
    return out, rows


# ---- idle gRPC streams ---------------------------------------------------------------------------

STREAMS = {
    "Health.Watch": "/grpc.health.v1.Health/Watch",
    "SubscribeKvEvents": "/octavo.v1.Inference/SubscribeKvEvents",
}


def find_grpc():
    """Restarts this program in the tests' Python when this Python lacks grpcio and that one has
    it."""
    python = os.path.join(ROOT, "build/clients-venv/bin/python")
    here = sys.prefix.endswith("clients-venv") or importlib.util.find_spec("grpc")
    if not here and os.path.exists(python):
        os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])


def open_streams(grpc, server, method, count, per_channel):
    """Opens `count` calls and leaves them open; each has received the server's first message or its
    headers."""
    channels, calls = [], []
    options = [("grpc.use_local_subchannel_pool", 1)]
    for i in range(count):
        if i % per_channel == 0:
            channels.append(grpc.insecure_channel(f"127.0.0.1:{server.grpc}", options=options))
            grpc.channel_ready_future(channels[-1]).result(timeout=30)
        calls.append(channels[-1].unary_stream(method)(b""))
    if method == STREAMS["Health.Watch"]:
        for call in calls:
            next(call)
    return channels, calls


def grpc_streams_bench(octavo, args):
    try:
        import grpc
    except ImportError:
        raise Failed("grpc_streams needs grpcio, which this Python lacks: tools/make_client_venv.sh makes "
                     "build/clients-venv with it, or run this with a Python that has it") from None
    count, per_channel = (100, 50) if args.quick else (2000, 100)
    out, rows = {"streams": count, "per_connection": per_channel}, []
    for name, method in STREAMS.items():
        with Server(octavo, "--kv-memory", "64M") as server:
            warm = open_streams(grpc, server, method, 20, per_channel)
            time.sleep(1)
            before = server.rss()
            channels, calls = open_streams(grpc, server, method, count, per_channel)
            time.sleep(2)
            bytes_each = (server.rss() - before) / count
            alive = sum(1 for call in calls if call.is_active())
            for call in calls + warm[1]:
                call.cancel()
            time.sleep(2)
            after = server.rss()
            for channel in channels + warm[0]:
                channel.close()
        out[name] = {"bytes_each": bytes_each, "open": alive, "rss_before": before, "rss_after_close": after}
        rows.append((f"{name}, {count} idle", f"{bytes_each / 1000:.1f} kB each, {alive} open", "< 20 kB each",
                     bytes_each < 20000 and alive == count))
    return out, rows


# ---- the command ---------------------------------------------------------------------------------

BENCHES = {
    "load": load_bench,
    "vanish": vanish_bench,
    "overload": overload_bench,
    "throughput": throughput_bench,
    "trace": trace_bench,
    "tiers": tiers_bench,
    "disk": lambda octavo, args: disk_bench(octavo, args, SHAPE_1_1B),
    "grpc_streams": grpc_streams_bench,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", nargs="+", choices=[*BENCHES, "all"], metavar="BENCH")
    parser.add_argument("--octavo", default=os.path.join(ROOT, "build/octavo"), help="the executable")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: does it run?")
    parser.add_argument("--out", help="write JSON there")
    parser.add_argument("--trace", help="the conversation trace")
    parser.add_argument("--trace-requests", type=int, default=0, help="only its first ones")
    parser.add_argument("--trace-output", type=int, default=2, help="tokens of an answer in the trace")
    parser.add_argument("--trace-sample", type=int, default=1000, help="answers compared without prefix cache")
    parser.add_argument("--disk", help="a folder on the disk to measure (default: that of temporary files)")
    args = parser.parse_args()
    octavo = os.path.abspath(args.octavo)
    if args.trace:
        args.trace = os.path.abspath(args.trace)
    if args.quick:
        args.trace_requests = args.trace_requests or 200
        args.trace_sample = min(args.trace_sample, 50)
    names = list(BENCHES) if "all" in args.benches else args.benches
    if "grpc_streams" in names:
        find_grpc()
    results, missed = {"facts": serve_server.facts(octavo), "quick": args.quick}, []
    for name in names:
        print(f"{name}:", flush=True)
        try:
            results[name], rows = BENCHES[name](octavo, args)
        except Failed as e:
            print(f"  not done: {e}", flush=True)
            missed.append(name)
            continue
        serve_server.table(rows)
        missed += [f"{name}: {row[0]}" for row in rows if row[3] is False]
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
            f.write("\n")
    print("all bars met" if not missed else "missed: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
